"""Training methods: each is the loss of a batch, (model, x, y) -> (loss, logits on clean x)."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from clcnn.training.losses import smoothed_cross_entropy
from clcnn.training.settings import Settings


class Method(ABC):
    """The loss of one batch.

    ``model`` is called for what is differentiated with respect to the weights, once a batch, as
    distributed training asks; ``network`` is the same network without the wrapping.
    """

    @abstractmethod
    def loss(
        self, model: nn.Module, network: nn.Module, x: Tensor, y: Tensor, noise: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """The loss to minimise, and the logits on ``x``."""


class Standard(Method):
    """Cross-entropy."""

    def loss(
        self, model: nn.Module, network: nn.Module, x: Tensor, y: Tensor, noise: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Cross-entropy of ``x``."""
        logits = model(x)
        return cross_entropy(logits, y), logits


class LabelSmoothing(Method):
    """Cross-entropy with soft targets: 0.9 for the true class, 0.1/(N - 1) for each other."""

    def loss(
        self, model: nn.Module, network: nn.Module, x: Tensor, y: Tensor, noise: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Cross-entropy of ``x`` with soft targets."""
        logits = model(x)
        return smoothed_cross_entropy(logits, y), logits


def method_for(settings: Settings) -> Method:
    """The method that ``settings`` asks for."""
    if settings.method == "standard":
        return Standard()
    return LabelSmoothing()
