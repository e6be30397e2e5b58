"""The networks: their states at the cuts, their size, their input."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from clcnn.errors import DataError, LoadError
from clcnn.models import Classifier, DenseNet40, ResNet20, build

CHILDREN = ["stem", "layer1", "layer2", "layer3", "head"]


def arrivals(network: Classifier, x: Tensor) -> list[tuple[int, ...]]:
    """The shapes that arrive at the children."""
    shapes = []
    for child in network.children():
        shapes.append(tuple(x.shape[1:]))
        x = child(x)
    return shapes


@pytest.mark.parametrize(
    ("network", "side", "shapes", "parameters"),
    [
        (
            ResNet20(),
            32,
            [(3, 32, 32), (16, 32, 32), (16, 32, 32), (32, 16, 16), (64, 8, 8)],
            # stem, 6 + 6 + 6 convolutions, 2 shortcuts, 21 normalisations, the linear layer
            9 * 3 * 16
            + 9 * (6 * 16 * 16 + 16 * 32 + 5 * 32 * 32 + 32 * 64 + 5 * 64 * 64)
            + (16 * 32 + 32 * 64)
            + 2 * (7 * 16 + 7 * 32 + 7 * 64)
            + 650,
        ),
        (
            ResNet20(in_channels=1, num_classes=5),
            28,
            [(1, 28, 28), (16, 28, 28), (16, 28, 28), (32, 14, 14), (64, 7, 7)],
            None,
        ),
        (
            DenseNet40(),
            32,
            [(3, 32, 32), (16, 32, 32), (160, 16, 16), (304, 8, 8), (448, 8, 8)],
            9 * 3 * 16
            + sum(9 * 12 * (16 + 12 * i) + 2 * (16 + 12 * i) for i in range(36))
            + sum(w * w + 2 * w for w in (160, 304))
            + 2 * 448
            + 4490,
        ),
    ],
)
def test_states_and_size(
    network: Classifier, side: int, shapes: list[tuple[int, ...]], parameters: int | None
) -> None:
    assert [name for name, _ in network.named_children()] == CHILDREN
    network.eval()
    x = torch.rand(2, shapes[0][0], side, side)
    with torch.no_grad():
        assert arrivals(network, x) == shapes
        logits = network(x)
        by_hand = nn.Sequential(*network.children())(x)
    assert torch.equal(logits, by_hand)  # nothing bypasses the children
    assert logits.shape == (2, network.num_classes)
    if parameters is not None:
        assert sum(p.numel() for p in network.parameters()) == parameters


def test_twenty_weighted_layers() -> None:
    convolutions = [m for m in ResNet20().modules() if isinstance(m, nn.Conv2d)]
    assert sum(m.kernel_size == (3, 3) for m in convolutions) == 19  # and the linear layer


def test_forty_weighted_layers() -> None:
    modules = list(DenseNet40().modules())
    assert sum(isinstance(m, nn.Conv2d | nn.Linear) for m in modules) == 40


def test_normalisation_is_inside() -> None:
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)
    network = ResNet20(mean=mean, std=std).eval()
    x = torch.rand(2, 3, 8, 8)
    by_hand = (x - torch.tensor(mean).view(1, 3, 1, 1)) / torch.tensor(std).view(1, 3, 1, 1)
    assert torch.allclose(network.stem[0](x), by_hand)
    assert "stem.0.mean" in network.state_dict()


@pytest.mark.parametrize(
    "x",
    [
        torch.rand(2, 1, 32, 32),
        torch.rand(3, 32, 32),
        torch.randint(0, 255, (2, 3, 32, 32)),
        torch.rand(2, 32, 32, 3),
    ],
)
def test_a_batch_of_wrong_size(x: Tensor) -> None:
    with pytest.raises(DataError, match=r"expected a float batch of shape \(batch, 3, height"):
        ResNet20().eval()(x)


def test_wrong_statistics() -> None:
    with pytest.raises(DataError, match="3 channels"):
        ResNet20(mean=(0.5,), std=(0.5,))
    with pytest.raises(DataError, match="positive"):
        ResNet20(mean=(0.5,) * 3, std=(0.5, 0.5, 0.0))


def test_build() -> None:
    assert isinstance(build("densenet40", num_classes=3), DenseNet40)
    with pytest.raises(LoadError, match="expected one of resnet20, densenet40"):
        build("vgg")
