"""Everything a report needs, read from stores once; the rest of this room only arranges it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from clcnn.dynamics import INPUT
from clcnn.evaluation.measuring import unpacked
from clcnn.evaluation.results import (
    NoCommonSampleError,
    Result,
    compare,
    plans,
    results,
    warnings_of,
)
from clcnn.evaluation.store import Store
from clcnn.experiments import paper
from clcnn.experiments.averages import Average, averages
from clcnn.experiments.run import ORDER, PAIRS, form_of
from clcnn.report.blocks import ReportError
from clcnn.report.tried import Attempt, attempts
from clcnn.statistics import Paired

TUNING = "tune "
"""How the names of plans begin that `clcnn tune` makes."""

GAINS = {
    **dict.fromkeys(("table1", "table2", "table4", "table5", "adaptive", "fashion"), "none"),
    "literal": "linear",
}
"""Experiments that show what a defence changes on the same images, and beside which other."""

Place = tuple[str, str, float, str]
"""Network, attack, eps, threat."""


@dataclass(frozen=True)
class Residuals:
    """Quartiles of ||E_t(x_t) - x_t||^2 over a cell's samples, (3, T).

    ``after`` are those of L_t under control.
    """

    before: tuple[tuple[float, ...], ...]
    after: tuple[tuple[float, ...], ...]
    n: int


@dataclass(frozen=True)
class Made:
    """What one or several runs were made with; they differ in nothing but their start."""

    started: tuple[str, ...]
    manifest: Mapping[str, Any]


@dataclass(frozen=True)
class Experiment:
    """One plan's results.

    ``name`` is the paper's table or another experiment; ``plan`` the name in the store, which says
    "-quick" for the form on few images, "-most-50" and "-seed-3" for others.
    ``weights`` and ``data`` are by the plan's network names.
    """

    name: str
    plan: str
    store: Path
    results: tuple[Result, ...]
    weights: Mapping[str, str]
    data: Mapping[str, str]
    cuts: Mapping[tuple[str, str], tuple[str, ...]]
    made: tuple[Made, ...]
    sample: bool
    ways: tuple[str, ...] = ()
    """In which ways it is not the experiment that it is called by, but for the quick form."""
    label: str = ""
    """What its store is called beside the others: its name, or its place."""
    differences: Mapping[Place, Paired] = field(default_factory=dict)
    gains: Mapping[int, Paired] = field(default_factory=dict)
    """By the cell of a defence: its accuracy minus that of `GAINS`' on the same images."""
    residuals: Mapping[int, Residuals] = field(default_factory=dict)
    averages: Sequence[Average] = ()
    distances: Mapping[int, float] = field(default_factory=dict)
    """By a cell of attacked images: the median length (l_2) of what was added to those it moved."""
    broken: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    """By the cell of a worst case: how many samples each attack broke, and under "" those left."""
    tried: Mapping[int, Sequence[Attempt]] = field(default_factory=dict)
    """By the cell of a worst case: what an attacker who knows of the control tried, in order."""

    @property
    def is_of_corruptions(self) -> bool:
        """Whether all that its images meet is corruptions: its eps are severities."""
        met = [r.is_corruption for r in self.results if r.eps]
        return bool(met) and all(met)

    @property
    def is_tuning(self) -> bool:
        """Whether it is a grid of `clcnn tune` and no table."""
        return self.name.startswith(TUNING)

    def is_complete(self, place: Place) -> bool:
        """Whether both sides of the difference at ``place`` have all their samples."""
        sides = [
            r.is_complete
            for r in self.results
            if (r.network, r.attack, r.eps, r.threat) == place and r.defence in PAIRS[self.name]
        ]
        return len(sides) == 2 and all(sides)

    def network(self, result: Result) -> str:
        """The name of a result's weights, which is the same in all plans."""
        return self.weights.get(result.network, result.network)

    def subject(self, network: str, defence: str, attack: str) -> str:
        """What is defended how against what, the threat apart, as far as the manifest says.

        Cells of two plans may stand side by side if their subjects are the same.
        """
        if not self.made:
            return f"{self.store} {self.plan}"
        plan = self.described
        settings = plan["defences"].get(defence, {}).get(network)
        attacker = plan["attacks"].get(attack)
        subject = [
            self.made[-1].manifest["weights"].get(network),
            self.data.get(network),
            self.sample,
            self.split,
            plan.get("seed"),
            settings and {k: v for k, v in settings.items() if k != "chosen"},
            self.attacker(attack, knows=False),
            attacker and plan["defences"].get(attacker["embedding_of"], {}).get(network),
        ]
        return json.dumps(subject, sort_keys=True)

    def attacker(self, attack: str, *, knows: bool) -> str:
        """The settings of an attack and of its members: what makes two of one name alike.

        By which views it sees the control counts only for one who ``knows`` of that.
        """
        known = self.described.get("attacks", {})
        own = known.get(attack)
        named = [own, *(known.get(name) for name in (own or {}).get("of") or ())]
        kept = [a and {k: v for k, v in a.items() if knows or k != "through"} for a in named]
        return json.dumps([attack, kept], sort_keys=True)

    def is_sought(self, result: Result) -> bool:
        """Whether an adversary sought the perturbation: neither noise nor a corruption is."""
        known = self.described.get("attacks", {})
        members = known.get(result.attack, {}).get("of") or (result.attack,)
        kinds = {known.get(name, {}).get("kind", name) for name in members}
        return bool(result.eps) and not result.is_corruption and kinds != {"noise"}

    @property
    def described(self) -> Mapping[str, Any]:
        """The plan as its latest manifest has it; empty if the store does not say."""
        plan: Mapping[str, Any] = self.made[-1].manifest["plan"] if self.made else {}
        return plan

    @property
    def split(self) -> str:
        """The images that it was measured on: "test", unless the manifest says another."""
        return str(self.described.get("split", "test"))


