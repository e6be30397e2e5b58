"""The solvers as straight-line programs: no step depends on the data, so all can be recorded."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from clcnn.dynamics.base import Dynamics
from clcnn.export.checks import Exportable
from clcnn.objective import Objective
from clcnn.solvers.base import FeedbackSolver
from clcnn.solvers.greedy import Greedy
from clcnn.solvers.loop import IterativeSolver, Memory
from clcnn.solvers.per_cut import IterativePerCut
from clcnn.solvers.pmp import PMP
from clcnn.solvers.problem import Evaluation, Problem
from clcnn.types import Controls


def controlled_logits(
    dynamics: Dynamics, objective: Objective, solver: Exportable, x: Tensor
) -> Tensor:
    """The logits of x under control, as `Solver.solve` gives them, every sample in every step."""
    problem = Problem(dynamics, objective, x)
    if isinstance(solver, FeedbackSolver):
        policy = solver.policy(problem)

        def steer(t: int, state: Tensor) -> Tensor:
            u = policy(t, state)
            return state if u is None else state + u

        return dynamics.rollout(x, steer)
    return _replayed(problem, _lowest(problem, solver))


@dataclass(frozen=True)
class _Best:
    """Of each sample the iterate with the lowest J so far, and whether it is still being solved.

    ``kept`` is what the logits need of that iterate: the state at the last cut, or all controls.
    """

    J: Tensor  # (batch,)
    kept: Controls
    running: Tensor  # (batch,)

    def improved_by(self, at: Evaluation, kept: Controls) -> _Best:
        """A sample that has left keeps what it had; a non-finite J never wins."""
        J = at.J_t.sum(1)
        lowest = torch.where(self.J.isnan(), torch.inf, self.J)
        better = self.running & (lowest > J)
        chosen = tuple(_select(better, a, b) for a, b in zip(kept, self.kept, strict=True))
        return _Best(torch.where(better, J, self.J), chosen, self.running)

    def stopped_by(self, at: Evaluation, tolerance: float) -> _Best:
        """Samples leave once J is at most the tolerance, or when their J is not finite.

        A gradient that is not finite needs no check: it makes the next J not finite.
        """
        finite = at.J_t.isfinite().all(1)
        return _Best(self.J, self.kept, self.running & finite & self.J.gt(tolerance))


def _lowest(problem: Problem, solver: IterativeSolver) -> _Best:
    """u^{k+1} = update(u^k, dJ/du) for all samples, the best iterate kept per sample."""
    T = problem.dynamics.T
    solvers = solver.solvers if isinstance(solver, IterativePerCut) else (solver,) * T
    memory: list[Memory] = [() for _ in range(T)]
    u: Controls | None = None
    best: _Best | None = None
    if solver.start == "greedy" and solver.iterations > 0:
        best = _first(problem, problem.evaluate(None))
        u = problem.evaluate(Greedy().policy(problem)).u
    for k in range(solver.iterations):
        at, g = problem.gradient(u)
        best = _noted(problem, best, at).stopped_by(at, solver.tolerance)
        moved = [
            _update(one, k, u_t, g_t, m)
            for one, u_t, g_t, m in zip(solvers, at.u, g, memory, strict=True)
        ]
        u, memory = tuple(u_t for u_t, _ in moved), [m for _, m in moved]
    last = u
    return _noted(problem, best, problem.evaluate(None if last is None else lambda t, x: last[t]))


def _noted(problem: Problem, best: _Best | None, at: Evaluation) -> _Best:
    return _first(problem, at) if best is None else best.improved_by(at, _kept(problem, at))


def _first(problem: Problem, at: Evaluation) -> _Best:
    J = at.J_t.sum(1)
    return _Best(J, _kept(problem, at), torch.ones_like(J, dtype=torch.bool))


def _kept(problem: Problem, at: Evaluation) -> Controls:
    return at.u if _is_bypassed(problem.dynamics) else at.z[-1:]


def _replayed(problem: Problem, best: _Best) -> Tensor:
    """The logits of the best iterate; the stages before a kept last state become dead code."""
    last = problem.dynamics.T - 1
    if _is_bypassed(problem.dynamics):
        return problem.dynamics.rollout(problem.x0, lambda t, x: x + best.kept[t])
    return problem.dynamics.rollout(problem.x0, lambda t, x: best.kept[0] if t == last else x)


def _is_bypassed(dynamics: Dynamics) -> bool:
    """Whether something may pass around the last cut, so that its state does not tell all."""
    return bool(getattr(dynamics, "allow_bypass", False))


def _update(
    solver: IterativeSolver, k: int, u: Tensor, g: Tensor, memory: Memory
) -> tuple[Tensor, Memory]:
    """`PMP.update` in plain operations: its fused kernel for Adam is known to torch alone."""
    assert isinstance(solver, PMP)
    if solver.method != "adam":
        return solver.update(0, k, u, g, memory)
    beta1, beta2 = solver.beta1, solver.beta2
    m, v = (1 - beta1) * g, (1 - beta2) * (g * g)
    if k > 0:
        m, v = m + beta1 * memory[0], v + beta2 * memory[1]
    eps = max(solver.eps, torch.finfo(u.dtype).tiny)
    root = (v * (1 / (1 - beta2 ** (k + 1)))).sqrt() + eps
    return u - (solver.lr / (1 - beta1 ** (k + 1))) * (m / root), (m, v)


def _select(mask: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Sample by sample a where the mask holds, else b."""
    return torch.where(mask.view(-1, *[1] * (a.dim() - 1)), a, b)
