"""Figures of what robustness costs: clean against robust accuracy, one a network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from clcnn.evaluation.plan import NONE, UNBOUNDED
from clcnn.evaluation.results import Result
from clcnn.report import words
from clcnn.report.blocks import Figure, Key, Panel
from clcnn.report.curves import series_of
from clcnn.report.gather import Experiment
from clcnn.report.svg import Plot, marker, nice

SWEEPS = {"strength"}
"""Plans that go through the values of one setting: dozens of points that are no defences to choose
among. Their own tables show them."""

_TITLES = {"oblivious": "Oblivious attacks", "adaptive": "Adaptive attacks"}

_Key = tuple[str, str]  # a defence's name, and all that it is measured with
_Met = dict[_Key, dict[str, Result]]  # by all that an attack is made with
_Plans = dict[tuple[_Key, str], set[str]]

_LEFT = 0.05
"""The share of images that tells a defence from none."""

_NAMED = 2
"""How many plans' names a panel's title has room for."""


@dataclass(frozen=True)
class _Dot:
    """A defence: its clean cell, and the lowest of its cells under attack."""

    defence: str
    clean: Result
    worst: Result


@dataclass(frozen=True)
class _Group:
    """What the same attacks leave of a network's defences at one epsilon."""

    threat: str
    eps: float
    dots: Sequence[_Dot]
    attacks: Sequence[str]
    plans: Sequence[str]  # where these attacks differ from another group's; empty if there is none

    @property
    def title(self) -> str:
        """What stands above the group's panel."""
        where = f" ({self._where})" if 0 < len(self.plans) <= _NAMED else ""
        return _TITLES[self.threat] + where

    @property
    def met(self) -> str:
        """The attacks, in words."""
        where = f" of {self._where}" if self.plans else ""
        return f"{self.threat}, ε = {self.eps:g}: {words.listed(self.attacks)}{where}"

    @property
    def _where(self) -> str:
        return f"plan{'s' if len(self.plans) > 1 else ''} {words.listed(self.plans)}"


def trade_offs(experiments: Sequence[Experiment]) -> list[Figure]:
    """Clean accuracy across, the lowest accuracy at the largest common epsilon up."""
    compared = [experiment for experiment in experiments if experiment.name not in SWEEPS]
    networks = dict.fromkeys(e.network(result) for e in compared for result in e.results)
    figures = [_figure(compared, network) for network in networks]
    return [figure for figure in figures if figure is not None]


def _figure(experiments: Sequence[Experiment], network: str) -> Figure | None:
    groups = [group for threat in _TITLES for group in _groups(experiments, network, threat)]
    if not groups:
        return None
    defences = list(dict.fromkeys(dot.defence for group in groups for dot in group.dots))
    colours = series_of(defences)
    return Figure(
        name=words.slug(f"trade-off-{network}"),
        caption=f"{network}: clean accuracy against the lowest accuracy over the attacks that all "
        f"defences of a panel have met ({'; '.join(group.met for group in groups)}); "
        "95 % intervals",
        panels=[_panel(group, colours) for group in groups],
        legend=[Key(colours[d], words.defence(d), line=False) for d in defences],
    )


def _groups(experiments: Sequence[Experiment], network: str, threat: str) -> list[_Group]:
    """Defences by the attacks that they have met, the largest group first, until none is left.

    A defence is a dot in every group whose attacks it has all met, so that what is controlled
    stands beside what is not. Cells of all experiments count, the larger of two the same.
    """
    eps = _common_epsilon(experiments, network, threat)
    clean: dict[_Key, Result] = {}
    met: _Met = {}
    plans: _Plans = {}
    for experiment, result in _of(experiments, network):
        key = (result.defence, experiment.subject(result.network, result.defence, NONE))
        if result.attack == NONE:
            if key not in clean or clean[key].n < result.n:
                clean[key] = result
        elif experiment.is_sought(result) and (result.threat, result.eps) == (threat, eps):
            cells = met.setdefault(key, {})
            attack = experiment.attacker(result.attack, knows=threat == "adaptive")
            plans.setdefault((key, attack), set()).add(experiment.name)
            if attack not in cells or cells[attack].n < result.n:
                cells[attack] = result
    usable = {key: cells for key, cells in met.items() if key in clean}
    found = _apart(usable)
    return [
        _Group(
            threat,
            eps,
            dots=[
                _Dot(key[0], clean[key], min(cells.values(), key=lambda r: (r.accuracy, r.attack)))
                for key, cells in drawn.items()
            ],
            attacks=list(
                dict.fromkeys(words.attack(r.attack) for c in drawn.values() for r in c.values())
            ),
            plans=_where(drawn, plans, experiments) if len(found) > 1 else (),
        )
        for drawn in found
    ]


