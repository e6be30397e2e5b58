"""What passes between the rooms: controls, statuses, solutions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

from torch import Tensor

Controls: TypeAlias = tuple[Tensor, ...]
"""u = (u_0, ..., u_{T-1}), one tensor a cut, each of shape (batch, *state)."""

Steer: TypeAlias = Callable[[int, Tensor], Tensor]
"""(t, x_t) -> z_t: sees the state that arrives at cut t, returns the state that goes on."""


class Status(IntEnum):
    """How the solving of one sample ended; ``.sentence`` says it in words."""

    SOLVED = 0
    TOLERANCE = 1
    ITERATIONS = 2
    UNCONTROLLED = 3
    NONFINITE = 4

    @property
    def sentence(self) -> str:
        """What happened, and what to do if it is not what you wanted."""
        return _SENTENCES[self]


_SENTENCES = {
    Status.SOLVED: "Solved in closed form: the control was computed in one pass.",
    Status.TOLERANCE: "The cost J reached the tolerance; the sample left the batch early.",
    Status.ITERATIONS: "All iterations were used; the controls with the lowest J are returned. "
    "Raise `iterations` if J was still falling.",
    Status.UNCONTROLLED: "No iterate had a lower J than no control at all (or there was none, with "
    "iterations=0), so the controls are zero and the logits are the plain network's. Lower `lr` if "
    "this was not expected.",
    Status.NONFINITE: "A cost, gradient or logit became inf or nan; the best finite iterate is "
    "returned, or no control if its logits are not finite. Lower `lr`, or solve in float64.",
}


@dataclass(frozen=True, eq=False)
class Solution:
    """The controls of a batch and what they achieve, everything per sample.

    With batch size B and T cuts: ``u[t]`` (B, *state_t), ``J`` (B,), ``J_t`` (B, T),
    ``status`` (B,) of `Status` codes, ``steps`` (B,) updates made, ``logits`` (B, ...).

    ``score`` (B,) says how far the sample was from clean data before it was controlled; see
    ``robust.detect``. Of a solver that iterates it is J without control; of one that answers in one
    pass, the departures of the states that arrive at the cuts it controls, weighted as in J.
    """

    u: Controls
    J: Tensor
    J_t: Tensor
    status: Tensor
    steps: Tensor
    logits: Tensor
    score: Tensor

    @property
    def statuses(self) -> list[Status]:
        """``status`` as a list of `Status`, one a sample."""
        return [Status(code) for code in self.status.tolist()]

    def __repr__(self) -> str:
        counts = Counter(status.name for status in self.statuses)
        ends = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
        mean = f"{self.J.mean().item():.4g}" if len(self.J) else "-"
        return f"Solution({len(self.J)} samples, {len(self.u)} cuts, mean J {mean}; {ends})"
