"""How much of an experiment a store holds, as today's code would measure it; nothing is run."""

from __future__ import annotations

from dataclasses import dataclass

from clcnn.evaluation.runner import Bench, Silent
from clcnn.evaluation.store import Store
from clcnn.evaluation.workshop import Workshop
from clcnn.experiments.run import Request, plan_of


@dataclass(frozen=True)
class Progress:
    """Cells, and samples of all cells: how many there are, how many are stored.

    ``missing`` says which networks or choices are not there; their cells are not counted.
    """

    name: str
    cells: int
    complete: int
    samples: int
    stored: int
    missing: tuple[str, ...] = ()


def status(
    name: str, store: Store, request: Request | None = None, workshop: Workshop | None = None
) -> Progress:
    """What the store holds of an experiment that has a plan (`clcnn.experiments.run.PLANS`)."""
    workshop = workshop or Workshop()
    plan, missing = plan_of(name, request or Request(), workshop)
    done = {
        key: int(count)
        for key, count in store.read(
            "SELECT hash, sum(count * done) FROM cells JOIN chunks ON cell = id GROUP BY id"
        )
    }
    bench = Bench(plan, workshop, store.folder, Silent())
    wanted = {cell.key.hash: sum(cell.key.counts) for cell in bench.cells()}
    return Progress(
        name=plan.name,
        cells=len(wanted),
        complete=sum(done.get(key, 0) == count for key, count in wanted.items()),
        samples=sum(wanted.values()),
        stored=sum(done.get(key, 0) for key in wanted),
        missing=missing,
    )
