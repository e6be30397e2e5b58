"""The `clcnn` command itself: options that all commands share, and how errors are shown."""

from __future__ import annotations

import json
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from clcnn.errors import ClcnnError
from clcnn.memory import keep_memory

if TYPE_CHECKING:
    import torch

INTERRUPTED = 130
"""The exit code after Ctrl-C."""

STOPPED = "Stopped; nothing half-written was left. Repeat the same command to begin again."
"""Of a command that keeps nothing to go on from."""


class _Interruptible(TyperGroup):
    """The commands; Ctrl-C where a command says nothing of its own ends it in one sentence."""

    def invoke(self, *arguments: Any, **named: Any) -> Any:
        _shared["begun"] = True
        try:
            return super().invoke(*arguments, **named)
        except KeyboardInterrupt:
            typer.echo(STOPPED, err=True)
            raise typer.Exit(INTERRUPTED) from None


app = typer.Typer(
    cls=_Interruptible,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

_shared = {"debug": False, "begun": False}

Root = Annotated[
    Path | None, typer.Option(help="Where data lie [default: $CLCNN_DATA or ~/.cache/clcnn].")
]
Device = Annotated[str, typer.Option(help="Where networks run: cpu, cuda ...")]
Threads = Annotated[int | None, typer.Option(help="Threads of the CPU [default: torch's].", min=1)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]


def run(arguments: list[str] | None = None) -> int:
    """Run the command line: an error is one paragraph and exit code 1, wrong use is 2."""
    _shared["begun"] = False
    try:
        app(arguments, prog_name="clcnn")
    except SystemExit as end:
        if end.code == INTERRUPTED and not _shared["begun"]:  # while options were read
            typer.echo(STOPPED, err=True)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except Exception as error:
        if _shared["debug"]:
            traceback.print_exc()
            return _code(error)
        hint = "" if isinstance(error, ClcnnError) else " Run `clcnn --debug ...` for its origin."
        typer.echo(f"{type(error).__name__}: {error}{hint}", err=True)
        return _code(error)
    return 0


def _code(error: Exception) -> int:
    """2 if a plan asks for what cannot be done, as a wrong option does; else 1."""
    from clcnn.evaluation.tables import PlanError, UnpreparedError

    wrong = isinstance(error, PlanError) and not isinstance(error, UnpreparedError)
    return 2 if wrong else 1


CHOICE = "settings that were chosen"
"""What `clcnn tune` writes."""


def check_place(path: Path, *used: Path | None, writes: str = "") -> None:
    """Fail before the work, not after it, where no file can be written or may be replaced.

    ``used`` are the files that the command reads or writes besides. Weights and controls are
    replaced by nothing, chosen settings only by what ``writes`` such.
    """
    from clcnn.data.files import explained
    from clcnn.evaluation.schema import is_store

    if path.is_dir():
        raise typer.BadParameter(f"{path} is a folder; expected a file to write.")
    if path.resolve() in {other.resolve() for other in used if other is not None}:
        raise typer.BadParameter(
            f"{path} is named twice; expected a file of its own to write. Nothing was written."
        )
    if is_store(path):
        raise typer.BadParameter(
            f"{path} is a store of results, which would be lost; expected another file to write. "
            "It was left as it is."
        )
    with explained(path):
        held = _held(path)
    if held and held != writes:
        raise typer.BadParameter(
            f"{path} holds {held}, which would be lost; expected another file to write. It was "
            "left as it is."
        )
    with explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass


def _held(path: Path) -> str:
    """What there is in a file that took long to make: weights, a control, chosen settings."""
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        start = file.read(64)
        if b'"kind": "clcnn choice"' in start:
            return CHOICE
        length = int.from_bytes(start[:8], "little")
        if start[8:9] != b"{" or length > path.stat().st_size:
            return ""
        file.seek(8)
        try:
            facts = json.loads(file.read(length)).get("__metadata__", {})
        except ValueError:
            return ""
    return "" if "attack" in facts else "weights or a control"  # examples are soon made again


@contextmanager
def wrong_use(*kinds: type[ClcnnError]) -> Iterator[None]:
    """Errors of these kinds come from the options given: exit code 2, not 1."""
    try:
        yield
    except kinds as error:
        raise typer.BadParameter(str(error)) from error


def usable(device: str, threads: int | None) -> torch.device:
    """A device that is there; from now on the CPU has so many threads."""
    import torch

    if threads is not None:
        torch.set_num_threads(threads)
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise typer.BadParameter(f"--device {device} cannot be used ({error}).") from error
    return torch.device(device)


def _tell_version(asked: bool) -> None:
    if asked:
        from clcnn._version import __version__

        typer.echo(f"clcnn {__version__}")
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show an error's traceback.")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_tell_version)
    ] = False,
) -> None:
    """Close-loop control for trained neural networks."""
    _shared["debug"] = debug
    keep_memory()
