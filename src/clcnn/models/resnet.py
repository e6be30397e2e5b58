"""ResNet-20 for small images, as in the paper's appendix: 3 stages of 6 convolutions."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from clcnn.models.layers import Classifier, Head, Normalise, initialise, statistics


class ResNet20(Classifier):
    """stem (16 channels), layer1 (16), layer2 (32, half the size), layer3 (64, a quarter), head.

    On 32 x 32 images the states that arrive at layer1, layer2, layer3 and head are 16 x 32 x 32,
    16 x 32 x 32, 32 x 16 x 16 and 64 x 8 x 8. 0.27 million parameters.
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
        self.stem = nn.Sequential(
            Normalise(*statistics(in_channels, mean, std)),
            nn.Conv2d(in_channels, 16, 3, padding=1, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(),
        )
        self.layer1 = _stage(16, 16, stride=1)
        self.layer2 = _stage(16, 32, stride=2)
        self.layer3 = _stage(32, 64, stride=2)
        self.head = Head(64, num_classes)
        initialise(self)


class Block(nn.Module):
    """relu(bn(conv(relu(bn(conv(x))))) + shortcut(x))."""

    def __init__(self, channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out_channels, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.relu2 = nn.ReLU()
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != out_channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, out_channels, 1, stride, bias=False),
                nn.BatchNorm2d(out_channels),
            )

    def forward(self, x: Tensor) -> Tensor:
        """The block's output, with ``out_channels`` channels."""
        h = self.relu1(self.bn1(self.conv1(x)))
        out: Tensor = self.relu2(self.bn2(self.conv2(h)) + self.shortcut(x))
        return out


def _stage(channels: int, out_channels: int, stride: int) -> nn.Sequential:
    return nn.Sequential(
        Block(channels, out_channels, stride),
        Block(out_channels, out_channels, 1),
        Block(out_channels, out_channels, 1),
    )