@dataclass(frozen=True)
class Warned:
    """A sign that something misleads, and the cells that it is a sign of."""

    check: str
    sentence: str
    cells: tuple[str, ...]


def gather(stores: Sequence[Path], places: Mapping[Path, Path] | None = None) -> list[Experiment]:
    """All experiments of all stores: the paper's tables, our other ones by worth, then the rest.

    ``places`` are where stores lie that were unpacked to be read.
    """
    if not stores:
        raise ReportError("found no store; expected at least one that `clcnn evaluate` wrote.")
    labels = _labels(list(dict.fromkeys(stores)), places or {})
    found = [
        replace(experiment, label=label)
        for path, label in labels.items()
        for experiment in _of_store(path)
    ]
    order = [*paper.TABLES, *(name for name in ORDER if name not in paper.TABLES)]
    return sorted(
        found,
        key=lambda e: (
            order.index(e.name) if e.name in order else len(order) + e.is_tuning,
            e.name,
            e.plan,
            e.label,
        ),
    )


def _labels(stores: Sequence[Path], places: Mapping[Path, Path]) -> dict[Path, str]:
    """The name of each store, or its place where another has that name."""
    names = Counter(path.name for path in stores)
    return {
        path: path.name if names[path.name] == 1 else str(places.get(path, path)) for path in stores
    }


def _of_store(path: Path) -> list[Experiment]:
    if path.is_file() and not path.stat().st_size:
        raise ReportError(
            f"{path} is empty; expected a store of results. Run `clcnn evaluate PLAN --store "
            f"{path}` first."
        )
    with Store(path, must_exist=True) as store:
        names = plans(store)
        if not names:
            raise ReportError(
                f"{path} is a store with no results; expected at least one cell. Run `clcnn "
                f"evaluate PLAN --store {path}` first."
            )
        made = _made(store)
        return [_experiment(store, name, made.get(name, ())) for name in names]


def is_twice(experiment: Experiment, experiments: Sequence[Experiment]) -> bool:
    """Whether several stores have a plan of that name."""
    return sum(other.plan == experiment.plan for other in experiments) > 1


def called(experiment: Experiment, experiments: Sequence[Experiment]) -> str:
    """The plan's name, and its store where others have a plan of that name."""
    where = f" in {experiment.label}" if is_twice(experiment, experiments) else ""
    return f"{experiment.plan}{where}"


def _made(store: Store) -> dict[str, tuple[Made, ...]]:
    """The manifests of each plan, each once, with all starts of it; the latest is the last."""
    starts: dict[tuple[str, str], list[str]] = {}
    for started, text in store.read("SELECT started, manifest FROM runs ORDER BY id"):
        key = (json.loads(text).get("plan", {}).get("name", ""), text)
        starts[key] = [*starts.pop(key, []), started]
    found: dict[str, tuple[Made, ...]] = {}
    for (name, text), started in starts.items():
        found[name] = (*found.get(name, ()), Made(tuple(started), json.loads(text)))
    return found


def _experiment(store: Store, plan: str, made: tuple[Made, ...]) -> Experiment:
    found = tuple(results(store, plan))
    described = made[-1].manifest["plan"] if made else {}
    networks = described.get("networks", {})
    name, ways = form_of(plan)
    tried = {r.cell: _tried(store, r.cell) for r in found if r.threat == "adaptive"}
    return Experiment(
        name=name,
        plan=plan,
        store=store.path,
        results=found,
        weights=_weights(networks),
        data={key: value["data"] for key, value in networks.items()},
        cuts=_cuts(described.get("defences", {})),
        made=made,
        sample=bool(described.get("sample")),
        ways=ways,
        differences=_differences(store, name, found),
        gains=_gains(store, name, found),
        residuals={} if name.startswith(TUNING) else _residuals(store, found),
        averages=averages(store, found),
        distances={} if name.startswith(TUNING) else _distances(store, found),
        broken=_broken(store, found, tried),
        tried=tried,
    )


def _distances(store: Store, found: Sequence[Result]) -> dict[int, float]:
    query = "SELECT l2 FROM samples WHERE cell = ? AND l2 > 0"
    lengths = {r.cell: store.read(query, r.cell) for r in found if r.eps and not r.is_corruption}
    return {cell: float(np.median(rows)) for cell, rows in lengths.items() if rows}


