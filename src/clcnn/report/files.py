"""Results that are no accuracies (growth by layer, bounds): CSV files, shown as they are."""

from __future__ import annotations

import csv
from pathlib import Path

from clcnn.report import words
from clcnn.report.blocks import (
    Block,
    Column,
    Details,
    Heading,
    Paragraph,
    ReportError,
    Row,
    Span,
    TableBlock,
)
from clcnn.report.growth import figure_of

_FEW = 12
"""Rows that are shown at once below a figure of them."""

_MOST = 400
"""Rows of a file that are shown."""


def file_blocks(path: Path) -> list[Block]:
    """The section of one file, called as the file is; empty columns are left out."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            lines = list(csv.reader(file))
    except FileNotFoundError:
        raise ReportError(f"there is no file {path}; expected results as CSV.") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ReportError(f"{path} is no CSV file ({error}); expected results.") from error
    if len(lines) < 2 or len(lines[0]) < 2:
        raise ReportError(
            f"{path} has no rows of values; expected a head and at least one row of two columns."
        )
    head, *rows = lines
    uneven = next((k for k, row in enumerate(rows) if len(row) != len(head)), None)
    if uneven is not None:
        raise ReportError(
            f"{path}, line {uneven + 2}: found {len(rows[uneven])} values; expected {len(head)}, "
            "one for each name in the first line."
        )
    left = len(rows) - _MOST
    told = [k for k in range(1, len(head)) if any(row[k] for row in rows)]
    table = TableBlock(
        caption=f"{path.name}, {words.several(len(rows), 'row')}",
        corner=head[:1],
        columns=[Column(head[k]) for k in told],
        rows=[Row(row[:1], [[Span(row[k], "interval")] for k in told]) for row in rows[:_MOST]],
        legend=[f"{left} more rows are in the file."] if left > 0 else [],
    )
    name = words.EXPERIMENTS.get(path.stem, path.stem)
    try:
        figure = figure_of(path.stem, head, [dict(zip(head, row, strict=True)) for row in rows])
    except (ValueError, KeyError) as error:
        raise ReportError(
            f"{path} cannot be drawn ({error}); expected what `clcnn experiment` writes to a file "
            "of that name. Make it again, or call it otherwise."
        ) from error
    drawn = [] if figure is None else [figure]
    shown: Block = Details(table.caption, [table]) if drawn and len(rows) > _FEW else table
    if drawn and left > 0:
        shown = Paragraph(f"Drawn from {words.several(len(rows), 'row')} of {path.name}.", "muted")
    about = words.ABOUT.get(path.stem)
    said = [] if about is None else [Paragraph(about)]
    return [Heading(2, name, words.slug(f"file {path.stem}")), *said, *drawn, shown]
