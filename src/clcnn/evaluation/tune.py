"""Choose iterations, learning rate and energy once per network, on held-out training images.

The objective is the mean accuracy over clean images, FGSM and PGD at every epsilon, among settings
that lose at most 4 points of clean accuracy; what the images cannot tell from the best is decided
by cost. Test images are never looked at, unless asked for to
see what the paper's way of choosing is worth.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path

from clcnn.control import ControlledModule
from clcnn.embeddings.linear import LinearEmbedding
from clcnn.evaluation.bench import Bench, Cell
from clcnn.evaluation.choice import Choice, Grid, Point, best, named, settings_at
from clcnn.evaluation.defence import Defence
from clcnn.evaluation.defending import Defences, Defended
from clcnn.evaluation.hashing import digest, room_code
from clcnn.evaluation.held import decided
from clcnn.evaluation.kinds import SOLVERS, Kind, attack_kind, has_setting
from clcnn.evaluation.manifest import manifest
from clcnn.evaluation.measuring import rows_of, timed
from clcnn.evaluation.plan import NONE, AttackPlan, Entry, Network, Plan
from clcnn.evaluation.prefixes import prefixes
from clcnn.evaluation.results import Result, results_of
from clcnn.evaluation.runner import Unit, single, work
from clcnn.evaluation.store import Measured, Store
from clcnn.evaluation.tables import PlanError, Table
from clcnn.evaluation.truncation import truncated
from clcnn.evaluation.watch import Silent, Watch
from clcnn.evaluation.workshop import Workshop
from clcnn.solvers.loop import IterativeSolver


def tune(
    network: Network,
    store: Store,
    *,
    defence: Defence | None = None,
    grid: Grid | None = None,
    n: int = 500,
    seed: int = 0,
    chunk: int = 250,
    split: str = "heldout",
    sample: bool = False,
    folder: Path | None = None,
    workshop: Workshop | None = None,
    watch: Watch | None = None,
) -> Choice:
    """Measure the grid on ``n`` images of ``split`` and choose; resumable as `run` is.

    All counts of iterations come from one run of the largest, and all energies of a linear
    embedding from one fit at the highest. Unless ``grid.whole``, clean images come first, and those
    settings that they rule out meet no others: the choice is the same.
    """
    defence, grid = defence or Defence(), grid or Grid()
    workshop, watch = workshop or Workshop(), watch or Silent()
    if not issubclass(SOLVERS[defence.solver.kind], IterativeSolver):
        raise PlanError(
            f"found the solver {defence.solver.kind!r}, which has no iterations or learning rate "
            "to choose; expected pmp or msa."
        )
    if not has_setting(defence.embedding.kind, grid.rule):
        grid = replace(grid, energy=())
    plan = _plan(network, defence, grid, n, seed, chunk, split, sample, folder or Path())
    bench = Bench(plan, workshop, store.folder, watch)
    bench.check()
    decided(plan, store, workshop, _apart)
    cells = [_apart(cell) for cell in bench.cells()]
    made_with = manifest(plan, workshop)
    made_with["plan"]["grid"] = asdict(grid)
    run = store.begin(made_with)

    def measured(some: Sequence[Cell]) -> list[Result]:
        ids = store.register(run, plan.name, [(cell.entry, cell.key) for cell in some])
        pairs = list(zip((cell.entry for cell in some), ids, strict=True))
        work(store, _Tuner(bench, grid, dict(pairs)).units(some), watch)
        return results_of(store, pairs, made_with)

    if grid.whole:
        found = measured(cells)
    else:
        judged = _points(measured([c for c in cells if _comes_first(c.entry)]), grid)
        least = min(point.lost for point in judged)
        enough = max(grid.most_lost, least) + 1e-9
        left = {named(p.energy, p.lr, p.iterations) for p in judged if p.lost <= enough}
        watch.say(f"{len(left)} of {len(judged)} settings go on from clean to perturbed images")
        found = measured([c for c in cells if _comes_first(c.entry) or c.entry.defence in left])
    points = _points(found, grid)
    chosen = best(points, n)
    trained = workshop.network(plan, "network")
    return Choice(
        network=network.weights,
        fingerprint=trained.fingerprint,
        data=network.data,
        split=split,
        n=n,
        chosen=chosen,
        points=tuple(points),
        plain=_accuracies(found, NONE),
        grid=grid,
        defence=settings_at(defence, grid.rule, chosen.energy, chosen.lr, chosen.iterations),
        manifest=made_with,
    )


class _Tuner:
    """Measures all counts of iterations of one energy and learning rate together."""

    def __init__(self, bench: Bench, grid: Grid, ids: Mapping[Entry, int]) -> None:
        self.bench = bench
        self.grid = grid
        self.ids = ids
        self._at: tuple[float | None, ControlledModule] | None = None

    def units(self, cells: Sequence[Cell]) -> list[Unit]:
        """What is done at once: a plain cell, or the cells that differ in iterations only."""
        by_entry = {cell.entry: cell for cell in cells}
        plain = [c for c in cells if c.entry.defence == NONE]
        units = [single(self.bench, cell, self.ids[cell.entry]) for cell in plain]
        for energy, lr in product(self.grid.energies(), self.grid.lr):
            for condition in plain:
                entries = {
                    k: replace(condition.entry, defence=named(energy, lr, k))
                    for k in sorted(self.grid.iterations, reverse=True)
                }
                group = {k: by_entry[entry] for k, entry in entries.items() if entry in by_entry}
                if group:
                    units.append(self._unit(energy, group))
        return units

    def _unit(self, energy: float | None, group: Mapping[int, Cell]) -> Unit:
        longest = group[max(group)]
        ids = {k: self.ids[cell.entry] for k, cell in group.items()}

        def measure(number: int) -> dict[int, Measured]:
            bench, entry = self.bench, longest.entry
            chunk = bench.chunk(longest.chosen, number)
            plain = bench.workshop.network(bench.plan, entry.network).module
            examples = bench.threats.images(bench.plan, entry, chunk, Defended(plain, None, None))
            defence = bench.plan.defences[entry.defence]
            robust = bench.defences.dressed(self._fitted(energy), defence)
            plain_seconds, _ = timed(plain, examples.x)
            found = prefixes(robust, examples.x, tuple(group))
            return {
                ids[k]: Measured(
                    rows_of(
                        chunk,
                        examples,
                        prefix.solution.logits,
                        prefix.seconds,
                        prefix.solution.J,
                    ),
                    # The longest run is all the work there is; the others come with it.
                    prefix.seconds if k == max(found) else 0.0,
                    plain_seconds,
                    examples.findings,
                )
                for k, prefix in found.items()
            }

        return Unit(longest.entry, tuple(ids.values()), measure)

    def _fitted(self, energy: float | None) -> ControlledModule:
        """The embeddings at one energy; kept, as the next unit most often wants the same."""
        if self._at is None or self._at[0] != energy:
            bench = self.bench
            self._at = energy, fitted_at(bench.defences, bench.plan, self.grid, energy)
        return self._at[1]


def fitted_at(defences: Defences, plan: Plan, grid: Grid, energy: float | None) -> ControlledModule:
    """The network with embeddings of one energy, cut from the fit at the highest if they can be."""

    def fitted(at: float | None) -> ControlledModule:
        name = named(at, grid.lr[0], grid.iterations[0])
        return defences.fitted(plan, "network", plan.defences[name])

    linear = next(iter(plan.defences.values())).embedding.kind == "linear"
    if energy is None or not linear or grid.rule != "energy" or energy == max(grid.energy):
        return fitted(energy)
    robust = fitted(max(grid.energy))
    cut = [truncated(E, energy) for E in robust.embeddings if isinstance(E, LinearEmbedding)]
    assert robust.dynamics is not None
    other = robust.configure()
    example = robust.input_like.reshape(0, *robust.input_shape)
    other.adopt(robust.dynamics, cut, robust.shapes, example)
    return other


def _plan(
    network: Network,
    defence: Defence,
    grid: Grid,
    n: int,
    seed: int,
    chunk: int,
    split: str,
    sample: bool,
    folder: Path,
) -> Plan:
    defences = {
        named(energy, lr, k): settings_at(defence, grid.rule, energy, lr, k)
        for energy, lr, k in product(grid.energies(), grid.lr, grid.iterations)
    }
    attacks = {
        "fgsm": AttackPlan("fgsm", Kind("fgsm", {})),
        "pgd": AttackPlan("pgd", _pgd()),
    }
    entries = [
        Entry("network", name, attack, eps, threat, n)
        for name in (NONE, *defences)
        for attack, eps, threat in grid.conditions()
    ]
    # Grids of one network may differ in anything: each has a name of its own, and one that was
    # measured in part has that of the whole.
    facts = [
        network.weights,
        network.data,
        n,
        seed,
        chunk,
        sample,
        asdict(replace(grid, whole=True)),
    ]
    mark = digest([*facts, defence.settings()])[:6]
    return Plan(
        name=f"tune {Path(network.weights).stem} {defence.embedding.kind} {split} {mark}",
        networks={"network": network},
        defences=defences,
        attacks=attacks,
        entries=tuple(entries),
        seed=seed,
        chunk=chunk,
        split=split,
        sample=sample,
        folder=folder,
    )


def _pgd() -> Kind:
    """The paper's 20 steps, every default written out."""
    return attack_kind(Table("tune", "attacks.pgd", {"steps": 20}), "pgd")


def _apart(cell: Cell) -> Cell:
    """A cell of a grid is measured in another way than one of a plan, so it is another cell."""
    code = digest([room_code(f"evaluation/{name}") for name in ("truncation", "tune")])
    settings = {**cell.key.settings, "recorded": "prefix", "tuning": code}
    return replace(cell, key=replace(cell.key, hash=digest(settings), settings=settings))


def _comes_first(entry: Entry) -> bool:
    """Whether a cell is measured before it is known which settings clean images rule out."""
    return entry.defence == NONE or entry.attack == NONE


def _points(found: Sequence[Result], grid: Grid) -> list[Point]:
    plain = _accuracies(found, NONE)
    return [
        Point.of(k, lr, energy, _accuracies(found, named(energy, lr, k)), plain, grid.most_lost)
        for energy, lr, k in product(grid.energies(), grid.lr, grid.iterations)
    ]


def _accuracies(found: Sequence[Result], defence: str) -> dict[str, float]:
    return {
        NONE if result.attack == NONE else f"{result.attack} {result.eps:g}": result.accuracy
        for result in found
        if result.defence == defence
    }
