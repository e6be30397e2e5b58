"""The command line: a thin front on the library."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from clcnn.errors import ClcnnError, DataError

app = typer.Typer(
    help="Close-loop control for trained networks.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
data_app = typer.Typer(help="Data sets: list them, fetch them.", no_args_is_help=True)
app.add_typer(data_app, name="data")

_debug = False
_remedy_on_interrupt = ""

Root = Annotated[
    Path | None, typer.Option(help="Where data lie (default: $CLCNN_DATA or ~/.cache/clcnn).")
]


def run() -> int:
    """Run the command line; errors are one paragraph and exit code 1, wrong use is 2."""
    try:
        app(standalone_mode=True)
    except ClcnnError as error:
        if _debug:
            raise
        Console(stderr=True, soft_wrap=True, highlight=False).print(
            f"{type(error).__name__}: {error}", markup=False
        )
        return 1
    return 0


@app.callback()
def options(
    debug: Annotated[bool, typer.Option(help="Show the traceback of an error.")] = False,
) -> None:
    """Close-loop control for trained networks."""
    global _debug
    _debug = debug


@data_app.command("get")
def data_get(name: str, root: Root = None, via: str | None = None) -> None:
    """Fetch a data set. Example: clcnn data get cifar10"""
    from clcnn.data import get

    typer.echo(get(name, root, via, say=typer.echo))


@app.command()
def train(
    network: str,
    data: str = "cifar10",
    method: str = "standard",
    epochs: int = 40,
    batch_size: int = 128,
    lr: float = 0.2,
    seed: int = 0,
    run: Path | None = None,
    root: Root = None,
    resume: bool = False,
) -> None:
    """Train a network. Example: clcnn train resnet20 --data cifar10 --epochs 40"""
    from clcnn.training import Row, Settings
    from clcnn.training import train as run_training

    class Lines:
        def step(self, epoch: int, step: int, steps: int) -> None:
            pass

        def epoch(self, row: Row) -> None:
            typer.echo("  ".join(f"{k} {v:.5g}" for k, v in row.items()))

    settings = Settings(network, data, method, epochs, batch_size, lr, seed=seed)
    folder = run or Path("runs") / settings.name
    typer.echo(run_training(settings, folder, root=root, resume=resume, watch=Lines()))
