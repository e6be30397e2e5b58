"""What an attack raises: losses of logits z and labels y, one number a sample."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.nn.functional import cross_entropy

from clcnn.errors import DataError

Loss = Callable[[Tensor, Tensor], Tensor]


def ce(z: Tensor, y: Tensor) -> Tensor:
    """-log softmax(z)_y."""
    return cross_entropy(z, y, reduction="none")


def margin(z: Tensor, y: Tensor) -> Tensor:
    """max_{k != y} z_k - z_y: positive exactly when the sample is misclassified."""
    others = z.scatter(1, y[:, None], float("-inf"))
    return others.amax(1) - z.gather(1, y[:, None]).squeeze(1)


def dlr(z: Tensor, y: Tensor) -> Tensor:
    """(max_{k != y} z_k - z_y) / (z_(1) - z_(3)), z_(i) the i-th largest: free of scale and shift.

    With fewer than three classes the denominator would be 0, so they are refused.
    """
    if z.shape[1] < 3:
        raise DataError(f"the dlr loss needs 3 classes or more, got {z.shape[1]}: use 'margin'")
    top = z.topk(3, dim=1).values
    return margin(z, y) / (top[:, 0] - top[:, 2] + 1e-12)


LOSSES: dict[str, Loss] = {"ce": ce, "margin": margin, "dlr": dlr}


def loss_called(name: str) -> Loss:
    """The loss by its name."""
    if name not in LOSSES:
        raise DataError(f"loss {name!r} is unknown, expected one of {', '.join(LOSSES)}")
    return LOSSES[name]
