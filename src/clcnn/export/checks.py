"""What can be exported, and the words for what cannot."""

from __future__ import annotations

from typing import TypeAlias

import torch

from clcnn.errors import ClcnnError
from clcnn.solvers.base import Solver
from clcnn.solvers.feedback import Feedback
from clcnn.solvers.greedy import Greedy, Reactive
from clcnn.solvers.per_cut import FeedbackPerCut, IterativePerCut
from clcnn.solvers.pmp import PMP

Exportable: TypeAlias = PMP | IterativePerCut | Greedy | Feedback | FeedbackPerCut
_KINDS = (PMP, IterativePerCut, Greedy, Reactive, Feedback, FeedbackPerCut)
_DTYPES = (torch.float32, torch.float64)


class ExportError(ClcnnError, RuntimeError):
    """A controlled network, or a part of it, that cannot be exported as asked."""


def exportable(solver: Solver) -> Exportable:
    """The solver, if its work is the same for every batch; a class derived from it may differ."""
    inner = solver.solvers if isinstance(solver, IterativePerCut | FeedbackPerCut) else ()
    if type(solver) in _KINDS and all(type(one) in _KINDS for one in inner):
        assert isinstance(solver, _KINDS)
        return solver
    solver = next((one for one in inner if type(one) not in _KINDS), solver)
    raise ExportError(
        f"found the solver {type(solver).__name__}; expected PMP, Greedy, Reactive or Feedback, "
        "whose work does not depend on the data. Choose one: "
        "robust.configure(solver=clcnn.PMP()).export(...)."
    )


def check_dtype(dtype: torch.dtype) -> None:
    """Half precision overflows in J, which the plain call notices and a graph does not."""
    if dtype not in _DTYPES:
        raise ExportError(
            f"found inputs of {dtype}; expected torch.float32 or torch.float64. Convert first: "
            "robust.float().export(...)."
        )


def check_batch(batch: int | None) -> None:
    """A fixed batch holds at least one sample."""
    whole = isinstance(batch, int) and not isinstance(batch, bool) and batch >= 1
    if batch is not None and not whole:
        raise ExportError(
            f"found batch={batch!r}; expected a whole number of at least 1, or None for any size."
        )
