"""Figure of residuals: ||E_t(x_t) - x_t||^2 by layer, for clean and for attacked images."""

from __future__ import annotations

from collections.abc import Sequence

from clcnn.evaluation.plan import NONE
from clcnn.report import words
from clcnn.report.blocks import Figure, Key, Panel
from clcnn.report.gather import Experiment, Residuals
from clcnn.report.svg import Plot, powers, tint

Quartiles = tuple[tuple[float, ...], ...]


def residual_figures(experiments: Sequence[Experiment]) -> list[Figure]:
    """A figure a network and defence, the first experiment that has it; oblivious attacks."""
    figures: dict[str, Figure] = {}
    for experiment in experiments:
        known = [r for r in experiment.results if r.cell in experiment.residuals]
        cells = [r for r in known if not r.is_corruption]
        for network, defence in dict.fromkeys((r.network, r.defence) for r in cells):
            mine = {
                (r.attack, r.eps): experiment.residuals[r.cell]
                for r in cells
                if (r.network, r.defence) == (network, defence) and r.threat != "adaptive"
            }
            key = experiment.subject(network, defence, NONE)
            layers = max(len(r.before[0]) for r in mine.values()) if mine else 0
            if (NONE, 0.0) in mine and layers > 1 and key not in figures:
                figures[key] = _figure(experiment, network, defence, mine)
    return list(figures.values())


def _figure(
    experiment: Experiment,
    network: str,
    defence: str,
    cells: dict[tuple[str, float], Residuals],
) -> Figure:
    layers = len(next(iter(cells.values())).before[0])
    cuts = experiment.cuts.get((network, defence)) or tuple(f"t = {t}" for t in range(layers))
    drawn = [q for r in cells.values() for q in (r.before, r.after)]
    values = [v for quartiles in drawn for row in quartiles for v in row if v > 0]
    low, high = (min(values), max(values)) if values else (0.1, 1.0)
    # After a projection nothing is left but rounding, which must not stretch the axis.
    low = max(low, high * 1e-8)
    limits = (low / 1.5, high * 1.5)
    before = {key: r.before for key, r in cells.items()}
    after = {key: r.after for key, r in cells.items()}
    weights = experiment.weights.get(network, network)
    counts = sorted({r.n for r in cells.values()})
    return Figure(
        name=words.slug(f"residuals-{experiment.plan}-{weights}-{defence}"),
        caption=f"{weights}, {words.defence(defence)}: residual by layer, median and quartiles "
        f"over n = {words.listed(words.count(n) for n in counts)} images "
        f"({experiment.plan}, oblivious attacks)",
        panels=[
            _panel("Without control: ‖E(x) − x‖²", before, cuts, limits),
            _panel("Under control: running loss L", after, cuts, limits),
        ],
        legend=[Key(place, _name(key)) for place, key in enumerate(cells)],
    )


def _name(key: tuple[str, float]) -> str:
    attack, eps = key
    return "clean" if attack == NONE else f"{words.attack(attack)}, ε = {words.level(eps)}"


def _panel(
    title: str,
    lines: dict[tuple[str, float], Quartiles],
    cuts: Sequence[str],
    limits: tuple[float, float],
) -> Panel:
    low = limits[0]
    plot = Plot.of(title, (-0.2, len(cuts) - 0.8), limits, log_y=True, width=400, left=54)
    plot.y_axis([(v, f"{v:g}" if 1e-3 <= v < 1e5 else f"{v:.0e}") for v in powers(*limits)], "")
    plot.x_axis([(t, cut) for t, cut in enumerate(cuts)], "state that enters")
    said = []
    for series, (key, (lower, middle, upper)) in enumerate(lines.items()):
        colour = tint(series)
        heights = [[plot.y(max(v, low)) for v in row] for row in (lower, middle, upper)]
        xs = [plot.x(t) for t in range(len(cuts))]
        edge = [*zip(xs, heights[0], strict=True), *reversed([*zip(xs, heights[2], strict=True)])]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in edge)
        plot.parts.append(f'<polygon points="{path}" class="band {colour}"/>')
        points = list(zip(xs, heights[1], strict=True))
        plot.line(points, f"line {colour}")
        for x, y in points:
            plot.mark(x, y, series)
        said.append(f"{_name(key)}: {', '.join(f'{v:.3g}' for v in middle)}.")
    return plot.done(f"{title}, medians at {', '.join(cuts)}. {' '.join(said)}")
