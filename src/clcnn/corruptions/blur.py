"""Blur: out of focus, through frosted glass, of a moving camera, of one that moves forward."""

from __future__ import annotations

import torch
from torch import Tensor

from clcnn.corruptions.draws import Draws
from clcnn.corruptions.grids import filtered, gaussian_weights, smoothed, take, trailed, zoomed


def defocus_blur(x: Tensor, severity: int, draws: Draws) -> Tensor:
    """x filtered by a disk: (its radius, the sigma that softens its edge)."""
    radius, sigma = ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1))[severity - 1]
    return filtered(x, disk(radius, sigma))


def disk(radius: float, sigma: float) -> Tensor:
    """All pixels within ``radius`` alike, softened by 3 x 3 values of a Gaussian; sum one."""
    reach = int(radius) + 2  # room for the softened edge, and for zeros around it
    k = torch.arange(-reach, reach + 1, dtype=torch.float64)
    inside = (k[:, None] ** 2 + k**2 <= radius**2).to(torch.float64)
    w = gaussian_weights(1, sigma)
    return filtered((inside / inside.sum())[None, None], torch.outer(w, w))[0, 0]


def glass_blur(x: Tensor, severity: int, draws: Draws) -> Tensor:
    """Smoothed, every pixel taken from itself or a neighbour up or left, smoothed again.

    (sigma, rounds of displacement). The published images come from a program that means to swap
    pixels in turn, from the last to the first, but copies one to the other: a displacement. The
    first two rows and columns stay.
    """
    sigma, rounds = ((0.05, 1), (0.25, 1), (0.4, 1), (0.25, 2), (0.4, 2))[severity - 1]
    height, width = x.shape[2:]
    x = smoothed(x, sigma, truncate=4)
    i, j = torch.arange(height)[:, None], torch.arange(width)
    moves = (i > 1) & (j > 1)
    for _ in range(rounds):
        up, left = (draws.uniform(0, 1, height, width) < 0.5 for _ in range(2))
        x = take(x, i - (up & moves).long(), j - (left & moves).long())
    return smoothed(x, sigma, truncate=4)


def motion_blur(x: Tensor, severity: int, draws: Draws) -> Tensor:
    """A trail at a random angle of at most 45 degrees: (radius, sigma) of its weights."""
    radius, sigma = ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5))[severity - 1]
    return trailed(x, radius, sigma, draws.uniform(-45, 45))


def zoom_blur(x: Tensor, severity: int, draws: Draws) -> Tensor:
    """The mean of x and its enlargements by 1.00, 1.01, ... (so many of them)."""
    count = (7, 12, 16, 21, 26)[severity - 1]
    total = x.clone()
    for k in range(count):
        total += zoomed(x, 1 + k / 100)
    return total / (count + 1)
