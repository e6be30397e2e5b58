"""`clcnn report`: stores of results as one page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from clcnn.cli.app import AsJson, Device, Root, Threads, app, check_place, wrong_use
from clcnn.cli.evaluate import make_workshop


@app.command()
def report(
    stores: Annotated[list[Path], typer.Argument(help="From `clcnn evaluate`, packed or not.")],
    out: Annotated[Path, typer.Option(help="The page, one file.")] = Path("report.html"),
    markdown: Annotated[
        Path | None, typer.Option(help="The same as Markdown; figures go beside it.")
    ] = None,
    notes: Annotated[
        Path | None, typer.Option(help="Why cells fall short, a TOML file (clcnn.report.notes).")
    ] = None,
    csv: Annotated[
        list[Path] | None, typer.Option(help="Show this CSV file too; may be repeated.")
    ] = None,
    choice: Annotated[
        list[Path] | None,
        typer.Option(help="Show the grid of this choice too, if no store has it; may be repeated."),
    ] = None,
    pictures: Annotated[
        int, typer.Option(help="Images shown under attack and control; 0: none.", min=0)
    ] = 6,
    root: Root = None,
    device: Device = "cpu",
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Turn results into a page. Example: clcnn report results.sqlite --out report.html

    It may be made at any time: cells that are not complete are shown as such.
    """
    from clcnn.report import ReportError, make_report, write_html, write_markdown
    from clcnn.report.writing import check_name

    read = (*stores, notes, *(csv or ()), *(choice or ()))
    check_place(out, *read)
    if markdown is not None:
        check_place(markdown, out, *read)
        with wrong_use(ReportError):
            check_name(markdown)
    document = make_report(
        stores,
        notes=notes,
        tables_of=csv or (),
        choices=choice or (),
        pictures=pictures,
        workshop=make_workshop(root, device, threads),
        tell=lambda sentence: typer.echo(sentence, err=True),
    )
    write_html(document, out)
    written = [out, *([] if markdown is None else write_markdown(document, markdown))]
    if as_json:
        typer.echo(json.dumps({"written": [str(path) for path in written]}))
        return
    for path in (out, markdown):
        if path is not None:
            typer.echo(f"written: {path}")
