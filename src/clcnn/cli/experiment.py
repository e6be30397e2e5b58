"""`clcnn experiment`: the paper's tables and figures, each by its name."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from clcnn.cli.app import AsJson, Device, Root, Threads, app, check_place
from clcnn.cli.evaluate import (
    Bars,
    FeasibleOnly,
    Float32,
    Quick,
    Seed,
    as_numbers,
    make_workshop,
    stopped,
)

if TYPE_CHECKING:
    from clcnn.evaluation.choice import Choice
    from clcnn.evaluation.store import Store
    from clcnn.evaluation.workshop import Workshop
    from clcnn.experiments.choices import Task
    from clcnn.experiments.run import Outcome, Request


class Experiment(StrEnum):
    """What can be run."""

    toy = "toy"
    theory = "theory"
    table1 = "table1"
    manifold = "manifold"
    adaptive = "adaptive"
    table5 = "table5"
    table3 = "table3"
    table2 = "table2"
    fashion = "fashion"
    table4 = "table4"
    literal = "literal"
    feedback = "feedback"
    rivals = "rivals"
    robust = "robust"
    strength = "strength"
    corruptions = "corruptions"
    detector = "detector"
    all = "all"
    tune = "tune"


_UNSTORED = (Experiment.toy, Experiment.theory)
"""Experiments of seconds, which keep nothing in a store."""


@app.command()
def experiment(
    name: Annotated[
        Experiment,
        typer.Argument(help="One of the paper's; all, by their worth; tune: choose settings."),
    ],
    store: Annotated[Path, typer.Option(help="Where results are kept.")] = Path("results.sqlite"),
    csv: Annotated[
        Path | None,
        typer.Option(
            help="The file to write [default: results/NAME.csv; NAME-part.csv if rows are missing]."
        ),
    ] = None,
    choices: Annotated[Path, typer.Option(help="Where chosen settings lie.")] = Path(
        "results/choices"
    ),
    quick: Quick = False,
    most: Annotated[int | None, typer.Option(help="Images a cell at most.", min=1)] = None,
    only: Annotated[
        list[Experiment] | None, typer.Option(help="With tune: for these alone; repeat it.")
    ] = None,
    feasible_only: FeasibleOnly = False,
    how_far: Annotated[
        bool,
        typer.Option("--status", help="Measure nothing: say how much of it the store holds."),
    ] = False,
    weights: Annotated[
        Path | None, typer.Option(help="A folder with further NAME.safetensors.")
    ] = None,
    seed: Seed = None,
    root: Root = None,
    device: Device = "cpu",
    threads: Threads = None,
    float32: Float32 = None,
    as_json: AsJson = False,
) -> None:
    """Repeat an experiment of the paper. Example: clcnn experiment table1 --quick

    Without --quick it needs settings that were chosen before: clcnn experiment tune. Repeat the
    command to go on after a stop; run it twice at once to share the work. Fewer images (--most) or
    another --seed have results of their own. Where a network or chosen settings are missing, the
    other rows are measured, and the exit code is 1. With --json all, tune and their --status print
    an object a line.
    """
    from clcnn.errors import DataError
    from clcnn.evaluation import Bench, PlanError
    from clcnn.evaluation.store import folder_of
    from clcnn.evaluation.watch import Silent
    from clcnn.experiments import tuning
    from clcnn.experiments.run import ORDER, PLANS, Request, plan_of

    if csv is not None and name in (Experiment.all, Experiment.tune):
        raise typer.BadParameter(f"--csv names one file, and {name} writes several.")
    if name is Experiment.tune and (quick or seed is not None):
        raise typer.BadParameter("tune has no --quick and no --seed: a choice is made in earnest.")
    if only and name is not Experiment.tune:
        raise typer.BadParameter("--only goes with tune.")
    if feasible_only and name is not Experiment.tune:
        raise typer.BadParameter("--feasible-only goes with tune.")
    stored = [plan for plan in PLANS if plan != "detector"]
    if how_far and name.value not in (*stored, "all"):
        raise typer.BadParameter(f"--status goes with what a store holds, and {name} is in none.")
    if how_far and csv is not None:
        raise typer.BadParameter("--status measures nothing, and has no --csv.")
    if most is not None and name in _UNSTORED:
        raise typer.BadParameter(f"--most bounds test images of a network, and {name} has none.")
    if csv is not None:
        check_place(csv, store, folder_of(store))
        if name is Experiment.toy:
            check_place(_beside(csv, "-states"), csv, store)
    workshop = with_weights(make_workshop(root, device, threads, float32), weights)
    request = Request(quick, choices, most, seed)
    if how_far:
        _status(
            stored if name is Experiment.all else (name.value,), store, request, workshop, as_json
        )
        return
    if name.value in PLANS:
        plan, _ = plan_of(name.value, request, workshop)
        if not store.exists():  # what cannot be run leaves none behind
            Bench(plan, workshop, folder_of(store), Silent()).check()
    chosen_for = [str(one) for one in only or ()]
    if name is Experiment.tune and not store.exists():
        tuning.check(chosen_for, choices, most=most, workshop=workshop)
    failed: list[str] = []
    missing: list[str] = []
    try:
        with Bars(quiet=as_json) as watch, _opened(store, name) as opened:
            if name is Experiment.tune:
                made = tuning.run(
                    chosen_for,
                    opened,
                    choices,
                    most=most,
                    whole=not feasible_only,
                    workshop=workshop,
                    watch=watch,
                )
                _tell(made, as_json)
                return
            for each in ORDER if name is Experiment.all else (name.value,):
                try:
                    missing += _run(each, opened, request, workshop, watch, csv, as_json)
                except (PlanError, DataError) as error:
                    if name is not Experiment.all:
                        raise
                    failed.append(f"{each}: {error}")
                    watch.say(failed[-1])
    except KeyboardInterrupt:
        if name in _UNSTORED:
            raise
        raise stopped(store) from None
    for sentence in failed:
        typer.echo(f"not run: {sentence}", err=True)
    for sentence in dict.fromkeys(missing):
        typer.echo(f"missing: {sentence}", err=True)
    if failed or missing:
        raise typer.Exit(1)


@contextmanager
def _opened(store: Path, name: Experiment) -> Iterator[Store]:
    """The store; for what keeps nothing in one, an empty one that goes at the end."""
    from clcnn.evaluation import Store

    with (
        TemporaryDirectory() as folder,
        Store(Path(folder) / "unused.sqlite" if name in _UNSTORED else store) as opened,
    ):
        yield opened


def with_weights(workshop: Workshop, folder: Path | None) -> Workshop:
    """The workshop with the networks of a folder: NAME.safetensors, NAME/NAME.safetensors."""
    from clcnn.evaluation import PlanError, Workshop
    from clcnn.models.weights import read_weights

    if folder is None:
        return workshop
    files = sorted([*folder.glob("*.safetensors"), *folder.glob("*/*.safetensors")])
    found = {f.stem: f for f in files if f.parent == folder or f.parent.name == f.stem}
    if not found:
        raise PlanError(f"found no weights in {folder}; expected files NAME.safetensors.")
    networks = {name: read_weights(file)[0] for name, file in found.items()}
    return Workshop(workshop.root, workshop.device, networks, float32=workshop.float32)


def _run(
    name: str,
    store: Store,
    request: Request,
    workshop: Workshop,
    watch: Bars,
    csv: Path | None,
    as_json: bool,
) -> tuple[str, ...]:
    """Run one experiment, write and show what it found; return what it lacked."""
    from clcnn.data.files import write_text
    from clcnn.experiments.run import run

    outcome = run(name, store, request, workshop=workshop, watch=watch)
    part = "-part" if outcome.missing else ""  # a whole file is not replaced by less
    file = csv or Path("results") / f"{outcome.name}{part}.csv"
    parts = {_beside(file, one.name.removeprefix(outcome.name)): one for one in outcome.beside}
    for path, one in {file: outcome, **parts}.items():
        write_text(path, one.csv())
    if as_json:
        facts = {
            "experiment": outcome.name,
            "rows": [as_numbers(row) for row in outcome.rows],
            "missing": outcome.missing,
            "warnings": outcome.warnings,
        }
        typer.echo(json.dumps(facts))
        return outcome.missing
    show(outcome)
    for sentence in outcome.warnings:
        typer.echo(f"warning: {sentence}")
    typer.echo(f"written: {', '.join(map(str, [file, *parts]))}")
    return outcome.missing


def _beside(file: Path, part: str) -> Path:
    """Where a part of the results goes that has a file of its own."""
    return file.with_name(f"{file.stem}{part}.csv")


def _status(
    names: Iterable[str], path: Path, request: Request, workshop: Workshop, as_json: bool
) -> None:
    """A line for each experiment: cells and samples stored, and what is not there to measure it."""
    from dataclasses import asdict

    from clcnn.errors import DataError
    from clcnn.evaluation import PlanError, Store
    from clcnn.evaluation.archive import readable
    from clcnn.evaluation.tables import UnpreparedError
    from clcnn.experiments.status import Progress, status

    if not path.exists():
        raise UnpreparedError(
            f"found no store {path}; expected one that `clcnn experiment` wrote (--store)."
        )
    with readable([path]) as (there,), Store(there) as opened:
        for name in names:
            try:
                found = status(name, opened, request, workshop)
            except (PlanError, DataError) as error:  # not a single cell can be measured
                found = Progress(0, 0, 0, 0, name=name, missing=(str(error),))
            if as_json:
                typer.echo(json.dumps(asdict(found)))
                continue
            line = f"{found.name}: {found.complete} of {found.cells} cells, {found.stored} of "
            more = ", and what is missing:" if found.missing else ""
            typer.echo(f"{line}{found.samples} samples{more}")
            for sentence in found.missing:
                typer.echo(f"  {sentence}")
            if found.hint:
                typer.echo(f"  {found.hint}")


def show(outcome: Outcome) -> None:
    """The rows in columns."""
    rows = [outcome.columns, *(tuple(row.values()) for row in outcome.rows)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    typer.echo(outcome.name)
    for cells in rows:
        typer.echo("  ".join(text.ljust(w) for text, w in zip(cells, widths, strict=True)).rstrip())


def _tell(made: Iterable[tuple[Task, Choice]], as_json: bool) -> None:
    """A line for each choice, as soon as it is made."""
    for task, choice in made:
        best = choice.chosen
        facts = {
            "written": str(task.file),
            "iterations": best.iterations,
            "lr": best.lr,
            "energy": best.energy,
            "objective": best.objective,
            "clean": best.clean,
            "lost": best.lost,
            "feasible": best.feasible,
        }
        if as_json:
            typer.echo(json.dumps(facts))
            continue
        energy = "" if best.energy is None else f", {choice.grid.rule} {best.energy:g}"
        typer.echo(
            f"{task.file}: {best.iterations} iterations, lr {best.lr:g}{energy}; mean "
            f"{100 * best.goal:.1f} %, clean {100 * best.clean:.1f} % on {choice.n} "
            f"{choice.split} images" + ("" if best.feasible else "; loses too much clean accuracy")
        )
