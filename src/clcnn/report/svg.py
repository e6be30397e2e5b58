"""Drawing by hand: scales, axes and marks as SVG that follows the page's colours.

Colours are CSS variables (`figure.css`), so that one drawing serves light and dark.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib import resources
from xml.sax.saxutils import quoteattr

from clcnn.report.blocks import Figure, Key, Panel

COLOURS = 7
"""How many series have colours of their own, the grey of series 0 left out."""

_ROUNDS = 3
"""How often a colour is used, each time with other strokes."""

_LEGEND_LINE = 20

_LETTER = 8
"""Pixels of a title's letter, in wide fonts."""


def number(value: float) -> str:
    """A coordinate, short and always the same."""
    return f"{value:.1f}".removesuffix(".0")


def figure_style() -> str:
    """The colours of figures, light and dark."""
    return resources.files(__package__).joinpath("figure.css").read_text(encoding="utf-8")


def tint(series: int) -> str:
    """The classes of a series: 0 alone is grey, and a colour that comes again has other strokes."""
    if series == 0:
        return "s0"
    again, colour = divmod(series - 1, COLOURS)
    return f"s{colour + 1}" + (f" r{again % _ROUNDS}" if again % _ROUNDS else "")


@dataclass(frozen=True)
class Scale:
    """Values in [low, high] to pixels in [start, end]; by their logarithms if ``log``."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """The pixel of a value."""
        low, high = self._of(self.low), self._of(self.high)
        share = (self._of(value) - low) / ((high - low) or 1.0)
        return self.start + share * (self.end - self.start)

    def _of(self, value: float) -> float:
        return math.log10(value) if self.log else value


@dataclass
class Plot:
    """A panel that is being drawn: a title, an area with axes, and marks in it."""

    title: str
    x: Scale
    y: Scale
    width: int
    height: int
    parts: list[str] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        title: str,
        x: tuple[float, float],
        y: tuple[float, float],
        *,
        width: int = 300,
        height: int = 220,
        log_x: bool = False,
        log_y: bool = False,
        left: int = 44,
        bottom: int = 42,
    ) -> Plot:
        """An empty panel for values in these ranges."""
        across = Scale(*x, left, width - 12, log_x)
        up = Scale(*y, height - bottom, 30, log_y)
        plot = cls(title, across, up, width, height)
        room = width - left - 4
        start = (
            left if len(title) * _LETTER <= room else max(8, round(width - len(title) * _LETTER))
        )
        plot.text(start, 16, title, "title")
        return plot

    def text(self, x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> None:
        """Words at a point."""
        self.parts.append(
            f'<text x="{number(x)}" y="{number(y)}" class="{kind}" text-anchor="{anchor}">'
            f"{escape(words)}</text>"
        )

    def line(self, points: Sequence[tuple[float, float]], kind: str) -> None:
        """A line through pixels."""
        path = " ".join(f"{number(x)},{number(y)}" for x, y in points)
        self.parts.append(f'<polyline points="{path}" class="{kind}"/>')

    def x_axis(self, ticks: Sequence[tuple[float, str]], label: str) -> None:
        """Ticks below the area, and what is measured."""
        base = self.y.start
        self.line([(self.x.start, base), (self.x.end, base)], "axis")
        for value, words in ticks:
            at = self.x(value)
            self.line([(at, base), (at, base + 4)], "axis")
            self.text(at, base + 16, words, "tick", "middle")
        self.text((self.x.start + self.x.end) / 2, self.height - 6, label, "label", "middle")

    def y_axis(self, ticks: Sequence[tuple[float, str]], label: str) -> None:
        """Ticks, thin lines across the area, and what is measured."""
        for value, words in ticks:
            at = self.y(value)
            self.line([(self.x.start, at), (self.x.end, at)], "grid")
            self.text(self.x.start - 6, at + 4, words, "tick", "end")
        if not label:
            return
        middle = (self.y.start + self.y.end) / 2
        self.parts.append(
            f'<text transform="translate(11 {number(middle)}) rotate(-90)" class="label" '
            f'text-anchor="middle">{escape(label)}</text>'
        )

    def whisker(self, x: float, low: float, high: float, series: int, across: bool = False) -> None:
        """An interval, upright at ``x`` or ``across`` at the height ``x``; all in pixels."""
        ends = [(x, low), (x, high)]
        self.line([(b, a) for a, b in ends] if across else ends, f"whisker {tint(series)}")

    def mark(self, x: float, y: float, series: int, filled: bool = True) -> None:
        """A mark at a pixel."""
        self.parts.append(marker(x, y, series, filled))

    def done(self, alt: str) -> Panel:
        """The panel."""
        return Panel(self.width, self.height, "".join(self.parts), alt)


def marker(x: float, y: float, series: int, filled: bool, r: float = 4.0) -> str:
    """A circle, filled or hollow."""
    kind = f'class="mark {"filled" if filled else "hollow"} {tint(series)}"'
    return f'<circle cx="{number(x)}" cy="{number(y)}" r="{number(r)}" {kind}/>'


def swatch(key: Key) -> str:
    """The inside of a legend's sign, 28 x 12 pixels."""
    kind = f"line {tint(key.series)}" + (" dashed" if key.dashed else "")
    line = f'<polyline points="1,6 27,6" class="{kind}"/>' if key.line else ""
    return line + marker(14, 6, key.series, key.filled)


