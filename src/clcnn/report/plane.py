"""The paper's Figure 2: states of the toy in the plane, before and after control."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from clcnn.report import words
from clcnn.report.blocks import Figure, Key, Panel
from clcnn.report.svg import Plot, nice, number, tint

Line = Mapping[str, str]

_PANELS = (
    ("(a) before control, t = 0", "0", "perturbed"),
    ("(b) before control, t = 1", "1", "perturbed"),
    ("(c) after control, t = 0", "0", "controlled"),
    ("(d) after control, t = 1", "1", "controlled"),
)
_DOT = "stroke-width:3.4px;stroke-linecap:round"


def plane_figure(name: str, lines: Sequence[Line]) -> Figure:
    """Clean samples of both classes with the perturbed ones, before and after control."""
    labels = list(dict.fromkeys(line["label"] for line in lines))
    legend = [
        Key(_series(place, kind), f"{kind}, class {place + 1}", line=False)
        for kind in ("clean", "perturbed")
        for place in range(len(labels))
    ]
    shares = {
        kind: sum(line["right"] == "1" for line in found) / len(found)
        for kind in ("perturbed", "controlled")
        if (found := [r for r in lines if (r["t"], r["state"]) == ("0", kind)])
    }
    return Figure(
        words.slug(f"{name}-plane"),
        "States of the toy's test samples at t = 0 and t = 1: clean, under FGSM (oblivious), and "
        "under FGSM with control; titles: the accuracy on the perturbed ones",
        [_panel(title, t, kind, lines, labels, shares.get(kind)) for title, t, kind in _PANELS],
        legend,
    )


def _series(place: int, kind: str) -> int:
    return 1 + place + (0 if kind == "clean" else 2)


def _panel(
    title: str,
    t: str,
    kind: str,
    lines: Sequence[Line],
    labels: Sequence[str],
    share: float | None,
) -> Panel:
    here = [line for line in lines if line["t"] == t]
    xs, ys = ([float(line[axis]) for line in here] or [0.0, 1.0] for axis in ("x", "y"))
    if not all(map(math.isfinite, xs + ys)):
        raise ValueError("a state that is not finite")
    across, up = (min(xs) - 0.2, max(xs) + 0.2), (min(ys) - 0.2, max(ys) + 0.2)
    accuracy = "" if share is None else f": {words.percent(share)} %"
    plot = Plot.of(f"{title}{accuracy}", across, up, width=300, height=250)
    plot.y_axis([(v, f"{v:g}") for v in nice(*up, most=4)], "")
    plot.x_axis([(v, f"{v:g}") for v in nice(*across, most=4)], f"state that enters t = {t}")
    for state in ("clean", kind):
        for place, label in enumerate(labels):
            found = [r for r in here if (r["state"], r["label"]) == (state, label)]
            dots = "".join(
                f"M{number(plot.x(float(r['x'])))} {number(plot.y(float(r['y'])))}h0" for r in found
            )
            series = _series(place, "clean" if state == "clean" else "perturbed")
            plot.parts.append(f'<path d="{dots}" class="line {tint(series)}" style="{_DOT}"/>')
    return plot.done(f"{title}: {len(here)} states in the plane{accuracy}.")
