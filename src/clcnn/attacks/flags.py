"""Signs that an evaluation lies: each check returns what it found, an empty list if nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from clcnn.attacks.base import (
    Checked,
    Model,
    check_tensors,
    checked_images,
    outside_inference_mode,
    refuse_training_mode,
)
from clcnn.attacks.findings import EvaluationWarning, Finding, report
from clcnn.attacks.gradient import finite, not_finite, raw_slope_of
from clcnn.attacks.losses import ce
from clcnn.errors import DataError

__all__ = [
    "EvaluationWarning",
    "Finding",
    "black_box_beats_white_box",
    "epsilon_helps",
    "examine",
    "loss_not_rising",
    "outside_bounds",
    "randomness",
    "report",
    "zero_gradients",
]


def zero_gradients(slopes: Tensor) -> list[Finding]:
    """Samples whose gradient (batch, *image) is zero or not finite in every pixel."""
    flat = slopes.flatten(1)
    dead = int(((flat == 0) | ~flat.isfinite()).all(1).sum())
    if not dead:
        return []
    return [
        Finding(
            "zero gradients",
            f"{dead} of {len(slopes)} samples have no gradient at all, so a gradient attack "
            "cannot move them. Try the margin loss, float64, another grad mode, or Square.",
        )
    ]


def black_box_beats_white_box(by: Sequence[str | None]) -> list[Finding]:
    """What broke each sample of a worst case in which Square came after attacks with gradients."""
    broken = sum(name is not None and name.startswith("Square") for name in by)
    if not broken:
        return []
    return [
        Finding(
            "black-box beats white-box",
            f"Square broke {broken} samples that attacks with gradients had left: those gradients "
            "mislead. The worst case counts them; more queries may break more.",
        )
    ]


def loss_not_rising(losses: Tensor) -> list[Finding]:
    """An attack's mean loss, (steps + 1, batch) from the clean image on, ends no higher."""
    if losses.ndim != 2 or len(losses) < 2:
        raise DataError(
            f"got losses of shape {tuple(losses.shape)}, expected (steps + 1, batch) with at least "
            "one step"
        )
    start, end = float(losses[0].mean()), float(losses[-1].mean())
    if end > start:
        return []
    return [
        Finding(
            "loss does not rise",
            f"the mean loss went from {start:.4g} to {end:.4g} in {len(losses) - 1} steps of "
            "ascent: the gradient does not point uphill. Check the grad mode and the step size.",
        )
    ]


def epsilon_helps(accuracy: Mapping[float, float]) -> list[Finding]:
    """From accuracies by epsilon: a larger ball holds the smaller, so none may be higher."""
    ordered = sorted(accuracy.items())
    return [
        Finding(
            "more epsilon helps the defender",
            f"accuracy rises from {before:.4g} at epsilon {small:.4g} to {after:.4g} at "
            f"{large:.4g}: the attack fails at the larger one. Use more steps or restarts, or "
            "keep its successes at smaller epsilons.",
        )
        for (small, before), (large, after) in pairwise(ordered)
        if after > before
    ]


def randomness(first: Tensor, second: Tensor) -> list[Finding]:
    """From the logits of two calls on the same images, up to rounding."""
    scale = 1 + first.abs().max() if first.numel() else 1.0
    same = torch.isclose(first / scale, second / scale, rtol=0, atol=1e-5, equal_nan=True)
    moved = int((~same.flatten(1).all(1)).sum())
    if not moved:
        return []
    return [
        Finding(
            "randomness",
            f"two calls on the same images differ in {moved} of {len(first)} samples: a single "
            "gradient is then one draw of many. Fix the seed, or attack the average of many calls "
            "(AutoAttack's version 'rand').",
        )
    ]


def outside_bounds(x: Tensor) -> list[Finding]:
    """Images with values outside [0,1], in which epsilon is counted."""
    out = int((~((x >= 0) & (x <= 1))).flatten(1).any(1).sum())
    if not out:
        return []
    values = f"values from {float(x.min()):.4g} to {float(x.max()):.4g}"
    if x.isnan().any():
        values = "values that are nan or outside"
    return [
        Finding(
            "outside [0,1]",
            f"{out} of {len(x)} images have {values}: epsilon is in units of [0,1], and the attack "
            "would clip them. Put any normalisation inside the model.",
        )
    ]


def examine(
    model: Model, x: Tensor, y: Tensor, *, eps: float = 8 / 255, steps: int = 5
) -> list[Finding]:
    """All signs that one model shows by itself: bounds, randomness, gradients, rising loss.

    The loss is climbed in ``steps`` steps of the gradient's sign to ``eps`` (l_inf). For a
    controlled network choose the view first: ``robust.configure(grad="straight_through")``.
    """
    check_tensors(x, y)
    if steps < 1 or not 0 <= eps < float("inf"):
        raise DataError(
            f"got steps = {steps} and eps = {eps}, expected steps >= 1 and eps >= 0, finite, as "
            "the loss is watched while it is climbed"
        )
    if not len(x):
        raise DataError("got no image at all, expected at least one to examine the model on")
    with outside_inference_mode():
        return outside_bounds(x) or _climbing(model, *checked_images(x, y), eps, steps)


def _climbing(model: Model, x: Tensor, y: Tensor, eps: float, steps: int) -> list[Finding]:
    refuse_training_mode(model)
    checked = Checked(model)
    with torch.no_grad():
        found = randomness(checked(x), checked(x))
    losses, at = [], x
    for k in range(steps + 1):
        with torch.enable_grad():
            at = at.detach().requires_grad_()
            loss = ce(checked(at), y)
            slope = raw_slope_of(loss.sum(), at)
        losses.append(loss.detach())
        if k == 0:
            found += not_finite(slope) + zero_gradients(slope)
        climbed = at.detach() + eps / steps * finite(slope).sign()
        at = (x + (climbed - x).clamp(-eps, eps)).clamp(0, 1)
    return found + loss_not_rising(torch.stack(losses)) if eps else found
