"""The loop of every iterative solver: the best iterate, tolerance and status, per sample."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, final

import numpy as np
import torch
from torch import Tensor

from clcnn.errors import SolveError
from clcnn.solvers.base import Solver, without_nonfinite
from clcnn.solvers.greedy import Greedy
from clcnn.solvers.problem import Evaluation, Problem, take
from clcnn.types import Controls, Solution, Status

Memory: TypeAlias = tuple[Tensor, ...]
"""What a solver remembers of one cut between updates: tensors whose first axis is the batch."""


@dataclass(frozen=True)
class Samples:
    """The samples still being solved, or a group that left; all share the batch axis."""

    index: Tensor  # (n,) places in the caller's batch
    best_u: Controls
    best_J_t: Tensor  # (n, T)
    first_J: Tensor  # (n,) without control
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
            take(self.best_u, which),
            self.best_J_t[which],
            self.first_J[which],
            self.best_step[which],
            self.steps[which],
            self.status[which],
        )

    @staticmethod
    def join(groups: Sequence[Samples]) -> Samples | None:
        """Several groups as one; None if there is no sample in them."""
        groups = [group for group in groups if len(group.index)]
        if not groups:
            return None
        if len(groups) == 1:
            return groups[0]
        T = len(groups[0].best_u)
        return Samples(
            torch.cat([group.index for group in groups]),
            tuple(torch.cat([group.best_u[t] for group in groups]) for t in range(T)),
            torch.cat([group.best_J_t for group in groups]),
            torch.cat([group.first_J for group in groups]),
            torch.cat([group.best_step for group in groups]),
            torch.cat([group.steps for group in groups]),
            torch.cat([group.status for group in groups]),
        )

    def improved_by(self, at: Evaluation, step: int) -> Samples:
        """The best iterate of each sample after seeing one more; a non-finite J never wins."""
        better = at.J_t.sum(1) < self.best_J.nan_to_num(nan=torch.inf)
        if better.all():
            steps = torch.full_like(self.best_step, step)
            return replace(self, best_u=at.u, best_J_t=at.J_t, best_step=steps)
        return replace(
            self,
            best_u=tuple(_select(better, a, b) for a, b in zip(at.u, self.best_u, strict=True)),
            best_J_t=_select(better, at.J_t, self.best_J_t),
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
        whole = isinstance(self.iterations, (int, np.integer)) and self.iterations >= 0
        check(whole, "iterations", self.iterations, "to be a whole number of at least 0")
        check(self.lr > 0, "lr", self.lr, "above 0")
        check(self.tolerance >= 0, "tolerance", self.tolerance, "at least 0")
        check(self.start in ("zero", "greedy"), "start", self.start, "'zero' or 'greedy'")

    @abstractmethod
    def update(self, t: int, k: int, u: Tensor, g: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """The next u_t from u_t, g = dJ/du_t and what was remembered (nothing at k = 0).

        Returns new tensors: earlier iterates are kept as they are.
        """

    def step(
        self, problem: Problem, k: int, at: Evaluation, g: Controls, memory: Sequence[Memory]
    ) -> tuple[Controls, list[Memory]]:
        """The next controls at all cuts; a solver that couples the cuts writes this instead."""
        moved = [
            self.update(t, k, u_t, g_t, m)
            for t, (u_t, g_t, m) in enumerate(zip(at.u, g, memory, strict=True))
        ]
        return tuple(u for u, _ in moved), [m for _, m in moved]

    @final
    def _solve(self, problem: Problem) -> Solution:
        whole, left = problem, list[Samples]()
        answered: list[tuple[Samples, Tensor]] = []
        u: Controls | None = None
        samples: Samples | None = None
        memory: list[Memory] = [() for _ in range(problem.dynamics.T)]
        if self.start == "greedy" and self.iterations > 0:
            samples = _fresh(problem.evaluate(None))
            u = problem.evaluate(Greedy().policy(problem)).u
        elif self.tolerance > 0 and self.iterations > 0:
            # One plain pass answers samples that need no control; only the others pay for more.
            plain = problem.answer(None)
            samples = _fresh(plain)
            near = samples.best_J <= self.tolerance
            if near.any():
                assert plain.logits is not None
                here, keep = _places(near), _places(~near)
                answered.append((_ended(samples, Status.TOLERANCE).take(here), plain.logits[here]))
                problem, samples = problem.take(keep), samples.take(keep)
        first_step = 0 if u is None else 1
        for k in range(self.iterations if len(problem.x0) else 0):
            at, g = problem.gradient(u)
            samples = _fresh(at) if samples is None else samples.improved_by(at, k + first_step)
            finite = torch.stack([at.J_t.isfinite().all(1), *map(_finite, g)]).all(0)
            stay = finite & (samples.best_J > self.tolerance)
            if not stay.all():
                ends = torch.where(finite, int(Status.TOLERANCE), int(Status.NONFINITE))
                left.append(replace(samples, status=ends.to(torch.int8)).take(_places(~stay)))
                keep = _places(stay)
                problem, samples = problem.take(keep), samples.take(keep)
                at, g, memory = at.take(keep), take(g, keep), [take(m, keep) for m in memory]
                if len(keep) == 0:
                    break
            u, memory = self.step(problem, k, at, g, memory)
            samples = replace(samples, steps=samples.steps + 1)
        last_step = 0 if u is None else self.iterations + first_step
        return _finish(whole, problem, answered, left, samples, u, last_step, self.tolerance)


def _finish(
    whole: Problem,
    problem: Problem,
    answered: list[tuple[Samples, Tensor]],
    left: list[Samples],
    samples: Samples | None,
    u: Controls | None,
    last_step: int,
    tolerance: float,
) -> Solution:
    """Score the last iterate with its logits; replay only samples whose best is older."""
    groups = list(answered)
    if len(problem.x0):
        last = problem.answer(u)
        samples = _fresh(last) if samples is None else samples.improved_by(last, last_step)
        broken = ~last.J_t.isfinite().all(1)
        status = samples.status.masked_fill(samples.best_J <= tolerance, Status.TOLERANCE)
        samples = replace(samples, status=status.masked_fill(broken, Status.NONFINITE))
        is_last = samples.best_step == last_step
        assert last.logits is not None
        if is_last.all():
            groups.append((samples, last.logits))
        else:
            here = _places(is_last)
            groups.append((samples.take(here), last.logits[here]))
            left = [*left, samples.take(_places(~is_last))]
    older = Samples.join(left)
    if older is not None:
        groups.append((older, whole.take(older.index).logits(older.best_u)))
    return without_nonfinite(_in_order(groups), whole)


def _in_order(groups: Sequence[tuple[Samples, Tensor]]) -> Solution:
    joined = Samples.join([group for group, _ in groups])
    assert joined is not None
    samples = joined
    logits = groups[0][1] if len(groups) == 1 else torch.cat([logits for _, logits in groups])
    order = joined.index.argsort()
    if not torch.equal(order, torch.arange(len(order), device=order.device)):
        samples, logits = joined.take(order), logits[order]
    uncontrolled = (samples.status == Status.ITERATIONS) & (samples.best_step == 0)
    status = samples.status.masked_fill(uncontrolled, Status.UNCONTROLLED)
    return Solution(
        u=samples.best_u,
        J=samples.best_J,
        J_t=samples.best_J_t,
        status=status,
        steps=samples.steps,
        logits=logits,
        score=samples.first_J,
    )


def _fresh(at: Evaluation) -> Samples:
    """The samples of a pass without control."""
    n, device = len(at.J_t), at.J_t.device
    counts = torch.zeros(n, dtype=torch.int64, device=device)
    status = torch.full((n,), Status.ITERATIONS, dtype=torch.int8, device=device)
    index = torch.arange(n, device=device)
    return Samples(index, at.u, at.J_t, at.J_t.sum(1), counts, counts, status)


def _ended(samples: Samples, status: Status) -> Samples:
    return replace(samples, status=torch.full_like(samples.status, status))


def _select(mask: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Sample by sample a where the mask holds, else b."""
    return torch.where(mask.view(-1, *[1] * (a.dim() - 1)), a, b)


def check(holds: bool, name: str, found: object, expected: str) -> None:
    """Refuse a setting: found, expected."""
    if not holds:
        raise SolveError(f"found {name}={found!r}; expected {name} {expected}.")


def _finite(g: Tensor) -> Tensor:
    # The largest magnitude is inf or nan if any is: one cheap pass instead of several.
    return g.flatten(1).abs().amax(1).isfinite()


def _places(mask: Tensor) -> Tensor:
    return mask.nonzero().squeeze(1)
