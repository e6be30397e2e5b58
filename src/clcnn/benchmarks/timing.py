"""Times side by side: every candidate once in each round, compared within the round."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

Candidate = Callable[[], object]


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

    A busy machine slows the members of one round alike, so ratios are taken within rounds. A
    candidate's time never counts what the one before left running on a GPU (``synchronise``).
    """
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for round_ in range(rounds + 1):
        for name, run in candidates.items():
            if synchronise:
                torch.cuda.synchronize()
            start = time.perf_counter()
            run()
            if synchronise:
                torch.cuda.synchronize()
            if round_:
                seconds[name].append(time.perf_counter() - start)
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
