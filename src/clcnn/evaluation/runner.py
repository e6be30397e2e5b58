"""Run a plan: cells in order, images by the chunk, as many processes on one store as you like."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from clcnn.evaluation.bench import Bench, Cell
from clcnn.evaluation.forecast import Forecast
from clcnn.evaluation.held import decided
from clcnn.evaluation.manifest import manifest
from clcnn.evaluation.plan import Entry, Plan
from clcnn.evaluation.results import Result, results_of
from clcnn.evaluation.store import Measured, Store, folder_of
from clcnn.evaluation.watch import Silent, Watch
from clcnn.evaluation.workshop import Workshop

_POLL = 0.2  # seconds between two looks at what other processes do


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
    cells = bench.cells()
    with nullcontext(store) if isinstance(store, Store) else Store(store) as opened:
        decided(plan, opened, workshop)
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
