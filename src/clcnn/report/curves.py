"""Figures of accuracy against epsilon."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from clcnn.evaluation.plan import NONE
from clcnn.evaluation.results import Result
from clcnn.report import words
from clcnn.report.blocks import Figure, Key, Panel
from clcnn.report.gather import Experiment
from clcnn.report.pool import Pool
from clcnn.report.svg import Plot, tint

_SHARES = [(0.0, "0"), (0.25, "25"), (0.5, "50"), (0.75, "75"), (1.0, "100")]
_DODGE = 3.0  # pixels between the intervals of two series
_MARGIN = 0.05  # of the axis, so that no mark of clean images covers a number
_FARTHEST = 7.0  # pixels that a series is shifted at most, so that its marks stay in the panel


_OWN = ("linear", "nonlinear", "reactive", "layerwise", "feedback-strong", "feedback", "pmp")
"""Defences that have the same colours in all figures."""


def series_of(defences: Sequence[str]) -> dict[str, int]:
    """A colour for each defence, its own or one that is left; no control is always grey."""
    own = {name: place + 1 for place, name in enumerate(_OWN) if name in defences}
    free = (place for place in count(1) if place not in own.values())
    others = [name for name in defences if name not in own and name != NONE]
    return {NONE: 0} | own | dict(zip(others, free, strict=False))


def accuracy_figure(experiment: Experiment, network: str, pool: Pool) -> Figure | None:
    """Accuracy against epsilon: a panel an attack, a line a defence and threat."""
    found = [r for r in experiment.results if r.network == network]
    measured = [r for r in found if r.n]
    defences = list(dict.fromkeys(r.defence for r in measured))
    attacks = list(dict.fromkeys(r.attack for r in measured if r.attack != NONE))
    colours = series_of(defences)
    panels, dashed = [], False
    for attack in attacks:
        lines = _lines(experiment, found, attack, defences, pool)
        dashed = dashed or any(threat == "adaptive" for _, threat in lines)
        panels.append(_accuracy_panel(attack, lines, colours))
    if not panels:
        return None
    weights = experiment.weights.get(network, network)
    level = "severity" if experiment.is_of_corruptions else "ε"
    return Figure(
        name=words.slug(f"{experiment.plan}-{weights}-accuracy"),
        caption=f"{weights}: accuracy against {level}, with 95 % intervals"
        + ("; dashed: an attacker who knows of the control (adaptive)" if dashed else ""),
        panels=panels,
        legend=[Key(colours[name], words.defence(name)) for name in defences]
        + ([Key(0, "adaptive", dashed=True, filled=False)] if dashed else []),
    )


def _lines(
    experiment: Experiment,
    found: Sequence[Result],
    attack: str,
    defences: Sequence[str],
    pool: Pool,
) -> dict[tuple[str, str], list[Result]]:
    """By defence and threat the cells of a line, by epsilon, the clean one first."""
    lines: dict[tuple[str, str], list[Result]] = {}
    for defence in defences:
        own = [r for r in found if (r.defence, r.attack) == (defence, attack)]
        clean = [r for r in found if (r.defence, r.attack) == (defence, NONE)]
        for threat in ("oblivious", "adaptive"):
            if defence == NONE and all(r.threat != threat for r in own):
                continue  # without control there is nothing to know: no line from another plan
            at = {r.eps: pool.beside(experiment, r, threat) for r in own}
            cells = [cell for _, cell in sorted(at.items()) if cell is not None and cell.n]
            if cells:
                lines[defence, threat] = [*(r for r in clean if r.n), *cells]
    return lines


def _accuracy_panel(
    attack: str, lines: dict[tuple[str, str], list[Result]], colours: dict[str, int]
) -> Panel:
    epsilons = sorted({0.0} | {r.eps for cells in lines.values() for r in cells})
    most = max(epsilons) or 1.0
    plot = Plot.of(words.attack(attack), (-_MARGIN * most, (1 + _MARGIN / 2) * most), (0.0, 1.0))
    plot.y_axis(_SHARES, "accuracy in %")
    corrupted = any(r.is_corruption for cells in lines.values() for r in cells)
    level = "severity" if corrupted else "ε in 1/255"
    plot.x_axis([(eps, words.level(eps)) for eps in epsilons], level)
    said = []
    middle = (len(lines) - 1) / 2
    dodge = min(_DODGE, _FARTHEST / middle) if middle else 0.0
    for place, ((defence, threat), cells) in enumerate(lines.items()):
        series, adaptive = colours[defence], threat == "adaptive"
        shift = dodge * (place - middle)
        points = [(plot.x(r.eps) + shift, plot.y(r.accuracy)) for r in cells]
        plot.line(points, f"line {tint(series)}" + (" dashed" if adaptive else ""))
        for (x, y), result in zip(points, cells, strict=True):
            plot.whisker(x, plot.y(result.low), plot.y(result.high), series)
            plot.mark(x, y, series, filled=not adaptive)
        figures = ", ".join(f"{words.percent(r.accuracy)} at {words.level(r.eps)}" for r in cells)
        said.append(f"{words.defence(defence)}, {threat}: {figures}.")
    return plot.done(f"Accuracy in per cent under {words.attack(attack)}. {' '.join(said)}")
