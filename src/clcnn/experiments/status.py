"""How much of an experiment a store holds, as today's code would measure it; nothing is run."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from clcnn.evaluation.held import Held, advice, held
from clcnn.evaluation.store import Store
from clcnn.evaluation.workshop import Workshop
from clcnn.experiments.run import Request, plan_of


@dataclass(frozen=True, kw_only=True)
class Progress(Held):
    """What a store holds of an experiment.

    ``missing`` says which networks or choices are not there; their cells are not counted. ``hint``
    says how to go on from results that were measured on another kind of processor.
    """

    name: str
    missing: tuple[str, ...] = ()
    hint: str = ""


def status(
    name: str, store: Store, request: Request | None = None, workshop: Workshop | None = None
) -> Progress:
    """What the store holds of an experiment that has a plan (`clcnn.experiments.run.PLANS`)."""
    workshop = workshop or Workshop()
    plan, missing = plan_of(name, request or Request(), workshop)
    return Progress(
        **asdict(held(plan, store, workshop)),
        name=plan.name,
        missing=missing,
        hint=advice(plan, store, workshop),
    )
