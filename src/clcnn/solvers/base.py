"""What every solver is, and the one-pass kind: feedback policies u_t = pi_t(x_t)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from clcnn.checks import require_finite
from clcnn.dynamics.base import Dynamics
from clcnn.embeddings.base import Embedding
from clcnn.objective import Objective, total_cost
from clcnn.solvers.problem import Evaluation, Policy, Problem, grad_mode, no_autocast
from clcnn.types import Solution, Status


@dataclass(frozen=True)
class Solver(ABC):
    """min_u J(u) for each sample; an instance is its settings and nothing else."""

    @final
    def solve(
        self, dynamics: Dynamics, objective: Objective, x0: Tensor, *, unroll: bool = False
    ) -> Solution:
        """The controls of every sample of x0, solved by itself.

        With ``unroll`` the solution stays differentiable with respect to x0.
        """
        if len(x0) == 0:
            return _none_of(self.solve(dynamics, objective, _one_blank_sample(x0)))
        with _ready(dynamics, x0, unroll) as inputs:
            return self._solve(Problem(dynamics, objective, inputs, unroll))

    @final
    def answer(
        self, dynamics: Dynamics, objective: Objective, x0: Tensor, *, unroll: bool = False
    ) -> Tensor:
        """The logits that `solve` gives, without what only a `Solution` needs."""
        if len(x0) == 0:
            return self.solve(dynamics, objective, x0).logits
        with _ready(dynamics, x0, unroll) as inputs:
            return self._answer(Problem(dynamics, objective, inputs, unroll))

    @abstractmethod
    def _solve(self, problem: Problem) -> Solution: ...

    def check(self, cuts: Sequence[str], embeddings: Sequence[Embedding]) -> None:
        """Refuse embeddings that this solver cannot go by, as soon as they are fitted."""
        return

    def remarks(self, cuts: Sequence[str], embeddings: Sequence[Embedding]) -> list[str]:
        """What a user should know of this solver with these embeddings: as a rule, nothing."""
        return []

    def _answer(self, problem: Problem) -> Tensor:
        return self._solve(problem).logits

    def settings(self) -> dict[str, Any]:
        """The settings as JSON values, with which an equal solver is made."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: v.item() if isinstance(v, np.generic) else v for name, v in values.items()}


class FeedbackSolver(Solver):
    """u_t = pi_t(x_t) in one forward pass; a new one writes `policy`."""

    @abstractmethod
    def policy(self, problem: Problem) -> Policy:
        """The policy pi for this problem."""

    @final
    def _solve(self, problem: Problem) -> Solution:
        pi, objective = self.policy(problem), problem.objective
        departures: list[Tensor] = []

        def watched(t: int, x: Tensor) -> Tensor | None:
            u = pi(t, x)
            if u is not None:
                departures.append(objective.weights[t] * objective.embeddings[t].departure(x))
            return u

        done = problem.evaluate(watched, with_logits=True)
        n, device = len(problem.x0), problem.x0.device
        status = torch.full((n,), Status.SOLVED, dtype=torch.int8, device=device)
        status = status.masked_fill(~done.J_t.isfinite().all(1), Status.NONFINITE)
        steps = torch.ones(n, dtype=torch.int64, device=device)
        score = total_cost(departures) if departures else torch.zeros_like(done.J_t[:, 0])
        solution = solution_from(done, status, steps, score)
        return without_nonfinite(solution, problem, finite_cost=False)

    @final
    def _answer(self, problem: Problem) -> Tensor:
        """As `_solve`, but no cut is scored: a policy does not ask for J."""
        pi = self.policy(problem)

        def steer(t: int, x: Tensor) -> Tensor:
            u = pi(t, x)
            return x if u is None else x + u

        logits = problem.dynamics.rollout(problem.x0, steer)
        return logits if logits.isfinite().all() else self._solve(problem).logits


@contextmanager
def _ready(dynamics: Dynamics, x0: Tensor, unroll: bool) -> Iterator[Tensor]:
    """x0 checked, detached unless unrolled, and the grad mode that solving needs."""
    require_finite(x0)
    dynamics.check_mode()
    with grad_mode(unroll), no_autocast(x0):
        if not unroll:
            x0 = x0.detach()
        yield x0.clone() if x0.is_inference() else x0


def solution_from(done: Evaluation, status: Tensor, steps: Tensor, score: Tensor) -> Solution:
    """A `Solution` from one full pass."""
    assert done.logits is not None
    J = total_cost(done.J_t.unbind(1))
    return Solution(done.u, J, done.J_t, status, steps, done.logits, score)


def without_nonfinite(
    solution: Solution, problem: Problem, *, finite_cost: bool = True
) -> Solution:
    """Samples whose logits are not finite go back to no control, and their status says so.

    With ``finite_cost`` those whose J is not finite do so as well: an iterative solver went by it.
    """
    broken = ~solution.logits.reshape(len(solution.J), -1).isfinite().all(1)
    if finite_cost:
        broken |= ~solution.J.isfinite()
    if not broken.any():
        return solution
    index = broken.nonzero().squeeze(1)
    plain = problem.take(index).evaluate(None, with_logits=True)
    assert plain.logits is not None
    return replace(
        solution,
        u=tuple(u.index_copy(0, index, v) for u, v in zip(solution.u, plain.u, strict=True)),
        J=solution.J.index_copy(0, index, plain.J_t.sum(1)),
        J_t=solution.J_t.index_copy(0, index, plain.J_t),
        status=solution.status.index_fill(0, index, Status.NONFINITE),
        logits=solution.logits.index_copy(0, index, plain.logits),
    )


def _one_blank_sample(x0: Tensor) -> Tensor:
    return x0.new_zeros((1, *x0.shape[1:]))


def _none_of(solution: Solution) -> Solution:
    """The solution of an empty batch, shapes and dtypes as of a full one."""
    return Solution(
        u=tuple(u[:0] for u in solution.u),
        J=solution.J[:0],
        J_t=solution.J_t[:0],
        status=solution.status[:0],
        steps=solution.steps[:0],
        logits=solution.logits[:0],
        score=solution.score[:0],
    )
