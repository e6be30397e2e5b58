"""Ours beside the paper's: which differences are real, and which of them are shortfalls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from clcnn.evaluation.plan import NONE
from clcnn.evaluation.results import Result
from clcnn.experiments import paper
from clcnn.experiments.run import ORDER
from clcnn.report.gather import GAINS, Experiment

ROUNDING = 0.5
"""The paper prints whole per cents: its figure may be half a point more or less."""

_CONTROLLED = ("linear", "nonlinear", "layerwise")
"""Defences of the paper with an accuracy of their own, to be held against that without control."""

Verdict = Literal["above", "below", "within"]

RULE = (
    "▲ and ▼: the paper's figure, with its rounding of half a point, lies outside of our 95 % "
    "interval (Wilson); the paper gives no interval of its own. No mark: the difference may be "
    "chance."
)
ATTACK_RULE = (
    "Without control, △ and ▽ in their place: the figure says how strong the attack is, and △ is "
    "one weaker than the paper's."
)


def verdict(low: float, high: float, printed: float) -> Verdict:
    """Whether ours, in per cent with its interval, is really above or below what is printed."""
    if low > printed + ROUNDING:
        return "above"
    if high < printed - ROUNDING:
        return "below"
    return "within"


def printed_for(experiment: Experiment, result: Result) -> paper.Cell | None:
    """The paper's figure for a cell of ours; all of the paper's attacks are oblivious.

    An experiment of ours that is none of its tables stands beside the first that has the cell.
    """
    return (
        printed_at(
            experiment.name, experiment.network(result), result.defence, result.attack, result.eps
        )
        if result.threat != "adaptive"
        else None
    )


def printed_at(name: str, network: str, defence: str, attack: str, eps: float) -> paper.Cell | None:
    """The paper's figure in a place, of the table called ``name`` or of the first that has it.

    In a plan that is none of ours a name may mean anything: it stands beside nothing.
    """
    if name not in ORDER:
        return None
    tables = [name] if name in paper.TABLES else list(paper.TABLES)
    found = (paper.find(table, network, defence, attack, eps) for table in tables)
    return next((cell for cell in found if cell is not None), None)


@dataclass(frozen=True)
class Comparison:
    """A complete cell of ours beside the paper's figure, in per cent (or points)."""

    experiment: str
    network: str
    defence: str
    attack: str
    eps: float
    ours: float
    low: float
    high: float
    n: int
    cell: paper.Cell
    plain: float | None = None
    """Ours minus the paper's, in points, of the same network and attack without control.

    On the same images where both were measured on them."""

    @property
    def verdict(self) -> Verdict:
        """Whether ours is really above or below."""
        return verdict(self.low, self.high, self.cell.value)


def verdicts(experiments: Sequence[Experiment]) -> Counter[Verdict]:
    """How many figures of the paper's tables ours are above, below, or as far as can be told alike.

    Attacked networks without control are left out, as in `shortfalls`. What a later table prints
    again counts once.
    """
    found: dict[tuple[str, str, str, float], Verdict] = {}
    for experiment in experiments:
        for one in _compared(experiment):
            found.setdefault((one.network, one.defence, one.attack, one.eps), one.verdict)
    return Counter(found.values())


def shortfalls(experiments: Sequence[Experiment]) -> list[Comparison]:
    """All places of the paper's tables where ours is really below.

    Attacked networks without control are none: a lower figure there is a stronger attack.
    """
    plain = _without_control(experiments)
    compared = [one for experiment in experiments for one in _compared(experiment)]
    # A table that has no uncontrolled row may repeat a cell of one that has.
    paired = {_same(one): one.plain for one in compared if one.plain is not None}
    return [
        replace(one, plain=paired.get(_same(one), plain.get((one.network, one.attack, one.eps))))
        if one.defence in _CONTROLLED and one.plain is None
        else one
        for one in compared
        if one.verdict == "below"
    ]


def _same(one: Comparison) -> tuple[str, str, str, float, float, int]:
    """What cells of two tables have in common that are one measurement."""
    return one.network, one.defence, one.attack, one.eps, one.ours, one.n


