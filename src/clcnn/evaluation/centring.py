"""The authors' centring, to measure what it does to their figures; for evaluation only."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Self

from torch import Tensor

from clcnn.embeddings.base import Embedding
from clcnn.errors import FitError


class BatchCentred(Embedding):
    """E(x) = m + F(x - m + mu) - mu, with m the mean of the batch at hand and mu the fitted one.

    F is a fitted embedding; for F(x) = mu + P(x - mu) that is m + P(x - m). So an answer depends
    on the other images of its batch, and an image alone is never controlled by a projection: that
    is why the library has it here only.
    """

    def __init__(self, inner: Embedding) -> None:
        super().__init__()
        mean, shape = getattr(inner, "mean", None), getattr(inner, "shape_", None)
        if not isinstance(mean, Tensor) or shape is None or mean.numel() != prod(shape):
            raise FitError(
                f"found a {type(inner).__name__} without a fitted mean of its states; expected a "
                'fitted linear embedding for centring = "batch".'
            )
        self.inner = inner
        self.fitted_mean = mean.reshape(shape)

    def fit(self, states: Iterable[Tensor]) -> Self:
        """Refused: the inner embedding is fitted by itself."""
        raise FitError("BatchCentred is made around an embedding that has been fitted.")

    def project(self, x: Tensor) -> Tensor:
        """E(x)."""
        return x + self.residual(x)

    def residual(self, x: Tensor) -> Tensor:
        """E(x) - x = F(x') - x', x' = x - m + mu."""
        return self.inner.residual(self._moved(x))

    def energy(self, x: Tensor) -> Tensor:
        """||E(x) - x||^2."""
        return self.inner.energy(self._moved(x))

    def in_bfloat16(self) -> BatchCentred:
        """The same around the inner embedding in bfloat16."""
        return BatchCentred(self.inner.in_bfloat16())

    def _moved(self, x: Tensor) -> Tensor:
        return x - x.mean(0, keepdim=True) + self.fitted_mean
