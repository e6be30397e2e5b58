"""The loop of every iterative solver: the best iterate, tolerance and status, per sample."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, final

import torch
from torch import Tensor

from clcnn.dynamics.base import Dynamics
from clcnn.errors import SolveError
from clcnn.objective import Objective
from clcnn.solvers.base import Policy, Solver, without_nonfinite
from clcnn.solvers.greedy import Greedy
from clcnn.solvers.passes import Evaluation, evaluate, gradient
from clcnn.types import Controls, Solution, Status

Memory: TypeAlias = tuple[Tensor, ...]
"""What a solver remembers of one cut between updates: tensors whose first axis is the batch."""


@dataclass(frozen=True)
class Samples:
    """The samples still being solved, or a group that left; all share the batch axis."""

    index: Tensor  # (n,) places in the caller's batch
    x0: Tensor
    best_u: Controls
    best_J_t: Tensor  # (n, T)
    best_step: Tensor  # (n,) the iterate that was best; 0 is no control
    steps: Tensor  # (n,) updates made
    status: Tensor  # (n,)

    @property
    def best_J(self) -> Tensor:
        """J of the best iterate: (n,)."""
        return self.best_J_t.sum(1)

    def take(self, which: Tensor) -> Samples:
        """The samples at places ``which``."""
        return Samples(
            self.index[which],
            self.x0[which],
            take(self.best_u, which),
            self.best_J_t[which],
            self.best_step[which],
            self.steps[which],
            self.status[which],
        )

    def improved_by(self, u: Controls, J_t: Tensor, step: int) -> Samples:
        """The best iterate of each sample after seeing u; a non-finite J never wins."""
        better = J_t.sum(1) < self.best_J.nan_to_num(nan=torch.inf)
        if better.all():
            return replace(
                self, best_u=u, best_J_t=J_t, best_step=torch.full_like(self.best_step, step)
            )
        return replace(
            self,
            best_u=tuple(select(better, a, b) for a, b in zip(u, self.best_u, strict=True)),
            best_J_t=select(better, J_t, self.best_J_t),
            best_step=self.best_step.masked_fill(better, step),
        )


@dataclass(frozen=True)
class IterativeSolver(Solver):
    """u^{k+1} = update(u^k, dJ/du), k = 0 ... iterations - 1, from u = 0 or the greedy control.

    A sample leaves once its J is at most ``tolerance``, or when a cost or gradient of it is not
    finite. Of all iterates, no control among them, each sample gets the one with the lowest J.
    A new solver writes `update`, for one cut at a time.
    """

    iterations: int = 10
    lr: float = 0.005
    tolerance: float = 0.0
    start: Literal["zero", "greedy"] = "zero"

    def __post_init__(self) -> None:
        check(self.iterations >= 0, "iterations", self.iterations, "at least 0")
        check(self.lr > 0, "lr", self.lr, "above 0")
        check(self.tolerance >= 0, "tolerance", self.tolerance, "at least 0")
        check(self.start in ("zero", "greedy"), "start", self.start, "'zero' or 'greedy'")

    @abstractmethod
    def update(self, t: int, k: int, u: Tensor, g: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """The next u_t from u_t, g = dJ/du_t and what was remembered (nothing at k = 0).

        Returns new tensors: earlier iterates are kept as they are.
        """

    def step(
        self,
        dynamics: Dynamics,
        objective: Objective,
        x0: Tensor,
        at: Evaluation,
        g: Controls,
        memory: Sequence[Memory],
        k: int,
        unroll: bool,
    ) -> tuple[Controls, list[Memory]]:
        """The next controls at all cuts; a solver that couples the cuts writes this instead."""
        moved = [
            self.update(t, k, u_t, g_t, m)
            for t, (u_t, g_t, m) in enumerate(zip(at.u, g, memory, strict=True))
        ]
        return tuple(u for u, _ in moved), [m for _, m in moved]

    @final
    def _solve(
        self, dynamics: Dynamics, objective: Objective, x0: Tensor, unroll: bool
    ) -> Solution:
        left: list[Samples] = []
        u: Controls | None = None
        samples: Samples | None = None
        memory: list[Memory] = [() for _ in range(dynamics.T)]
        if self.start == "greedy" and self.iterations > 0:
            samples = _fresh(x0, evaluate(dynamics, objective, x0, None))
            u = evaluate(dynamics, objective, x0, Greedy().policy(dynamics, objective, x0)).u
        first_step = 0 if u is None else 1
        for k in range(self.iterations):
            at, g = gradient(
                dynamics, objective, x0 if samples is None else samples.x0, u, unroll=unroll
            )
            if samples is None:
                samples = _fresh(x0, at)
            else:
                samples = samples.improved_by(at.u, at.J_t, k + first_step)
            finite = torch.stack([at.J_t.isfinite().all(1), *map(_finite, g)]).all(0)
            stay = finite & (samples.best_J > self.tolerance)
            if not stay.all():
                ends = torch.where(finite, int(Status.TOLERANCE), int(Status.NONFINITE))
                leaving = replace(samples, status=ends.to(torch.int8)).take(_places(~stay))
                left.append(leaving)
                keep = _places(stay)
                if len(keep) == 0:
                    samples = None
                    break
                samples = samples.take(keep)
                at = Evaluation(take(at.u, keep), at.J_t[keep], take(at.z, keep), None)
                g = take(g, keep)
                memory = [take(m, keep) for m in memory]
            u, memory = self.step(dynamics, objective, samples.x0, at, g, memory, k, unroll)
            samples = replace(samples, steps=samples.steps + 1)
        return self._finish(dynamics, objective, x0, left, samples, u, first_step)

    def _finish(
        self,
        dynamics: Dynamics,
        objective: Objective,
        x0: Tensor,
        left: list[Samples],
        samples: Samples | None,
        u: Controls | None,
        first_step: int,
    ) -> Solution:
        """Score the last iterate with its logits; replay only samples whose best is older."""
        groups: list[tuple[Samples, Tensor]] = []
        if samples is not None or not left:
            inputs = x0 if samples is None else samples.x0
            last = evaluate(dynamics, objective, inputs, _replay(u), with_logits=True)
            assert last.logits is not None
            if samples is None:
                samples = _fresh(x0, last)
            else:
                samples = samples.improved_by(last.u, last.J_t, self.iterations + first_step)
                broken = ~last.J_t.isfinite().all(1)
                samples = replace(
                    samples, status=samples.status.masked_fill(broken, Status.NONFINITE)
                )
            is_last = samples.best_step == (0 if u is None else self.iterations + first_step)
            here, older = _places(is_last), _places(~is_last)
            groups.append((samples.take(here), last.logits[here]))
            if len(older):
                left = [*left, samples.take(older)]
        for group in left:
            done = evaluate(dynamics, objective, group.x0, _replay(group.best_u), with_logits=True)
            assert done.logits is not None
            groups.append((group, done.logits))
        solution = _in_order(groups)
        return without_nonfinite(solution, dynamics, objective, x0)


def _fresh(x0: Tensor, at: Evaluation) -> Samples:
    n = len(x0)
    counts = torch.zeros(n, dtype=torch.int64, device=x0.device)
    status = torch.full((n,), Status.ITERATIONS, dtype=torch.int8, device=x0.device)
    index = torch.arange(n, device=x0.device)
    return Samples(index, x0, at.u, at.J_t, counts, counts, status)


def _in_order(groups: Sequence[tuple[Samples, Tensor]]) -> Solution:
    order = torch.cat([group.index for group, _ in groups]).argsort()
    whole = [
        torch.cat([getattr(group, name) for group, _ in groups])[order]
        for name in ("best_J_t", "status", "steps", "best_step")
    ]
    J_t, status, steps, best_step = whole
    used_all = status == Status.ITERATIONS
    status = status.masked_fill(used_all & (best_step == 0), Status.UNCONTROLLED)
    T = len(groups[0][0].best_u)
    u = tuple(torch.cat([group.best_u[t] for group, _ in groups])[order] for t in range(T))
    logits = torch.cat([logits for _, logits in groups])[order]
    return Solution(u, J_t.sum(1), J_t, status, steps, logits)


def _replay(u: Controls | None) -> Policy | None:
    """(t, x_t) -> u_t for controls that are already known."""
    return None if u is None else (lambda t, x: u[t])


def take(tensors: Sequence[Tensor], which: Tensor) -> tuple[Tensor, ...]:
    """The samples at places ``which`` of every tensor."""
    return tuple(tensor[which] for tensor in tensors)


def select(mask: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Sample by sample a where the mask holds, else b."""
    return torch.where(mask.view(-1, *[1] * (a.dim() - 1)), a, b)


def check(holds: bool, name: str, found: object, expected: str) -> None:
    """Refuse a setting: found, expected."""
    if not holds:
        raise SolveError(f"found {name}={found!r}; expected {name} {expected}.")


def _finite(g: Tensor) -> Tensor:
    return g.flatten(1).isfinite().all(1)


def _places(mask: Tensor) -> Tensor:
    return mask.nonzero().squeeze(1)
