"""Resampling of images (batch, channels, height, width) in float64, sample by sample."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import interpolate


def mirrored(index: Tensor, n: int, *, twice: bool = False) -> Tensor:
    """Indices reflected into 0 ... n - 1, however far out; ``twice`` repeats the border itself."""
    if twice:
        period = 2 * n
        index = index.remainder(period)
        return torch.minimum(index, period - 1 - index)
    period = max(2 * (n - 1), 1)
    index = index.remainder(period)
    return torch.minimum(index, period - index) if n > 1 else torch.zeros_like(index)


def clamped(index: Tensor, n: int) -> Tensor:
    """Indices outside 0 ... n - 1 moved to the border."""
    return index.clamp(0, n - 1)


def take(x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """x[b, c, rows[b, i, j], columns[b, i, j]]; the two may be broadcast over i and j."""
    place = rows * x.shape[3] + columns  # (batch, i, j)
    flat = place.flatten(1).unsqueeze(1).expand(-1, x.shape[1], -1)
    return x.flatten(2).gather(2, flat).view(*x.shape[:2], *place.shape[1:])


def bilinear(x: Tensor, rows: Tensor, columns: Tensor, *, twice: bool) -> Tensor:
    """x at real positions (batch, height, width), mirrored at the border as `mirrored` says."""
    height, width = x.shape[2:]
    top, left = rows.floor(), columns.floor()
    down, right = (rows - top).unsqueeze(1), (columns - left).unsqueeze(1)
    r = [mirrored(top.long() + k, height, twice=twice) for k in (0, 1)]
    c = [mirrored(left.long() + k, width, twice=twice) for k in (0, 1)]
    upper = (1 - right) * take(x, r[0], c[0]) + right * take(x, r[0], c[1])
    lower = (1 - right) * take(x, r[1], c[0]) + right * take(x, r[1], c[1])
    return (1 - down) * upper + down * lower


def gaussian_weights(radius: int, sigma: float) -> Tensor:
    """w_k ~ exp(-k^2 / (2 sigma^2)), k = -radius ... radius, that sum to one."""
    k = torch.arange(-radius, radius + 1, dtype=torch.float64)
    w = torch.exp(-(k**2) / (2 * sigma**2))
    return w / w.sum()


def smoothed(x: Tensor, sigma: float, truncate: float, *, mirror: bool = False) -> Tensor:
    """x filtered by a Gaussian, cut off at ``truncate`` sigma; the border repeated or mirrored."""
    radius = int(truncate * sigma + 0.5)
    w = gaussian_weights(radius, sigma) if radius else torch.ones(1, dtype=torch.float64)
    rows, columns = (_filter_matrix(n, w, mirror) for n in x.shape[2:])
    return rows @ x @ columns.T


def _filter_matrix(n: int, w: Tensor, mirror: bool) -> Tensor:
    """G with (G x)_i = sum_k w_k x_{i + k}, indices outside brought back."""
    radius = len(w) // 2
    i = torch.arange(n).unsqueeze(1)
    at = i + torch.arange(-radius, radius + 1)  # (n, taps)
    at = mirrored(at, n, twice=True) if mirror else clamped(at, n)
    return torch.zeros(n, n, dtype=torch.float64).scatter_add_(1, at, w.expand(n, -1))


def filtered(x: Tensor, kernel: Tensor) -> Tensor:
    """sum_kl w_kl x_{i + k, j + l} for an odd square kernel, mirrored at the border."""
    radius = len(kernel) // 2
    i, j = (torch.arange(n) for n in x.shape[2:])
    total = torch.zeros_like(x)
    for k, l in kernel.nonzero().tolist():  # noqa: E741
        rows = mirrored(i + k - radius, x.shape[2])
        columns = mirrored(j + l - radius, x.shape[3])
        total += kernel[k, l] * x[:, :, rows][:, :, :, columns]
    return total


def trailed(x: Tensor, radius: int, sigma: float, degrees: Tensor) -> Tensor:
    """sum_i w_i x(p + i d), w_i ~ exp(-i^2 / (2 sigma^2)), i = 0 ... 2 radius: a one-sided trail.

    d is the direction at ``degrees`` (batch,), each step rounded to a pixel.
    """
    i = torch.arange(2 * radius + 1, dtype=torch.float64)
    w = torch.exp(-(i**2) / (2 * sigma**2))
    w = w / w.sum()
    angle = degrees.deg2rad()
    height, width = x.shape[2:]
    total = torch.zeros_like(x)
    for step, weight in enumerate(w.tolist()):
        down, right = (torch.ceil(step * d - 0.5).long() for d in (angle.sin(), angle.cos()))
        rows = clamped(torch.arange(height) + down[:, None], height)
        columns = clamped(torch.arange(width) + right[:, None], width)
        total += weight * take(x, rows[:, :, None], columns[:, None, :])
    return total


def zoomed(x: Tensor, factor: float) -> Tensor:
    """The centre of x, enlarged by ``factor`` to the size of x (bilinear, corners on corners)."""
    size = x.shape[2:]
    inner = [math.ceil(n / factor) for n in size]
    top, left = ((n - m) // 2 for n, m in zip(size, inner, strict=True))
    crop = x[:, :, top : top + inner[0], left : left + inner[1]]
    larger = [int(m * factor + 0.5) for m in inner]
    out = interpolate(crop, size=larger, mode="bilinear", align_corners=True)
    top, left = ((m - n) // 2 for n, m in zip(size, larger, strict=True))
    return out[:, :, top : top + size[0], left : left + size[1]]
