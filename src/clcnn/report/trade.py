"""Figures of what robustness costs: clean against robust accuracy, one a network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from clcnn.evaluation.plan import NONE
from clcnn.evaluation.results import Result
from clcnn.report import words
from clcnn.report.blocks import Figure, Key, Panel
from clcnn.report.curves import series_of
from clcnn.report.gather import Experiment
from clcnn.report.svg import Plot, nice

SWEEPS = {"strength"}
"""Plans that go through the values of one setting: dozens of points that are no defences to choose
among. Their own tables show them."""

_TITLES = {"oblivious": "Attacks that do not know", "adaptive": "Attacks that know (adaptive)"}

_Key = tuple[str, str]  # a defence's name, and all that it is measured with


@dataclass(frozen=True)
class _Dot:
    """A defence: its clean cell, and the lowest of its cells under attack."""

    defence: str
    clean: Result
    worst: Result


@dataclass(frozen=True)
class _Half:
    """What one kind of attacker leaves of a network's defences at one epsilon."""

    threat: str
    eps: float
    dots: Sequence[_Dot]
    left: Sequence[str]
    attacks: Sequence[str]


def trade_offs(experiments: Sequence[Experiment]) -> list[Figure]:
    """Clean accuracy across, the lowest accuracy at the largest common epsilon up."""
    compared = [experiment for experiment in experiments if experiment.name not in SWEEPS]
    networks = dict.fromkeys(e.network(result) for e in compared for result in e.results)
    figures = [_figure(compared, network) for network in networks]
    return [figure for figure in figures if figure is not None]


def _figure(experiments: Sequence[Experiment], network: str) -> Figure | None:
    halves = [_half(experiments, network, threat) for threat in _TITLES]
    drawn = [half for half in halves if half.dots]
    if not drawn:
        return None
    defences = list(dict.fromkeys(dot.defence for half in drawn for dot in half.dots))
    colours = series_of(defences)
    left = [f"{name} ({half.threat})" for half in drawn for name in half.left]
    return Figure(
        name=words.slug(f"trade-off-{network}"),
        caption=f"{network}: clean accuracy against the lowest accuracy over the attacks that all "
        f"defences drawn have met ({'; '.join(_met(half) for half in drawn)}); 95 % intervals"
        + (f". Not drawn, having met none of these: {words.listed(left)}" if left else ""),
        panels=[_panel(half, colours) for half in drawn],
        legend=[Key(colours[d], words.defence(d), line=False) for d in defences],
    )


def _met(half: _Half) -> str:
    return f"{half.threat}, ε = {half.eps:g}: {words.listed(half.attacks)}"


def _half(experiments: Sequence[Experiment], network: str, threat: str) -> _Half:
    """One dot a defence; cells of all experiments count, the larger of two the same."""
    eps = _common_epsilon(experiments, network, threat)
    clean: dict[_Key, Result] = {}
    met: dict[_Key, dict[str, Result]] = {}
    for experiment, result in _of(experiments, network):
        key = (result.defence, experiment.subject(result.network, result.defence, NONE))
        if result.attack == NONE:
            if key not in clean or clean[key].n < result.n:
                clean[key] = result
        elif experiment.is_sought(result) and (result.threat, result.eps) == (threat, eps):
            cells = met.setdefault(key, {})
            attack = experiment.attacker(result.attack, knows=threat == "adaptive")
            if attack not in cells or cells[attack].n < result.n:
                cells[attack] = result
    usable = {key: cells for key, cells in met.items() if key in clean}
    drawn = _comparable(usable)
    dots = [
        _Dot(key[0], clean[key], min(cells.values(), key=lambda r: (r.accuracy, r.attack)))
        for key, cells in drawn.items()
    ]
    left = [words.defence(k[0]) for k in usable if k not in drawn]
    common = {r.attack: None for cells in drawn.values() for r in cells.values()}
    return _Half(threat, eps, dots, left, [words.attack(attack) for attack in common])


def _of(experiments: Sequence[Experiment], network: str) -> Iterator[tuple[Experiment, Result]]:
    for experiment in experiments:
        for result in experiment.results:
            if result.n and experiment.network(result) == network:
                yield experiment, result


def _common_epsilon(experiments: Sequence[Experiment], network: str, threat: str) -> float:
    """The largest epsilon at which more than half of the defences were attacked.

    A defence counts once in each experiment; if no epsilon has so many, the most frequent one.
    What chance finds says nothing of robustness, and is no attack here.
    """
    met: dict[tuple[str, str, str], set[float]] = {}
    for experiment, r in _of(experiments, network):
        if r.threat == threat and r.eps < words.UNBOUNDED and experiment.is_sought(r):
            place = (str(experiment.store), experiment.plan, r.defence)
            met.setdefault(place, set()).add(r.eps)
    counts = Counter(eps for found in met.values() for eps in found)
    enough = min(max(counts.values(), default=0), len(met) // 2 + 1)
    return max((eps for eps, count in counts.items() if count >= enough), default=0.0)


def _comparable(met: dict[_Key, dict[str, Result]]) -> dict[_Key, dict[str, Result]]:
    """The cells under attacks that all have met; who met fewest stays out if there are none."""
    while met:
        common = set.intersection(*(set(cells) for cells in met.values()))
        if common:
            return {key: {a: cells[a] for a in sorted(common)} for key, cells in met.items()}
        fewest = min(met, key=lambda key: len(met[key]))
        met = {key: cells for key, cells in met.items() if key != fewest}
    return {}


def _panel(half: _Half, colours: dict[str, int]) -> Panel:
    lowest = min(dot.clean.low for dot in half.dots)
    highest = max(dot.clean.high for dot in half.dots)
    margin = max(0.02, 0.08 * (highest - lowest))
    across = (max(0.0, lowest - margin), min(1.0, highest + margin))
    top = min(1.0, max(0.1, 1.15 * max(dot.worst.high for dot in half.dots)))
    plot = Plot.of(_TITLES[half.threat], across, (0.0, top), width=420, height=320)
    plot.y_axis([(v, f"{100 * v:.0f}") for v in nice(0, top)], f"accuracy at ε = {half.eps:g}, %")
    plot.x_axis([(v, f"{100 * v:.3g}") for v in nice(*across)], "clean accuracy, %")
    said = []
    for dot in half.dots:
        series = colours[dot.defence]
        x, y = plot.x(dot.clean.accuracy), plot.y(dot.worst.accuracy)
        plot.whisker(x, plot.y(dot.worst.low), plot.y(dot.worst.high), series)
        plot.whisker(y, plot.x(dot.clean.low), plot.x(dot.clean.high), series, across=True)
        plot.mark(x, y, series, filled=half.threat == "oblivious")
        said.append(
            f"{words.defence(dot.defence)}: clean {words.percent(dot.clean.accuracy)}, "
            f"{words.percent(dot.worst.accuracy)} under {words.attack(dot.worst.attack)}."
        )
    return plot.done(
        f"Clean accuracy against that at ε = {half.eps:g}/255, in per cent, {half.threat}. "
        f"{' '.join(said)}"
    )
