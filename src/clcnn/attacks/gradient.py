"""Attacks that climb the loss along its gradient: `FGSM` and `PGD`."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from clcnn.attacks.base import Attack, AttackError, Model, is_correct
from clcnn.attacks.findings import Finding, report
from clcnn.attacks.losses import Loss, ce, loss_called, margin
from clcnn.errors import DataError, GradientError

_LEAD = 0.5
"""In logits: far enough beyond the border that no rounding brings a sample back."""


@dataclass(frozen=True)
class FGSM(Attack):
    """x + eps sign(grad_x loss(x)): one step of the full length (l_2: along the gradient)."""

    def run(self, model: Model, x: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        """One step."""
        return ascend(self, model, x, x, y, self.eps, ce)[0]


@dataclass(frozen=True)
class PGD(Attack):
    """x_{k+1} = Pi(x_k + step_size direction(grad loss(x_k))), Pi onto the ball and [0,1].

    ``step_size`` is eps/4 by default. The direction is the gradient's sign (l_inf) or its unit
    vector (l_2). What comes back is the last iterate, or where that fails the last one that did
    not. With ``restarts`` > 1 the first success of a sample is kept, and every start but the first
    is random; ``random_start`` makes the first one random too. With ``lead`` a sample stays where
    it is, and costs nothing more, once another class leads by that much in the logits: the same
    successes for less work, where it is the attacked model itself that is seen.
    """

    steps: int = 20
    step_size: float | None = None
    random_start: bool = False
    restarts: int = 1
    loss: str = "ce"
    lead: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_counts("steps", "restarts")
        if self.lead is not None and not 0 <= self.lead < float("inf"):
            raise DataError(f"expected lead >= 0, finite, or None, got {self.lead}")
        self.require_step_size(self.step_size)
        loss_called(self.loss)

    def run(self, model: Model, x: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        """All restarts, each on the samples that are still classified correctly."""
        result = self._climb(model, x, y, self.random_start, generator)
        for _ in range(self.restarts - 1):
            left = is_correct(model, result, y)
            if not left.any():
                break
            result[left] = self._climb(model, x[left], y[left], True, generator)
        return result

    def _climb(
        self, model: Model, x: Tensor, y: Tensor, at_random: bool, generator: torch.Generator
    ) -> Tensor:
        step_size = self.eps / 4 if self.step_size is None else self.step_size
        loss = loss_called(self.loss)
        x_adv = x.clone()
        if at_random:
            x_adv = self.constrain(x + self.eps * self.ball.sample(x, generator), x)
        result, fooling = x_adv.clone(), x_adv.clone()
        fooled = torch.zeros(len(x), dtype=torch.bool, device=x.device)
        left, x_left, y_left = torch.arange(len(x), device=x.device), x, y
        for _ in range(self.steps):
            before = x_adv
            x_adv, z = ascend(self, model, before, x_left, y_left, step_size, loss)
            wrong = z.argmax(1) != y_left
            fooling[left[wrong]] = before[wrong]
            fooled[left[wrong]] = True
            if self.lead is not None and (beaten := margin(z, y_left) > self.lead).any():
                result[left[beaten]] = before[beaten]
                left, x_adv, x_left, y_left = (v[~beaten] for v in (left, x_adv, x_left, y_left))
                if not len(left):
                    break
        result[left] = x_adv
        if fooled.any():
            lost = fooled.clone()
            lost[fooled] = is_correct(model, result[fooled], y[fooled])
            result = chosen(lost, fooling, result)
            lost[left] = False
            if lost.any():  # left too early: a model that does not answer the same way twice
                whole = replace(self, lead=None)
                result[lost] = whole._climb(model, x[lost], y[lost], at_random, generator)
        return result

    def for_verdicts(self) -> Attack:
        """Samples that are beaten cost nothing more; not where another model is seen."""
        is_faithful = type(self).view is Attack.view
        return replace(self, lead=_LEAD) if self.lead is None and is_faithful else self


def chosen(which: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """For each sample its image of ``first`` where ``which``, of ``second`` elsewhere."""
    return torch.where(which.view(-1, *(1,) * (first.ndim - 1)), first, second)


def ascend(
    attack: Attack, model: Model, x_adv: Tensor, x: Tensor, y: Tensor, step_size: float, loss: Loss
) -> tuple[Tensor, Tensor]:
    """Pi(x_adv + step_size direction(grad loss(x_adv))), and the logits of x_adv.

    There is no gradient for any weight.
    """
    with torch.enable_grad():
        at = x_adv.detach().requires_grad_()
        z = model(at)
        slope = slope_of(loss(z, y).sum(), at)
    moved = attack.constrain(at.detach() + step_size * attack.ball.steepest(slope), x)
    return moved, z.detach()


def slope_of(total: Tensor, at: Tensor) -> Tensor:
    """d total / d at, with 0 and a warning where that is not finite, so that others go on."""
    slope = raw_slope_of(total, at)
    report(not_finite(slope))
    return finite(slope)


def finite(slope: Tensor) -> Tensor:
    """The slope, with 0 where it is not finite."""
    return slope.nan_to_num(0.0, 0.0, 0.0)


def not_finite(slopes: Tensor) -> list[Finding]:
    """Samples whose gradient (batch, *image) is nan or inf in some pixel."""
    broken = int((~slopes.isfinite()).flatten(1).any(1).sum())
    if not broken:
        return []
    return [
        Finding(
            "gradients not finite",
            f"{broken} samples have a gradient with nan or inf in it, which is taken as 0: they "
            "may withstand the attack for that alone. Try float64, another loss, or Square.",
        )
    ]


def raw_slope_of(total: Tensor, at: Tensor) -> Tensor:
    """d total / d at, with a clear error where the model has no gradient."""
    try:
        (slope,) = torch.autograd.grad(total, at)
    except GradientError:
        raise  # a controlled network says itself which grad mode to choose
    except RuntimeError as error:
        raise AttackError(
            f"the model's logits have no gradient with respect to its input ({error}): a "
            "gradient attack needs a differentiable model. Use a black-box attack instead."
        ) from error
    return slope
