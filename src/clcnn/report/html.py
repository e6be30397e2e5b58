"""A document as one HTML file that needs nothing else: style, drawings and pictures are inside."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from html import escape
from importlib import resources

from clcnn.report.blocks import (
    Block,
    Bullets,
    Code,
    Column,
    Details,
    Document,
    Figure,
    Heading,
    Panel,
    Paragraph,
    Pictures,
    Row,
    Span,
    TableBlock,
    pieces,
)
from clcnn.report.svg import element, figure_style, swatch

_NARROW = 480
"""Pixels of a drawing that a phone can show whole."""

_BROAD = 400
"""From here on a drawing shrinks too much with three others in a row."""

_PERCENT = re.compile(r"(?<=\d) %")

_INTERVAL = re.compile(r"\([+−]?\d+\.\d(?:–| to )[^()<]*\)")
"""An interval behind its figure, which is easier to read past if it is small."""


def to_html(document: Document) -> str:
    """The whole page."""
    page_style = resources.files(__package__).joinpath("style.css").read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(document.title)}</title>\n"
        f"<style>\n{figure_style()}{page_style}</style>\n</head>\n<body>\n"
        f"<header><h1>{escape(document.title)}</h1></header>\n{_contents(document)}<main>\n"
        f"{_blocks(document.blocks)}</main>\n</body>\n</html>\n"
    )


def _contents(document: Document) -> str:
    heads = [b for b in document.blocks if isinstance(b, Heading) and b.level == 2]
    items = "".join(f'<li><a href="#{b.anchor}">{_inline(b.text)}</a></li>' for b in heads)
    return f'<nav aria-label="Contents"><ul>{items}</ul></nav>\n' if items else ""


def _blocks(blocks: Sequence[Block]) -> str:
    return "".join(f"{_block(block)}\n" for block in blocks)


def _block(block: Block) -> str:
    match block:
        case Heading():
            h = f"h{block.level}"
            return f'<{h} id="{escape(block.anchor)}">{_inline(block.text)}</{h}>'
        case Paragraph():
            return f'<p class="{block.tone}">{_inline(block.text)}</p>'
        case Bullets():
            items = "".join(f"<li>{_inline(item)}</li>" for item in block.items)
            return f'<ul class="{block.tone}">{items}</ul>'
        case Code():
            return f"<pre><code>{escape(block.text)}</code></pre>"
        case Details():
            inside = _blocks(block.blocks)
            return f"<details><summary>{_inline(block.summary)}</summary>\n{inside}</details>"
        case TableBlock():
            return _table(block)
        case Figure():
            return _figure(block)
        case Pictures():
            return _pictures(block)


def _inline(text: str) -> str:
    return "".join(
        f"<code>{escape(part)}</code>" if code else _plain(part) for code, part in pieces(text)
    )


def _plain(text: str) -> str:
    # No line is broken between a number and its per cent.
    joined = _PERCENT.sub("\u202f%", escape(text))
    return _INTERVAL.sub(lambda found: f"<small>{found[0]}</small>", joined)


def _table(block: TableBlock) -> str:
    """The widest heads of rows are lines of their own, so that a phone has room for values."""
    banner = len(block.corner) > 1
    width = len(block.corner) - banner + len(block.columns)
    body = []
    spans = _head_spans(block.rows)
    for row, lengths in zip(block.rows, spans, strict=True):
        if banner and lengths[0]:
            words = _inline(row.heads[0])
            body.append(
                f'<tr class="banner"><th scope="rowgroup" colspan="{width}">'
                f"<span>{words}</span></th></tr>"
            )
        heads = "".join(
            f'<th scope="row" rowspan="{length}" class="{_depth(depth, row)}">{_inline(head)}</th>'
            for depth, (head, length) in enumerate(zip(row.heads, lengths, strict=True))
            if length and depth >= banner
        )
        cells = "".join(f"<td>{_cell(cell)}</td>" for cell in row.cells)
        # The more heads begin in a row, the stronger the line above it.
        starts = sum(1 for length in lengths[banner:] if length)
        body.append(f'<tr class="starts{starts}">{heads}{cells}</tr>')
    legend = "".join(f"<li>{_inline(line)}</li>" for line in block.legend)
    legend = f'<ul class="legend">{legend}</ul>' if legend else ""
    return (
        f'<figure class="table"><figcaption>{_inline(block.caption)}</figcaption>'
        f'<div class="scroll" tabindex="0" role="region" aria-label="table">'
        f"<table><thead>{_table_head(block, block.corner[banner:])}</thead>"
        f"<tbody>{''.join(body)}</tbody></table></div>{legend}</figure>"
    )


def _depth(depth: int, row: Row) -> str:
    """The class of a row's head; the narrowest stays in sight when a table is scrolled."""
    return f"head{depth}" + (" last" if depth == len(row.heads) - 1 else "")


