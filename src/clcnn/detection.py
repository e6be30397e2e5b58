"""Telling perturbed samples from clean ones, with a bound on how often a clean one is accused."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from clcnn.errors import DataError, FitError


@dataclass(frozen=True, eq=False)
class Detection:
    """What `ControlledModule.detect` found, per sample: all (batch,).

    ``score`` grows with the distance from clean data, ``p_value`` is the share of clean samples
    that score as high, and ``flagged`` says that it is at most alpha.
    """

    score: Tensor
    p_value: Tensor
    flagged: Tensor

    def __repr__(self) -> str:
        return f"Detection({int(self.flagged.sum())} of {len(self.flagged)} samples flagged)"


def check_alpha(alpha: float, n: int | None = None) -> None:
    """Raise where alpha is no share, or so small that n scores cannot tell it from 0."""
    if not (isinstance(alpha, (int, float)) and 0 < alpha < 1):
        raise DataError(
            f"found alpha={alpha!r}; expected a share between 0 and 1: of clean samples, those "
            "that may be flagged."
        )
    if n is not None and alpha * (n + 1) < 1:
        raise DataError(
            f"found {n} samples to calibrate on with alpha={alpha:g}; expected at least "
            f"{int(-(-1 // alpha)) - 1}, as no p-value is below 1/(n + 1). Pass more clean data, "
            "or raise alpha."
        )


def calibrated(scores: Tensor, alpha: float) -> Tensor:
    """The scores of clean samples, by rising value."""
    check_alpha(alpha, len(scores))
    broken = int((~scores.isfinite()).sum())
    if broken:
        raise FitError(
            f"{broken} of {len(scores)} clean samples have a score that is not finite; expected "
            "none. Look at what the network makes of them, or leave them out."
        )
    return scores.detach().sort()[0]


def detect(score: Tensor, clean: Tensor, alpha: float) -> Detection:
    """p = (1 + #{i: s_i >= s}) / (n + 1), flagged where p <= alpha.

    Conformal: if the sample and the n of ``clean`` (sorted) were drawn alike, in any order, then
    P(p <= alpha) <= alpha, whatever the score. A score that is not finite counts as the largest.
    """
    if torch.finfo(score.dtype).eps > torch.finfo(clean.dtype).eps:
        raise FitError(
            f"found scores in {score.dtype} beside clean ones in {clean.dtype}; expected the same "
            "digits, without which the share of false alarms is not what was promised. Calibrate "
            "again after a change of dtype."
        )
    n, clean = len(clean), clean.to(score)
    known = score.detach().nan_to_num(nan=torch.inf)
    as_high = n - torch.searchsorted(clean, known, right=False)
    p = (1 + as_high).double() / (n + 1)
    return Detection(score, p, p <= alpha)
