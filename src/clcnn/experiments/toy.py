"""The toy of the paper's Figure 2: a 2-D problem whose controlled states can be looked at."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from clcnn.control import ControlledModule, control
from clcnn.embeddings import AutoencoderEmbedding
from clcnn.solvers import PMP
from clcnn.types import Solution

SAMPLES = 1500
ATTACKED_ACCURACY = 0.86
"""The paper's accuracy under FGSM; epsilon, which it does not give, is chosen to meet it."""


class Residual(nn.Module):
    """x -> x + W_2 tanh(W_1 x + b_1) + b_2."""

    def __init__(self, width: int) -> None:
        super().__init__()
        last = nn.Linear(width, 2)
        # The branch starts at zero: a smooth trajectory, as the control wishes for.
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        self.branch = nn.Sequential(nn.Linear(2, width), nn.Tanh(), last)

    def forward(self, x: Tensor) -> Tensor:
        moved: Tensor = x + self.branch(x)
        return moved


class ToyNetwork(nn.Module):
    """x_1 = residual(x_0), both of dimension 2; logits = head(x_1)."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.residual = Residual(width)
        self.head = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.residual(x))
        return logits


@dataclass(frozen=True)
class Toy:
    """Everything of the experiment; fitting and choosing saw the training part only."""

    network: ToyNetwork
    robust: ControlledModule
    x_train: Tensor
    y_train: Tensor
    x: Tensor  # test samples
    y: Tensor
    x_eps: Tensor  # the same, perturbed by FGSM on the uncontrolled network
    eps: float


def crescents(n: int, seed: int, noise: float = 0.05) -> tuple[Tensor, Tensor]:
    """n samples on two curves, y = x^2 + 0.3 and y = x^2 / 4 - 1.2, -1.5 <= x <= 1.5, and noise."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % 2
    along = 3 * torch.rand(n, generator=generator) - 1.5
    across = torch.where(labels == 0, along.square() + 0.3, along.square() / 4 - 1.2)
    points = torch.stack([along, across], dim=1)
    return points + noise * torch.randn(n, 2, generator=generator), labels


def train(x: Tensor, y: Tensor, seed: int, loss: float = 0.3) -> ToyNetwork:
    """A network trained by Adam until all samples are right and the loss is below ``loss``."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = ToyNetwork()
    optimiser = torch.optim.Adam(network.parameters(), lr=0.02)
    with torch.enable_grad():
        for _ in range(1000):
            logits = network(x)
            now = cross_entropy(logits, y)
            if now < loss and accuracy(logits, y) == 1:
                break
            optimiser.zero_grad()
            now.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
    return network.eval().requires_grad_(False)


def fgsm(network: nn.Module, x: Tensor, y: Tensor, eps: float) -> Tensor:
    """x + eps sign(grad_x loss(x)); the plane has no pixel bounds to keep to."""
    with torch.enable_grad():
        at = x.detach().requires_grad_()
        (slope,) = torch.autograd.grad(cross_entropy(network(at), y, reduction="sum"), at)
    return x + eps * slope.sign()


def choose_eps(
    network: nn.Module, x: Tensor, y: Tensor, target: float = ATTACKED_ACCURACY
) -> float:
    """The smallest epsilon on a grid of 0.01 at which FGSM leaves at most ``target``."""
    grid = (step / 100 for step in range(1, 300))
    return next(eps for eps in grid if accuracy(network(fgsm(network, x, y, eps)), y) <= target)


def make(
    seed: int = 0,
    *,
    samples: int = SAMPLES,
    iterations: int = 1000,
    lr: float = 0.01,
    epochs: int = 250,
) -> Toy:
    """Data, network, attack and control; a third of the samples is kept for testing."""
    points, labels = crescents(samples, seed)
    cut = samples * 2 // 3
    x_train, y_train, x, y = points[:cut], labels[:cut], points[cut:], labels[cut:]
    network = train(x_train, y_train, seed)
    eps = choose_eps(network, x_train, y_train)
    embedding = AutoencoderEmbedding(
        hidden=(32, 32, 32),
        latent=1,
        epochs=epochs,
        patience=max(1, epochs // 3),
        lr=3e-3,
        batch_size=64,
        linear_last=False,
        seed=seed,
    )
    robust = control(
        network,
        ["input", "head"],
        embedding=embedding,
        solver=PMP(iterations=iterations, lr=lr),
    ).fit(x_train)
    return Toy(network, robust, x_train, y_train, x, y, fgsm(network, x, y, eps), eps)


def solve(toy: Toy) -> Solution:
    """The controls of the perturbed test samples."""
    return toy.robust.solve(toy.x_eps)


def accuracy(logits: Tensor, y: Tensor) -> float:
    """The share of samples whose largest logit is at y."""
    return float((logits.argmax(1) == y).double().mean())