def _table_head(block: TableBlock, corner_words: Sequence[str]) -> str:
    grouped = any(column.group for column in block.columns)
    deep = 2 if grouped else 1
    corner = "".join(
        f'<th scope="col" rowspan="{deep}" class="{"last" if words is corner_words[-1] else ""}">'
        f"{_inline(words)}</th>"
        for words in corner_words
    )
    top, below = [], []
    for group, members in _groups(block.columns):
        if not group:
            top += [
                f'<th scope="col" rowspan="{deep}">{_inline(column.label)}</th>'
                for column in members
            ]
            continue
        top.append(f'<th scope="colgroup" colspan="{len(members)}">{_inline(group)}</th>')
        below += [f'<th scope="col" class="sub">{_inline(c.label)}</th>' for c in members]
    rows = f"<tr>{corner}{''.join(top)}</tr>"
    return rows + (f"<tr>{''.join(below)}</tr>" if grouped else "")


def _groups(columns: Sequence[Column]) -> list[tuple[str, list[Column]]]:
    groups: list[tuple[str, list[Column]]] = []
    for column in columns:
        if groups and column.group and groups[-1][0] == column.group:
            groups[-1][1].append(column)
        else:
            groups.append((column.group, [column]))
    return groups


def _head_spans(rows: Sequence[Row]) -> list[list[int]]:
    """For each head of each row over how many rows it goes; 0 where an earlier one covers it."""
    spans = [[0] * len(row.heads) for row in rows]
    for place, row in enumerate(rows):
        for depth in range(len(row.heads)):
            start = tuple(row.heads[: depth + 1])
            if place and tuple(rows[place - 1].heads[: depth + 1]) == start:
                continue
            end = place
            while end < len(rows) and tuple(rows[end].heads[: depth + 1]) == start:
                end += 1
            spans[place][depth] = end - place
    return spans


def _cell(cell: Sequence[Span]) -> str:
    return "".join(f'<span class="{span.role}">{_inline(span.text)}</span> ' for span in cell)


def _figure(block: Figure) -> str:
    keys = "".join(
        f'<li><svg viewBox="0 0 28 12" width="28" height="12" aria-hidden="true">{swatch(key)}'
        f"</svg>{_inline(key.label)}</li>"
        for key in block.legend
    )
    legend = f'<ul class="keys">{keys}</ul>' if keys else ""
    panels = "".join(_panel(panel) for panel in block.panels)
    wide = f" p{min(4, len(block.panels))}"
    if block.panels[0].width > _BROAD:
        wide += " broad"
    # A panel by itself is no larger than it was drawn for.
    own = f' style="--drawn: {block.panels[0].width}px"' if len(block.panels) == 1 else ""
    return (
        f'<figure class="drawing"><figcaption>{_inline(block.caption)}</figcaption>{legend}'
        f'<div class="panels{wide}"{own}>{panels}</div></figure>'
    )


def _panel(panel: Panel) -> str:
    """A drawing; one whose text a phone would make too small is scrolled in its box."""
    if panel.width <= _NARROW:
        return f'<div class="panel">{element(panel)}</div>'
    return (
        f'<div class="panel wide" tabindex="0" role="region" aria-label="figure">'
        f"{element(panel)}</div>"
    )


def _pictures(block: Pictures) -> str:
    heads = "".join(f'<th scope="col">{_inline(head)}</th>' for head in block.heads)
    rows = []
    for row in block.rows:
        cells = []
        for picture in row:
            data = base64.b64encode(picture.png).decode()
            cells.append(
                f'<td><img src="data:image/png;base64,{data}" alt="{escape(picture.alt)}" '
                f'width="96" height="96"><span class="below">{_inline(picture.below)}</span></td>'
            )
        rows.append(f"<tr>{''.join(cells)}</tr>")
    return (
        f'<figure class="pictures"><figcaption>{_inline(block.caption)}</figcaption>'
        f'<div class="scroll" tabindex="0" role="region" aria-label="pictures"><table>'
        f"<thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table></div></figure>"
    )
