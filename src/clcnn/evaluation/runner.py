"""Run a plan: cells in order, images by the chunk, as many processes on one store as you like."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import torch

from clcnn.control import control
from clcnn.errors import CutError
from clcnn.evaluation.cache import ExampleCache, Examples
from clcnn.evaluation.defending import Defences, Defended
from clcnn.evaluation.forecast import Forecast
from clcnn.evaluation.hashing import NETWORKS, digest, versions
from clcnn.evaluation.manifest import manifest
from clcnn.evaluation.measuring import measure, signs
from clcnn.evaluation.plan import CORRUPTION, NONE, Entry, Plan
from clcnn.evaluation.results import Result, results_of
from clcnn.evaluation.store import CellKey, Measured, Store, folder_of
from clcnn.evaluation.tables import PlanError
from clcnn.evaluation.threats import Chunk, Threats, seed_of
from clcnn.evaluation.unrounded import Unrounded
from clcnn.evaluation.workshop import Chosen, Workshop

_FORMAT = 1
_POLL = 0.2  # seconds between two looks at what other processes do


class Watch(Protocol):
    """Told of an evaluation's progress."""

    def cell(self, place: int, cells: int, entry: Entry) -> None:
        """Work on the cell at ``place`` of ``cells`` begins."""

    def samples(self, done: int, total: int, seconds_left: float | None) -> None:
        """So many of the samples of all cells are stored; None: no time is known yet."""

    def say(self, sentence: str) -> None:
        """Something that a person should read."""


class Silent:
    """Says nothing."""

    def cell(self, place: int, cells: int, entry: Entry) -> None:
        """Nothing."""

    def samples(self, done: int, total: int, seconds_left: float | None) -> None:
        """Nothing."""

    def say(self, sentence: str) -> None:
        """Nothing."""


@dataclass(frozen=True)
class Cell:
    """A cell with everything that decides its result, and the images it is measured on."""

    entry: Entry
    key: CellKey
    chosen: Chosen


class Bench:
    """A plan's cells and what they are made from."""

    def __init__(self, plan: Plan, workshop: Workshop, folder: Path, watch: Watch) -> None:
        self.plan = plan
        self.workshop = workshop
        kind = Unrounded if workshop.float32 else Defences
        self.defences = kind(workshop, folder / "fits", watch.say)
        self.threats = Threats(self.defences, ExampleCache(folder / "examples", watch.say))

    def cells(self) -> list[Cell]:
        """All cells of the plan, with the hashes of their settings."""
        return [self._cell(entry) for entry in self.plan.entries]

    def check(self) -> None:
        """Fail at once, before anything is measured, where a network and a plan do not fit."""
        for network in dict.fromkeys(entry.network for entry in self.plan.entries):
            self._check_images(network)
        self._check_cuts()

    def _check_images(self, network: str) -> None:
        plan = self.plan
        module = self.workshop.network(plan, network).module
        chosen = self.workshop.images(plan, network, plan.split, 1, plan.seed)
        x, _ = chosen.pictures.take(chosen.places[:1])
        try:
            with torch.no_grad():
                module(x.to(self.workshop.device))
        except RuntimeError as error:
            shape, data = " x ".join(map(str, x.shape[1:])), plan.networks[network].data
            raise PlanError(
                f"network {network!r} cannot take the images of {data!r}, {shape} ({error}); "
                "expected the data set that it was trained on: data = in a plan, --data here."
            ) from error

    def _check_cuts(self) -> None:
        plan = self.plan
        for network, name in dict.fromkeys((e.network, e.defence) for e in plan.entries):
            if name == NONE:
                continue
            defence = plan.defences[name].on(network)
            if defence.cuts is None or defence.fit.shipped is not None:
                continue
            module = self.workshop.network(plan, network).module
            try:
                control(module, list(defence.cuts), allow_bypass=defence.allow_bypass)
            except CutError as error:
                raise PlanError(f"[defences.{name}], on {network!r}: {error}") from error

    def _cell(self, entry: Entry) -> Cell:
        plan = self.plan
        trained = self.workshop.network(plan, entry.network)
        chosen = self.workshop.images(plan, entry.network, plan.split, entry.n, plan.seed)
        settings = {
            "format": _FORMAT,
            "network": trained.fingerprint,
            "data": {
                "name": plan.networks[entry.network].data,
                "split": plan.split,
                "sample": plan.sample,
                "images": chosen.digest,
            },
            "defence": self.defences.settings(plan, entry.network, entry.defence),
            "attack": self.threats.settings(plan, entry),
            "seed": plan.seed,
            "chunk": plan.chunk,
        }
        if entry.defence == NONE and not self._is_attacked(entry):
            settings["versions"] = versions(NETWORKS)  # else defence or attack tell of it
        counts = [min(plan.chunk, entry.n - start) for start in range(0, entry.n, plan.chunk)]
        return Cell(entry, CellKey(digest(settings), settings, tuple(counts)), chosen)

    def _is_attacked(self, entry: Entry) -> bool:
        return entry.attack != NONE and self.plan.attacks[entry.attack].kind != CORRUPTION

    def chunk(self, chosen: Chosen, number: int) -> Chunk:
        """The images of one chunk."""
        size = self.plan.chunk
        places = chosen.places[number * size : (number + 1) * size]
        x, y = chosen.pictures.take(places)
        device = self.workshop.device
        return Chunk(number, places, x.to(device), y.to(device), seed_of(self.plan.seed, number))

    def examples(self, cell: Cell, number: int) -> tuple[Chunk, Defended, Examples]:
        """The clean images of a chunk, the defence, and what it meets in their place."""
        plan, entry = self.plan, cell.entry
        chunk = self.chunk(cell.chosen, number)
        defended = self.defences.ready(plan, entry.network, entry.defence)
        return chunk, defended, self.threats.images(plan, entry, chunk, defended)

    def measure(self, cell: Cell, number: int) -> Measured:
        """One chunk of a cell."""
        entry = cell.entry
        chunk, defended, examples = self.examples(cell, number)
        measured = measure(defended, chunk, examples)
        if number > 0 or not self._is_attacked(entry):
            return measured
        found = signs(defended, chunk, entry.eps / 255, entry.threat == "adaptive")
        return replace(measured, findings=[*found, *measured.findings])


