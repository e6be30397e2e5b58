"""Figures of results that are no accuracies: growth of an attack, Theorem 1, the toy's plane."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from clcnn.experiments import figure2, manifold, theorem
from clcnn.report import words
from clcnn.report.blocks import Figure, Key, Panel
from clcnn.report.plane import plane_figure
from clcnn.report.svg import Plot, nice, powers, tint

Line = Mapping[str, str]
Points = list[tuple[float, float]]


def figure_of(name: str, columns: Sequence[str], lines: Sequence[Line]) -> Figure | None:
    """The figure for a file whose columns are known; None for any other."""
    if tuple(columns) == manifold.COLUMNS:
        return _growth(name, lines)
    if tuple(columns) == theorem.COLUMNS:
        return _theorem(name, lines)
    if tuple(columns) == figure2.STATES:
        return plane_figure(name, lines)
    return None


def _growth(name: str, lines: Sequence[Line]) -> Figure:
    """The off-manifold part of the difference by layer; one panel for each reading of the norm."""
    readings = {
        "norm": "ℓ₂ norm",
        "root_mean_square": "root mean square",
        "mean_square": "mean square",
        "share": "share of the whole difference",
    }
    cells = dict.fromkeys((r["network"], r["defence"], r["attack"], r["eps"]) for r in lines)
    series: dict[str, list[Line]] = {}
    for network, defence, attack, eps in cells:
        key = f"{network}, {words.defence(defence)}, {words.attack(attack)}, ε = {eps}"
        series[key] = [
            r
            for r in lines
            if (r["network"], r["defence"], r["attack"], r["eps"])
            == (network, defence, attack, eps)
        ]
    printed = _points(next(iter(series.values())), "layer", "paper")
    panels = []
    for column, title in readings.items():
        drawn = [(key, _points(rows, "layer", column)) for key, rows in series.items()]
        panels.append(_panel(title, [("the paper", printed), *drawn], "layer", log=True))
    legend = [Key(place, label) for place, label in enumerate(["the paper", *series])]
    caption = (
        "What of a manifold attack leaves the manifold, by layer, beside the paper's figures, of "
        "which it does not say which norm they are; values of 0 are at the foot; means over the "
        f"images that the attack moved ({_counts(lines)}): it leaves those that are wrong already"
    )
    return Figure(words.slug(f"{name}-growth"), caption, panels, legend)


def _counts(lines: Sequence[Line]) -> str:
    """How many of how many images were moved, the least and the most of all cells."""
    moved, all_n = ([int(line[key]) for line in lines] for key in ("moved", "n"))
    span = dict.fromkeys([min(moved), max(moved)])
    return f"{' to '.join(map(words.count, span))} of {words.count(max(all_n))}"


def _theorem(name: str, lines: Sequence[Line]) -> Figure:
    """Error, bound and uncontrolled error against t, c and r: a panel a network and a letter."""
    kinds = ("uncontrolled", "error", "bound")
    panels = []
    for network, varied in dict.fromkeys((r["network"], r["varied"]) for r in lines):
        rows = [r for r in lines if (r["network"], r["varied"]) == (network, varied)]
        others = [letter for letter in ("t", "c", "r") if letter != varied]
        groups = dict.fromkeys(tuple(r[letter] for letter in others) for r in rows)
        drawn = [
            (kind, _points([r for r in rows if tuple(r[o] for o in others) == group], varied, kind))
            for group in groups
            for kind in kinds
        ]
        panels.append(_panel(f"{network}, against {varied}", drawn, varied, log=False))
    legend = [Key(place, kind) for place, kind in enumerate(kinds)]
    caption = (
        "Theorem 1: squared error of controlled states and its bound, mean over perturbations; a "
        "line for each setting of the other two letters"
    )
    return Figure(words.slug(f"{name}-theorem"), caption, panels, legend)


def _points(rows: Sequence[Line], x: str, y: str) -> Points:
    found = []
    for row in rows:
        try:
            point = (float(row[x]), float(row[y]))
        except ValueError:
            continue  # an empty place: the paper has no figure there
        if all(map(math.isfinite, point)):
            found.append(point)
    return sorted(found)


def _panel(title: str, lines: Sequence[tuple[str, Points]], across: str, log: bool) -> Panel:
    points = [point for _, line in lines for point in line]
    xs = [x for x, _ in points] or [0.0, 1.0]
    ys = [y for _, y in points if y > 0] or [0.1, 1.0]
    low, high = (max(min(ys), max(ys) * 1e-6) / 2, max(ys) * 2) if log else (0.0, 1.1 * max(ys))
    log_x = across == "c" and min(xs) > 0  # powers of ten
    plot = Plot.of(title, (min(xs), max(xs)), (low, high), log_x=log_x, log_y=log, left=52)
    plot.y_axis([(v, f"{v:.3g}") for v in (powers(low, high) if log else nice(low, high))], "")
    marks = powers if log_x else nice
    plot.x_axis([(v, f"{v:g}") for v in marks(min(xs), max(xs))], across)
    said = []
    names = list(dict.fromkeys(name for name, _ in lines))
    for name, line in lines:
        series = names.index(name)
        drawn = [(plot.x(x), plot.y(max(y, low))) for x, y in line]
        if drawn:
            plot.line(drawn, f"line {tint(series)}")
        for x, y in drawn:
            plot.mark(x, y, series)
        said.append(f"{name}: {', '.join(f'{y:.3g}' for _, y in line)}.")
    return plot.done(f"{title}. {' '.join(said)}")
