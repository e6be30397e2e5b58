"""How settings were chosen: every point of the grids that `clcnn tune` stored."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from clcnn.evaluation.choice import Choice, Grid, Point, best
from clcnn.evaluation.confirm import MARK
from clcnn.evaluation.plan import NONE
from clcnn.evaluation.results import Result
from clcnn.evaluation.tables import PlanError
from clcnn.report import words
from clcnn.report.blocks import (
    Block,
    Column,
    Figure,
    Key,
    Paragraph,
    ReportError,
    Row,
    Span,
    TableBlock,
)
from clcnn.report.gather import Experiment
from clcnn.report.svg import Plot, nice

_NAME = re.compile(r"(?:energy (?P<energy>\S+), )?lr (?P<lr>\S+), (?P<k>\d+) iterations")
ABOUT = (
    "A grid's figure shows the mean accuracy over clean, FGSM and PGD images against clean "
    "accuracy. Hollow: more clean accuracy lost than the grid allows (dotted). On the lower edge: "
    "not measured on perturbed images, as clean ones rule it out. Ringed: the choice, the cheapest "
    "within one standard error of the best. Where candidates had to stand on more clean images, "
    "the first that did is the choice, or, if none did, the one that lost least; a longer run of "
    "settings that failed is no candidate."
)
"""What all of these have in common."""

_SHOWN = 8
"""Points of a grid that are listed; all are drawn."""


def tuning_blocks(experiment: Experiment, others: Sequence[Experiment] = ()) -> list[Block]:
    """The grid of one tuning: all points as a figure, the best as a table.

    ``others`` may hold the confirmation of its choice on more images, which then decides.
    """
    by_defence: dict[str, dict[str, Result]] = {}
    for result in experiment.results:
        name = NONE if result.attack == NONE else f"{result.attack} {result.eps:g}"
        by_defence.setdefault(result.defence, {})[name] = result
    plain = by_defence.pop(NONE, {})
    if experiment.name.split()[-2] == MARK:
        return _confirmation_blocks(experiment, plain, by_defence)
    whole = {name: cells for name, cells in by_defence.items() if _is_whole(cells)}
    lead = Paragraph(
        f"`{experiment.plan}`: {words.several(len(whole), 'point')} of {len(by_defence)} measured."
    )
    unchosen = Paragraph("The grid is not complete, so nothing is chosen yet.", "warning")
    if not whole or not _is_whole(plain):
        return [lead, unchosen]
    grid = _grid(experiment)
    most_lost = grid.most_lost
    clean = plain[NONE].accuracy
    points = [point for n, c in whole.items() if (point := _point(n, c, plain, most_lost))]
    if not any(point.objective is not None for point in points):
        return [lead, unchosen]
    n = plain[NONE].n
    complete = len(whole) == len(by_defence) and _are_judged(points, most_lost)
    chosen = best(points, n) if complete else None
    stood = _confirmed(experiment, others, most_lost)
    if chosen is not None and stood is not None:
        chosen = next((p for p in points if _settings(p, grid.rule) == stood), chosen)
    figure = _figure(experiment.plan, points, chosen, clean, grid, stood is not None)
    table = _table(points, chosen, grid.rule, words.images(n, experiment.split))
    return [lead, *([] if complete else [unchosen]), figure, table]


def choice_blocks(path: Path) -> list[Block]:
    """The same from the file of a choice, for a grid that no store holds."""
    try:
        choice = Choice.read(path)
    except PlanError as error:
        raise ReportError(str(error)) from error
    revision = choice.manifest.get("git") or "not a checkout"
    points = words.several(len(choice.points), "point")
    lead = Paragraph(
        f"`{path.name}`: {points} for {choice.network}, measured at revision {revision}; the grid "
        "is from this file, and in none of the stores."
    )
    figure = _figure(
        path.stem,
        choice.points,
        choice.chosen,
        choice.plain[NONE],
        choice.grid,
        bool(choice.confirmed),
    )
    images = words.images(choice.n, choice.split)
    return [lead, figure, _table(choice.points, choice.chosen, choice.grid.rule, images)]


def in_order(tunings: Sequence[Experiment]) -> list[Experiment]:
    """Each grid before what its candidates were worth on more images."""

    def place(experiment: Experiment) -> tuple[list[str], bool]:
        *begin, last, _ = experiment.name.split()
        return begin if last == MARK else [*begin, last], last == MARK

    return sorted(tunings, key=place)


def _confirmed(
    experiment: Experiment, others: Sequence[Experiment], most_lost: float
) -> str | None:
    """The settings that stood on more images, if that was measured of this grid."""
    points = {r.defence for r in experiment.results}
    for other in others:
        *begin, mark, _ = other.name.split()
        tried = {r.defence: r for r in other.results}
        plain = tried.pop(NONE, None)
        if mark != MARK or begin != experiment.name.split()[:-1] or not set(tried) <= points:
            continue
        if plain is None or not tried or not all(r.is_complete for r in (plain, *tried.values())):
            continue
        lost = {name: plain.accuracy - r.accuracy for name, r in tried.items()}
        stood = [name for name in lost if lost[name] <= most_lost + 1e-9]
        return stood[0] if stood else min(lost, key=lambda name: lost[name])
    return None


def _confirmation_blocks(
    experiment: Experiment,
    plain: Mapping[str, Result],
    by_defence: Mapping[str, Mapping[str, Result]],
) -> list[Block]:
    """What a grid's candidates cost on more clean images, in the order in which they were tried."""
    tried = {name: cells[NONE] for name, cells in by_defence.items()}
    cells = [*plain.values(), *tried.values()]
    if not tried or not plain or not all(cell.is_complete and cell.n for cell in cells):
        return [Paragraph(f"`{experiment.plan}` is not complete.", "warning")]
    clean, n = plain[NONE].accuracy, plain[NONE].n
    return [
        TableBlock(
            caption=f"`{experiment.plan}`: candidates in the order of trial, on "
            f"{words.images(n, experiment.split)} without any attack, where the network alone has "
            f"{words.percent(clean)} %",
            corner=("settings",),
            columns=[Column("clean, %"), Column("clean lost, points")],
            rows=[
                Row(
                    (name,),
                    [
                        [Span(words.percent(cell.accuracy))],
                        [Span(words.points(100 * (clean - cell.accuracy)), "interval")],
                    ],
                )
                for name, cell in tried.items()
            ],
        )
    ]


