"""Figures of accuracy: against epsilon, and clean against robust."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from clcnn.evaluation.results import Result
from clcnn.report import words
from clcnn.report.blocks import Figure, Key, Panel
from clcnn.report.gather import Experiment
from clcnn.report.layout import NONE, Pool
from clcnn.report.svg import SHAPES, Plot, nice, tint

_SHARES = [(0.0, "0"), (0.25, "25"), (0.5, "50"), (0.75, "75"), (1.0, "100")]
_DODGE = 3.0  # pixels between the intervals of two series
_FARTHEST = 7.0  # pixels that a series is shifted at most, so that its marks stay in the panel


def series_of(defences: Sequence[str]) -> dict[str, int]:
    """A colour for each defence; no control is always grey."""
    others = [name for name in defences if name != NONE]
    return {NONE: 0} | {name: place + 1 for place, name in enumerate(others)}


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
            at = {r.eps: pool.beside(experiment, r, threat) for r in own}
            cells = [cell for _, cell in sorted(at.items()) if cell is not None and cell.n]
            if cells:
                lines[defence, threat] = [*(r for r in clean if r.n), *cells]
    return lines


def _accuracy_panel(
    attack: str, lines: dict[tuple[str, str], list[Result]], colours: dict[str, int]
) -> Panel:
    epsilons = sorted({0.0} | {r.eps for cells in lines.values() for r in cells})
    plot = Plot.of(words.attack(attack), (0.0, max(epsilons) or 1.0), (0.0, 1.0))
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


@dataclass(frozen=True)
class _Dot:
    """A defence of a network: its clean cell, and the lowest of its cells under attack."""

    network: str
    defence: str
    clean: Result
    worst: Result


def trade_off(experiments: Sequence[Experiment]) -> Figure | None:
    """Clean accuracy across, the lowest accuracy at the largest common epsilon up."""
    eps = _common_epsilon(experiments)
    left: list[str] = []
    dots = {t: _dots(experiments, t, eps, left) for t in ("oblivious", "adaptive")}
    drawn = [dot for found in dots.values() for dot in found]
    if not drawn:
        return None
    networks = list(dict.fromkeys(dot.network for dot in drawn))
    defences = list(dict.fromkeys(dot.defence for dot in drawn))
    shapes = {n: SHAPES[k % len(SHAPES)] for k, n in enumerate(networks)}
    colours = series_of(defences)
    legend = [Key(colours[d], words.defence(d), line=False) for d in defences]
    if len(networks) > 1:
        legend += [Key(0, n, shape=shapes[n], filled=False, line=False) for n in networks]
    return Figure(
        name="trade-off",
        caption=f"What robustness costs: clean accuracy against the lowest accuracy at "
        f"ε = {eps:g}/255, over the attacks that all defences drawn of a network met; 95 % "
        "intervals"
        + (f". Not drawn, having met none of these: {words.listed(left)}" if left else ""),
        panels=[
            _trade_off_panel(threat, found, eps, colours, shapes)
            for threat, found in dots.items()
            if found
        ],
        legend=legend,
    )


def _common_epsilon(experiments: Sequence[Experiment]) -> float:
    """The largest epsilon at which more than half of the defences were attacked.

    A defence counts once in each experiment; if no epsilon has so many, the most frequent one.
    """
    met: dict[tuple[int, str], set[float]] = {}
    for place, experiment in enumerate(experiments):
        for r in experiment.results:
            if r.n and r.eps < words.UNBOUNDED and experiment.is_sought(r):
                met.setdefault((place, r.defence), set()).add(r.eps)
    counts = Counter(eps for found in met.values() for eps in found)
    enough = min(max(counts.values(), default=0), len(met) // 2 + 1)
    return max((eps for eps, count in counts.items() if count >= enough), default=0.0)


def _dots(
    experiments: Sequence[Experiment], threat: str, eps: float, left: list[str]
) -> list[_Dot]:
    """One a network and defence; cells of all experiments count, the larger of two the same.

    Names of those that cannot be compared are added to ``left``.
    """
    clean: dict[tuple[str, str, str], Result] = {}
    met: dict[str, dict[tuple[str, str, str], dict[str, Result]]] = {}
    for experiment in experiments:
        for result in experiment.results:
            network = experiment.network(result)
            subject = experiment.subject(result.network, result.defence, NONE)
            key = (network, result.defence, subject)
            if result.attack == NONE and result.n > (clean[key].n if key in clean else 0):
                clean[key] = result
            elif not experiment.is_sought(result):
                continue  # what chance finds says nothing of robustness
            elif result.n and (result.threat, result.eps) == (threat, eps):
                cells = met.setdefault(network, {}).setdefault(key, {})
                attack = experiment.attacker(result.attack, knows=threat == "adaptive")
                known = cells.get(attack)
                if known is None or known.n < result.n:
                    cells[attack] = result
    dots = []
    for by_defence in met.values():
        usable = {key: cells for key, cells in by_defence.items() if key in clean}
        drawn = _comparable(usable)
        left += [f"{k[0]}, {words.defence(k[1])} ({threat})" for k in usable if k not in drawn]
        for key, cells in drawn.items():
            worst = min(cells.values(), key=lambda r: (r.accuracy, r.attack))
            dots.append(_Dot(key[0], key[1], clean[key], worst))
    return dots


def _comparable(
    met: dict[tuple[str, str, str], dict[str, Result]],
) -> dict[tuple[str, str, str], dict[str, Result]]:
    """The cells under attacks that all have met; who met fewest stays out if there are none."""
    while met:
        common = set.intersection(*(set(cells) for cells in met.values()))
        if common:
            return {key: {a: cells[a] for a in sorted(common)} for key, cells in met.items()}
        fewest = min(met, key=lambda key: len(met[key]))
        met = {key: cells for key, cells in met.items() if key != fewest}
    return {}


def _trade_off_panel(
    threat: str,
    dots: Sequence[_Dot],
    eps: float,
    colours: dict[str, int],
    shapes: dict[str, str],
) -> Panel:
    lowest = min(dot.clean.low for dot in dots)
    highest = max(dot.clean.high for dot in dots)
    margin = max(0.02, 0.08 * (highest - lowest))
    across = (max(0.0, lowest - margin), min(1.0, highest + margin))
    top = min(1.0, max(0.1, 1.15 * max(dot.worst.high for dot in dots)))
    titles = {"oblivious": "Attacks that do not know", "adaptive": "Attacks that know (adaptive)"}
    plot = Plot.of(titles[threat], across, (0.0, top), width=420, height=320)
    plot.y_axis([(v, f"{100 * v:.0f}") for v in nice(0, top)], f"accuracy at ε = {eps:g}, %")
    plot.x_axis([(v, f"{100 * v:.3g}") for v in nice(*across)], "clean accuracy, %")
    said = []
    for dot in dots:
        series = colours[dot.defence]
        x, y = plot.x(dot.clean.accuracy), plot.y(dot.worst.accuracy)
        plot.whisker(x, plot.y(dot.worst.low), plot.y(dot.worst.high), series)
        plot.whisker(y, plot.x(dot.clean.low), plot.x(dot.clean.high), series, across=True)
        plot.mark(x, y, series, shapes[dot.network], filled=threat == "oblivious")
        said.append(
            f"{dot.network}, {words.defence(dot.defence)}: clean "
            f"{words.percent(dot.clean.accuracy)}, {words.percent(dot.worst.accuracy)} under "
            f"{words.attack(dot.worst.attack)}."
        )
    return plot.done(f"Clean against robust accuracy in per cent, {threat}. {' '.join(said)}")
