"""Figure of residuals: ||E_t(x_t) - x_t||^2 by layer, for clean and for attacked images."""

from __future__ import annotations

from collections.abc import Sequence

from clcnn.evaluation.plan import NONE
from clcnn.report import words
from clcnn.report.blocks import Block, Details, Figure, Key, Panel
from clcnn.report.gather import Experiment, Residuals
from clcnn.report.lines import APART
from clcnn.report.svg import Plot, nice, powers, tint

_CLEAN = (NONE, 0.0)
Quartiles = tuple[tuple[float, ...], ...]


def residual_blocks(experiments: Sequence[Experiment]) -> list[Block]:
    """A figure a network and defence, of the experiment with most images; oblivious attacks.

    What is no defence to choose (`APART`) stands behind the others, and opens when asked for.
    """
    figures: dict[str, tuple[int, Figure, bool]] = {}
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
            if _CLEAN not in mine or len(mine) < 2 or layers < 2:
                continue  # nothing to compare
            n = max(r.n for r in mine.values())
            if key not in figures or figures[key][0] < n:
                figure = _figure(experiment, network, defence, mine)
                figures[key] = n, figure, experiment.name in APART
    shown = [figure for _, figure, apart in figures.values() if not apart]
    others = [figure for _, figure, apart in figures.values() if apart]
    folded = [Details("Of settings and of the authors' habits", others)] if others else []
    return [*shown, *folded]


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
        f"({experiment.plan}, oblivious attacks); last, the medians as multiples of that of "
        "clean images",
        panels=[
            _panel("Without control: ‖E(x) − x‖²", before, cuts, limits),
            _panel("Under control: running loss L", after, cuts, limits),
            _multiples("Without control, over the clean median", before, cuts),
        ],
        legend=[
            Key(place, _name(key), dashed=key == _CLEAN, filled=key != _CLEAN)
            for place, key in enumerate(cells)
        ],
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
    # Clean images last, so that no attack that hardly differs from them hides them.
    for series, (key, (lower, middle, upper)) in sorted(
        enumerate(lines.items()), key=lambda line: line[1][0] == _CLEAN
    ):
        colour = tint(series)
        heights = [[plot.y(max(v, low)) for v in row] for row in (lower, middle, upper)]
        xs = [plot.x(t) for t in range(len(cuts))]
        edge = [*zip(xs, heights[0], strict=True), *reversed([*zip(xs, heights[2], strict=True)])]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in edge)
        plot.parts.append(f'<polygon points="{path}" class="band {colour}"/>')
        points = list(zip(xs, heights[1], strict=True))
        plot.line(points, f"line {colour}" + (" dashed" if key == _CLEAN else ""))
        for x, y in points:
            plot.mark(x, y, series, filled=key != _CLEAN)
        said.append(f"{_name(key)}: {', '.join(f'{v:.3g}' for v in middle)}.")
    return plot.done(f"{title}, medians at {', '.join(cuts)}. {' '.join(said)}")


def _multiples(title: str, lines: dict[tuple[str, float], Quartiles], cuts: Sequence[str]) -> Panel:
    """What an attack adds, which a scale of powers of ten hides."""
    clean = lines[_CLEAN][1]
    drawn = {
        key: [(t, v / c) for t, (v, c) in enumerate(zip(middle, clean, strict=True)) if c > 0]
        for key, (_, middle, _) in lines.items()
    }
    shares = [share for points in drawn.values() for _, share in points] or [1.0]
    low, high = min(0.9, *shares) * 0.95, max(1.1, *shares) * 1.05
    plot = Plot.of(title, (-0.2, len(cuts) - 0.8), (low, high), width=400, left=54)
    plot.y_axis([(v, f"{v:.3g}") for v in nice(low, high)], "")
    plot.x_axis([(t, cut) for t, cut in enumerate(cuts)], "state that enters")
    said = []
    for series, (key, points) in enumerate(drawn.items()):
        pixels = [(plot.x(t), plot.y(share)) for t, share in points]
        plot.line(pixels, f"line {tint(series)}" + (" dashed" if key == _CLEAN else ""))
        for x, y in pixels:
            plot.mark(x, y, series, filled=key != _CLEAN)
        said.append(f"{_name(key)}: {', '.join(f'{share:.3g}' for _, share in points)}.")
    return plot.done(f"{title}, at {', '.join(cuts)}. {' '.join(said)}")