def _are_judged(points: Sequence[Point], most_lost: float) -> bool:
    """Whether all points that clean images leave in the running have met the others, too."""
    enough = max(most_lost, min(point.lost for point in points)) + 1e-9
    return all(point.objective is not None for point in points if point.lost <= enough)


def _grid(experiment: Experiment) -> Grid:
    """The rule and the limit of a grid, as far as its manifest says."""
    known = experiment.described.get("grid", {})
    return Grid(**{k: known[k] for k in ("rule", "most_lost") if k in known})


def _is_whole(cells: Mapping[str, Result]) -> bool:
    return NONE in cells and all(cell.is_complete and cell.n for cell in cells.values())


def _point(
    name: str, cells: Mapping[str, Result], plain: Mapping[str, Result], most_lost: float
) -> Point | None:
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    energy = match["energy"]
    return Point.of(
        int(match["k"]),
        float(match["lr"]),
        None if energy is None else float(energy),
        {key: cell.accuracy for key, cell in cells.items()},
        {key: cell.accuracy for key, cell in plain.items()},
        most_lost,
    )


def _figure(
    plan: str,
    points: Sequence[Point],
    chosen: Point | None,
    clean: float,
    grid: Grid,
    confirmed: bool,
) -> Figure:
    most_lost = grid.most_lost
    cleans = [p.clean for p in points] + [clean - most_lost, clean]
    goals = [p.objective for p in points if p.objective is not None]
    x = (max(0.0, min(cleans) - 0.02), min(1.0, max(cleans) + 0.02))
    y = (max(0.0, min(goals) - 0.02), min(1.0, max(goals) + 0.02))
    plot = Plot.of("All points of the grid", x, y, width=460, height=300)
    plot.y_axis([(v, f"{100 * v:.3g}") for v in nice(*y)], "mean accuracy, %")
    plot.x_axis([(v, f"{100 * v:.3g}") for v in nice(*x)], "clean accuracy, %")
    limit = plot.x(clean - most_lost)
    plot.line([(limit, plot.y.start), (limit, plot.y.end)], "limit")
    iterations = sorted({p.iterations for p in points})
    for point in points:
        series = 1 + iterations.index(point.iterations)
        height = y[0] if point.objective is None else point.objective
        plot.mark(plot.x(point.clean), plot.y(height), series, filled=point.feasible)
    if chosen is not None:
        plot.parts.append(
            f'<circle cx="{plot.x(chosen.clean):.1f}" cy="{plot.y(chosen.goal):.1f}" r="9" '
            'class="axis"/>'
        )
    said = "nothing is chosen" if chosen is None else f"its choice: {_settings(chosen, grid.rule)}"
    return Figure(
        name=words.slug(f"grid-{plan}"),
        caption=f"`{plan}`: hollow: more than {100 * most_lost:g} points of clean accuracy lost"
        + _ring(chosen, confirmed),
        panels=[plot.done(f"{len(points)} points; {said}.")],
        legend=[
            Key(1 + place, f"{k} iterations", line=False) for place, k in enumerate(iterations)
        ],
    )


def _ring(chosen: Point | None, confirmed: bool) -> str:
    """What the ring is around, for a caption."""
    if chosen is None:
        return ""
    if confirmed:
        return "; ringed: the choice, by more clean images"
    if not chosen.feasible:
        return "; ringed: its choice, which loses least, as none keeps enough clean accuracy"
    return "; ringed: its choice"


def _table(points: Sequence[Point], chosen: Point | None, rule: str, images: str) -> TableBlock:
    ordered = sorted(
        (p for p in points if p.objective is not None),
        key=lambda p: (not p.feasible, -p.goal, p.iterations, p.lr),
    )
    return TableBlock(
        caption=f"The best {min(_SHOWN, len(ordered))} of {len(points)} points, n = {images}",
        corner=("settings",),
        columns=[Column("mean, %"), Column("clean, %"), Column("clean lost, points")],
        rows=[
            Row(
                (_settings(point, rule) + (" (chosen)" if point == chosen else ""),),
                [
                    [Span(words.percent(point.goal))],
                    [Span(words.percent(point.clean), "interval")],
                    [Span(words.points(100 * point.lost), "interval")],
                ],
            )
            for point in [*ordered[:_SHOWN], *(p for p in ordered[_SHOWN:] if p == chosen)]
        ],
    )


def _settings(point: Point, rule: str) -> str:
    energy = "" if point.energy is None else f"{rule} {point.energy:g}, "
    return f"{energy}lr {point.lr:g}, {point.iterations} iterations"
