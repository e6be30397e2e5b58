"""`clcnn models`, `clcnn train` and `clcnn card`: networks, and how they are made."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

from clcnn.cli.app import INTERRUPTED, AsJson, Device, Root, Threads, app, usable, wrong_use
from clcnn.cli.bars import TerminalBar
from clcnn.cli.data import Data


class Network(StrEnum):
    """Networks that can be trained."""

    resnet20 = "resnet20"
    densenet40 = "densenet40"


class Method(StrEnum):
    """Training methods."""

    standard = "standard"
    labelsmooth = "labelsmooth"
    fgsm = "fgsm"
    pgd = "pgd"


@app.command()
def models(as_json: AsJson = False) -> None:
    """List the trained networks that come with the package. Example: clcnn models"""
    from clcnn.models import shelf

    if as_json:
        typer.echo(json.dumps({name: asdict(shelf.card(name)) for name in shelf.list()}))
        return
    for name in shelf.list():
        card = shelf.card(name)
        typer.echo(
            f"{name:30} {card.test_accuracy:6.2f} %  {card.parameters / 1e6:.2f} M parameters  "
            f"{card.epochs} epochs, {card.method}"
        )


@app.command()
def train(
    network: Annotated[Network, typer.Argument(help="The network.")],
    data: Annotated[Data, typer.Option(help="What to train on.")] = Data.cifar10,
    method: Annotated[Method, typer.Option(help="How to train.")] = Method.standard,
    epochs: Annotated[int, typer.Option(help="Passes over the images.", min=1)] = 40,
    batch_size: Annotated[int, typer.Option(help="Images a step, over all processes.")] = 128,
    lr: Annotated[float, typer.Option(help="The peak of the one-cycle schedule.")] = 0.2,
    momentum: Annotated[float, typer.Option(help="Nesterov's momentum.")] = 0.9,
    weight_decay: Annotated[float, typer.Option(help="Weight decay.")] = 5e-4,
    sizes: Annotated[
        str, typer.Option(help="Smaller images to begin with: 20x3 is 20 pixels for 3 epochs.")
    ] = "",
    seed: Annotated[int, typer.Option(help="Decides everything random.")] = 0,
    clean_weight: Annotated[
        float, typer.Option(help="Share of the clean loss in fgsm and pgd (lambda).")
    ] = 0.5,
    eps: Annotated[
        float | None, typer.Option(help="Radius in 1/255 [default: 4 for fgsm, 8 for pgd].")
    ] = None,
    eps_start: Annotated[
        float | None, typer.Option(help="Begin with this radius; move to eps by half time.")
    ] = None,
    step_size: Annotated[
        float | None, typer.Option(help="A step of pgd in 1/255 [default: 2].")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Steps of pgd [default: 7].")] = None,
    random_start: Annotated[
        bool | None,
        typer.Option("--random-start/--no-random-start", help="Start pgd at a random point."),
    ] = None,
    start: Annotated[
        str | None, typer.Option("--from", help="Begin with these weights: a name or a file.")
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--run", help="The run's folder [default: runs/NAME].")
    ] = None,
    root: Root = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the run's checkpoint, if there is one.")
    ] = False,
    processes: Annotated[int, typer.Option(help="Processes (or devices) a node.")] = 1,
    nodes: Annotated[int, typer.Option(help="Nodes.")] = 1,
    accelerator: Annotated[
        str, typer.Option("--device", "--accelerator", help="cpu, cuda, mps or auto.")
    ] = "auto",
    precision: Annotated[str, typer.Option(help="32-true, bf16-mixed ...")] = "32-true",
    channels_last: Annotated[bool, typer.Option(help="Memory layout; faster on CPUs.")] = True,
    compiled: Annotated[
        bool, typer.Option("--compile/--no-compile", help="Use torch.compile.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Train a network. Example: clcnn train resnet20 --data cifar10 --method standard --epochs 1

    Each epoch ends in a checkpoint. Repeat the command with --resume to go on after a stop.
    """
    from clcnn.errors import DataError
    from clcnn.training import Settings
    from clcnn.training import train as run_training
    from clcnn.training.loop import CHECKPOINT

    with wrong_use(DataError):
        settings = Settings(
            network=network.value,
            data=data.value,
            method=method.value,
            epochs=epochs,
            batch_size=batch_size,
            lr=lr,
            momentum=momentum,
            weight_decay=weight_decay,
            seed=seed,
            clean_weight=clean_weight,
            eps=eps,
            eps_start=eps_start,
            sizes=sizes,
            step_size=step_size,
            steps=steps,
            random_start=random_start,
            processes=processes,
            nodes=nodes,
            precision=precision,
            channels_last=channels_last,
            compiled=compiled,
        )
    _check_device(accelerator)
    place = folder or Path("runs") / settings.name
    try:
        with _Progress(settings.epochs, as_json) as watch:
            run_training(
                settings,
                place,
                root=root,
                start=None if start is None else _weights(start),
                resume=resume,
                accelerator=accelerator,
                watch=watch,
            )
    except KeyboardInterrupt:
        done = (
            f"the epochs that were done are kept in {place}. Repeat the same command with --resume "
            "to go on."
            if (place / CHECKPOINT).exists()
            else "no epoch was done. Repeat the same command to begin again."
        )
        typer.echo(f"Stopped; {done}", err=True)
        raise typer.Exit(INTERRUPTED) from None
    if as_json and watch.weights is not None:  # of several processes one
        typer.echo(json.dumps({"weights": str(watch.weights), "epochs": watch.rows}))


