"""Figure of both threats: how much of what a defence keeps is lost to who knows of it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from clcnn.evaluation.plan import NONE
from clcnn.report import words
from clcnn.report.blocks import Figure, Key, Panel
from clcnn.report.lines import Line, epsilons_of
from clcnn.report.svg import Plot, marker

_CLEAN, _CONTROLLED = 0, 1
_ROW, _HEAD, _TOP, _FOOT = 22, 28, 14, 42  # pixels
_TICKS = [(share / 100, f"{share}") for share in (0, 25, 50, 75, 100)]

_Group = tuple[str, list[Line]]


def threat_figure(lines: Sequence[Line]) -> Figure:
    """Clean, oblivious and adaptive accuracy of each line, one below the other, in two columns.

    At one epsilon, that which most defences have met.
    """
    (eps,), _ = epsilons_of(lines, 1)
    met = [line for line in lines if eps in line.pairs]
    attacks = {pair.attack for line in met for pair in line.pairs[eps]}
    by = f" ({words.attack(attacks.pop())})" if len(attacks) == 1 else ""
    return Figure(
        "both-threats",
        f"What knowing of the control takes: accuracy{by} at ε = {eps:g}, with 95 % intervals",
        [_panel(column, eps) for column in _columns(met) if column],
        [
            Key(_CLEAN, "clean images", line=False),
            Key(_CONTROLLED, "an attacker who does not know of the control", line=False),
            Key(_CONTROLLED, "one who does", filled=False, line=False),
        ],
    )


def _columns(lines: Sequence[Line]) -> tuple[list[_Group], list[_Group]]:
    """The lines by network and experiment, cut where the two columns are most alike in height."""
    groups = [(key, list(found)) for key, found in groupby(lines, key=lambda line: line.group)]
    cuts = range(1, len(groups) + 1)
    cut = min(cuts, key=lambda k: max(_height(groups[:k]), _height(groups[k:])))
    return groups[:cut], groups[cut:]


def _height(groups: Sequence[_Group]) -> int:
    return sum(_HEAD + _ROW * len(lines) for _, lines in groups)


def _panel(groups: Sequence[_Group], eps: float) -> Panel:
    height = _TOP + _height(groups) + _FOOT
    plot = Plot.of("", (0.0, 1.0), (0.0, 1.0), width=440, height=height, left=158)
    plot.x_axis(_TICKS, "accuracy in %")
    for share, _ in _TICKS:
        plot.line([(plot.x(share), _TOP), (plot.x(share), plot.y.start)], "grid")
    y, said = _TOP + _ROW / 2, []
    for name, lines in groups:
        plot.text(8, y + 4, name, "title")
        y += _HEAD - 4
        for line in lines:
            _row(plot, line, eps, y)
            y += _ROW
        y += 4
        said.append(f"{name}: {'; '.join(_said(line, eps) for line in lines)}.")
    return plot.done(f"Accuracy in per cent at ε = {eps:g}/255. {' '.join(said)}")


def _row(plot: Plot, line: Line, eps: float, y: float) -> None:
    oblivious, adaptive = line.pairs[eps]
    series = _CLEAN if line.defence == NONE else _CONTROLLED
    plot.text(148, y + 4, words.defence(line.defence), "name", "end")
    plot.line([(plot.x(r.accuracy), y) for r in (adaptive, oblivious)], f"line s{series}")
    if line.clean is not None:
        plot.parts.append(marker(plot.x(line.clean.accuracy), y, _CLEAN, True, r=2.5))
    for result, filled in ((oblivious, True), (adaptive, False)):
        plot.whisker(y, plot.x(result.low), plot.x(result.high), series, across=True)
        plot.mark(plot.x(result.accuracy), y, series, filled=filled)


def _said(line: Line, eps: float) -> str:
    shown = {
        "clean": line.clean,
        **dict(zip(("oblivious", "adaptive"), line.pairs[eps], strict=True)),
    }
    told = (f"{name} {words.percent(r.accuracy)}" for name, r in shown.items() if r is not None)
    return f"{words.defence(line.defence)}, {', '.join(told)}"
