"""`clcnn evaluate`: measure what a plan asks for, and go on where an earlier run was ended."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn

from clcnn.cli.app import INTERRUPTED, AsJson, Device, Root, Threads, app, check_place, usable
from clcnn.cli.bars import TerminalBar

if TYPE_CHECKING:
    from clcnn.evaluation.plan import Entry, Plan
    from clcnn.evaluation.results import Result
    from clcnn.evaluation.workshop import Workshop

Float32 = Annotated[
    bool | None,
    typer.Option(
        "--float32/--bfloat16",
        help="Go on from results that were never rounded to bfloat16, or round where a plan and "
        "the processor allow it [default: the latter; refused if a store has more of the former].",
        show_default=False,
    ),
]
Quick = Annotated[
    bool, typer.Option("--quick", help="Few images of the sample that comes with the package.")
]
MOST_SEED = 2**32 - 1  # as in clcnn.evaluation.tables, which help is not to wait for
Seed = Annotated[
    int | None, typer.Option(help="Another seed than the plan's.", min=0, max=MOST_SEED)
]
FeasibleOnly = Annotated[
    bool,
    typer.Option(
        "--feasible-only",
        help="Tuning: settings that lose too much clean accuracy meet no attack; the same choice.",
    ),
]
_NAMES = ("network", "defence", "attack", "threat")
"""Columns that are names, whatever they look like."""


@app.command()
def evaluate(
    plan: Annotated[Path, typer.Argument(help="The plan, a TOML file.")],
    store: Annotated[Path, typer.Option(help="Where results are kept.")] = Path("results.sqlite"),
    quick: Quick = False,
    csv: Annotated[Path | None, typer.Option(help="Write the results there too.")] = None,
    seed: Seed = None,
    root: Root = None,
    device: Device = "cpu",
    threads: Threads = None,
    float32: Float32 = None,
    as_json: AsJson = False,
) -> None:
    """Measure defences under attack. Example: clcnn evaluate plan.toml --store results.sqlite

    Repeat the command to go on after a stop; run it twice at once to share the work.
    """
    from dataclasses import replace

    from clcnn.data.files import write_text
    from clcnn.evaluation import read_plan, run, to_csv, warnings_of
    from clcnn.evaluation.store import folder_of
    from clcnn.experiments.run import SEED

    wanted = read_plan(plan)
    _check_name(wanted.name)
    if csv is not None:
        check_place(csv, plan, store, folder_of(store))
    wanted = wanted.quick() if quick else wanted
    if seed is not None and seed != wanted.seed:  # another plan: a store lists both
        wanted = replace(wanted, name=f"{wanted.name}{SEED}{seed}", seed=seed)
    try:
        with Bars(quiet=as_json) as watch:
            workshop = make_workshop(root, device, threads, float32)
            found = run(wanted, store, workshop=workshop, watch=watch)
    except KeyboardInterrupt:
        raise stopped(store) from None
    if csv is not None:
        write_text(csv, to_csv(found))
    signs = warnings_of(found)
    if as_json:
        rows = [{**as_numbers(result.row()), "cost": result.cost} for result in found]
        typer.echo(json.dumps({"results": rows, "warnings": [str(sign) for sign in signs]}))
        return
    show(wanted, found)
    for sign in signs:
        typer.echo(f"warning: {sign}")


def _check_name(name: str) -> None:
    """A report would set a plan that has an experiment's name beside the paper's figures."""
    from clcnn.evaluation import PlanError
    from clcnn.experiments.run import ORDER, form_of
    from clcnn.report.gather import TUNING

    if form_of(name)[0] in ORDER or name.startswith(TUNING):
        raise PlanError(
            f"found name = {name!r}, which is one of our experiments (clcnn experiment); expected "
            "a name of your own, such as 'mine'."
        )


def as_numbers(row: Mapping[str, str]) -> dict[str, str | float | None]:
    """The line of a CSV file for JSON: numbers as such, nothing where there is none."""
    return {name: _number(name, text) for name, text in row.items()}


def _number(name: str, text: str) -> str | float | None:
    if name in _NAMES:
        return text
    try:
        value = float(text)
    except ValueError:
        return text or None
    if not math.isfinite(value):
        return None
    return int(value) if value.is_integer() and "." not in text else value


def make_workshop(
    root: Path | None, device: str, threads: int | None, float32: bool | None = None
) -> Workshop:
    """Networks and images on a device that is there."""
    from clcnn.evaluation import Workshop

    return Workshop(root=root, device=usable(device, threads), float32=float32)


def stopped(store: Path) -> typer.Exit:
    """Say how to go on after Ctrl-C."""
    kept = f"what was measured is kept in {store}" if store.exists() else "nothing was measured yet"
    typer.echo(f"Stopped; {kept}. Repeat the same command to go on.", err=True)
    return typer.Exit(INTERRUPTED)


def show(plan: Plan, found: list[Result]) -> None:
    """The results as a table; per cent, and the cost in plain forwards."""
    heads = ("network", "defence", "attack", "eps", "threat", "n", "accuracy", "95 %", "cost")
    rows: list[tuple[str, ...]] = [heads]
    for result in found:
        row = result.row()
        interval = f"{row['low']}..{row['high']}"
        names = (row[head] for head in heads[:7])
        rows.append((*names, interval, f"{result.cost:.1f} x"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    typer.echo(plan.name)
    for cells in rows:
        typer.echo("  ".join(text.ljust(w) for text, w in zip(cells, widths, strict=True)).rstrip())


class Bars(TerminalBar):
    """A bar over all samples at a terminal, with the cell and the time left; else a line a cell."""

    def __init__(self, quiet: bool = False) -> None:
        self.quiet = quiet
        columns = [
            TextColumn("{task.fields[cell]}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("samples, {task.fields[left]}"),
        ]
        console = Console(highlight=False, soft_wrap=True, stderr=True)
        watched = sys.stderr.isatty() and not quiet
        super().__init__(console, columns, watched, cell="", left="")

    def cell(self, place: int, cells: int, entry: Entry) -> None:
        words = [entry.network, entry.defence, entry.attack]
        words += [f"eps {entry.eps:g}", entry.threat] if entry.eps else []
        name = f"cell {place + 1}/{cells}: {', '.join(words)}"
        if self.bar is not None:
            self.bar.update(self.task, cell=name)
        elif not self.quiet:
            self.console.print(name)

    def samples(self, done: int, total: int, seconds_left: float | None) -> None:
        if self.bar is not None:
            self.bar.update(self.task, completed=done, total=total, left=time_left(seconds_left))

    def say(self, sentence: str) -> None:
        self.console.print(sentence)  # to stderr: nothing that JSON would mind


def time_left(seconds: float | None) -> str:
    """Seconds in words."""
    if seconds is None:
        return "time left not known yet"
    if seconds < 90:
        return f"{seconds:.0f} s left"
    minutes = seconds / 60
    return f"{minutes:.0f} min left" if minutes < 90 else f"{minutes / 60:.1f} h left"