def _broken(
    store: Store, found: Sequence[Result], tried: Mapping[int, Sequence[Attempt]]
) -> dict[int, dict[str, int]]:
    query = "SELECT coalesce(broken_by, ''), count(*) FROM samples WHERE cell = ? GROUP BY 1"
    return {r.cell: dict(store.read(query, r.cell)) for r in found if tried.get(r.cell)}


def _tried(store: Store, cell: int) -> list[Attempt]:
    ((settings,),) = store.read("SELECT settings FROM cells WHERE id = ?", cell)
    return attempts(json.loads(settings)["attack"])


def _weights(networks: Mapping[str, Any]) -> dict[str, str]:
    """What each network of a plan is called: by its weights, unless two would be called alike."""
    names = {key: value["weights"] for key, value in networks.items()}
    names = {
        key: Path(weights).stem if weights.endswith(".safetensors") else weights
        for key, weights in names.items()
    }
    alike = Counter(names.values())
    return {key: name if alike[name] == 1 else f"{name} ({key})" for key, name in names.items()}


def _cuts(defences: Mapping[str, Any]) -> dict[tuple[str, str], tuple[str, ...]]:
    return {
        # What is shipped was fitted by `clcnn harden`, at the input.
        (network, defence): tuple(settings.get("cuts") or (INPUT,))
        for defence, by_network in defences.items()
        for network, settings in by_network.items()
        if settings.get("cuts") or settings.get("shipped")
    }


def _gains(store: Store, name: str, found: Sequence[Result]) -> dict[int, Paired]:
    if name not in GAINS:
        return {}
    measured = [r for r in found if r.n]
    base = {(r.network, r.attack, r.eps, r.threat): r for r in measured if r.defence == GAINS[name]}
    gains: dict[int, Paired] = {}
    for result in measured:
        place = (result.network, result.attack, result.eps, result.threat)
        other = base.get(place)
        # Without control a figure says how strong the attack is, and is no defence's gain.
        if result.defence in (GAINS[name], "none") or other is None:
            continue
        try:
            gains[result.cell] = compare(store, result, other)
        except NoCommonSampleError:
            continue  # the cell is shown as incomplete
    return gains


def _differences(store: Store, name: str, found: Sequence[Result]) -> dict[Place, Paired]:
    """For an experiment about one: first defence minus second, on the samples that both have."""
    if name not in PAIRS:
        return {}
    first, second = PAIRS[name]
    at = {(r.defence, r.network, r.attack, r.eps, r.threat): r for r in found if r.n}
    differences: dict[Place, Paired] = {}
    for defence, network, attack, eps, threat in at:
        other = at.get((second, network, attack, eps, threat))
        if defence != first or other is None:
            continue
        try:
            pair = compare(store, at[first, network, attack, eps, threat], other)
        except NoCommonSampleError:
            continue  # the cell is shown as incomplete
        differences[network, attack, eps, threat] = pair
    return differences


def _residuals(store: Store, found: Sequence[Result]) -> dict[int, Residuals]:
    """Of clean cells, and at the largest eps where each attack met a defence; of no corruptions."""
    attacked = [result for result in found if result.n and not result.is_corruption]
    largest: dict[tuple[str, ...], float] = {}
    for result in attacked:
        key = (result.network, result.defence, result.attack, result.threat)
        largest[key] = max(result.eps, largest.get(key, 0.0))
    quartiles: dict[int, Residuals] = {}
    for result in attacked:
        key = (result.network, result.defence, result.attack, result.threat)
        if result.eps != largest[key]:
            continue
        rows = store.read(
            "SELECT before, after FROM samples WHERE cell = ? AND before IS NOT NULL "
            "AND after IS NOT NULL ORDER BY sample",
            result.cell,
        )
        if rows:
            before, after = (unpacked(part) for part in zip(*rows, strict=True))
            quartiles[result.cell] = Residuals(_quartiles(before), _quartiles(after), len(rows))
    return quartiles


def _quartiles(values: np.ndarray[Any, Any]) -> tuple[tuple[float, ...], ...]:
    found = np.nanquantile(values.astype(np.float64), (0.25, 0.5, 0.75), axis=0)
    return tuple(tuple(float(v) for v in row) for row in found)


def warned(experiments: Sequence[Experiment]) -> list[Warned]:
    """All signs in all results, each sentence once, with the cells it was found in."""
    cells: dict[tuple[str, str], list[str]] = {}
    for experiment in experiments:
        for result in experiment.results:
            for finding in result.findings:
                where = cells.setdefault((finding.check, finding.sentence), [])
                where.append(f"{experiment.plan}: {name_of(result)}")
        for finding in warnings_of(experiment.results):
            between = cells.setdefault((finding.check, finding.sentence), [])
            if not between:
                between.append(experiment.plan)
    return [Warned(*key, tuple(dict.fromkeys(where))) for key, where in sorted(cells.items())]


def name_of(result: Result) -> str:
    """A cell in words."""
    words = [result.network, result.defence, result.attack]
    if result.eps:
        level = "severity" if result.is_corruption else "eps"
        words += [f"{level} {result.eps:g}", result.threat]
    return ", ".join(words)
