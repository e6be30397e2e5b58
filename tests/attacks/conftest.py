"""A small network trained in seconds on the shipped images, and one of it under control."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy
from victims import Network, Victim

import clcnn
from clcnn import ControlledModule
from clcnn.data import sample


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
