"""What is measured of a chunk: labels, costs, residuals, sizes of perturbations, seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from clcnn.attacks.flags import Finding, examine
from clcnn.attacks.norms import L2, LINF
from clcnn.attacks.stealth import trajectory
from clcnn.control import ControlledModule
from clcnn.evaluation.cache import Examples
from clcnn.evaluation.defending import Defended
from clcnn.evaluation.store import Measured, Row
from clcnn.evaluation.threats import Chunk
from clcnn.solvers.base import FeedbackSolver

Value = TypeVar("Value")

_EXAMINED = 16
"""Images on which the signs of a misleading evaluation are looked for."""


def measure(defended: Defended, chunk: Chunk, examples: Examples) -> Measured:
    """The answers of a defence to ``examples``, and how long it took for them.

    In a worst case a sample is correct only if nothing broke it.
    """
    plain_seconds, plain_logits = timed(defended.plain, examples.x)
    if defended.robust is None:
        rows = rows_of(chunk, examples, plain_logits, plain_seconds)
        return Measured(rows, examples.seconds + plain_seconds, plain_seconds, examples.findings)
    seconds, solution = timed(defended.robust.solve, examples.x)
    if isinstance(defended.robust.solver, FeedbackSolver):
        # A policy computes J for nobody but us: a user who asks for logits does not pay for it.
        seconds, _ = timed(defended.robust, examples.x)
    before = residuals(defended.robust, examples.x)
    rows = rows_of(chunk, examples, solution.logits, seconds, solution.J, before, solution.J_t)
    return Measured(rows, examples.seconds + seconds, plain_seconds, examples.findings)


@torch.no_grad()
def residuals(robust: ControlledModule, x: Tensor) -> Tensor:
    """||E_t(x_t) - x_t||^2 along the uncontrolled network, (batch, T)."""
    return trajectory(robust, x)[1]


@torch.no_grad()
def timed(function: Callable[[Tensor], Value], x: Tensor) -> tuple[float, Value]:
    """Seconds of one call, and what it returned; a small call before wakes everything up."""
    function(x[:2])
    _wait(x)
    began = time.perf_counter()
    value = function(x)
    _wait(x)
    return time.perf_counter() - began, value


def rows_of(
    chunk: Chunk,
    examples: Examples,
    logits: Tensor,
    seconds: float,
    J: Tensor | None = None,
    before: Tensor | None = None,
    after: Tensor | None = None,
) -> list[Row]:
    """A row for each sample; ``seconds`` are of the whole chunk."""
    predicted = logits.argmax(1).tolist()
    labels, places = chunk.y.tolist(), chunk.places.tolist()
    d = examples.x - chunk.x
    linf, l2 = LINF.size(d).tolist(), L2.size(d).tolist()
    costs = [None] * len(labels) if J is None else J.tolist()
    befores, afters = _packed(before, len(labels)), _packed(after, len(labels))
    broken_by = examples.broken_by or [None] * len(labels)
    return [
        Row(
            sample=places[i],
            label=labels[i],
            predicted=predicted[i],
            correct=predicted[i] == labels[i] and broken_by[i] is None,
            cost=costs[i],
            before=befores[i],
            after=afters[i],
            linf=linf[i],
            l2=l2[i],
            seconds=seconds / len(labels),
            broken_by=broken_by[i],
        )
        for i in range(len(labels))
    ]


def signs(defended: Defended, chunk: Chunk, eps: float, adaptive: bool) -> list[Finding]:
    """Signs that the attacks of a cell may mislead, as its attacker sees the network."""
    model = defended.plain
    if adaptive and defended.robust is not None:
        model = defended.robust.configure(grad="straight_through")
    return examine(model, chunk.x[:_EXAMINED], chunk.y[:_EXAMINED], eps=eps)


def unpacked(values: Sequence[bytes | None]) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """Stored residuals as (samples, T); no column where there was no control."""
    return np.array([np.frombuffer(value or b"", dtype="<f4") for value in values])


def _packed(values: Tensor | None, count: int) -> list[bytes | None]:
    if values is None:
        return [None] * count
    return [row.tobytes() for row in values.detach().cpu().numpy().astype("<f4")]


def _wait(x: Tensor) -> None:
    if x.is_cuda:
        torch.cuda.synchronize(x.device)
