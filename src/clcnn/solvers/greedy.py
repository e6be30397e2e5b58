"""Closed forms: layer-wise projection at every cut, reactive defence at the input."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from clcnn.dynamics.base import INPUT
from clcnn.embeddings.orthogonal import OrthogonalEmbedding
from clcnn.errors import SolveError
from clcnn.solvers.base import FeedbackSolver
from clcnn.solvers.problem import Policy, Problem


@dataclass(frozen=True)
class Greedy(FeedbackSolver):
    """u_t = argmin_u w ||E_t(x_t + u) - (x_t + u)||^2 + u' R u = (E_t(x_t) - x_t) / (1 + c).

    Each cut for itself, blind to what follows: the layer-wise projection of the paper. c is the
    paper's regularisation; left out, it is R / w of the objective. Exact for linear embeddings
    (a diagonal R included); one damped projection step for others. What is best at one layer may
    raise the loss of later ones, so J may end above the uncontrolled J.
    """

    c: float | None = None

    def __post_init__(self) -> None:
        if self.c is not None and not (isinstance(self.c, (int, float)) and self.c >= 0):
            raise SolveError(f"found c={self.c!r}; expected a number of at least 0, or None for R.")

    def policy(self, problem: Problem) -> Policy:
        """The projection of every cut."""
        objective = problem.objective

        def pi(t: int, x: Tensor) -> Tensor:
            residual = objective.embeddings[t].residual(x)
            if self.c is not None:
                return residual / (1.0 + self.c)
            w, R = objective.weights[t], objective.regularization[t]
            if isinstance(R, Tensor):
                embedding = objective.embeddings[t]
                if isinstance(embedding, OrthogonalEmbedding):
                    return _diagonal_minimiser(embedding.basis(), residual, w, R)
                return residual * (w / (w + R.to(residual)))
            return residual * (w / (w + R)) if R else residual

        return pi


@dataclass(frozen=True)
class Reactive(Greedy):
    """u_0 = (E_0(x_0) - x_0) / (1 + c) at the input, and no control behind it."""

    def policy(self, problem: Problem) -> Policy:
        """The projection of the input."""
        first = problem.dynamics.cuts[0]
        if first != INPUT:
            raise SolveError(
                f"Reactive controls the network's input, but the first cut is {first!r}. Add "
                "'input' as the first cut, or use Greedy."
            )
        greedy = super().policy(problem)
        return lambda t, x: greedy(t, x) if t == 0 else None


def _diagonal_minimiser(V: Tensor, residual: Tensor, w: float, R: Tensor) -> Tensor:
    """u with (w Q + R) u = w r, Q = I - V V', r = E(x) - x, by Woodbury: no d x d matrix.

    (D - w V V')^-1 = D^-1 + D^-1 V S^+ V' D^-1 with D = w I + R, S = I/w - V' D^-1 V. As V'V = I
    and V'r = 0, S = V' diag(R / (w D)) V and V' D^-1 w r = -V' diag(R / D) r: written so, nothing
    cancels, and S is exactly 0 where R is.
    """
    rows = residual.flatten(1)  # (batch, d)
    R = R.flatten().to(rows)
    D = w + R
    S = V.T @ ((R / (w * D)).unsqueeze(1) * V)  # (r, r)
    b = -(rows * (R / D)) @ V  # (batch, r)
    correction = b @ torch.linalg.pinv(S, hermitian=True) @ (V / D.unsqueeze(1)).T
    u: Tensor = (rows * (w / D) + correction).view_as(residual)
    return u
