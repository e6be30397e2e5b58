"""The paper's own threat: fool the network while no embedding notices."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from clcnn.attacks.adaptive import controlled
from clcnn.attacks.base import Attack, Model, is_correct
from clcnn.attacks.gradient import chosen, slope_of
from clcnn.attacks.losses import Loss, loss_called
from clcnn.control import ControlledModule
from clcnn.errors import DataError, FitError

_TINY = 1e-12
_SHARE = 0.1
_LEAST, _MOST = 1e-6, 1e6
"""Bounds of the multiplier."""


@dataclass(frozen=True)
class Stealth(Attack):
    """max loss(x_adv, y) s.t. ||E_t(x_t) - x_t||^2 <= its value on the clean image, for all t.

    The states x_t are those of the uncontrolled network: a perturbation that no residual shows
    leaves the control nothing to correct. As a Lagrangian, with r_t the residuals:
    max loss - lambda sum_t max(0, r_t(x_adv) / r_t - 1), climbed by sign steps, r_t that of the
    clean image, or a tenth of what one step of the full length would show if that is more: there
    are embeddings that see nothing at all in a clean image. lambda belongs
    to each sample: it is multiplied by ``adapt`` after a step that ends with an excess of more
    than ``slack``, and divided by it otherwise. ``straight_through`` adds the loss of the
    controlled network, its controls held constant.

    The iterate that the plain network gets wrong with the least excess is tried first; where that
    fails, with ``straight_through`` the last iterate that the controlled network gets wrong, and
    then the last of all.

    The attacker knows the network and all embeddings; with ``straight_through``, the solver too.
    """

    steps: int = 40
    step_size: float | None = None
    multiplier: float = 1.0
    adapt: float = 1.5
    slack: float = 0.01
    straight_through: bool = False
    loss: str = "margin"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_counts("steps")
        self.require_step_size(self.step_size)
        expected = {
            "multiplier": (self.multiplier > 0, "> 0"),
            "adapt": (self.adapt >= 1, ">= 1"),
            "slack": (self.slack >= 0, ">= 0"),
        }
        for name, (holds, what) in expected.items():
            if not holds:
                raise DataError(f"expected {name} {what}, got {getattr(self, name)}")
        loss_called(self.loss)

    def view(self, model: Model) -> Model:
        """The controlled network, its controls constant in the backward pass."""
        return controlled(model, self).configure(grad="straight_through")

    def run(self, model: Model, x: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        """Climb the Lagrangian."""
        robust = controlled(model, self)
        step_size = self.eps / 10 if self.step_size is None else self.step_size
        loss = loss_called(self.loss)
        clean = self._hidden_by(robust, x, y, loss)
        multiplier = x.new_full((len(x),), self.multiplier)
        x_adv, hidden, fooling = x.clone(), x.clone(), x.clone()
        fooled = torch.zeros(len(x), dtype=torch.bool, device=x.device)
        least = x.new_full((len(x),), torch.inf)
        for _ in range(self.steps):
            with torch.enable_grad():
                at = x_adv.detach().requires_grad_()
                z, r = trajectory(robust, at)
                excess = (r / clean - 1).clamp_min(0).sum(1)
                gain = loss(z, y)
                if self.straight_through:
                    under_control = model(at)
                    gain = gain + loss(under_control, y)
                    wrong = under_control.detach().argmax(1) != y
                    fooling, fooled = chosen(wrong, at.detach(), fooling), fooled | wrong
                g = slope_of((gain - multiplier * excess).sum(), at)
            least, hidden = _quieter(least, hidden, z.argmax(1) != y, excess.detach(), x_adv)
            louder = excess.detach() > self.slack
            factor = torch.where(louder, self.adapt, 1 / self.adapt).to(multiplier)
            multiplier = (multiplier * factor).clamp(_LEAST, _MOST)
            x_adv = self.constrain(x_adv + step_size * self.ball.steepest(g), x)
        x_adv = chosen(fooled, fooling, x_adv)
        tried = least.isfinite() & ~is_correct(model, hidden, y)
        return chosen(tried, hidden, x_adv)

    def _hidden_by(self, robust: ControlledModule, x: Tensor, y: Tensor, loss: Loss) -> Tensor:
        """The residuals that count as none: (batch, T)."""
        with torch.enable_grad():
            at = x.detach().requires_grad_()
            z, clean = trajectory(robust, at)
            g = slope_of(loss(z, y).sum(), at)
        with torch.no_grad():
            loud = trajectory(robust, self.constrain(x + self.eps * self.ball.steepest(g), x))[1]
        return torch.maximum(clean.detach(), _SHARE * loud).clamp_min(_TINY)


def trajectory(robust: ControlledModule, x: Tensor) -> tuple[Tensor, Tensor]:
    """Logits of the uncontrolled network and r_t = ||E_t(x_t) - x_t||^2 along it: (batch, T)."""
    embeddings = robust.objective.embeddings
    residuals: list[Tensor] = []

    def watch(t: int, state: Tensor) -> Tensor:
        residuals.append(embeddings[t].energy(state))
        return state

    if robust.dynamics is None:
        raise FitError("the controlled network has no cuts yet: call .fit(clean data) first")
    z = robust.dynamics.rollout(x, watch)
    return z, torch.stack(residuals, dim=1)


def _quieter(
    least: Tensor, hidden: Tensor, fooled: Tensor, excess: Tensor, x_adv: Tensor
) -> tuple[Tensor, Tensor]:
    """The iterate of least excess among those that fool the plain network, per sample."""
    better = fooled & (excess < least)
    return torch.where(better, excess, least), chosen(better, x_adv, hidden)
