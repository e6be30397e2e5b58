"""Noise: what chance alone does to a network, the weakest attack there is."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from clcnn.attacks.base import Attack, Model, is_correct
from clcnn.errors import DataError

DISTRIBUTIONS = ("uniform", "gaussian")


@dataclass(frozen=True)
class Noise(Attack):
    """x + n with n uniform in the ball, or n ~ N(0, std^2) brought into the ball.

    ``std`` is eps/2 by default (l_inf), or eps/sqrt(d) for images of d values (l_2), where the
    noise is about eps long. With ``tries`` > 1 the first draw that fools the model is kept.

    The attacker knows nothing of the network; with several tries, its answers.
    """

    distribution: str = "uniform"
    std: float | None = None
    tries: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.distribution not in DISTRIBUTIONS:
            raise DataError(
                f"noise {self.distribution!r} is unknown, expected one of "
                f"{', '.join(DISTRIBUTIONS)}"
            )
        if self.std is not None and not 0 < self.std < float("inf"):
            raise DataError(f"expected std > 0 in pixel units of [0,1], got {self.std}")
        if self.std is not None and self.distribution == "uniform":
            raise DataError("std is for gaussian noise only; uniform noise fills the eps ball")
        self.require_counts("tries")

    def run(self, model: Model, x: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        """All tries, each on the samples that are still classified correctly."""
        result = self._noisy(x, generator)
        for _ in range(self.tries - 1):
            left = is_correct(model, result, y)
            if not left.any():
                break
            result[left] = self._noisy(x[left], generator)
        return result

    def _noisy(self, x: Tensor, generator: torch.Generator) -> Tensor:
        if self.distribution == "uniform":
            return self.constrain(x + self.eps * self.ball.sample(x, generator), x)
        std = self.std
        if std is None:
            std = self.eps / 2 if self.norm == "linf" else self.eps / x[0].numel() ** 0.5
        return self.constrain(x + std * torch.randn(x.shape, generator=generator).to(x), x)
