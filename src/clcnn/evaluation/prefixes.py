"""One run of a solver that answers for all shorter ones: their iterates are its first."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from clcnn.control import ControlledModule
from clcnn.errors import SolveError
from clcnn.solvers.base import without_nonfinite
from clcnn.solvers.loop import IterativeSolver, Memory
from clcnn.solvers.problem import Evaluation, Problem, grad_mode, no_autocast
from clcnn.types import Controls, Solution, Status


@dataclass(frozen=True)
class Prefix:
    """What a solver with so many iterations would have found; seconds from the start."""

    solution: Solution
    seconds: float


def prefixes(robust: ControlledModule, x: Tensor, counts: Sequence[int]) -> dict[int, Prefix]:
    """`robust.solve(x)` as if ``iterations`` were each of ``counts``, from one run of the longest.

    The iterate u^k does not depend on how many are to come, so the best of u^0 ... u^K is known
    once u^K has been scored; one more forward pass gives its logits.
    """
    solver = robust.solver
    if not isinstance(solver, IterativeSolver) or solver.tolerance or solver.start != "zero":
        raise SolveError(
            f"found {solver!r}; expected one iterative solver for all cuts, with tolerance 0 and "
            "starting from zero, as only its shorter runs are the beginning of its longer ones."
        )
    if robust.dynamics is None or min(counts) < 0:
        raise SolveError(f"found counts {list(counts)}; expected a fitted network and 0 or more.")
    problem = Problem(robust.dynamics, robust.working_objective, x)
    found: dict[int, Prefix] = {}
    began = time.perf_counter()
    with grad_mode(False), no_autocast(x):
        memory: list[Memory] = [() for _ in range(problem.dynamics.T)]
        u: Controls | None = None
        best: Evaluation | None = None
        score = x.new_zeros(len(x))
        for k in range(max(counts) + 1):
            at, g = problem.gradient(u)
            if best is None:
                best, score = at, at.J_t.sum(1)
            else:
                best = _better(best, at)
            if k in counts:
                found[k] = Prefix(_solution(problem, best, score, k), time.perf_counter() - began)
            if k < max(counts):
                u, memory = solver.step(problem, k, at, g, memory)
    return found


def _better(best: Evaluation, at: Evaluation) -> Evaluation:
    """Each sample's controls of lower J; a J that is not finite never wins."""
    wins = at.J_t.sum(1) < best.J_t.sum(1).nan_to_num(nan=torch.inf)

    def select(a: Tensor, b: Tensor) -> Tensor:
        return torch.where(wins.view(-1, *[1] * (a.dim() - 1)), a, b)

    u = tuple(select(a, b) for a, b in zip(at.u, best.u, strict=True))
    return Evaluation(u, select(at.J_t, best.J_t), ())


def _solution(problem: Problem, best: Evaluation, score: Tensor, steps: int) -> Solution:
    n, device = len(problem.x0), problem.x0.device
    solution = Solution(
        u=best.u,
        J=best.J_t.sum(1),
        J_t=best.J_t,
        status=torch.full((n,), Status.ITERATIONS, dtype=torch.int8, device=device),
        steps=torch.full((n,), steps, device=device),
        logits=problem.logits(best.u),
        score=score,
    )
    return without_nonfinite(solution, problem)
