"""The exact optimum when every stage and every embedding is affine: a Riccati recursion."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from clcnn.dynamics.base import Dynamics
from clcnn.errors import SolveError
from clcnn.objective import Objective
from clcnn.solvers.base import FeedbackSolver
from clcnn.solvers.problem import Policy, Problem


@dataclass(frozen=True)
class AffineStage:
    """x_{t+1} = A z + b and E(z) - z = C z + e at one cut, flattened; A is None at the last."""

    A: Tensor | None
    b: Tensor | None
    C: Tensor
    e: Tensor


@dataclass(frozen=True)
class Riccati(FeedbackSolver):
    """min_u sum_t w_t ||C_t z_t + e_t||^2 + u_t' R_t u_t, z_t = x_t + u_t, x_{t+1} = A_t z_t + b_t.

    With value function V_t(x) = x' P_t x + 2 s_t' x + const and M_t = w C'C + A' P_{t+1} A,
    h_t = -w C'e - A'(P_{t+1} b + s_{t+1}):
    u_t = (M_t + R_t)^-1 (h_t - M_t x_t), P_t = R - R (M + R)^-1 R, s_t = -R (M + R)^-1 h.

    The matrices are read off the stages at every call, so states must be small
    (``max_features``). A stage or embedding that is not affine is refused, at random points and
    along the trajectory of every sample.
    """

    max_features: int = 4096

    def policy(self, problem: Problem) -> Policy:
        """u_t = G_t x_t + g_t, by one backward recursion."""
        objective = problem.objective
        stages = read_affine(problem.dynamics, objective, problem.x0, self.max_features)
        gains: list[tuple[Tensor, Tensor]] = []
        rounding = torch.finfo(problem.x0.dtype).eps  # the matrices were read in this precision
        P: Tensor | None = None
        s: Tensor | None = None
        for t in reversed(range(problem.dynamics.T)):
            stage, w = stages[t], objective.weights[t]
            R = _matrix(objective.regularization[t], stage.C)
            M = w * stage.C.T @ stage.C
            h = -w * stage.C.T @ stage.e
            if stage.A is not None and stage.b is not None and P is not None and s is not None:
                M = M + stage.A.T @ P @ stage.A
                h = h - stage.A.T @ (P @ stage.b + s)
            inverse = torch.linalg.pinv(M + R, rtol=rounding * len(M), hermitian=True)
            gains.append((-inverse @ M, inverse @ h))
            P = R - R @ inverse @ R
            s = -R @ inverse @ h
        gains.reverse()

        expected: list[Tensor] = []

        def pi(t: int, x: Tensor) -> Tensor:
            G, g = gains[t]
            rows = x.flatten(1).to(G.dtype)
            if t > 0 and not _close(rows.detach(), expected[-1], rounding**0.5):
                raise _not_affine(_between(problem.dynamics, t - 1))
            u = rows @ G.T + g
            A, b = stages[t].A, stages[t].b
            if A is not None and b is not None:
                expected.append((rows + u).detach() @ A.T + b)
            return u.to(x.dtype).view_as(x)

        return pi


def read_affine(
    dynamics: Dynamics, objective: Objective, x0: Tensor, max_features: int
) -> list[AffineStage]:
    """A_t, b_t, C_t, e_t from value and derivative at zero, all stages in one severed pass."""
    shapes: list[torch.Size] = []

    def note(t: int, x: Tensor) -> Tensor:
        shapes.append(x.shape[1:])
        return x

    if dynamics.rounds:
        raise SolveError(
            "found a network accelerated with bfloat16=True, whose rounded stages are affine no "
            "more; Riccati expects exact ones. Use accelerate(bfloat16='embeddings'), or none."
        )
    dynamics.sweep(x0[:1], note)
    widest = max(shape.numel() for shape in shapes)
    if widest > max_features:
        raise SolveError(
            f"found a state of {widest} features; Riccati builds square matrices of that size and "
            f"expects at most {max_features}. Use PMP, or raise max_features."
        )
    n = max(shape.numel() for shape in shapes)
    at_zero = [x0.new_zeros(n, *shape) for shape in shapes]
    with torch.enable_grad():
        z = [zero.clone().requires_grad_() for zero in at_zero]
        following = _stage_outputs(dynamics, x0, z)
        A = _jacobians(following, z[:-1])
        z = [zero.clone().requires_grad_() for zero in at_zero]
        residuals = [
            E.residual(z_t).flatten(1) for E, z_t in zip(objective.embeddings, z, strict=True)
        ]
        C = _jacobians(residuals, z)
    stages = [
        AffineStage(
            A[t] if t < len(A) else None,
            following[t][0].detach().double() if t < len(A) else None,
            C[t],
            residuals[t][0].detach().double(),
        )
        for t in range(dynamics.T)
    ]
    _check_affine(dynamics, objective, x0, shapes, stages)
    return stages


def _jacobians(outputs: list[Tensor], z: list[Tensor]) -> list[Tensor]:
    """d output_i / dz_i of each pair, in float64; row k of the batch gives row k of the matrix.

    Differences of values would do as well, but lose the digits that a large bias takes.
    """
    if not outputs:
        return []
    total = torch.stack([out[: out.shape[1]].diagonal().sum() for out in outputs]).sum()
    grads = torch.autograd.grad(total, z)
    return [g[: out.shape[1]].flatten(1).double() for g, out in zip(grads, outputs, strict=True)]


def _stage_outputs(dynamics: Dynamics, x0: Tensor, z: list[Tensor]) -> list[Tensor]:
    """f_t(z_t), flattened, for all t but the last, in one severed pass."""
    outputs: list[Tensor] = []

    def steer(t: int, x: Tensor) -> Tensor:
        if t > 0:
            outputs.append(x.flatten(1))
        return z[t]

    dynamics.sweep(x0[:1].detach().expand(len(z[0]), *x0.shape[1:]), steer)
    return outputs


def _check_affine(
    dynamics: Dynamics,
    objective: Objective,
    x0: Tensor,
    shapes: list[torch.Size],
    stages: list[AffineStage],
) -> None:
    """Compare with the affine maps at random points; what differs is not affine."""
    generator = torch.Generator().manual_seed(0)
    rows = [
        torch.randn(2, shape.numel(), generator=generator, dtype=torch.float64)
        .to(x0.device)
        .to(x0.dtype)
        for shape in shapes
    ]
    states = [row.view(-1, *shape) for row, shape in zip(rows, shapes, strict=True)]
    following = _stage_outputs(dynamics, x0, states)
    slack = torch.finfo(x0.dtype).eps ** 0.5
    for t, stage in enumerate(stages):
        z = rows[t].double()
        residual = objective.embeddings[t].residual(rows[t].view(-1, *shapes[t])).flatten(1)
        affine = _close(residual, z @ stage.C.T + stage.e, slack)
        what = f"the embedding at cut {dynamics.cuts[t]!r}"
        if affine and stage.A is not None and stage.b is not None:
            affine = _close(following[t], z @ stage.A.T + stage.b, slack)
            what = _between(dynamics, t)
        if not affine:
            raise _not_affine(what)


def _between(dynamics: Dynamics, t: int) -> str:
    return f"the stage from {dynamics.cuts[t]!r} to {dynamics.cuts[t + 1]!r}"


def _not_affine(what: str) -> SolveError:
    return SolveError(
        f"{what} is not affine; Riccati solves linear-quadratic problems only. Use PMP for "
        "nonlinear networks and embeddings."
    )


def _close(found: Tensor, expected: Tensor, slack: float) -> bool:
    scale = 1.0 + expected.abs().max()
    return bool(((found.double() - expected).abs() <= slack * scale).all())


def _matrix(R: float | Tensor, like: Tensor) -> Tensor:
    d = like.shape[1]
    if isinstance(R, Tensor):
        return torch.diag(R.flatten().to(like))
    return R * torch.eye(d, dtype=like.dtype, device=like.device)