def element(panel: Panel) -> str:
    """A panel as an SVG element of a page."""
    return (
        f'<svg viewBox="0 0 {panel.width} {panel.height}" role="img" '
        f"aria-label={quoteattr(panel.alt)}>{panel.body}</svg>"
    )


def standalone(figure: Figure, columns: int = 2) -> str:
    """A whole figure as an SVG file: panels in ``columns``, the legend below them."""
    columns = min(columns, len(figure.panels))
    wide = max(panel.width for panel in figure.panels)
    width = columns * wide + 20
    body, y = [], 10
    for start in range(0, len(figure.panels), columns):
        row = figure.panels[start : start + columns]
        for place, panel in enumerate(row):
            body.append(f'<g transform="translate({10 + place * wide} {y})">{panel.body}</g>')
        y += max(panel.height for panel in row) + 8
    legend, height = _legend(figure.legend, width)
    body.append(f'<g transform="translate(0 {y})">{legend}</g>')
    y += height + 8
    alt = " ".join(panel.alt for panel in figure.panels)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {y}" width="{width}" '
        f'height="{y}" role="img" aria-label={quoteattr(alt)}>'
        f"<style>{figure_style()}</style>"
        f'<rect width="{width}" height="{y}" class="paper"/>{"".join(body)}</svg>\n'
    )


def _legend(keys: Sequence[Key], width: int) -> tuple[str, int]:
    """Signs and names in lines no wider than ``width``, and their height."""
    if not keys:
        return "", 0
    body, x, y = [], 20, 0
    for key in keys:
        room = 48 + 7 * len(key.label)
        if x > 20 and x + room > width:
            x, y = 20, y + _LEGEND_LINE
        body.append(
            f'<g transform="translate({x} {y})">{swatch(key)}'
            f'<text x="34" y="10" class="tick">{escape(key.label)}</text></g>'
        )
        x += room
    return "".join(body), y + _LEGEND_LINE


def nice(low: float, high: float, most: int = 6) -> list[float]:
    """Round values between two, no more than ``most``."""
    span = (high - low) or 1.0
    step = 10.0 ** math.floor(math.log10(span))
    candidates: list[Callable[[float], float]] = [
        lambda s: s / 10,
        lambda s: s / 5,
        lambda s: s / 2,
        lambda s: s,
        lambda s: 2 * s,
    ]
    for scaled in candidates:
        unit = scaled(step)
        first = math.ceil(low / unit - 1e-9)
        values = [unit * k for k in range(first, math.floor(high / unit + 1e-9) + 1)]
        if len(values) <= most:
            return values
    return [low, high]


def powers(low: float, high: float, most: int = 6) -> list[float]:
    """Powers of ten within a range, every second or third of them if there are too many."""
    exponents = range(math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9) + 1)
    stride = max(1, math.ceil(len(exponents) / most))
    return [10.0**e for e in exponents[::stride]]
