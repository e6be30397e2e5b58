"""What both networks share: the base class and the normalisation inside the network."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from clcnn.errors import DataError
from clcnn.models.cards import Card

SMALLEST = 4
"""The least edge of an image in pixels: two layers of half the size leave one."""


class Classifier(nn.Module):
    """Images in [0,1] -> logits, through the children stem, layer1, layer2, layer3, head.

    The input of each child is one tensor, and nothing bypasses it: any of the children is a cut.
    """

    card: Card | None = None
    """Where the weights come from; None for a network that was just built."""

    stem: nn.Module
    layer1: nn.Module
    layer2: nn.Module
    layer3: nn.Module
    head: nn.Module

    def forward(self, x: Tensor) -> Tensor:
        """Logits of shape (batch, classes)."""
        for child in (self.stem, self.layer1, self.layer2, self.layer3, self.head):
            x = child(x)
        return x


class Normalise(nn.Module):
    """(x - mean) / std, a channel at a time, so that users and attacks live in [0,1]."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        if len(mean) != len(std) or min(std) <= 0:
            raise DataError(f"mean {mean} and std {std} must be as many, and std positive")
        self.register_buffer("mean", torch.tensor(mean).view(1, -1, 1, 1))
        self.register_buffer("std", torch.tensor(std).view(1, -1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        """(x - mean) / std."""
        channels = self.mean.shape[1]
        if x.ndim != 4 or x.shape[1] != channels or not x.is_floating_point():
            raise DataError(
                f"got a {x.dtype} input of shape {tuple(x.shape)}, expected a float batch of "
                f"shape (batch, {channels}, height, width) with values in [0,1]"
            )
        if min(x.shape[2:]) < SMALLEST:
            raise DataError(
                f"got images of {x.shape[2]} x {x.shape[3]} pixels, expected at least "
                f"{SMALLEST} x {SMALLEST}: two layers halve them"
            )
        if x.dtype != self.mean.dtype:
            raise DataError(
                f"got images of {x.dtype}, the network is of {self.mean.dtype}: cast one of them"
            )
        return (x - self.mean) / self.std


def statistics(
    in_channels: int, mean: Sequence[float] | None, std: Sequence[float] | None
) -> tuple[Sequence[float], Sequence[float]]:
    """The given mean and std, or 1/2 and 1/4 a channel, checked against ``in_channels``."""
    mean = (0.5,) * in_channels if mean is None else mean
    std = (0.25,) * in_channels if std is None else std
    if len(mean) != in_channels or len(std) != in_channels:
        raise DataError(
            f"got {len(mean)} means and {len(std)} stds, expected one for each of the "
            f"{in_channels} channels"
        )
    return mean, std


class Head(nn.Sequential):
    """Average over all pixels, then one linear layer."""

    def __init__(self, channels: int, num_classes: int, *before: nn.Module) -> None:
        super().__init__(
            *before, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, num_classes)
        )


def initialise(network: nn.Module) -> None:
    """He's initialisation of the convolutions; all else keeps torch's."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