def _apart(met: _Met) -> list[_Met]:
    """The cells by the attacks that all of a group have met, until every defence is in one."""
    found, left = [], met
    while any(defence != NONE for defence, _ in left):
        common = set(next(iter(_comparable(left).values())))
        group = {
            key: {attack: cells[attack] for attack in sorted(common)}
            for key, cells in met.items()
            if common <= set(cells)
        }
        found.append(group)
        left = {key: cells for key, cells in left.items() if key not in group}
    return found


def _where(drawn: _Met, plans: _Plans, experiments: Sequence[Experiment]) -> Sequence[str]:
    """The plans that controlled networks met these attacks in."""
    keys = [key for key in drawn if key[0] != NONE] or list(drawn)
    found = {plan for key in keys for attack in drawn[key] for plan in plans[key, attack]}
    return list(dict.fromkeys(e.name for e in experiments if e.name in found))


def _of(experiments: Sequence[Experiment], network: str) -> Iterator[tuple[Experiment, Result]]:
    for experiment in experiments:
        for result in experiment.results:
            if result.n and experiment.network(result) == network:
                yield experiment, result


def _common_epsilon(experiments: Sequence[Experiment], network: str, threat: str) -> float:
    """The largest epsilon at which more than half of the defences were attacked.

    A defence counts once in each experiment; if no epsilon has so many, the most frequent one.
    Where no defence is left anything a smaller one tells more. What chance finds says nothing of
    robustness, and is no attack here.
    """
    met: dict[tuple[str, str, str], set[float]] = {}
    kept: dict[float, dict[tuple[str, str, str], float]] = {}
    for experiment, r in _of(experiments, network):
        if r.threat == threat and r.eps < UNBOUNDED and experiment.is_sought(r):
            place = (str(experiment.store), experiment.plan, r.defence)
            met.setdefault(place, set()).add(r.eps)
            least = kept.setdefault(r.eps, {})
            least[place] = min(r.accuracy, least.get(place, 1.0))
    counts = Counter(eps for found in met.values() for eps in found)
    enough = min(max(counts.values(), default=0), len(met) // 2 + 1)
    common = [eps for eps, count in counts.items() if count >= enough]
    telling = [eps for eps in common if max(kept[eps].values()) >= _LEFT]
    return max(telling or common, default=0.0)


def _comparable(met: _Met) -> _Met:
    """The cells under attacks that all have met; who met fewest is left if there are none."""
    while met:
        common = set.intersection(*(set(cells) for cells in met.values()))
        if common:
            return {key: {a: cells[a] for a in sorted(common)} for key, cells in met.items()}
        fewest = min(reversed(met), key=lambda key: len(met[key]))  # of two the later
        met = {key: cells for key, cells in met.items() if key != fewest}
    return {}


def _panel(group: _Group, colours: dict[str, int]) -> Panel:
    lowest = min(dot.clean.low for dot in group.dots)
    highest = max(dot.clean.high for dot in group.dots)
    margin = max(0.02, 0.08 * (highest - lowest))
    across = (max(0.0, lowest - margin), min(1.0, highest + margin))
    top = min(1.0, max(0.1, 1.15 * max(dot.worst.high for dot in group.dots)))
    plot = Plot.of(group.title, across, (0.0, top), width=420, height=320)
    plot.y_axis([(v, f"{100 * v:.0f}") for v in nice(0, top)], f"accuracy at ε = {group.eps:g}, %")
    plot.x_axis([(v, f"{100 * v:.3g}") for v in nice(*across)], "clean accuracy, %")
    said = []
    held: Counter[tuple[int, int]] = Counter()
    marks = []
    for dot in group.dots:
        series = colours[dot.defence]
        x, y = plot.x(dot.clean.accuracy), plot.y(dot.worst.accuracy)
        plot.whisker(x, plot.y(dot.worst.low), plot.y(dot.worst.high), series)
        plot.whisker(y, plot.x(dot.clean.low), plot.x(dot.clean.high), series, across=True)
        # A mark where there is one already is a ring around it.
        rings = held[round(x), round(y)]
        held[round(x), round(y)] += 1
        filled = group.threat == "oblivious" and not rings
        marks.append((rings, marker(x, y, series, filled, r=4 + 3 * rings)))
        said.append(
            f"{words.defence(dot.defence)}: clean {words.percent(dot.clean.accuracy)}, "
            f"{words.percent(dot.worst.accuracy)} under {words.attack(dot.worst.attack)}."
        )
    plot.parts += [mark for _, mark in sorted(marks, key=lambda pair: -pair[0])]
    return plot.done(
        f"Clean accuracy against that at ε = {group.eps:g}/255, in per cent, {group.threat}. "
        f"{' '.join(said)}"
    )