def _without_control(experiments: Sequence[Experiment]) -> dict[tuple[str, str, float], float]:
    """How far the networks themselves are from the paper's, before anything defends them."""
    found: dict[tuple[str, str, float], float] = {}
    for experiment in experiments:
        for result in experiment.results:
            cell = printed_for(experiment, result) if result.defence == "none" else None
            if cell is not None and result.n and result.is_complete:
                place = (cell.network, cell.attack, cell.eps)
                found.setdefault(place, 100 * result.accuracy - cell.value)
    return found


def weaker_attacks(experiments: Sequence[Experiment]) -> list[Comparison]:
    """Attacks on a network of the paper's, without control, that leave really more than its own."""
    found: dict[tuple[str, str, float], Comparison] = {}
    for experiment in experiments:
        table = paper.TABLES.get(experiment.name)
        if table is None or table.differences:
            continue
        for result in experiment.results:
            cell = printed_for(experiment, result)
            if cell is None or not is_attack_alone(result.defence, result.attack):
                continue
            one = _comparison(experiment, result, cell)
            if one is not None and one.verdict == "above":
                found.setdefault((one.network, one.attack, one.eps), one)
    return list(found.values())


def is_attack_alone(defence: str, attack: str) -> bool:
    """Whether a figure is of an attack, and of no defence."""
    return defence == "none" and attack != "none"


def _compared(experiment: Experiment) -> Iterator[Comparison]:
    """The complete cells of one of the paper's tables that may fall short."""
    table = paper.TABLES.get(experiment.name)
    if table is None:
        return
    if table.differences:
        yield from _differences(experiment, table.defences[0])
        return
    for result, cell in _beside(experiment):
        if (one := _comparison(experiment, result, cell)) is not None:
            yield one


def _comparison(experiment: Experiment, result: Result, cell: paper.Cell) -> Comparison | None:
    """Ours beside the paper's; nothing of an unfinished cell."""
    if not result.n or not result.is_complete:
        return None
    ours, low, high = (100 * share for share in (result.accuracy, result.low, result.high))
    plain = _plain(experiment, result, cell)
    return Comparison(experiment.plan, *cell.key[1:], ours, low, high, result.n, cell, plain)


def _plain(experiment: Experiment, result: Result, cell: paper.Cell) -> float | None:
    """What the same images are without control, beside the paper's figure for that."""
    pair = experiment.gains.get(result.cell)
    without = paper.find(cell.table, cell.network, NONE, cell.attack, cell.eps)
    if pair is None or pair.n != result.n or without is None or GAINS[experiment.name] != NONE:
        return None
    return 100 * (result.accuracy - pair.difference) - without.value


def _beside(experiment: Experiment) -> Iterator[tuple[Result, paper.Cell]]:
    """The cells that may fall short, each with the paper's figure."""
    for result in experiment.results:
        cell = printed_for(experiment, result)
        if cell is not None and not is_attack_alone(result.defence, result.attack):
            yield result, cell


def unjudged(experiments: Sequence[Experiment]) -> int:
    """How many places of the paper's tables have a cell of ours that is not complete."""
    count = 0
    for experiment in experiments:
        table = paper.TABLES.get(experiment.name)
        if table is None:
            continue
        if not table.differences:
            count += sum(not (r.n and r.is_complete) for r, _ in _beside(experiment))
            continue
        for place in dict.fromkeys(
            (r.network, r.attack, r.eps, r.threat) for r in experiment.results
        ):
            network, attack, eps, threat = place
            weights = experiment.weights.get(network, network)
            cell = paper.find(experiment.name, weights, table.defences[0], attack, eps)
            known = place in experiment.differences and experiment.is_complete(place)
            count += cell is not None and threat != "adaptive" and not known
    return count


def _differences(experiment: Experiment, defence: str) -> Iterator[Comparison]:
    for place, pair in experiment.differences.items():
        network, attack, eps, threat = place
        weights = experiment.weights.get(network, network)
        cell = paper.find(experiment.name, weights, defence, attack, eps)
        if cell is None or threat == "adaptive" or not experiment.is_complete(place):
            continue
        ours, low, high = (100 * share for share in (pair.difference, pair.low, pair.high))
        yield Comparison(experiment.plan, *cell.key[1:], ours, low, high, pair.n, cell)
