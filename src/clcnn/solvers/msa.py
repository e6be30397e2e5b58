"""The method of successive approximations: maximise H at each layer with the co-state held."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from clcnn.solvers.loop import IterativeSolver, Memory, check
from clcnn.solvers.problem import Evaluation, Problem
from clcnn.types import Controls


@dataclass(frozen=True)
class MSA(IterativeSolver):
    """v_t = argmax_v H_t(x_t, p_{t+1}, v) by ``inner`` steps v <- v + lr grad_v H_t; then
    u_t <- u_t + damping (v_t - u_t).

    States and co-states come from one forward and backward pass and are held during the inner
    steps. The curvature of the running loss is at most 2 (w + R), so lr near 1 / (4 (w + R)) is
    half a Newton step there; the damping keeps the outer iteration from overshooting.
    """

    lr: float = 0.25
    inner: int = 5
    damping: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        whole = isinstance(self.inner, int) and self.inner >= 1
        check(whole, "inner", self.inner, "to be a whole number of at least 1")
        check(0 < self.damping <= 1, "damping", self.damping, "in (0, 1]")

    def update(self, t: int, k: int, u: Tensor, g: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """One inner step: g is -dH_t/du_t."""
        return torch.add(u, g, alpha=-self.lr), ()

    def step(
        self, problem: Problem, k: int, at: Evaluation, g: Controls, memory: Sequence[Memory]
    ) -> tuple[Controls, list[Memory]]:
        """All layers maximise their own Hamiltonian side by side."""
        x = tuple(z_t - u_t for z_t, u_t in zip(at.z, at.u, strict=True))
        p = problem.objective.costates(g, at.u)
        v, ascent = at.u, tuple(-g_t for g_t in g)
        for i in range(self.inner):
            if i > 0:
                ascent = problem.hamiltonian_gradient(x, p, v)
            v = tuple(
                self.update(t, i, v_t, -a_t, ())[0]
                for t, (v_t, a_t) in enumerate(zip(v, ascent, strict=True))
            )
        u = tuple(
            torch.lerp(u_t, v_t, self.damping_at(t))
            for t, (u_t, v_t) in enumerate(zip(at.u, v, strict=True))
        )
        return u, list(memory)

    def damping_at(self, t: int) -> float:
        """The damping of cut t."""
        return self.damping
