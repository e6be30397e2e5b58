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
    """A_t, b_t, C_t, e_t read off unit vectors, all stages in one severed pass; checked."""
    shapes: list[torch.Size] = []

    def note(t: int, x: Tensor) -> Tensor:
        shapes.append(x.shape[1:])
        return x

    dynamics.sweep(x0[:1], note)
    widest = max(shape.numel() for shape in shapes)
    if widest > max_features:
        raise SolveError(
            f"found a state of {widest} features; Riccati builds square matrices of that size and "
            f"expects at most {max_features}. Use PMP, or raise max_features."
        )
    units = [torch.eye(shape.numel(), dtype=x0.dtype, device=x0.device) for shape in shapes]
    origin_and_units = [torch.cat([unit.new_zeros(1, unit.shape[1]), unit]) for unit in units]
    following = _stage_outputs(dynamics, x0, origin_and_units, shapes)
    stages = []
    for t, rows in enumerate(origin_and_units):
        residual = objective.embeddings[t].residual(rows.view(-1, *shapes[t])).flatten(1)
        A = b = None
        if t + 1 < dynamics.T:
            A, b = _affine(following[t])
        stages.append(AffineStage(A, b, *_affine(residual)))
    _check_affine(dynamics, objective, x0, shapes, stages)
    return stages


def _affine(images: Tensor) -> tuple[Tensor, Tensor]:
    """A and b from the images of the origin and the unit vectors, in float64."""
    images = images.double()
    return (images[1:] - images[0]).T, images[0]


def _stage_outputs(
    dynamics: Dynamics, x0: Tensor, rows: list[Tensor], shapes: list[torch.Size]
) -> list[Tensor]:
    """f_t(rows_t), flattened, for all t but the last; shorter row lists are padded with zeros."""
    n = max(len(row) for row in rows)
    outputs: list[Tensor] = []

    def steer(t: int, x: Tensor) -> Tensor:
        if t > 0:
            outputs.append(x.flatten(1)[: len(rows[t - 1])])
        padded = rows[t].new_zeros(n, rows[t].shape[1])
        padded[: len(rows[t])] = rows[t]
        return padded.view(n, *shapes[t])

    dynamics.sweep(x0[:1].expand(n, *x0.shape[1:]), steer)
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
    following = _stage_outputs(dynamics, x0, rows, shapes)
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
