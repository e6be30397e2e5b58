"""`clcnn store`: results as one compressed file, and back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from clcnn.cli.app import AsJson, app

store_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
app.add_typer(store_app, name="store", help="Results as one compressed file, and back.")


@store_app.command()
def pack(
    store: Annotated[Path, typer.Argument(help="What `clcnn evaluate` wrote.")],
    out: Annotated[Path | None, typer.Option(help="The archive [default: STORE.xz].")] = None,
    listed_only: Annotated[
        bool,
        typer.Option("--listed-only", help="Without older results, once all is measured again."),
    ] = False,
    without: Annotated[
        list[str] | None, typer.Option(help="A plan that is not listed in the copy; repeat it.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compress all that is measured so far. Example: clcnn store pack results.sqlite

    `clcnn report` reads the archive as it is. Adversarial examples and fits are not in it.
    """
    from clcnn.evaluation.archive import pack as write

    _tell(write(store, out, listed_only=listed_only, without=without or ()), as_json)


@store_app.command()
def unpack(
    archive: Annotated[Path, typer.Argument(help="What `clcnn store pack` wrote.")],
    out: Annotated[
        Path | None, typer.Option(help="The store [default: the archive's name without .xz].")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a store again, to go on from. Example: clcnn store unpack results.sqlite.xz"""
    from clcnn.evaluation.archive import unpack as write

    _tell(write(archive, out), as_json)


def _tell(file: Path, as_json: bool) -> None:
    facts = {"written": str(file), "bytes": file.stat().st_size}
    typer.echo(json.dumps(facts) if as_json else f"written: {file}")
