"""Times side by side: every candidate once in each round, compared within the round."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

Candidate = Callable[[], object]

_LEAST = 0.3  # seconds that a candidate runs in a round: a quick one is run again and again


@dataclass(frozen=True)
class Timing:
    """Seconds, and the ratio to the unit: medians over the rounds with their quartiles."""

    name: str
    seconds: float
    ratio: float
    low: float
    high: float
    rounds: int

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)


def compare(
    candidates: Mapping[str, Candidate], unit: str, rounds: int, synchronise: bool = False
) -> list[Timing]:
    """Time all candidates in turn, ``rounds`` times, after one round that does not count.

    A busy machine slows the members of one round alike, so ratios are taken within rounds. In each
    a quick candidate is run several times, and their mean counts: what the one before left in
    caches and memory is felt by the first of them only. A candidate's time never counts what the
    one before left running on a GPU (``synchronise``).
    """

    def timed(run: Candidate, times: int) -> float:
        if synchronise:
            torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(times):
            run()
        if synchronise:
            torch.cuda.synchronize()
        return (time.perf_counter() - start) / times

    times = {
        name: max(1, round(_LEAST / max(timed(run, 1), 1e-4))) for name, run in candidates.items()
    }
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, run in candidates.items():
            seconds[name].append(timed(run, times[name]))
    return [_timing(name, taken, seconds[unit]) for name, taken in seconds.items()]


def _timing(name: str, taken: Sequence[float], unit: Sequence[float]) -> Timing:
    ratios = [a / b for a, b in zip(taken, unit, strict=True)]
    low, high = quartiles(ratios)
    middle = statistics.median(ratios)
    return Timing(name, statistics.median(taken), middle, low, high, len(ratios))


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """The first and the third quartile; a single value is both."""
    if len(values) < 2:
        return values[0], values[0]
    first, _, third = statistics.quantiles(values, n=4, method="inclusive")
    return first, third


def exponent(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """b of seconds ~ a sizes^b, by least squares on logarithms: 1 is linear growth."""
    x = torch.tensor(sizes, dtype=torch.float64).log()
    y = torch.tensor(seconds, dtype=torch.float64).log()
    x, y = x - x.mean(), y - y.mean()
    return float((x @ y) / (x @ x))
