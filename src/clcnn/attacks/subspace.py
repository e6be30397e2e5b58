"""The manifold attack of the paper's published code: Carlini and Wagner's search in a subspace.

This file is apart from its room (`clcnn.evaluation.hashing`): only results of this attack depend on
it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from clcnn.attacks.base import Attack, Model
from clcnn.attacks.gradient import slope_of
from clcnn.attacks.losses import margin
from clcnn.embeddings.linear import LinearEmbedding
from clcnn.errors import DataError

_WIDEST = 1.0
"""Where tau begins: as wide as the range of pixels, no bound at all."""

_LEAST_TAU = 1 / 256
"""Where tau ends: less than one level of 8 bits."""

_ENOUGH = 1e-4
"""A search ends when its cost is below this part of the constant."""


@dataclass(frozen=True)
class SubspaceCW(Attack):
    """min_a c max(0, z_y - max_{k != y} z_k) + sum_i max(0, |d_i| - tau), d = x_0 + V a - x.

    V is the basis of a linear embedding of the input. A search is at most ``max_iter`` steps of
    Adam on the coefficients from a = 0, and ends at the first image that is misclassified with no
    pixel further than tau from x. The next one starts from there (x_0) with tau a
    ``decrease_factor`` of the distance reached, until one fails or tau is below 1/256. What was
    found last is then clipped to eps and to [0,1], whether it fools the model still or not.

    So it looks for the *nearest* misclassified image, and eps is no more than a bound on it; our
    `Manifold` looks for the worst image within eps. The paper's column "Manifold" was measured with
    a search of this kind. Clipping pixel by pixel leaves the subspace, where it has to.

    The attacker knows the model that is given and the embedding of the input.
    """

    embedding: LinearEmbedding = field(repr=False)
    learning_rate: float = 0.005
    max_iter: int = 100
    const: float = 1e-5
    decrease_factor: float = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.embedding, LinearEmbedding):
            raise DataError(
                f"found a {type(self.embedding).__name__}, expected a fitted LinearEmbedding of "
                "the input, for instance robust.embeddings[0] where the first cut is 'input'"
            )
        if self.norm != "linf":
            raise DataError(f"expected norm 'linf', which tau is measured in, got {self.norm!r}")
        self.require_counts("max_iter")
        if not self.learning_rate > 0:
            raise DataError(f"expected learning_rate > 0, got {self.learning_rate}")
        if not self.const > 0:
            raise DataError(f"expected const > 0, got {self.const}")
        if not 0 < self.decrease_factor < 1:
            raise DataError(f"expected decrease_factor between 0 and 1, got {self.decrease_factor}")

    def run(self, model: Model, x: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        """Searches until every image has had one fail, or is as near as tau goes."""
        nearest = x.clone()
        tau = x.new_full((len(x),), _WIDEST)
        left = torch.arange(len(x), device=x.device)
        while len(left):
            found, x_adv = self._search(model, nearest[left], x[left], y[left], tau[left])
            left, x_adv = left[found], x_adv[found]
            nearest[left] = x_adv
            reached = self.ball.size(x_adv - x[left])
            tau[left] = self.decrease_factor * torch.minimum(tau[left], reached)
            left = left[tau[left] > _LEAST_TAU]
        return nearest

    def _search(
        self, model: Model, start: Tensor, x: Tensor, y: Tensor, tau: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Which images were misclassified within tau, and these images."""
        V = self.embedding.V
        found = torch.zeros(len(x), dtype=torch.bool, device=x.device)
        result = start.clone()
        here = torch.arange(len(x), device=x.device)
        a = x.new_zeros(len(x), V.shape[1])
        m, v = torch.zeros_like(a), torch.zeros_like(a)
        for k in range(self.max_iter):
            with torch.enable_grad():
                at = a.detach().requires_grad_()
                x_adv = start[here] + (at @ V.mT).view(start[here].shape)
                gap = margin(model(x_adv), y[here])
                beyond = ((x_adv - x[here]).flatten(1).abs() - tau[here, None]).clamp_min(0).sum(1)
                cost = self.const * (-gap).clamp_min(0) + beyond
                done = ((cost < _ENOUGH * self.const) & (gap > 0)).detach()
                result[here[done]], found[here[done]] = x_adv.detach()[done], True
                if done.all():
                    break
                g = slope_of(cost.sum(), at)
            stay = ~done
            here, a, g, m, v = here[stay], a[stay], g[stay], m[stay], v[stay]
            m, v = m.lerp(g, 0.1), v.lerp(g * g, 0.001)
            step = (m / (1 - 0.9 ** (k + 1))) / ((v / (1 - 0.999 ** (k + 1))).sqrt() + 1e-8)
            a = a - self.learning_rate * step
        return found, result
