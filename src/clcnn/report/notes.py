"""Why a figure falls short: paragraphs from a file, each with the command it was measured by.

    [[why]]
    experiment = "table1"        # what is left out matches everything
    defence = "linear"
    attack = ["fgsm", "pgd"]
    eps = [2, 4, 8]
    open = true                  # a part of it stays unexplained
    command = "clcnn evaluate literal.toml --store results.sqlite"
    text = \"\"\"With the batch's mean in place of the fitted one the accuracy is
    {literal / resnet20-cifar10 / linear / pgd / 2 / oblivious}.\"\"\"

A cell in braces (plan / network / defence / attack / eps / threat) becomes its accuracy with its
interval, so that no figure is typed: a cell that the stores do not have is an error, and one that
is not complete says so. The paper's own figures go by their table, and have no threat:
{paper / table1 / resnet20-cifar10 / linear / pgd / 2}. With "A minus B" for a defence it is points
on the same images, where the page has these (`clcnn.report.gather.GAINS`):
{literal / resnet20-cifar10 / literal-rank minus linear / pgd / 4 / oblivious}. With "distance" at
its end it is how far an attack moved its images:
{table1 / resnet20-cifar10 / none / cw / 8 / oblivious / distance}.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

from clcnn.evaluation.results import Result
from clcnn.evaluation.tables import PlanError, Table, read, shown
from clcnn.experiments import paper
from clcnn.experiments.run import form_of
from clcnn.report import words
from clcnn.report.against import Comparison
from clcnn.report.blocks import ReportError
from clcnn.report.gather import GAINS, Experiment

_CELL = re.compile(r"\{([^{}]*)\}")
_PAPER = "paper"
_MINUS = " minus "
_DISTANCE = "distance"
_PARTS = "plan / network / defence / attack / eps / threat"


@dataclass(frozen=True)
class Note:
    """A paragraph, what it was measured by, and which shortfalls it explains."""

    text: str
    command: str
    where: Mapping[str, tuple[str, ...]]
    is_open: bool = False
    """Whether a part of it stays unexplained, as the text says."""

    @property
    def place(self) -> str:
        """Which shortfalls it is for, as it says."""
        return ", ".join(f"{k} = {' or '.join(v)}" for k, v in self.where.items()) or "any"

    def explains(self, short: Comparison) -> bool:
        """Whether the shortfall is one of those the note is for."""
        values = {
            "experiment": (short.experiment, form_of(short.experiment)[0]),
            "network": (short.network,),
            "defence": (short.defence,),
            "attack": (short.attack,),
            "eps": (f"{short.eps:g}",),
        }
        return all(set(values[key]) & set(wanted) for key, wanted in self.where.items())


def read_notes(path: Path, experiments: Sequence[Experiment]) -> list[Note]:
    """The notes of a file, with the cells they name filled in."""
    try:
        table = read(path)
        notes = [_note(entry, experiments) for entry in table.array("why")]
        table.end()
    except PlanError as error:
        said = str(error)
        for plan in ("a plan in TOML", "a plan as in docs/evaluation.md"):
            said = said.replace(plan, "notes in TOML, tables [[why]]")
        raise ReportError(said) from error
    return notes


def _note(table: Table, experiments: Sequence[Experiment]) -> Note:
    where = {}
    for key in ("experiment", "network", "defence", "attack", "eps"):
        given = table.get(key, (str, int, float, list), "a name, a number or a list of them")
        if given is not None:
            values = given if isinstance(given, list) else [given]
            for value in values:
                number = isinstance(value, (int, float)) and not isinstance(value, bool)
                if not (isinstance(value, str) or (number and isfinite(value))):
                    raise table.error(key, shown(value), "a name, or a finite number")
            where[key] = tuple(v if isinstance(v, str) else f"{v:g}" for v in values)
    command = table.text("command")
    is_open = table.flag("open")
    text = _filled(table.text("text"), table, experiments)
    table.end()
    # Not str.split(), which would break the numbers at their thin gaps.
    return Note(re.sub(r"[ \t\r\n]+", " ", text).strip(), command, where, is_open)


def _filled(text: str, table: Table, experiments: Sequence[Experiment]) -> str:
    def figure(match: re.Match[str]) -> str:
        parts = [" ".join(part.split()) for part in match[1].split("/")]  # a line may end within
        far = parts[-1] == _DISTANCE
        parts = parts[:-1] if far else parts
        if len(parts) != 6:
            raise table.error("text", f"{{{match[1]}}}", f"a cell: {{{_PARTS}}}")
        if parts[0] == _PAPER:
            return _printed(match[0], parts[1:], table)
        first, minus, second = parts[2].partition(_MINUS)
        found = _find([*parts[:2], first, *parts[3:]], experiments)
        if found is None:
            raise table.error("text", f"{{{match[1]}}}", "a measured cell of one of the stores")
        if far:
            return _distance(match[0], *found, table)
        return _gained(match[0], *found, second, table) if minus else _accuracy(found[1])

    return _CELL.sub(figure, text)


def _accuracy(result: Result) -> str:
    wanted = "" if result.is_complete else f" of {words.count(result.wanted)} so far"
    interval = words.interval(100 * result.low, 100 * result.high)
    return f"{words.percent(result.accuracy)} % ({interval}, n = {words.count(result.n)}{wanted})"


def _distance(given: str, experiment: Experiment, result: Result, table: Table) -> str:
    """The median length of an attack's perturbations."""
    if result.cell not in experiment.distances:
        raise table.error("text", given, "a cell of attacked images")
    return f"{experiment.distances[result.cell]:.3f} (l_2, median of the images that it moved)"


def _gained(given: str, experiment: Experiment, result: Result, other: str, table: Table) -> str:
    """Points of accuracy that a defence has more than ``other`` on the same images."""
    pair = experiment.gains.get(result.cell)
    if pair is None or GAINS[experiment.name] != other:
        raise table.error("text", given, "a difference that the page has")
    interval = words.interval(100 * pair.low, 100 * pair.high, signed=True)
    so_far = "" if result.is_complete else " so far"
    points = words.points(100 * pair.difference)
    return f"{points} points ({interval}, n = {words.count(pair.n)}{so_far})"


def _printed(given: str, parts: Sequence[str], table: Table) -> str:
    """The paper's figure at (table, network, defence, attack, eps)."""
    cells = paper.CELLS.values()
    found = next((c for c in cells if [*c.key[:4], f"{c.eps:g}"] == [*parts]), None)
    if found is None:
        raise table.error("text", given, "a figure that the paper prints")
    signed = paper.TABLES[found.table].differences
    return f"{words.points(found.value)} points" if signed else f"{found.value:.0f} %"


def _find(
    parts: Sequence[str], experiments: Sequence[Experiment]
) -> tuple[Experiment, Result] | None:
    plan, network, defence, attack, eps, threat = parts
    for experiment in experiments:
        for result in experiment.results:
            names = (result.network, experiment.network(result))
            key = (result.defence, result.attack, f"{result.eps:g}", result.threat)
            here = experiment.plan == plan and network in names
            if here and result.n and key == (defence, attack, eps, threat):
                return experiment, result
    return None
