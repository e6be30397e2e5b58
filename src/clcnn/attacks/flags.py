"""Signs that an evaluation lies: each check returns what it found, an empty list if nothing."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from clcnn.attacks.base import Checked, Model, check_images
from clcnn.attacks.gradient import slope_of
from clcnn.attacks.losses import ce
from clcnn.errors import DataError


class EvaluationWarning(UserWarning):
    """An evaluation may report more robustness than there is."""


@dataclass(frozen=True)
class Finding:
    """One sign: the name of the check, and a sentence with what was found and what to do."""

    check: str
    sentence: str

    def __str__(self) -> str:
        return f"{self.check}: {self.sentence}"


def report(findings: Sequence[Finding]) -> Sequence[Finding]:
    """Warn of each finding, and pass them on."""
    for finding in findings:
        warnings.warn(str(finding), EvaluationWarning, stacklevel=2)
    return findings


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


def black_box_beats_white_box(white_box: Tensor, black_box: Tensor) -> list[Finding]:
    """From two masks (batch,) of samples still right, under each kind of attack."""
    if white_box.shape != black_box.shape or white_box.dtype is not torch.bool:
        raise DataError(
            f"got masks of shapes {tuple(white_box.shape)} and {tuple(black_box.shape)}, dtype "
            f"{white_box.dtype}; expected two bool masks over the same samples"
        )
    white, black = int(white_box.sum()), int(black_box.sum())
    if black >= white:
        return []
    missed = int((white_box & ~black_box).sum())
    return [
        Finding(
            "black-box beats white-box",
            f"{black} samples withstand the black-box attack, {white} the one that knows more, "
            f"which missed {missed} that the other broke: its gradients mislead. Report the worst "
            "case of both.",
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
    return [
        Finding(
            "outside [0,1]",
            f"{out} of {len(x)} images have values from {float(x.min()):.4g} to "
            f"{float(x.max()):.4g}: epsilon is in units of [0,1], and the attack would clip them. "
            "Put any normalisation inside the model.",
        )
    ]


def examine(
    model: Model, x: Tensor, y: Tensor, *, eps: float = 8 / 255, steps: int = 5
) -> list[Finding]:
    """All signs that one model shows by itself: bounds, randomness, gradients, rising loss.

    For a controlled network choose the view first: ``robust.configure(grad="straight_through")``.
    """
    found = outside_bounds(x)
    if found:
        return found
    check_images(x, y)
    checked = Checked(model)
    with torch.no_grad():
        found += randomness(checked(x), checked(x))
    losses, at = [], x.detach()
    for k in range(steps + 1):
        with torch.enable_grad():
            at = at.requires_grad_()
            loss = ce(checked(at), y)
            slope = slope_of(loss.sum(), at)
        losses.append(loss.detach())
        if k == 0:
            found += zero_gradients(slope)
        at = (x + (at.detach() + eps / steps * slope.sign() - x).clamp(-eps, eps)).clamp(0, 1)
    return found + loss_not_rising(torch.stack(losses))