@app.command()
def card(
    folder: Annotated[Path, typer.Argument(help="The folder of a run that has ended.")],
    out: Annotated[
        Path | None, typer.Option(help="Copy weights and card there [default: the run's folder].")
    ] = None,
    attacked: Annotated[int, typer.Option(help="Test images to attack.", min=1)] = 10_000,
    root: Root = None,
    device: Device = "cpu",
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Measure trained weights and write their card. Example: clcnn card runs/resnet20-cifar10"""
    from clcnn.training.measure import write_card

    place = usable(device, threads)
    say = _to_errors if as_json else typer.echo
    written = write_card(folder, out or folder, attacked, root, place, say)
    typer.echo(written.read_text() if as_json else written, nl=not as_json)


@app.command()
def harden(
    name: Annotated[str, typer.Argument(help="A network that comes with the package.")],
    out: Annotated[Path, typer.Option(help="The folder for a file and a card a preset.")] = Path(
        "hardened"
    ),
    preset: Annotated[
        list[str] | None,
        typer.Option(help="default or strong alone; repeat it [default: both]."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the network behind the filter.")] = 0,
    steps: Annotated[
        int | None,
        typer.Option(min=1, help="Of that network's training, 64 images each [default: 2000]."),
    ] = None,
    filter_only: Annotated[
        bool, typer.Option("--filter-only", help="No network behind it: minutes, not hours.")
    ] = False,
    root: Root = None,
    device: Device = "cpu",
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Fit, calibrate and measure one-pass control. Example: clcnn harden resnet20-cifar10"""
    from clcnn.errors import LoadError
    from clcnn.hardening import STEPS
    from clcnn.models import shelf
    from clcnn.solvers.feedback import PRESETS
    from clcnn.training.harden import harden as write

    if filter_only and steps is not None:
        raise typer.BadParameter("--steps are of the network that --filter-only leaves out.")
    with wrong_use(LoadError):
        shelf.card(name)
    chosen, steps = preset or PRESETS, steps or STEPS
    if unknown := [given for given in chosen if given not in PRESETS]:
        raise typer.BadParameter(
            f"found --preset {unknown[0]!r}; expected some of {', '.join(PRESETS)}."
        )
    place = usable(device, threads)
    say = _to_errors if as_json else typer.echo
    paths = write(name, out, root, seed, steps, chosen, filter_only, place, say)
    if as_json:
        cards = {str(path): json.loads(path.with_suffix(".json").read_text()) for path in paths}
        typer.echo(json.dumps(cards))
        return
    for path in paths:
        typer.echo(path)


def _check_device(name: str) -> None:
    """Refuse what names no device; no memory is taken on one, since processes are yet to start."""
    import torch

    if name in ("auto", "gpu", "tpu"):  # lightning's own
        return
    try:
        torch.device(name)
    except RuntimeError as error:
        raise typer.BadParameter(f"--device {name} is none ({error}).") from error


def _to_errors(sentence: str) -> None:
    """Progress, where the output is JSON and nothing else."""
    typer.echo(sentence, err=True)


def _weights(start: str) -> Path:
    """A weight file by its path, or by its name among those that come with the package."""
    from clcnn.models import shelf

    path = Path(start)
    if path.is_file():
        return path
    shelf.card(start)
    return shelf.SHELF / f"{start}.safetensors"


class _Progress(TerminalBar):
    """A bar for the epoch at a terminal; a line an epoch, unless it is ``quiet``."""

    def __init__(self, epochs: int, quiet: bool = False) -> None:
        self.epochs = epochs
        self.rows: list[dict[str, float]] = []
        self.weights: Path | None = None
        columns = [
            TextColumn("epoch {task.fields[epoch]}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
        ]
        console = Console(highlight=False, soft_wrap=True, quiet=quiet)
        first = os.environ.get("LOCAL_RANK", "0") == "0"  # of several processes one draws
        watched = sys.stdout.isatty() and first and not quiet
        super().__init__(console, columns, watched, epoch="1")

    def step(self, epoch: int, step: int, steps: int) -> None:
        if self.bar is not None:
            self.bar.update(self.task, completed=step, total=steps, epoch=str(epoch + 1))

    def epoch(self, row: dict[str, float]) -> None:
        self.rows.append(row)
        words = [
            f"epoch {row['epoch']:.0f}/{self.epochs}",
            f"loss {row['loss']:.4f}",
            f"train {row['train_accuracy']:.2f} %",
            f"held out {row['heldout_accuracy']:.2f} %",
            f"{row['seconds']:.0f} s",
        ]
        if "perturbed_accuracy" in row:
            words.insert(3, f"perturbed {row['perturbed_accuracy']:.2f} %")
        self.console.print("  ".join(words))

    def done(self, weights: Path) -> None:
        self.weights = weights
        self.console.print(f"weights: {weights}")
