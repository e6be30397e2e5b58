"""Cells of one experiment that belong beside those of another."""

from __future__ import annotations

from collections.abc import Sequence

from clcnn.evaluation.plan import NONE, WORST
from clcnn.evaluation.results import Result
from clcnn.report.gather import Experiment

REPEATED = ("table1", "table2", "table3", "table4", "table5", "fashion")
"""Tables whose defences `adaptive` puts to its worst case: they show what is left of them there."""


class Pool:
    """Cells of all experiments, so that both threats stand side by side whoever measured them."""

    def __init__(self, experiments: Sequence[Experiment]) -> None:
        self._cells: dict[tuple[str, str, str, str, float, str], Result] = {}
        self._first: dict[tuple[object, ...], tuple[Experiment, Result]] = {}
        self._worst: dict[tuple[str, float, str], Result] = {}
        self._searches: dict[tuple[str, float], list[Result]] = {}
        self.members: tuple[str, ...] = ()
        """The attacks that `adaptive` has the worst case of."""
        for experiment in experiments:
            for result in experiment.results:
                key = self._key(experiment, result, result.threat)
                self._cells.setdefault(key, result)
                if result.is_complete:
                    self._first.setdefault((*key, result.n), (experiment, result))
                if experiment.name != "adaptive":
                    continue
                subject = experiment.subject(result.network, result.defence, NONE)
                if result.attack != WORST and result.threat == "adaptive" and result.is_complete:
                    self._searches.setdefault((subject, result.eps), []).append(result)
                if result.attack == WORST:
                    self._worst.setdefault((subject, result.eps, result.threat), result)
                    attacks = experiment.described.get("attacks", {})
                    self.members = tuple(attacks.get(WORST, {}).get("of") or ())

    def worst(
        self, experiment: Experiment, network: str, defence: str, eps: float, threat: str
    ) -> Result | None:
        """What `adaptive` has of a defence of ``experiment``: same weights, images and settings."""
        return self._worst.get((experiment.subject(network, defence, NONE), eps, threat))

    def searches(
        self, experiment: Experiment, network: str, defence: str, eps: float
    ) -> list[Result]:
        """What else knows of the control in `adaptive`, beside its worst case."""
        return self._searches.get((experiment.subject(network, defence, NONE), eps), [])

    def beside(self, experiment: Experiment, like: Result, threat: str) -> Result | None:
        """The cell that differs from one of ``experiment`` in its threat at most."""
        own = at(experiment, like.network, like.defence, like.attack, like.eps, threat)
        return own or self._cells.get(self._key(experiment, like, threat))

    def remeasured(self, experiment: Experiment) -> list[tuple[Result, Result, Experiment]]:
        """Cells without control whose outcome on as many images another experiment has otherwise.

        Each with the first such cell, and where that stands. Worst cases differ by the epsilons
        before them, too, and are left out.
        """
        found = []
        for result in experiment.results:
            if result.attack == WORST:
                continue
            key = (*self._key(experiment, result, result.threat), result.n)
            if result.defence == NONE and result.is_complete and key in self._first:
                other, first = self._first[key]
                if other is not experiment and first.accuracy != result.accuracy:
                    found.append((result, first, other))
        return found

    @staticmethod
    def _key(
        experiment: Experiment, result: Result, threat: str
    ) -> tuple[str, str, str, str, float, str]:
        subject = experiment.subject(result.network, result.defence, result.attack)
        place = (experiment.network(result), result.defence, result.attack, result.eps)
        return (subject, *place, threat)


def at(
    experiment: Experiment, network: str, defence: str, attack: str, eps: float, threat: str
) -> Result | None:
    """The cell of an experiment at one place of its tables."""
    key = (network, defence, attack, eps, threat)
    for result in experiment.results:
        if (result.network, result.defence, result.attack, result.eps, result.threat) == key:
            return result
    return None
