"""The same document as Markdown, with its drawings and pictures as files beside it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape

from clcnn.report.blocks import (
    Block,
    Bullets,
    Code,
    Details,
    Document,
    Figure,
    Heading,
    Paragraph,
    Pictures,
    Span,
    TableBlock,
    pieces,
)
from clcnn.report.svg import standalone

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~!&$])")
_LINE_START = re.compile(r"^(\s*(?=[-+=])|\s*\d+(?=[.)](?:\s|$)))", re.MULTILINE)
_TONES = {"warning": "**Warning.** ", "lead": "", "muted": "", "plain": "", "good": ""}


def to_markdown(document: Document, folder: str) -> tuple[str, dict[str, bytes]]:
    """The text, and the files it shows by their names in ``folder``."""
    files: dict[str, bytes] = {}
    blocks = [_block(block, folder, files) for block in document.blocks]
    text = "\n\n".join([f"# {_inline(document.title)}", *blocks])
    return text.rstrip() + "\n", files


def _block(block: Block, folder: str, files: dict[str, bytes]) -> str:
    match block:
        case Heading():
            return f"{'#' * block.level} {_inline(block.text)}"
        case Paragraph():
            return _TONES[block.tone] + _inline(block.text)
        case Bullets():
            return "\n".join(f"- {_inline(item)}" for item in block.items)
        case Code():
            fence = "`" * max(3, 1 + max(map(len, re.findall("`+", block.text)), default=0))
            return f"{fence}\n{block.text}\n{fence}"
        case Details():
            inside = "\n\n".join(_block(b, folder, files) for b in block.blocks)
            return f"<details><summary>{_raw(block.summary)}</summary>\n\n{inside}\n\n</details>"
        case TableBlock():
            return _table(block)
        case Figure():
            name = f"{block.name}.svg"
            files[name] = standalone(block).encode()
            caption = _inline(block.caption)
            return f"**{caption}**\n\n![{_inline(block.name)}]({folder}/{name})"
        case Pictures():
            return _pictures(block, folder, files)


def _inline(text: str) -> str:
    """Every character that Markdown or HTML would take for more than itself is escaped."""
    parts = [
        f"`{' '.join(part.split())}`" if code else _SPECIAL.sub(r"\\\1", " ".join(part.split("\n")))
        for code, part in pieces(text)
    ]
    return _LINE_START.sub(r"\1\\", "".join(parts))


def _raw(text: str) -> str:
    """Text within a tag of HTML, where Markdown's own signs would be shown."""
    return "".join(
        f"<code>{escape(part)}</code>" if code else escape(part) for code, part in pieces(text)
    )


def _in_cell(text: str) -> str:
    return "".join(
        f"`{part.replace('|', chr(92) + '|')}`" if code else _SPECIAL.sub(r"\\\1", part)
        for code, part in pieces(" ".join(text.split("\n")))
    )


def _table(block: TableBlock) -> str:
    heads = [*block.corner, *(f"{c.group} {c.label}".strip() for c in block.columns)]
    lines = [
        f"| {' | '.join(_in_cell(head) for head in heads)} |",
        f"|{'|'.join([' --- '] * len(block.corner) + [' ---: '] * len(block.columns))}|",
    ]
    for row in block.rows:
        cells = [*(_in_cell(head) for head in row.heads), *(_cell(cell) for cell in row.cells)]
        lines.append(f"| {' | '.join(cells)} |")
    parts = [f"**{_inline(block.caption)}**", "\n".join(lines)]
    if block.legend:
        parts.append("\n".join(f"- {_inline(line)}" for line in block.legend))
    return "\n\n".join(parts)


def _cell(cell: Sequence[Span]) -> str:
    """The value and its marks in one line, each other piece in one of its own."""
    lines: list[str] = []
    for span in cell:
        text = _in_cell(span.text)
        if span.role == "value":
            text = f"**{text}**"
        if lines and span.role in ("up", "down", "apart", "doubt"):
            lines[-1] += f" {text}"
        else:
            lines.append(text)
    return "<br>".join(lines)


def _pictures(block: Pictures, folder: str, files: dict[str, bytes]) -> str:
    lines = [
        f"| {' | '.join(_in_cell(head) for head in block.heads)} |",
        f"|{'|'.join([' :---: '] * len(block.heads))}|",
    ]
    for place, row in enumerate(block.rows):
        cells = []
        for column, picture in enumerate(row):
            name = f"{block.name}-{place + 1}-{column + 1}.png"
            files[name] = picture.png
            alt = picture.alt.replace('"', "'").replace("<", "").replace("|", "")
            image = f'<img src="{folder}/{name}" width="96" alt="{alt}">'
            cells.append(image + (f"<br>{_in_cell(picture.below)}" if picture.below else ""))
        lines.append(f"| {' | '.join(cells)} |")
    return f"**{_inline(block.caption)}**\n\n" + "\n".join(lines)
