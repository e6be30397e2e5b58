"""What a report is made of; two writers turn it into HTML and into Markdown.

Text is plain, but for `words in backticks`, which are code. Writers escape everything else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from clcnn.errors import ClcnnError

Tone = Literal["plain", "lead", "muted", "warning", "good"]
Role = Literal[
    "value", "up", "down", "apart", "interval", "paper", "state", "muted", "doubt", "remark"
]


class ReportError(ClcnnError, ValueError):
    """A report cannot be made of what was given."""


@dataclass(frozen=True)
class Heading:
    """The start of a section; ``anchor`` is where links lead."""

    level: int
    text: str
    anchor: str


@dataclass(frozen=True)
class Paragraph:
    """Some sentences."""

    text: str
    tone: Tone = "plain"


@dataclass(frozen=True)
class Bullets:
    """Short items, one below the other."""

    items: Sequence[str]
    tone: Tone = "plain"


@dataclass(frozen=True)
class Span:
    """A piece of a table's cell, and what part it plays."""

    text: str
    role: Role = "value"


@dataclass(frozen=True)
class Column:
    """The head of a column; columns with the same ``group`` stand under one common head."""

    label: str
    group: str = ""


@dataclass(frozen=True)
class Row:
    """The heads of a row, from the widest to the narrowest, and its cells."""

    heads: Sequence[str]
    cells: Sequence[Sequence[Span]]


@dataclass(frozen=True)
class TableBlock:
    """A table; equal neighbours among the row heads are one head over several rows."""

    caption: str
    corner: Sequence[str]
    columns: Sequence[Column]
    rows: Sequence[Row]
    legend: Sequence[str] = ()


@dataclass(frozen=True)
class Key:
    """One entry of a figure's legend: a series' number, its name, how it is drawn."""

    series: int
    label: str
    dashed: bool = False
    filled: bool = True
    line: bool = True


@dataclass(frozen=True)
class Panel:
    """The inside of an SVG of the given size, and what it shows in words."""

    width: int
    height: int
    body: str
    alt: str


@dataclass(frozen=True)
class Figure:
    """Panels side by side with one legend; ``name`` is that of its file."""

    name: str
    caption: str
    panels: Sequence[Panel]
    legend: Sequence[Key] = ()


@dataclass(frozen=True)
class Picture:
    """A PNG, what it shows, and what is written below it."""

    png: bytes
    alt: str
    below: str = ""


@dataclass(frozen=True)
class Pictures:
    """Rows of small pictures under common heads; ``name`` is the start of their files' names."""

    name: str
    caption: str
    heads: Sequence[str]
    rows: Sequence[Sequence[Picture]]


@dataclass(frozen=True)
class Code:
    """Text as it is."""

    text: str


@dataclass(frozen=True)
class Details:
    """What opens when asked for."""

    summary: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Document:
    """A whole report."""

    title: str
    blocks: Sequence[Block] = field(default_factory=list)


Block: TypeAlias = Heading | Paragraph | Bullets | TableBlock | Figure | Pictures | Code | Details


def pieces(text: str) -> list[tuple[bool, str]]:
    """Text cut at paired backticks: (is code, piece); an unpaired backtick is a character."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        parts[-2:] = ["`".join(parts[-2:])]
    return [(place % 2 == 1, part) for place, part in enumerate(parts) if part]
