"""`clcnn bench`: what control costs, measured side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from clcnn.cli.app import INTERRUPTED, Device, Root, Threads, app, check_place, usable, wrong_use


@app.command()
def bench(
    network: Annotated[
        str, typer.Option(help="A name from `clcnn models`, or a file of weights.")
    ] = "resnet20-cifar10",
    out: Annotated[
        Path, typer.Option(help="Writes OUT.json after every section, and OUT.png.")
    ] = Path("bench"),
    fit: Annotated[int, typer.Option(help="Training images to fit on.")] = 5000,
    n: Annotated[int, typer.Option(help="Test images for accuracies.")] = 1000,
    batch: Annotated[int, typer.Option(help="Images a batch.")] = 64,
    iterations: Annotated[int, typer.Option(help="Iterations of the solvers.")] = 5,
    lr: Annotated[float, typer.Option(help="Learning rate of the solvers.")] = 0.005,
    energy: Annotated[float, typer.Option(help="Share of the energy to keep.")] = 0.99,
    rounds: Annotated[int, typer.Option(help="Rounds of every timing.")] = 7,
    threads: Threads = None,
    section: Annotated[
        list[str] | None,
        typer.Option(
            help="Only this section: costs, leaving, growth, fitting or accuracy; repeat it."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Decides everything random.", min=0)] = 0,
    device: Device = "cpu",
    root: Root = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="The shipped sample, without the slow references.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Measure what control costs. Example: clcnn bench --quick"""
    from clcnn.benchmarks.figure import draw
    from clcnn.benchmarks.run import SECTIONS, Settings, run
    from clcnn.errors import DataError

    usable(device, threads)
    with wrong_use(DataError):
        settings = Settings(
            network=network,
            fit=fit,
            n=n,
            batch=batch,
            iterations=iterations,
            lr=lr,
            energy=energy,
            rounds=rounds,
            threads=threads,
            sections=tuple(section) if section else SECTIONS,
            seed=seed,
            device=device,
            quick=quick,
        )
    # Not with_suffix, which would take the end of a name such as v1.2 for one.
    table, picture = Path(f"{out}.json"), Path(f"{out}.png")
    check_place(table)
    check_place(picture)

    kept: list[Path] = []

    def keep(result: dict[str, Any]) -> None:
        table.write_text(json.dumps(result, indent=1) + "\n")
        kept.append(table)

    def say(words: str) -> None:
        typer.echo(words, err=True)

    try:
        result = run(settings, root, say=say, keep=keep)
    except KeyboardInterrupt:
        done = f"the sections that were done are in {table}" if kept else "no section was done"
        again = "Repeat the same command to begin again; --section chooses what is left."
        typer.echo(f"Stopped; {done}. {again}", err=True)
        raise typer.Exit(INTERRUPTED) from None
    draw(result, picture)
    typer.echo(json.dumps(result, indent=1) if as_json else "\n".join(tables(result)))
    say(f"wrote {table} and {picture}")


def tables(result: dict[str, Any]) -> list[str]:
    """What was measured, as lines of text."""
    lines = [f"{result['settings']['network']}; {result['images']}; {result['machine']}"]
    for name, rows in result["embeddings"].items():
        lines += ["", f"Embedding: {name}"]
        lines += [
            f"  {row['cut']:8} {row['kind']:20} rank {row['rank']:5} of {row['d']:5}  "
            f"{row['multiply_adds'] / 1e6:7.2f} M multiply-adds  kept {row['kept_fitted']:.4f} of "
            f"fitted, {row['kept_heldout']:.4f} of held-out states"
            for row in rows
        ]
    if "costs" in result:
        lines += ["", "Cost in plain forward passes (median, quartiles)"]
        lines += [_cost(row) for row in result["costs"]]
    if "leaving" in result:
        found = result["leaving"]
        lines += ["", f"Samples leave at J <= {found['tolerance']:.4g}"]
        lines += [
            f"{_cost(row)}  {row['mean_steps']:.2f} steps a sample" for row in found["times"][1:]
        ]
    for row in result.get("growth", ()):
        points = ", ".join(f"{point['size']}: {point['ratio']:.3g}" for point in row["points"])
        lines += ["", f"Growth with {row['with']}: exponent {row['exponent']:.2f} ({points})"]
    if "fitting" in result:
        lines += ["", "Fitting", *_fitting(result["fitting"])]
    if "accuracy_costs" in result:
        lines += ["", "What these embeddings cost, in plain forward passes (median, quartiles)"]
        lines += [_cost(row) for row in result["accuracy_costs"]]
    if "accuracy" in result:
        lines += ["", "Accuracy under attacks that ignore the control (95 % interval)"]
        lines += [_accuracy(row) for row in result["accuracy"]]
    return lines


def _cost(row: dict[str, Any]) -> str:
    return f"  {row['name']:46} {row['ratio']:8.2f}  ({row['low']:.2f} to {row['high']:.2f})"


def _fitting(found: dict[str, Any]) -> list[str]:
    return [
        "  " + "  ".join(f"{key} {_short(value)}" for key, value in row.items())
        for row in found["rows"]
    ]


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _accuracy(row: dict[str, Any]) -> str:
    words = (
        f"  {row['attack']:30} {row['defence']:18} n = {row['n']}  {100 * row['accuracy']:5.1f} "
        f"({100 * row['low']:.1f} to {100 * row['high']:.1f})"
    )
    if "difference" in row:
        words += (
            f"  {100 * row['difference']:+.1f} ({100 * row['difference_low']:+.1f} to "
            f"{100 * row['difference_high']:+.1f}) to {row['to']}"
        )
    return words
