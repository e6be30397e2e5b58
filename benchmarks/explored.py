"""What feedback control might have been: other ways to find the level, and to act on it.

`python benchmarks/feedback.py --elsewhere` measures each beside what was.
"""

from __future__ import annotations

import torch
from torch import Tensor

from clcnn import SpectralEmbedding
from clcnn.embeddings.spectrum import Levels

_QUARTER = 0.25
_MEDIAN_OF_SQUARE = 0.4549  # of a squared standard Gaussian
_BANDS = 16


class TailEnergy(SpectralEmbedding):
    """s = mean(z_i^2 - lambda_i) over the quarter of the directions that clean states use least."""

    def levels_of(self, z: Tensor) -> Levels:
        """One level, taken for a white one."""
        least = self.variances.argsort()[: int(_QUARTER * len(self.variances))]
        s = (z[:, least].square() - self.variances[least]).mean(1).clamp_min(0)
        return Levels(s, torch.zeros_like(s))


class Median(SpectralEmbedding):
    """s = median(z_i^2) / 0.455 - median(lambda_i) over the same quarter: no outlier moves it."""

    def levels_of(self, z: Tensor) -> Levels:
        """One level, taken for a white one."""
        least = self.variances.argsort()[: int(_QUARTER * len(self.variances))]
        found = z[:, least].square().median(1).values / _MEDIAN_OF_SQUARE
        s = (found - self.variances[least].median()).clamp_min(0)
        return Levels(s, torch.zeros_like(s))


class Bands(SpectralEmbedding):
    """n_i = s_b + k_i G: a white level of its own for each of 16 bands of directions, by variance.

    G follows the levels found over all directions, as in what was kept; a floor has no effect.
    """

    def pull(self, z: Tensor, white: Tensor, sensitive: Tensor) -> Tensor:
        """The filter, with every band's own excess in place of the white level."""
        order = self.variances.argsort()
        excess = z.square() - self.variances
        n = torch.empty_like(z)
        for band in order.chunk(_BANDS):
            n[:, band] = excess[:, band].mean(1, keepdim=True).clamp_min(0)
        n = torch.maximum(n, 1e-12 * self.mean_variance) + self.sensitivity * sensitive[:, None]
        return -self._back(z * (n / (self.variances + n)))


class Threshold(SpectralEmbedding):
    """u_i = -z_i where n_i > lambda_i, else 0: all or nothing.

    No gradient passes through the choice: an attack by the exact gradient would mislead.
    """

    def pull(self, z: Tensor, white: Tensor, sensitive: Tensor) -> Tensor:
        """A projection that each sample chooses."""
        n = white[:, None] + self.sensitivity * sensitive[:, None]
        return -self._back(z * (n > self.variances).to(z))


class Square(SpectralEmbedding):
    """u_i = -(n_i / (lambda_i + n_i))^2 z_i: a gain that rises later, and more steeply."""

    def pull(self, z: Tensor, white: Tensor, sensitive: Tensor) -> Tensor:
        """The filter with its gain squared."""
        n = white[:, None] + self.sensitivity * sensitive[:, None]
        return -self._back(z * (n / (self.variances + n)).square())


class Root(SpectralEmbedding):
    """u_i = -(n_i / (lambda_i + n_i))^(1/2) z_i: a gain that rises sooner."""

    def pull(self, z: Tensor, white: Tensor, sensitive: Tensor) -> Tensor:
        """The filter with the root of its gain."""
        n = white[:, None] + self.sensitivity * sensitive[:, None]
        return -self._back(z * (n / (self.variances + n)).clamp_min(1e-12).sqrt())
