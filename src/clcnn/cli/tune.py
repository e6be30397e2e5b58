"""`clcnn tune`: choose a defence's settings on held-out training images."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from clcnn.cli.app import CHOICE, AsJson, Device, Root, Threads, app, check_place
from clcnn.cli.data import Data
from clcnn.cli.evaluate import MOST_SEED, Bars, FeasibleOnly, Float32, Quick, make_workshop, stopped


class TuneSplit(StrEnum):
    """Images to choose on."""

    heldout = "heldout"
    test = "test"


@app.command()
def tune(
    weights: Annotated[str, typer.Argument(help="A network's name, or a file of weights.")],
    out: Annotated[Path, typer.Option(help="Where the choice is written.")],
    store: Annotated[Path, typer.Option(help="Where the grid is kept.")] = Path("tuning.sqlite"),
    data: Annotated[Data, typer.Option(help="The data set of the network.")] = Data.cifar10,
    cut: Annotated[
        list[str] | None, typer.Option(help="A controlled state; repeat it [default: chosen].")
    ] = None,
    embedding: Annotated[
        str | None, typer.Option(help="linear, autoencoder ... [default: linear].")
    ] = None,
    fit: Annotated[
        int | None,
        typer.Option(help="Training images to fit on [default: 5000; 1000 if quick].", min=1),
    ] = None,
    images: Annotated[
        int | None, typer.Option(help="Images to choose on [default: 500; 100 if quick].", min=1)
    ] = None,
    confirm: Annotated[
        int,
        typer.Option(
            help="Clean images that the choice must stand, or the next one is tried; 0: none.",
            min=0,
        ),
    ] = 0,
    chunk: Annotated[int, typer.Option(help="Images at once.", min=1)] = 250,
    iterations: Annotated[list[int] | None, typer.Option(help="Try these; repeat it.")] = None,
    lr: Annotated[list[float] | None, typer.Option(help="Try these; repeat it.")] = None,
    energy: Annotated[list[float] | None, typer.Option(help="Try these; repeat it.")] = None,
    split: Annotated[
        TuneSplit, typer.Option(help="test is the paper's way, and is marked as that.")
    ] = TuneSplit.heldout,
    paper_literal: Annotated[
        bool,
        typer.Option(
            "--paper-literal",
            help="The authors' code: singular values, averages over features, batch means.",
        ),
    ] = False,
    feasible_only: FeasibleOnly = False,
    accelerate: Annotated[
        bool, typer.Option("--accelerate", help="Iterations on a faster copy, up to rounding.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Decides which images.", min=0, max=MOST_SEED)] = 0,
    quick: Quick = False,
    root: Root = None,
    device: Device = "cpu",
    threads: Threads = None,
    float32: Float32 = None,
    as_json: AsJson = False,
) -> None:
    """Choose a defence's settings. Example: clcnn tune resnet20-cifar10 --out choice.json

    A plan takes the choice by tuned = "choice.json". Repeat the command to go on after a stop.
    """
    from dataclasses import replace

    from clcnn.evaluation import Grid, PlanError, Store
    from clcnn.evaluation import confirm as stand
    from clcnn.evaluation import tune as run_tuning
    from clcnn.evaluation.bench import check_alone
    from clcnn.evaluation.defence import read_defence
    from clcnn.evaluation.kinds import EMBEDDINGS, has_setting
    from clcnn.evaluation.plan import Network
    from clcnn.evaluation.tables import Table

    if paper_literal and embedding:
        raise typer.BadParameter("--paper-literal has its own embedding; leave --embedding out.")
    kind = embedding or "linear"
    if energy and kind in EMBEDDINGS and not has_setting(kind, "energy"):
        raise typer.BadParameter(f"--energy is nothing that {kind!r} embeddings have.")
    table = {
        "paper_literal": paper_literal,
        "accelerate": accelerate,
        "fit": {"images": fit or (1000 if quick else 5000)},
    }
    if not paper_literal:
        table["embedding"] = {"kind": kind}
    if cut:
        table["cuts"] = cut
    chosen_on = images or (100 if quick else 500)
    if 0 < confirm <= chosen_on:
        raise typer.BadParameter(f"--confirm takes more images than the {chosen_on} to choose on.")
    check_place(out, store, Path(weights), writes=CHOICE)
    workshop = make_workshop(root, device, threads, float32)
    grid = Grid(rule="singular", energy=(0.99,)) if paper_literal else Grid()
    try:
        grid = replace(
            grid,
            iterations=tuple(iterations or grid.iterations),
            lr=tuple(lr or grid.lr),
            energy=tuple(energy or grid.energy),
            whole=not feasible_only,
        )
        defence = read_defence(Table("the command", "", table), Path(), ())
    except PlanError as error:
        raise typer.BadParameter(str(error)) from error
    network = Network(weights, data.value)
    if not store.exists():  # what cannot be run leaves none behind
        most = max(chosen_on, confirm)
        check_alone(network, defence, workshop, n=most, split=split.value, sample=quick)
    try:
        with Bars(quiet=as_json) as watch, Store(store) as opened:
            choice = run_tuning(
                network,
                opened,
                defence=defence,
                grid=grid,
                n=chosen_on,
                seed=seed,
                chunk=chunk,
                split=split.value,
                sample=quick,
                workshop=workshop,
                watch=watch,
            )
            if confirm:
                choice = stand(
                    choice,
                    opened,
                    n=confirm,
                    seed=seed,
                    chunk=chunk,
                    sample=quick,
                    workshop=workshop,
                    watch=watch,
                )
    except KeyboardInterrupt:
        raise stopped(store) from None
    choice.write(out)
    if as_json:
        typer.echo(json.dumps(choice.to_dict()))
        return
    best = choice.chosen
    typer.echo(
        f"{best.iterations} iterations, lr {best.lr:g}"
        + ("" if best.energy is None else f", {grid.rule} {best.energy:g}")
        + f": mean {100 * best.goal:.2f} %, clean {100 * best.clean:.2f} % "
        f"(uncontrolled {100 * choice.plain['none']:.2f} %) on {choice.n} {choice.split} images"
    )
    for tried in choice.confirmed:
        typer.echo(
            f"on {tried.n}: {tried.iterations} iterations, lr {tried.lr:g}"
            + ("" if tried.energy is None else f", {grid.rule} {tried.energy:g}")
            + f": clean {100 * tried.clean:.2f} % (uncontrolled {100 * tried.plain:.2f} %), "
            + ("kept" if tried.kept else "not kept")
        )
    if not best.feasible:
        typer.echo(
            f"warning: every setting lost more than {100 * grid.most_lost:g} points of clean "
            "accuracy; this one lost least. Try a higher --energy or a lower --lr."
        )
    if choice.split == "test":
        typer.echo("warning: chosen on test images, so accuracies on them will be too high.")
    typer.echo(f"written: {out}")
