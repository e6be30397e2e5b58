"""A small network trained in seconds on the shipped images, and one of it under control."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import clcnn
from clcnn import ControlledModule
from clcnn.data import sample


@dataclass(frozen=True)
class Victim:
    """A trained network with 1,000 test images, about 7 in 10 of which it gets right."""

    network: nn.Sequential
    train: Tensor
    x: Tensor
    y: Tensor

    def right(self, count: int) -> tuple[Tensor, Tensor]:
        """The first images that it gets right."""
        with torch.no_grad():
            places = (self.network(self.x).argmax(1) == self.y).nonzero().squeeze(1)[:count]
        return self.x[places], self.y[places]


class Network(nn.Sequential):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU())
        self.layer1 = nn.Sequential(nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU())
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(16 * 7 * 7, 10))


@pytest.fixture(scope="session")
def victim() -> Victim:
    torch.manual_seed(0)
    images = sample("fashion-mnist")
    x, y = images.train
    network = Network()
    optimiser = torch.optim.Adam(network.parameters(), 3e-3)
    for _ in range(8):
        for batch in torch.randperm(len(x)).split(50):
            optimiser.zero_grad()
            cross_entropy(network(x[batch]), y[batch]).backward()
            optimiser.step()
    return Victim(network.eval(), x, *images.test)


@pytest.fixture(scope="session")
def robust(victim: Victim) -> ControlledModule:
    """The victim under control, by a short PMP."""
    return clcnn.control(
        victim.network,
        ["input", "layer1", "head"],
        embedding=clcnn.LinearEmbedding(energy=0.95),
        solver=clcnn.PMP(iterations=3, lr=0.02),
    ).fit(victim.train)
