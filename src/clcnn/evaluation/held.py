"""How much of a plan a store holds already, and whether it holds more of it without bfloat16."""

from __future__ import annotations

from dataclasses import dataclass

from clcnn.evaluation.bench import Bench
from clcnn.evaluation.plan import Plan
from clcnn.evaluation.store import Store
from clcnn.evaluation.watch import Silent
from clcnn.evaluation.workshop import Workshop


@dataclass(frozen=True)
class Held:
    """Cells, and samples of all cells: how many a plan has, how many of them are stored."""

    cells: int
    complete: int
    samples: int
    stored: int


def held(plan: Plan, store: Store, workshop: Workshop) -> Held:
    """What the store holds of a plan, as today's code would measure it; nothing is run."""
    done = {
        key: int(count)
        for key, count in store.read(
            "SELECT hash, sum(count * done) FROM cells JOIN chunks ON cell = id GROUP BY id"
        )
    }
    cells = Bench(plan, workshop, store.folder, Silent()).cells()
    wanted = {cell.key.hash: sum(cell.key.counts) for cell in cells}
    return Held(
        cells=len(wanted),
        complete=sum(done.get(key, 0) == count for key, count in wanted.items()),
        samples=sum(wanted.values()),
        stored=sum(done.get(key, 0) for key in wanted),
    )


def advice(plan: Plan, store: Store, workshop: Workshop, here: Held | None = None) -> str:
    """What to say where more of a plan is stored without bfloat16 than with it; else nothing.

    Without it, the results of a processor that cannot multiply bfloat16 would silently be measured
    once more on one that can.
    """
    if workshop.float32:
        return ""
    here = here or held(plan, store, workshop)
    unrounded = held(plan, store, workshop.unrounded())
    if unrounded.stored <= here.stored:
        return ""
    return (
        f"the store holds {unrounded.stored} of the {here.samples} samples of {plan.name} as a "
        f"processor without bfloat16 measures them, {here.stored} as this one does: "
        "add --float32 (in Python: Workshop(float32=True)) to go on from those."
    )
