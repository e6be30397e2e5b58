"""Linear control problems with exact answers, solved here without the library's solvers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from clcnn.dynamics import StagedDynamics
from clcnn.embeddings import LinearEmbedding
from clcnn.objective import Objective


@dataclass(frozen=True)
class LinearProblem:
    """min_u sum_t w_t ||Q_t (z_t - mu_t)||^2 + u_t' R_t u_t, x_{t+1} = A_t z_t + b_t."""

    dynamics: StagedDynamics
    objective: Objective
    A: list[Tensor]
    b: list[Tensor]

    def exact(self, x0: Tensor) -> tuple[Tensor, Tensor]:
        """The optimal stacked u and J of each sample, by one dense least-squares problem.

        All z_t are affine in the stacked u; J = ||M u - m||^2, and lstsq gives its minimiser.
        """
        E, R, w = self.objective.embeddings, self.objective.regularization, self.objective.weights
        d = [a.shape[1] for a in self.A]
        total = sum(d)
        blocks, targets = [], []
        Z = torch.zeros(d[0], total, dtype=x0.dtype)
        start = x0
        offset = 0
        for t, (A, b) in enumerate(zip(self.A, self.b, strict=True)):
            select = torch.zeros(d[t], total, dtype=x0.dtype)
            select[:, offset : offset + d[t]] = torch.eye(d[t], dtype=x0.dtype)
            Z = Z + select
            Q = torch.eye(d[t], dtype=x0.dtype) - E[t].V @ E[t].V.T
            blocks.append(w[t] ** 0.5 * Q @ Z)
            targets.append(-(w[t] ** 0.5) * (start - E[t].mean) @ Q.T)
            R_t = R[t] if isinstance(R[t], Tensor) else torch.full((d[t],), R[t], dtype=x0.dtype)
            blocks.append(R_t.sqrt().unsqueeze(1) * select)
            targets.append(torch.zeros(len(x0), d[t], dtype=x0.dtype))
            Z, start = A @ Z, start @ A.T + b
            offset += d[t]
        M, m = torch.cat(blocks), torch.cat(targets, dim=1)
        u = torch.linalg.lstsq(M, m.T, driver="gelsd").solution.T
        return u, (u @ M.T - m).square().sum(1)


def linear_problem(
    widths: tuple[int, ...] = (5, 6, 4),
    rank: int = 2,
    R: float | list[Tensor] = 0.1,
    weights: tuple[float, ...] | None = None,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
) -> LinearProblem:
    """A random affine network of the given state widths with PCA embeddings of its own states."""
    torch.manual_seed(seed)
    stages, A, b = [], [], []
    for inside, outside in zip(widths, (*widths[1:], 3), strict=True):
        layer = nn.Linear(inside, outside).to(dtype)
        nn.init.normal_(layer.weight, std=1 / inside**0.5)
        stages.append(layer)
        A.append(layer.weight.detach())
        b.append(layer.bias.detach())
    dynamics = StagedDynamics([stage.eval() for stage in stages])
    x = torch.randn(40, widths[0], dtype=dtype)
    embeddings = []
    for t in range(len(widths)):
        embeddings.append(LinearEmbedding(rank=rank).fit([x]))
        x = x @ A[t].T + b[t]
    listed = [R] * len(widths) if isinstance(R, float) else R
    objective = Objective(embeddings, listed, weights or (1.0,) * len(widths))
    return LinearProblem(dynamics, objective, A, b)
