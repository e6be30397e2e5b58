"""Random numbers that belong to an image: the same whatever batch it comes in."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

_SEED_BYTES = 8


class Draws:
    """One stream of random numbers for each image, seeded by ``key`` and the image's content.

    The content and not an index: an image then needs no number that its caller would have to keep
    right in every subset, shuffle and chunk, and two equal images are corrupted alike.
    """

    def __init__(self, x: Tensor, key: str) -> None:
        self._streams = [
            torch.Generator().manual_seed(_seed(key, image)) for image in x.float().numpy()
        ]

    def normal(self, *shape: int) -> Tensor:
        """n ~ N(0, 1) of shape (batch, *shape)."""
        return self._each(lambda g: torch.randn(shape, generator=g, dtype=torch.float64))

    def uniform(self, low: float, high: float, *shape: int) -> Tensor:
        """u ~ U(low, high) of shape (batch, *shape)."""
        unit = self._each(lambda g: torch.rand(shape, generator=g, dtype=torch.float64))
        return low + (high - low) * unit

    def poisson(self, rate: Tensor) -> Tensor:
        """k ~ Poisson(rate), of the shape of ``rate`` (batch, ...)."""
        pairs = zip(rate, self._streams, strict=True)
        return torch.stack([torch.poisson(one, generator=g) for one, g in pairs])

    def _each(self, draw: Callable[[torch.Generator], Tensor]) -> Tensor:
        return torch.stack([draw(stream) for stream in self._streams])


def _seed(key: str, image: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> int:
    content = f"{key};{image.shape};".encode() + image.tobytes()
    return int.from_bytes(hashlib.sha256(content).digest()[:_SEED_BYTES])
