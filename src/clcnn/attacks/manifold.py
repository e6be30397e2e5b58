"""The manifold attack of Jalal et al.: perturbations that an embedding does not see."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from clcnn.attacks.base import Attack, Model, is_correct
from clcnn.attacks.gradient import slope_of
from clcnn.attacks.losses import loss_called
from clcnn.attacks.norms import L2
from clcnn.embeddings.base import Embedding
from clcnn.errors import DataError

_TINY = 1e-12


@dataclass(frozen=True)
class Manifold(Attack):
    """x + s(v) delta(v), delta(v) = E(x + v) - E(x), s(v) = min(1, eps / ||delta(v)||).

    v climbs the loss by steps along the sign of its gradient, s held constant in the backward
    pass; between steps the peaks of delta, which make s small, are taken off v. Scaled, not
    clipped, the perturbation itself stays in the embedding's subspace (linear) or along its image
    (auto-encoder); only the bound of pixels to [0,1] cuts anything off, and `departure` measures
    how much that is. The last iterate that fools the model is kept, the last one where none does.
    ``step_size`` is eps/4 by default. The embedding is used through `project` alone.

    The attacker knows the model that is given and the embedding of the input.
    """

    embedding: Embedding = field(repr=False)
    steps: int = 20
    step_size: float | None = None
    random_start: bool = False
    loss: str = "ce"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.embedding, Embedding):
            raise DataError(
                f"found a {type(self.embedding).__name__}, expected a fitted Embedding of the "
                "input, for instance robust.embeddings[0] where the first cut is 'input'"
            )
        self.require_counts("steps")
        self.require_step_size(self.step_size)
        loss_called(self.loss)

    def run(self, model: Model, x: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        """The search for v."""
        step_size = self.eps / 4 if self.step_size is None else self.step_size
        loss = loss_called(self.loss)
        with torch.no_grad():
            base = self.embedding.project(x)
        v = torch.zeros_like(x)
        if self.random_start:
            v = self.eps * self.ball.sample(x, generator)
        fooling = x.clone()
        found = torch.zeros(len(x), dtype=torch.bool, device=x.device)
        for _ in range(self.steps):
            with torch.enable_grad():
                at = v.detach().requires_grad_()
                delta = self.embedding.project(x + at) - base
                x_adv = self._moved(x, delta)
                z = model(x_adv)
                g = slope_of(loss(z, y).sum(), at)
            fooled = z.argmax(1) != y
            fooling[fooled], found = x_adv.detach()[fooled], found | fooled
            v = self._worn_down(v, delta.detach()) + step_size * g.sign()
        with torch.no_grad():
            last = self._moved(x, self.embedding.project(x + v) - base)
        lost = found & is_correct(model, last, y)
        last[lost] = fooling[lost]
        return last

    def _moved(self, x: Tensor, delta: Tensor) -> Tensor:
        """clamp(x + s delta), with s a constant."""
        return (x + self._factor(delta.detach(), self.eps) * delta).clamp(0, 1)

    def _worn_down(self, v: Tensor, delta: Tensor) -> Tensor:
        """a v without the peaks of a delta beyond eps, a = min(1, 2 eps / ||delta||)."""
        a = self._factor(delta, 2 * self.eps)
        return a * v - (a * delta - self.ball.project(a * delta, self.eps))

    def _factor(self, delta: Tensor, eps: float) -> Tensor:
        """min(1, eps / ||delta||) per sample, ready to be multiplied with it."""
        s = (eps / self.ball.size(delta).clamp_min(_TINY)).clamp_max(1)
        return s.view(-1, *(1,) * (delta.ndim - 1))


@torch.no_grad()
def departure(embedding: Embedding, x: Tensor, x_adv: Tensor) -> Tensor:
    """||d - (E(x + d) - E(x))|| / ||d||, d = x_adv - x: what of d leaves the manifold, (batch,).

    For a linear embedding it is the share of d outside the subspace: 0 where no pixel was cut off
    at [0,1]. For an auto-encoder, which is not exact, it holds its own error as well. Where d = 0
    it is 0.
    """
    d = (x_adv - x).flatten(1)
    seen = (embedding.project(x_adv) - embedding.project(x)).flatten(1)
    return L2.size(d - seen) / L2.size(d).clamp_min(_TINY)
