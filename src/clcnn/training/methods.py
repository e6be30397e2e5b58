"""Training methods: each is the loss of a batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from clcnn.attacks import FGSM, PGD, Attack
from clcnn.dynamics.stand_in import Speedups, StandIn
from clcnn.errors import DataError
from clcnn.training.losses import smoothed_cross_entropy
from clcnn.training.settings import Settings


class Outcome(NamedTuple):
    """The loss of a batch to minimise, and the logits on its clean and on its perturbed images."""

    loss: Tensor
    logits: Tensor
    perturbed: Tensor | None = None


class Method(ABC):
    """The loss of one batch.

    ``model`` is called for what is differentiated with respect to the weights, once a batch, as
    distributed training asks; ``network`` is the same network without the wrapping.
    """

    @abstractmethod
    def loss(
        self, model: nn.Module, network: nn.Module, x: Tensor, y: Tensor, noise: torch.Generator
    ) -> Outcome:
        """The loss to minimise and the logits that it came from."""


class Standard(Method):
    """Cross-entropy."""

    def loss(
        self, model: nn.Module, network: nn.Module, x: Tensor, y: Tensor, noise: torch.Generator
    ) -> Outcome:
        """Cross-entropy of ``x``."""
        logits = model(x)
        return Outcome(cross_entropy(logits, y), logits)


class LabelSmoothing(Method):
    """Cross-entropy with soft targets: 0.9 for the true class, 0.1/(N - 1) for each other."""

    def loss(
        self, model: nn.Module, network: nn.Module, x: Tensor, y: Tensor, noise: torch.Generator
    ) -> Outcome:
        """Cross-entropy of ``x`` with soft targets."""
        logits = model(x)
        return Outcome(smoothed_cross_entropy(logits, y), logits)


class Adversarial(Method):
    """lambda Phi(x, y) + (1 - lambda) Phi(x_adv, y), Phi the cross-entropy.

    x_adv is made with the network in eval mode, as it will be attacked, on a copy whose batch norms
    are folded: the attack's steps are most of the work. Clean and perturbed images go through the
    network as one batch, so that its batch statistics are those of both.
    """

    def __init__(self, attack: Attack, clean_weight: float) -> None:
        self.attack = attack
        self.clean_weight = clean_weight

    def loss(
        self, model: nn.Module, network: nn.Module, x: Tensor, y: Tensor, noise: torch.Generator
    ) -> Outcome:
        """The mixed loss of ``x`` and of what the attack makes of it."""
        network.eval()
        x_adv = self.attack.run(faster(network, x), x, y, noise)
        network.train()
        logits, perturbed = model(torch.cat([x, x_adv])).chunk(2)
        share = self.clean_weight
        loss = share * cross_entropy(logits, y) + (1 - share) * cross_entropy(perturbed, y)
        return Outcome(loss, logits, perturbed)


def faster(network: nn.Module, x: Tensor) -> nn.Module:
    """A copy of the network as it is now, in eval mode, equal up to rounding."""
    return StandIn(network, (), x[:2], Speedups()).module()


def method_for(settings: Settings, epoch: int = 0) -> Method:
    """The method that ``settings`` asks for, as it is in ``epoch``."""
    if settings.method == "standard":
        return Standard()
    if settings.method == "labelsmooth":
        return LabelSmoothing()
    return Adversarial(attack_for(settings, epoch), settings.clean_weight)


def attack_for(settings: Settings, epoch: int = 0) -> Attack:
    """The attack inside the training, as it is in ``epoch``."""
    eps = settings.radius(epoch)
    if eps is None:
        raise DataError(f"method {settings.method!r} has no attack")
    if settings.step_size is None or settings.steps is None:
        return FGSM(eps / 255)
    return PGD(
        eps / 255,
        steps=settings.steps,
        step_size=settings.step_size / 255,
        random_start=bool(settings.random_start),
    )
