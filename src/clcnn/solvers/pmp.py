"""Pontryagin's maximum principle, solved by gradient ascent on the Hamiltonian: Algorithm 1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.optim.adam import adam

from clcnn.solvers.loop import IterativeSolver, Memory, check


@dataclass(frozen=True)
class PMP(IterativeSolver):
    """u_t <- u_t + lr * step(grad_u H_t), with grad_u H_t = p_t - 2 R u_t = -dJ/du_t.

    ``method`` is what turns the gradient into a step: "adam" as in the paper, "momentum", or
    "gradient" (plain ascent). All of them act element by element, so no sample sees another.
    """

    method: Literal["adam", "momentum", "gradient"] = "adam"
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8

    def __post_init__(self) -> None:
        super().__post_init__()
        methods = ("adam", "momentum", "gradient")
        check(self.method in methods, "method", self.method, f"one of {', '.join(methods)}")
        check(0 <= self.beta1 < 1, "beta1", self.beta1, "in [0, 1)")
        check(0 <= self.beta2 < 1, "beta2", self.beta2, "in [0, 1)")
        check(self.eps > 0, "eps", self.eps, "above 0")

    def update(self, t: int, k: int, u: Tensor, g: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """One step of ascent on H_t."""
        if self.method == "gradient":
            return torch.add(u, g, alpha=-self.lr), ()
        if self.method == "momentum":
            velocity = g if k == 0 else torch.add(g, memory[0], alpha=self.beta1)
            return torch.add(u, velocity, alpha=-self.lr), (velocity,)
        eps = max(self.eps, torch.finfo(u.dtype).tiny)  # 1e-8 is zero in half precision
        m, v = memory if k else (torch.zeros_like(g), torch.zeros_like(g))
        if not (u.requires_grad or g.requires_grad):
            return self._fused(k, u, g, m, v, eps)
        m = torch.lerp(m, g, 1 - self.beta1)
        v = torch.addcmul(self.beta2 * v, g, g, value=1 - self.beta2)
        corrected = v / (1 - self.beta2 ** (k + 1))
        step_size = self.lr / (1 - self.beta1 ** (k + 1))
        # Unrolled: where no gradient was ever seen the step is 0, but its derivative would be
        # 1/eps, and sqrt's inf; such coordinates (dead units) are taken as constants.
        unseen = v == 0
        root = corrected.masked_fill(unseen, 1.0).sqrt()
        moved = torch.addcdiv(u, m.masked_fill(unseen, 0.0), root + eps, value=-step_size)
        return moved, (m, v)

    def _fused(
        self, k: int, u: Tensor, g: Tensor, m: Tensor, v: Tensor, eps: float
    ) -> tuple[Tensor, Memory]:
        """Adam's step in one kernel; m and v belong to this cut alone and change in place."""
        moved = u.clone()
        # The kernel walks the memory of all four side by side, so they must be laid out alike.
        g, m, v = (_laid_out_like(moved, value) for value in (g, m, v))
        adam(
            [moved],
            [g],
            [m],
            [v],
            [],
            [torch.tensor(float(k), device=u.device)],  # the kernel counts on from here
            fused=True,
            amsgrad=False,
            beta1=self.beta1,
            beta2=self.beta2,
            lr=self.lr,
            weight_decay=0.0,
            eps=eps,
            maximize=False,
        )
        return moved, (m, v)


def _laid_out_like(u: Tensor, value: Tensor) -> Tensor:
    if value.stride() == u.stride():
        return value
    return torch.empty_like(u).copy_(value)