def run(
    plan: Plan,
    store: Store | str | Path,
    *,
    workshop: Workshop | None = None,
    watch: Watch | None = None,
) -> list[Result]:
    """Measure every cell of the plan that the store does not hold yet; return all of them.

    It may be ended at any time, by anything, and run again: what is stored is used, what is not
    is measured. Other processes may run the same or another plan on the same store meanwhile.
    """
    watch = watch or Silent()
    workshop = workshop or Workshop()
    folder = store.folder if isinstance(store, Store) else folder_of(Path(store))
    bench = Bench(plan, workshop, folder, watch)
    bench.check()  # before a store is made: what cannot be run leaves none behind
    with nullcontext(store) if isinstance(store, Store) else Store(store) as opened:
        cells = bench.cells()
        made_with = manifest(plan, workshop)
        number = opened.begin(made_with)
        ids = opened.register(number, plan.name, [(cell.entry, cell.key) for cell in cells])
        pairs = list(zip(cells, ids, strict=True))
        work(opened, [single(bench, cell, id_) for cell, id_ in pairs], watch)
        return results_of(opened, [(cell.entry, id_) for cell, id_ in pairs], made_with)


@dataclass(frozen=True)
class Unit:
    """What is measured at once: one cell, or several that share the work, by the chunk.

    ``entry`` stands for all of them; ``measure(number)`` gives a chunk of each cell in ``cells``.
    """

    entry: Entry
    cells: tuple[int, ...]
    measure: Callable[[int], Mapping[int, Measured]]


def single(bench: Bench, cell: Cell, id_: int) -> Unit:
    """One cell by itself."""
    return Unit(cell.entry, (id_,), lambda number: {id_: bench.measure(cell, number)})


def work(store: Store, units: Sequence[Unit], watch: Watch) -> None:
    """Measure what is not stored, in order, and wait for what other processes measure."""
    forecast = Forecast(store, [(unit.entry, cell) for unit in units for cell in unit.cells])
    watch.samples(*forecast.now())
    waiting = False
    while True:
        worked = False
        for place, unit in enumerate(units):
            claim = store.claim(*unit.cells)
            if claim is not None:
                watch.cell(place, len(units), unit.entry)
            while claim is not None:
                with store.held(claim):
                    measured = unit.measure(claim.chunk)
                store.finish(claim, measured)
                worked, waiting = True, False
                watch.samples(*forecast.now())
                claim = store.claim(*unit.cells)
        done, total, left = forecast.now()
        if done == total:
            watch.samples(done, total, left)
            return
        if not worked:
            if not waiting:
                watch.say("another process works on what is left; waiting for it")
            waiting = True
            time.sleep(_POLL)
