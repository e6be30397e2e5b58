"""Losses on logits."""

from __future__ import annotations

from torch import Tensor

from clcnn.errors import DataError


def smoothed_cross_entropy(logits: Tensor, y: Tensor, true: float = 0.9) -> Tensor:
    """-(true log p_y + (1 - true)/(N - 1) sum_{k != y} log p_k), the mean over the batch.

    The true class gets exactly ``true`` and each of the other N - 1 an equal share of the rest.
    torch's ``label_smoothing=s`` spreads s over all N classes, so its true class gets 1 - s + s/N.
    """
    classes = logits.shape[1]
    if not 0 < true <= 1 or classes < 2:
        raise DataError(f"expected 0 < true <= 1 and 2 classes or more, got {true}, {classes}")
    log_p = logits.log_softmax(1)
    log_p_y = log_p.gather(1, y[:, None]).squeeze(1)
    others = log_p.sum(1) - log_p_y
    return -(true * log_p_y + (1 - true) / (classes - 1) * others).mean()
