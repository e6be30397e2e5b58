"""Small networks of different kinds, each with cuts that are states."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


class MLP(nn.Module):
    cuts = ("input", "hidden", "head")
    shape = (6,)

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Linear(6, 8), nn.Tanh())
        self.hidden = nn.Sequential(nn.Linear(8, 7), nn.Tanh())
        self.head = nn.Linear(7, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.hidden(self.stem(x)))


class Block(nn.Module):
    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.shortcut = nn.Conv2d(inside, outside, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(h)) + self.shortcut(x))


class ResidualNet(nn.Module):
    """A residual convnet whose second block starts behind an in-place ReLU."""

    cuts = ("input", "layer1", "act", "layer2", "head")
    shape = (3, 8, 8)

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 4, 3, 1, 1), nn.BatchNorm2d(4), nn.ReLU())
        self.layer1 = Block(4, 4, 1)
        self.act = nn.ReLU(inplace=True)
        self.layer2 = Block(4, 6, 2)
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer2(self.act(self.layer1(self.stem(x)) - 0.3)))


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).chunk(3, dim=-1)
        x = x + self.out(torch.softmax(q @ k.transpose(1, 2) / q.shape[-1] ** 0.5, dim=-1) @ v)
        return x + self.mlp(self.norm2(x))


class VisionTransformer(nn.Module):
    cuts = ("input", "block1", "block2", "head")
    shape = (3, 8, 8)

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 6, 4, 4)
        self.position = nn.Parameter(torch.randn(4, 6) * 0.1)
        self.block1, self.block2 = Attention(6), Attention(6)
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2) + self.position
        return self.head(self.block2(self.block1(tokens)))[:, 0]


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "mlp": MLP,
    "residual": ResidualNet,
    "vit": VisionTransformer,
}


def build(name: str, dtype: torch.dtype = torch.float64, seed: int = 0) -> nn.Module:
    """A network with weights and batch-norm statistics of some size, in eval mode."""
    torch.manual_seed(seed)
    model = NETWORKS[name]().to(dtype)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean, -0.2, 0.2)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
            nn.init.uniform_(module.weight, 0.5, 1.5)
    return model.eval()


def inputs(model: nn.Module, n: int, dtype: torch.dtype = torch.float64, seed: int = 1) -> Tensor:
    """n random inputs for the model."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(n, *model.shape, generator=generator, dtype=torch.float64).to(dtype)
