"""Where less is left of a defence than a table's worst case says, which has some attacks only."""

from __future__ import annotations

from clcnn.evaluation.plan import NONE
from clcnn.report import words
from clcnn.report.gather import Experiment
from clcnn.report.pool import Pool


def beyond(experiment: Experiment, pool: Pool) -> list[str]:
    """Footnotes of a table: what outside of its worst case leaves less, under either threat."""
    return [*_oblivious(experiment, pool), *_searched(experiment, pool)]


def _oblivious(experiment: Experiment, pool: Pool) -> list[str]:
    """Where another attack that does not know of the control leaves really less."""
    places: dict[tuple[str, str], list[str]] = {}
    for r in experiment.results:
        if r.defence == NONE or not r.eps or not r.n or r.threat == "adaptive":
            continue
        worst = pool.worst(experiment, r.network, r.defence, r.eps, "oblivious")
        if worst is not None and worst.n and r.high < worst.low:
            key = (words.attack(r.attack), words.defence(r.defence))
            places.setdefault(key, []).append(words.level(r.eps))
    found = [f"{attack} of {d} at ε = {words.listed(e)}" for (attack, d), e in places.items()]
    if not found:
        return []
    return [
        "The oblivious worst case is not the least of its row: an attack that is not in it leaves "
        f"really less ({'; '.join(found)})."
    ]


def _searched(experiment: Experiment, pool: Pool) -> list[str]:
    """Where a search of plan adaptive, apart from its worst case, leaves less than that does."""
    found = []
    for place in dict.fromkeys((r.network, r.defence, r.eps) for r in experiment.results if r.eps):
        worst = pool.worst(experiment, *place, "adaptive")
        for r in pool.searches(experiment, *place):
            if worst is not None and worst.n and r.accuracy < worst.accuracy:
                network = experiment.weights.get(place[0], place[0])
                interval = words.interval(100 * r.low, 100 * r.high)
                found.append(
                    f"{words.attack(r.attack)}, {network}, {words.defence(r.defence)}, ε = "
                    f"{words.level(r.eps)}: {words.percent(r.accuracy)} ({interval})"
                )
    if not found:
        return []
    return [f"Who knows of the control finds more with other searches: {'; '.join(found)}."]
