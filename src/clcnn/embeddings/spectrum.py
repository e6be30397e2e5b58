"""What `Feedback` steers by: a model of clean states, and of how strongly a sample departs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from clcnn.embeddings.base import Embedding

QUANTILE = 0.95
SUSPICION = 6.0
KNEE = 1.5
CEILING = 0.4
_LEAST = 1e-6


@dataclass(frozen=True)
class Levels:
    """How strongly each sample is perturbed: a variance in every direction, and one weighted by k.

    Both (batch,), in the square of the state's unit, at least 0.
    """

    white: Tensor
    sensitive: Tensor


@dataclass(frozen=True)
class Preset:
    """A strength and a floor that go together, chosen on held-out images (docs/feedback.md)."""

    strength: float
    floor: float


class Spectrum(Embedding):
    """E(x) = x - (n / (lambda + n))(x - mean), direction by direction, n by the sample's levels.

    A kind says what of a state it looks at (`coefficients`), how strongly that departs from clean
    states (`levels_of`), and the control for given levels (`pull`).
    """

    presets: ClassVar[Mapping[str, Preset]] = {
        "default": Preset(16.0, 0.0),
        "strong": Preset(128.0, 0.0),
    }
    """What `Feedback` takes by a name, with this kind."""

    clean_level: Tensor
    """(), the 95 % quantile of the white level over clean states."""

    @property
    @abstractmethod
    def mean_variance(self) -> Tensor:
        """mean(lambda), the clean variance of a coordinate of the state: ()."""

    @property
    def authority(self) -> Tensor:
        """a in (0, 1], the share of the levels to act upon at a network's input.

        1, if a kind does not know better.
        """
        return torch.ones_like(self.mean_variance)

    @abstractmethod
    def coefficients(self, x: Tensor) -> Tensor:
        """What the levels and the pull are computed from: (batch, any)."""

    @abstractmethod
    def levels_of(self, z: Tensor) -> Levels:
        """s and g from the coefficients z."""

    @abstractmethod
    def pull(self, z: Tensor, white: Tensor, sensitive: Tensor) -> Tensor:
        """u for perturbation levels (batch,), of the state's shape."""

    def refine(self, x: Tensor, u: Tensor, level: Tensor) -> Tensor:
        """The control in place of x's pull ``u`` by the level s + g, if a kind knows better."""
        return u

    def taken_for(
        self,
        levels: Levels,
        strength: float | Tensor,
        suspicion: float = SUSPICION,
        knee: float = KNEE,
        ceiling: float = CEILING,
    ) -> Tensor:
        """G = b / (1 + b / (ceiling mean(lambda))), the sensitive level to act upon: (batch,).

        b = strength (g + suspicion s / (1 + (s / (knee^2 clean level))^2)); see `Feedback`.
        """
        s, g = levels.white, levels.sensitive
        # far below any level that matters, and not so small that s / turn would be infinite
        turn = torch.maximum(knee**2 * self.clean_level, _LEAST * self.mean_variance)
        b = strength * (g + suspicion * s / (1 + (s / turn).square()))
        most = ceiling * self.mean_variance
        return b / (1 + b / most)

    def levels(self, x: Tensor) -> Levels:
        """s(x) and g(x): how strongly each sample is perturbed."""
        return self.levels_of(self.coefficients(x))

    def project(self, x: Tensor) -> Tensor:
        """E(x), by the sample's own levels."""
        return x + self.residual(x)

    def residual(self, x: Tensor) -> Tensor:
        """E(x) - x."""
        z = self.coefficients(x)
        levels = self.levels_of(z)
        u = self.pull(z, levels.white, levels.sensitive)
        return self.refine(x, u, levels.white + levels.sensitive)
