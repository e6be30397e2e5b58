"""Run an experiment by its name: what it measured, as rows of a CSV file, and what it lacked."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from clcnn.evaluation.plan import NONE, Plan
from clcnn.evaluation.results import COLUMNS, Result, compare, warnings_of
from clcnn.evaluation.runner import run as run_plan
from clcnn.evaluation.store import Store
from clcnn.evaluation.watch import Silent, Watch
from clcnn.evaluation.workshop import Workshop
from clcnn.experiments import detector, figure2, manifold, theorem
from clcnn.experiments.averages import means
from clcnn.experiments.blueprints import blueprint, ready
from clcnn.experiments.choices import made_otherwise

ORDER = (
    "toy",
    "theory",
    "table1",
    "manifold",
    "adaptive",
    "table5",
    "table3",
    "table2",
    "fashion",
    "table4",
    "literal",
    "feedback",
    "rivals",
    "robust",
    "strength",
    "corruptions",
    "detector",
)
"""All experiments: those of seconds first, then by their worth."""

PLANS = tuple(name for name in ORDER if name not in ("toy", "theory"))
"""The experiments that have a plan."""

CHOICES = Path("results") / "choices"

QUICK, MOST, SEED = "-quick", "-most-", "-seed-"
"""What the names of plans say of their forms, in this order."""

_FORM = re.compile(
    rf"(?P<name>{'|'.join(ORDER)})(?:{QUICK})?(?:{MOST}(?P<most>\d+))?(?:{SEED}(?P<seed>\d+))?"
)

PAIRS = {"table3": ("linear", "reactive"), "robust": ("feedback-strong", NONE)}
"""The experiments about a difference on the same images: of which defence to which."""

Row = dict[str, str]


@dataclass(frozen=True)
class Outcome:
    """The rows of one experiment, in percent where they are accuracies.

    ``missing`` says which networks or choices are not there, ``warnings`` what the evaluation
    flagged.
    """

    name: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    missing: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    beside: tuple[Outcome, ...] = ()
    """What goes into a file of its own beside the rows."""

    def csv(self) -> str:
        """As a CSV file."""
        text = io.StringIO()
        writer = csv.DictWriter(text, fieldnames=self.columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)
        return text.getvalue()


@dataclass(frozen=True)
class Request:
    """How experiments are run.

    ``quick`` takes few images of the shipped sample and the settings stated in the plans, in place
    of those in ``choices``. ``most`` bounds the images of a cell.
    """

    quick: bool = False
    choices: Path = CHOICES
    most: int | None = None
    seed: int | None = None


def run(
    name: str,
    store: Store,
    request: Request | None = None,
    *,
    workshop: Workshop | None = None,
    watch: Watch | None = None,
) -> Outcome:
    """Measure what the store does not hold yet of an experiment; return all of it."""
    request = request or Request()
    workshop, watch = workshop or Workshop(), watch or Silent()
    seed = request.seed or 0
    label = f"{name}{QUICK}" if request.quick else name
    label = f"{label}{SEED}{seed}" if seed else label
    if name == "toy":
        made = figure2.make(seed, request.quick)
        points = Outcome(f"{label}-states", figure2.STATES, tuple(figure2.states(made)))
        rows = tuple(figure2.run(made))
        return Outcome(label, figure2.COLUMNS, rows, beside=(points,))
    if name == "theory":
        settings = theorem.Settings(seed=seed, samples=16 if request.quick else 64)
        return Outcome(label, theorem.COLUMNS, tuple(theorem.run(settings)))
    plan, missing = plan_of(name, request, workshop)
    doubts = () if request.quick else made_otherwise(name, request.choices, workshop)
    for sentence in (*missing, *doubts):
        watch.say(sentence)
    if name == "manifold":
        rows = tuple(manifold.run(plan, store, workshop, watch))
        return Outcome(plan.name, manifold.COLUMNS, rows, missing, doubts)
    if name == "detector":
        rows = tuple(detector.run(plan, store, workshop, watch))
        return Outcome(plan.name, detector.COLUMNS, rows, missing, doubts)
    found = run_plan(plan, store, workshop=workshop, watch=watch)
    signs = (*doubts, *map(str, warnings_of(found)))
    lines = [result.row() for result in found]
    if name in PAIRS:
        lines = differences(store, found, *PAIRS[name]) + lines
    if name == "corruptions":
        lines += means(store, found)
    return Outcome(plan.name, COLUMNS, tuple(lines), missing, signs)


def plan_of(name: str, request: Request, workshop: Workshop) -> tuple[Plan, tuple[str, ...]]:
    """The plan of an experiment as it is asked for, and the networks and choices that it lacks.

    Fewer images or another seed than the plan's own make another plan, which its name says.
    """
    made = ready(
        blueprint(name, quick=request.quick), workshop, request.choices, quick=request.quick
    )
    plan = made.plan
    if request.most is not None and request.most < max(entry.n for entry in plan.entries):
        entries = tuple(replace(e, n=min(e.n, request.most)) for e in plan.entries)
        chunk = min(plan.chunk, request.most)
        plan = replace(plan, name=f"{plan.name}{MOST}{request.most}", entries=entries, chunk=chunk)
    if request.seed is not None and request.seed != plan.seed:
        plan = replace(plan, name=f"{plan.name}{SEED}{request.seed}", seed=request.seed)
    return plan, made.missing


def form_of(plan: str) -> tuple[str, tuple[str, ...]]:
    """The experiment that a plan is a form of, and in which ways it is not the whole of it."""
    match = _FORM.fullmatch(plan)
    if match is None:
        return plan.removesuffix(QUICK), ()
    ways = []
    if match["most"]:
        ways.append(f"at most {match['most']} images a cell")
    if match["seed"]:
        ways.append(f"seed {match['seed']}")
    return match["name"], tuple(ways)


def differences(store: Store, found: Sequence[Result], first: str, second: str) -> list[Row]:
    """``first`` minus ``second`` on the same images, in points, with the paired interval (Tango).

    ``accuracy``, ``low`` and ``high`` are of the difference, ``seconds`` too.
    """
    others = {_place(result): result for result in found if result.defence == second}
    rows = []
    for result in found:
        other = others.get(_place(result))
        if result.defence != first or other is None or not (result.n and other.n):
            continue
        pair = compare(store, result, other)
        rows.append(
            {
                **result.row(),
                "defence": f"{first}-{second}",
                "n": str(pair.n),
                "accuracy": f"{100 * pair.difference:.2f}",
                "low": f"{100 * pair.low:.2f}",
                "high": f"{100 * pair.high:.2f}",
                "seconds": f"{result.seconds - other.seconds:.6f}",
            }
        )
    return rows


def _place(result: Result) -> tuple[str, str, float, str]:
    return result.network, result.attack, result.eps, result.threat
