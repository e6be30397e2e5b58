"""Cells of one experiment that belong beside those of another."""

from __future__ import annotations

from collections.abc import Sequence

from clcnn.evaluation.plan import NONE, WORST
from clcnn.evaluation.results import Result
from clcnn.report.gather import Experiment

REPEATED = ("table1", "table2", "table4", "fashion")
"""Tables whose defences `adaptive` puts to its worst case: they show what is left of them there."""


class Pool:
    """Cells of all experiments, so that both threats stand side by side whoever measured them."""

    def __init__(self, experiments: Sequence[Experiment]) -> None:
        self._cells: dict[tuple[str, str, str, str, float, str], Result] = {}
        self._worst: dict[tuple[str, float, str], Result] = {}
        for experiment in experiments:
            for result in experiment.results:
                self._cells.setdefault(self._key(experiment, result, result.threat), result)
                if experiment.name == "adaptive" and result.attack == WORST:
                    subject = experiment.subject(result.network, result.defence, NONE)
                    self._worst.setdefault((subject, result.eps, result.threat), result)

    def worst(
        self, experiment: Experiment, network: str, defence: str, eps: float, threat: str
    ) -> Result | None:
        """What `adaptive` has of a defence of ``experiment``: same weights, images and settings."""
        return self._worst.get((experiment.subject(network, defence, NONE), eps, threat))

    def beside(self, experiment: Experiment, like: Result, threat: str) -> Result | None:
        """The cell that differs from one of ``experiment`` in its threat at most."""
        own = at(experiment, like.network, like.defence, like.attack, like.eps, threat)
        return own or self._cells.get(self._key(experiment, like, threat))

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
