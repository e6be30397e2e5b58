"""Algorithm 1 written to the letter: what the solver costs if nothing is thought about.

Dense d x d projections, every iteration through the whole network, autograd through everything,
gradients of the weights among it. It gives the same controls as `PMP`, and serves as the measure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from clcnn.dynamics.base import INPUT
from clcnn.embeddings.orthogonal import OrthogonalEmbedding

_ROWS = 1024  # of the identity, projected at once


class Literal:
    """u = argmin_u sum_t ||P_t (z_t - m_t) - (z_t - m_t)||^2, z_t = x_t + u_t, by Adam from u = 0.

    Of all iterates, no control among them, each sample gets the one with the lowest J.
    """

    def __init__(
        self, model: nn.Module, cuts: Sequence[str], embeddings: Sequence[OrthogonalEmbedding]
    ) -> None:
        self.model, self.cuts = model, tuple(cuts)
        self.P = [dense_projection(E) for E in embeddings]
        self.means = [E.mean for E in embeddings]

    def solve(self, x: Tensor, iterations: int, lr: float) -> tuple[list[Tensor], Tensor]:
        """The best controls of every sample, and the logits under them."""
        u = [torch.zeros((len(x), *shape), device=x.device) for shape in self._shapes(x)]
        u = [u_t.to(x).requires_grad_() for u_t in u]
        adam = torch.optim.Adam(u, lr=lr)
        best = [u_t.detach().clone() for u_t in u]
        best_J = torch.full((len(x),), torch.inf, dtype=x.dtype, device=x.device)
        for k in range(iterations + 1):
            adam.zero_grad()
            self.model.zero_grad()
            J = self._cost(x, u)
            better = J.detach() < best_J
            best_J = torch.where(better, J.detach(), best_J)
            for t, u_t in enumerate(u):
                chosen = better.view(-1, *[1] * (u_t.dim() - 1))
                best[t] = torch.where(chosen, u_t.detach(), best[t])
            if k < iterations:
                torch.autograd.backward(J.sum())
                adam.step()
        self.model.zero_grad()
        with torch.no_grad():
            return best, self._forward(x, best)[0]

    def _cost(self, x: Tensor, u: Sequence[Tensor]) -> Tensor:
        J = torch.zeros(len(x), dtype=x.dtype, device=x.device)
        for z, P, mean in zip(self._forward(x, u)[1], self.P, self.means, strict=True):
            centred = z.flatten(1) - mean
            J = J + (centred @ P - centred).square().sum(1)
        return J

    def _shapes(self, x: Tensor) -> list[torch.Size]:
        with torch.no_grad():
            return [z.shape[1:] for z in self._forward(x[:1], None)[1]]

    def _forward(self, x: Tensor, u: Sequence[Tensor] | None) -> tuple[Tensor, list[Tensor]]:
        """Logits, and the controlled states in the order of the cuts."""
        states: list[Tensor] = []

        def add(state: Tensor) -> Tensor:
            z = state if u is None else state + u[len(states)]
            states.append(z)
            return z.clone()  # a layer that works in place must not change what J is taken of

        def hook(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            return (add(args[0]), *args[1:])

        named = [name for name in self.cuts if name != INPUT]
        handles = [self.model.get_submodule(n).register_forward_pre_hook(hook) for n in named]
        try:
            return self.model(add(x) if INPUT in self.cuts else x), states
        finally:
            for handle in handles:
                handle.remove()


def dense_projection(embedding: OrthogonalEmbedding) -> Tensor:
    """P (d, d), from E(mean + e_i) - mean, row by row."""
    mean, shape = embedding.mean, embedding.shape_
    assert shape is not None
    d = len(mean)
    P = torch.empty(d, d, dtype=mean.dtype, device=mean.device)
    for start in range(0, d, _ROWS):
        rows = torch.arange(start, min(start + _ROWS, d), device=mean.device)
        unit = torch.zeros(len(rows), d, dtype=mean.dtype, device=mean.device)
        unit[torch.arange(len(rows), device=mean.device), rows] = 1
        projected = embedding.project((mean + unit).reshape(-1, *shape)).flatten(1)
        torch.sub(projected, mean, out=P[start : start + len(rows)])
    return P
