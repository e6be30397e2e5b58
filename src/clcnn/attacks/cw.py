"""The attack of Carlini and Wagner on whole batches, each image with its own tau and constant."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from clcnn.attacks.base import Attack, Model
from clcnn.attacks.gradient import slope_of
from clcnn.attacks.losses import margin
from clcnn.errors import DataError

_WIDER = 1.02
"""The range of x(w) before it is clipped: black and white pixels are where tanh still rises."""

_LEAST_TAU = 1 / 256
"""tau stops shrinking at this part of eps."""


@dataclass(frozen=True)
class CW(Attack):
    """min_w c max(0, z_y - max_{k != y} z_k + confidence) + excess(x(w) - x; tau).

    x(w) = clip((1 + 1.02 tanh w) / 2) is always in [0,1], with the slope that it has unclipped: at
    black and white pixels the usual (1 + tanh w) / 2 has none, and they would stay. The excess over
    tau is sum_i max(0, |d_i| - tau) for l_inf and max(0, ||d||^2 - tau^2) for l_2. A round is
    ``max_iter`` steps of Adam. After it, an image that is misclassified, but further than eps away,
    gets tau * ``decrease_factor``; one that is not gets c * ``const_factor``, until c passes
    ``largest_const``. An image leaves the batch as soon as it is misclassified within eps by a
    margin of more than ``confidence``, which enters the loss once the image was misclassified
    within eps at all: asking for confidence loses no success.

    Only what lies within eps counts, so tau starts there, and a round goes on from where the last
    one ended. What comes back is the image of the largest margin within eps that was met.

    The attacker knows the model that is given, weights and all.
    """

    confidence: float = 0.0
    learning_rate: float = 0.01
    max_iter: int = 10
    decrease_factor: float = 0.9
    initial_const: float = 1e-5
    largest_const: float = 20.0
    const_factor: float = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_counts("max_iter")
        expected = {
            "confidence": (self.confidence >= 0, ">= 0"),
            "learning_rate": (self.learning_rate > 0, "> 0"),
            "decrease_factor": (0 < self.decrease_factor < 1, "between 0 and 1"),
            "initial_const": (self.initial_const > 0, "> 0"),
            "largest_const": (self.largest_const > self.initial_const, "> initial_const"),
            "const_factor": (self.const_factor > 1, "> 1"),
        }
        for name, (holds, what) in expected.items():
            if not holds:
                raise DataError(f"expected {name} {what}, got {getattr(self, name)}")

    def run(self, model: Model, x: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        """Rounds until every image has left."""
        best = _Best(x)
        left = torch.arange(len(x), device=x.device)
        w = torch.atanh((2 * x - 1) / _WIDER)
        tau = x.new_full((len(x),), self.eps)
        const = x.new_full((len(x),), self.initial_const)
        while len(left):
            start, labels = x[left], y[left]
            w, inside, broke_out = self._round(model, w, start, labels, tau, const, best, left)
            far = ~inside
            if far.any():
                x_adv = self.constrain(image(w[far]), start[far])
                with torch.no_grad():
                    best.offer(left[far], x_adv, margin(model(x_adv), labels[far]))
            tau = torch.where(broke_out, tau * self.decrease_factor, tau)
            const = torch.where(broke_out, const, const * self.const_factor)
            stay = (const < self.largest_const) & (tau > _LEAST_TAU * self.eps)
            stay &= ~(best.gap[left] > self.confidence)
            left, w, tau, const = left[stay], w[stay], tau[stay], const[stay]
        return best.x_adv

    def _round(
        self,
        model: Model,
        w: Tensor,
        x: Tensor,
        y: Tensor,
        tau: Tensor,
        const: Tensor,
        best: _Best,
        places: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Steps of Adam on each image until its margin within eps is above the confidence.

        Offers what lies within eps to ``best``, where the images have the numbers ``places``.
        Returns the last w, which images left, and which ended misclassified but further away.
        """
        w_end = w.clone()
        left = torch.zeros(len(x), dtype=torch.bool, device=x.device)
        broke_out = torch.zeros_like(left)
        here = torch.arange(len(x), device=x.device)
        m, v = torch.zeros_like(w), torch.zeros_like(w)
        for k in range(self.max_iter + 1):
            with torch.enable_grad():
                at = w.detach().requires_grad_()
                x_adv = image(at)
                d = x_adv - x[here]
                gap = margin(model(x_adv), y[here])
                near = self.ball.size(d.detach()) <= self.eps
                best.offer(places[here][near], x_adv.detach()[near], gap.detach()[near])
                wanted = self.confidence * (best.gap[places[here]] > 0)
                cost = const[here] * (wanted - gap).clamp_min(0)
                total = (cost + self._excess(d, tau[here])).sum()
                done = near & (gap > self.confidence).detach()
                w_end[here], left[here] = w, done
                broke_out[here] = (gap > wanted).detach() & ~near
                if k == self.max_iter or done.all():
                    break
                g = slope_of(total, at)
            stay = ~done
            here, w, g, m, v = here[stay], w[stay], g[stay], m[stay], v[stay]
            m, v = m.lerp(g, 0.1), v.lerp(g * g, 0.001)
            step = (m / (1 - 0.9 ** (k + 1))) / ((v / (1 - 0.999 ** (k + 1))).sqrt() + 1e-8)
            w = w - self.learning_rate * step
        return w_end, left, broke_out

    def _excess(self, d: Tensor, tau: Tensor) -> Tensor:
        if self.norm == "linf":
            return (d.flatten(1).abs() - tau[:, None]).clamp_min(0).sum(1)
        return (d.flatten(1).square().sum(1) - tau.square()).clamp_min(0)


class _Best:
    """The images of the largest margin within eps so far, one for each of the batch."""

    def __init__(self, x: Tensor) -> None:
        self.x_adv = x.clone()
        self.gap = x.new_full((len(x),), -torch.inf)

    def offer(self, places: Tensor, x_adv: Tensor, gap: Tensor) -> None:
        """Keep those of the images (at ``places``) that are better than what is there."""
        better = gap > self.gap[places]
        self.x_adv[places[better]] = x_adv[better]
        self.gap[places[better]] = gap[better].to(self.gap)


def image(w: Tensor) -> Tensor:
    """clip((1 + 1.02 tanh w) / 2), with the slope of what is clipped."""
    wide = (1 + _WIDER * torch.tanh(w)) / 2
    return wide + (wide.clamp(0, 1) - wide).detach()
