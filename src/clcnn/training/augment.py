"""Random crops and mirror images, a whole batch at once."""

from __future__ import annotations

import torch
from torch import Tensor


def crop_and_flip(
    pixels: Tensor, generator: torch.Generator, padding: int = 4, flip: bool = True
) -> Tensor:
    """Each image shifted by up to ``padding`` pixels (black beyond the border), half mirrored.

    The result has the shape of ``pixels`` (N, C, H, W) and lies channels-last in memory.
    """
    count, _, height, width = pixels.shape
    padded = torch.nn.functional.pad(pixels, (padding,) * 4)
    top = torch.randint(0, 2 * padding + 1, (count, 1), generator=generator)
    left = torch.randint(0, 2 * padding + 1, (count, 1), generator=generator)
    rows = top + torch.arange(height)  # (N, H)
    cols = left + torch.arange(width)  # (N, W)
    if flip:
        mirrored = torch.rand(count, 1, generator=generator) < 0.5
        cols = torch.where(mirrored, cols.flip(1), cols)
    image = torch.arange(count)[:, None, None]
    picked = padded[image, :, rows[:, :, None], cols[:, None, :]]  # (N, H, W, C)
    return picked.permute(0, 3, 1, 2)


def shrunk(x: Tensor, edge: int | None) -> Tensor:
    """``x`` (N, C, H, W) at ``edge`` x ``edge`` pixels, low-passed; as it is for None."""
    if edge is None:
        return x
    return torch.nn.functional.interpolate(x, (edge, edge), mode="bilinear", antialias=True)
