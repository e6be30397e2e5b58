"""The control objective in the paper's notation: running loss, J, Hamiltonian, co-state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from clcnn.embeddings.base import Embedding
from clcnn.types import Controls

Regularization: TypeAlias = float | Tensor
"""R_t: a number rho for rho I, or the diagonal, a tensor of one state's shape."""


def like(R: Regularization, u: Tensor) -> Regularization:
    """R in u's dtype and on its device."""
    return R.to(u) if isinstance(R, Tensor) else R


def quadratic(u: Tensor, R: Regularization) -> Tensor:
    """u' R u per sample, for a diagonal R: shape (batch,)."""
    return (u * like(R, u) * u).flatten(1).sum(1)


def running_loss(reconstruction: Tensor, u: Tensor, R: Regularization) -> Tensor:
    """L_t = ||E_t(z_t) - z_t||^2 + u_t' R_t u_t, z_t = x_t + u_t, per sample: (batch,).

    ``reconstruction`` is the first term. It is taken *after* the control; before it, as Algorithm 1
    reads to the letter, u_{T-1} would have nothing to lower.
    """
    if isinstance(R, float) and R == 0.0:
        return reconstruction
    return reconstruction + quadratic(u, R)


def total_cost(losses: Sequence[Tensor]) -> Tensor:
    """J = sum_t L_t, no terminal loss: (batch,)."""
    return torch.stack(tuple(losses)).sum(0)


def hamiltonian(p_next: Tensor, x_next: Tensor, loss: Tensor) -> Tensor:
    """H_t = p_{t+1}' f_t(x_t + u_t) - L_t per sample, with x_next = f_t(x_t + u_t): (batch,)."""
    return (p_next * x_next).flatten(1).sum(1) - loss


def costate(gradient: Tensor, u: Tensor, R: Regularization) -> Tensor:
    """p_t = -(dJ/du_t - 2 R_t u_t): u enters beside x, so the gradient in u holds the co-state."""
    return 2.0 * like(R, u) * u - gradient


@dataclass(frozen=True)
class Objective:
    """J(u) = sum_t w_t ||E_t(z_t) - z_t||^2 + u_t' R_t u_t.

    ``weights`` w_t are 1 in the paper, which sums squares within a layer; 1/d_t gives the average
    over features that the authors' code takes.
    """

    embeddings: Sequence[Embedding]
    regularization: Sequence[Regularization]
    weights: Sequence[float]

    def running_loss(self, t: int, z: Tensor, u: Tensor) -> Tensor:
        """L_t at z = x_t + u, per sample: (batch,)."""
        energy = self.embeddings[t].energy(z)
        if self.weights[t] != 1.0:
            energy = self.weights[t] * energy
        return running_loss(energy, u, self.regularization[t])

    def costates(self, gradients: Controls, u: Controls) -> Controls:
        """(p_0, ..., p_{T-1}) from dJ/du."""
        return tuple(
            costate(g, u_t, R) for g, u_t, R in zip(gradients, u, self.regularization, strict=True)
        )
