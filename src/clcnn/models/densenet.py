"""DenseNet-40 for small images: growth 12, no bottleneck, 3 blocks of 12 layers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from clcnn.models.layers import Classifier, Head, Normalise, initialise, statistics

_GROWTH = 12
_LAYERS = 12


class DenseNet40(Classifier):
    """stem (16 channels), layer1 and layer2 (a dense block and its transition), layer3, head.

    Each transition ends its layer, so that the states at the cuts are small. On 32 x 32 images
    the states that arrive at layer1, layer2, layer3 and head are 16 x 32 x 32, 160 x 16 x 16,
    304 x 8 x 8 and 448 x 8 x 8. 1.0 million parameters.
    """

    def __init__(
        self,
        in_channels: int = 3,
        num_classes: int = 10,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
    ) -> None:
        super().__init__()
        self.in_channels = in_channels
        self.num_classes = num_classes
        widths = [16 + _GROWTH * _LAYERS * block for block in range(4)]
        self.stem = nn.Sequential(
            Normalise(*statistics(in_channels, mean, std)),
            nn.Conv2d(in_channels, widths[0], 3, padding=1, bias=False),
        )
        self.layer1 = nn.Sequential(_dense_block(widths[0]), _transition(widths[1]))
        self.layer2 = nn.Sequential(_dense_block(widths[1]), _transition(widths[2]))
        self.layer3 = _dense_block(widths[2])
        self.head = Head(widths[3], num_classes, nn.BatchNorm2d(widths[3]), nn.ReLU())
        initialise(self)


class DenseLayer(nn.Module):
    """[x, conv(relu(bn(x)))]: what came before is kept, 12 channels are added."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.bn = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU()
        self.conv = nn.Conv2d(channels, _GROWTH, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """``x`` and the new channels, concatenated."""
        return torch.cat([x, self.conv(self.relu(self.bn(x)))], dim=1)


def _dense_block(channels: int) -> nn.Sequential:
    return nn.Sequential(*(DenseLayer(channels + _GROWTH * i) for i in range(_LAYERS)))


def _transition(channels: int) -> nn.Sequential:
    return nn.Sequential(
        nn.BatchNorm2d(channels),
        nn.ReLU(),
        nn.Conv2d(channels, channels, 1, bias=False),
        nn.AvgPool2d(2),
    )
