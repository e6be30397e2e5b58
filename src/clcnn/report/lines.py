"""Defences that both kinds of attacker have met: what each of the two leaves of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from clcnn.evaluation.plan import NONE
from clcnn.evaluation.results import Result
from clcnn.report.gather import Experiment, called
from clcnn.report.pool import at
from clcnn.report.trade import SWEEPS

APART = SWEEPS | {"literal"}
"""Experiments about a setting or about the published code: no defences to choose among."""

Pair: TypeAlias = tuple[Result, Result]
"""What is least of a defence's cells, oblivious and adaptive, of attacks that both threats met."""


@dataclass
class Line:
    """One defence of one network in one experiment, and by epsilon what both threats leave."""

    network: str
    plan: str
    defence: str
    subject: str
    clean: Result | None = None
    pairs: dict[float, Pair] = field(default_factory=dict)

    @property
    def group(self) -> str:
        """What its neighbours have in common with it: the same attacks on the same network."""
        return f"{self.network}: {self.plan}"


def lines_of(experiments: Sequence[Experiment]) -> list[Line]:
    """Of each network and experiment the defences that met both threats, and no control, if any is.

    Only lines of one experiment have met the same attacks. Lines of one network are neighbours.
    """
    lines = [
        line
        for e in experiments
        if e.name not in APART
        for line in _lines(e, called(e, experiments))
    ]
    groups = dict.fromkeys((line.network, line.plan) for line in lines if line.defence != NONE)
    networks = list(dict.fromkeys(network for network, _ in groups))
    shown = [line for line in lines if (line.network, line.plan) in groups]
    return sorted(shown, key=lambda line: networks.index(line.network))


def epsilons_of(lines: Sequence[Line], most: int) -> tuple[list[float], list[float]]:
    """The ``most`` epsilons that most defences have met, in their order, and the others."""
    counts = Counter(eps for line in lines if line.defence != NONE for eps in line.pairs)
    kept = sorted(counts, key=lambda eps: (-counts[eps], eps))[:most]
    return sorted(kept), sorted(set(counts) - set(kept))


def _lines(experiment: Experiment, plan: str) -> list[Line]:
    """The defences of an experiment that both threats were measured for."""
    lines: dict[tuple[str, str], Line] = {}
    for result in experiment.results:
        if not result.is_complete:
            continue
        subject = experiment.subject(result.network, result.defence, NONE)
        line = lines.setdefault(
            (result.network, result.defence),
            Line(experiment.network(result), plan, result.defence, subject),
        )
        if result.attack == NONE and (line.clean is None or line.clean.n < result.n):
            line.clean = result
        if (pair := _pair(experiment, result)) is not None:
            line.pairs[result.eps] = _least(pair, line.pairs.get(result.eps))
    return [line for line in lines.values() if line.pairs]


def _least(pair: Pair, known: Pair | None) -> Pair:
    """Of each threat the lower figure; of fewer images none is set beside that of more."""
    if known is None or known[0].n < pair[0].n:
        return pair
    if known[0].n > pair[0].n:
        return known
    first, second = (min(both, key=lambda r: r.accuracy) for both in zip(known, pair, strict=True))
    return first, second


def _pair(experiment: Experiment, result: Result) -> Pair | None:
    """An adaptive cell behind the oblivious one of the same attack and images."""
    if result.threat != "adaptive" or not experiment.is_sought(result):
        return None
    place = (result.network, result.defence, result.attack, result.eps)
    oblivious = at(experiment, *place, "oblivious")
    if oblivious is None or oblivious.n != result.n:
        return None
    return oblivious, result
