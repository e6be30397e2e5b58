"""How much of a plan a store holds already, and whether it holds more of it without bfloat16."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from clcnn.evaluation.bench import Bench, Cell
from clcnn.evaluation.plan import Plan
from clcnn.evaluation.store import Store
from clcnn.evaluation.tables import PlanError
from clcnn.evaluation.watch import Silent
from clcnn.evaluation.workshop import Workshop

Keyed = Callable[[Cell], Cell]
"""Gives a cell another key, where the same settings are measured in another way."""


@dataclass(frozen=True)
class Held:
    """Cells, and samples of all cells: how many a plan has, how many of them are stored."""

    cells: int
    complete: int
    samples: int
    stored: int


def held(plan: Plan, store: Store, workshop: Workshop, keyed: Keyed = lambda cell: cell) -> Held:
    """What the store holds of a plan, as today's code would measure it; nothing is run."""
    done = {
        key: int(count)
        for key, count in store.read(
            "SELECT hash, sum(count * done) FROM cells JOIN chunks ON cell = id GROUP BY id"
        )
    }
    cells = map(keyed, Bench(plan, workshop, store.folder, Silent()).cells())
    wanted = {cell.key.hash: sum(cell.key.counts) for cell in cells}
    return Held(
        cells=len(wanted),
        complete=sum(done.get(key, 0) == count for key, count in wanted.items()),
        samples=sum(wanted.values()),
        stored=sum(done.get(key, 0) for key in wanted),
    )


def advice(plan: Plan, store: Store, workshop: Workshop, keyed: Keyed = lambda cell: cell) -> str:
    """What to say where more of a plan is stored without bfloat16 than with it; else nothing."""
    if workshop.float32 is not None:
        return ""
    here = held(plan, store, workshop, keyed)
    unrounded = held(plan, store, workshop.unrounded(), keyed)
    if unrounded.stored <= here.stored:
        return ""
    return (
        f"found {unrounded.stored} of the {here.samples} samples of {plan.name} measured without "
        f"bfloat16, and {here.stored} as this processor measures them, which has it; expected to "
        "be told which: --float32 goes on from the former, --bfloat16 measures anew (in Python "
        "Workshop(float32=True) or False)."
    )


def decided(plan: Plan, store: Store, workshop: Workshop, keyed: Keyed = lambda cell: cell) -> None:
    """Raise where results without bfloat16 would silently be measured once more with it."""
    found = advice(plan, store, workshop, keyed)
    if found:
        raise PlanError(found)
