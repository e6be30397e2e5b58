"""Weather: snow, frost, fog, and bright light."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from clcnn.corruptions.draws import Draws
from clcnn.corruptions.grids import trailed, zoomed

_LUMA = (0.299, 0.587, 0.114)
_ICE = (0.86, 0.94, 1.0)  # a little blue


def snow(x: Tensor, severity: int, draws: Draws) -> Tensor:
    """m x + (1 - m) max(x, 1.5 grey + 0.5) + s + (s turned by 180 degrees), s the flakes.

    s is N(mean, std^2), enlarged by ``zoom``, 0 below ``least``, with a trail (``radius``,
    ``sigma``) at 45 to 135 degrees.
    """
    mean, std, zoom, least, radius, sigma, m = (
        (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
    )[severity - 1]
    s = zoomed(mean + std * draws.normal(1, *x.shape[2:]), zoom)
    s = torch.where(s < least, 0, s).clamp(0, 1)
    s = trailed(s, int(radius), sigma, draws.uniform(-135, -45))
    pale = m * x + (1 - m) * torch.maximum(x, 1.5 * _grey(x) + 0.5)
    return pale + s + s.flip(2, 3)


def _grey(x: Tensor) -> Tensor:
    if x.shape[1] == 1:
        return x
    return (x * torch.tensor(_LUMA, dtype=x.dtype)[:, None, None]).sum(1, keepdim=True)


def frost(x: Tensor, severity: int, draws: Draws) -> Tensor:
    """a x + b ice: (a, b).

    The published images use crops of six photographs of frosted glass. They are not here: the ice
    is made of noise (`ice`), so figures for frost are not comparable with published ones.
    """
    a, b = ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))[severity - 1]
    tint = _ICE if x.shape[1] == 3 else (1.0,)
    return a * x + b * ice(x, draws) * torch.tensor(tint, dtype=x.dtype)[:, None, None]


def ice(x: Tensor, draws: Draws) -> Tensor:
    """Bright ridges along the zeros of band-limited noise, at three scales, from 0 to 1."""
    height, width = x.shape[2:]
    total = torch.zeros(len(x), 1, height, width, dtype=x.dtype)
    for cells, share in ((3, 0.45), (6, 0.35), (12, 0.2)):
        coarse = draws.normal(1, cells + 1, cells + 1)
        n = interpolate(coarse, size=(height, width), mode="bicubic", align_corners=True)
        total += share * torch.exp(-((n / 0.6) ** 2))
    return _stretched(total)


def fog(x: Tensor, severity: int, draws: Draws) -> Tensor:
    """(x + c f) max(x) / (max(x) + c), f a plasma fractal: (c, how fast its detail fades)."""
    c, fading = ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75))[severity - 1]
    f = plasma(x, fading, draws)
    brightest = x.amax((1, 2, 3), keepdim=True)
    return (x + c * f) * brightest / (brightest + c)


def plasma(x: Tensor, fading: float, draws: Draws) -> Tensor:
    """A height map by midpoint displacement on a torus, from 0 to 1: (batch, 1, height, width).

    In each round the middle of every square, then of every edge, is the mean of its four
    neighbours plus U(-a, a), and a falls by ``fading``^2.
    """
    height, width = x.shape[2:]
    side = 1 << max(height - 1, width - 1, 1).bit_length()
    f = torch.zeros(len(x), side, side, dtype=x.dtype)
    amplitude, step = 1.0, side
    while step >= 2:
        half, cells = step // 2, side // step
        at, between = slice(0, side, step), slice(half, side, step)

        def mean(a: Tensor, b: Tensor, cells: int = cells, by: float = amplitude) -> Tensor:
            return (a + b) / 4 + draws.uniform(-by, by, cells, cells)

        corners = f[:, at, at]
        pairs = corners + corners.roll(-1, 1)
        f[:, between, between] = mean(pairs, pairs.roll(-1, 2))
        middles = f[:, between, between]
        across = corners + corners.roll(-1, 2), middles + middles.roll(1, 1)
        down = corners + corners.roll(-1, 1), middles + middles.roll(1, 2)
        f[:, at, between] = mean(*across)
        f[:, between, at] = mean(*down)
        amplitude, step = amplitude / fading**2, half
    return _stretched(f.unsqueeze(1))[:, :, :height, :width]


def _stretched(f: Tensor) -> Tensor:
    """Each map from 0 to 1; a flat one is 0."""
    low, high = f.amin((1, 2, 3), keepdim=True), f.amax((1, 2, 3), keepdim=True)
    return (f - low) / (high - low).clamp_min(torch.finfo(f.dtype).tiny)


def brightness(x: Tensor, severity: int, draws: Draws) -> Tensor:
    """x min(V + c, 1) / V, V the largest of a pixel's channels: its value in HSV, raised by c."""
    c = (0.05, 0.1, 0.15, 0.2, 0.3)[severity - 1]
    V = x.amax(1, keepdim=True)
    raised = (V + c).clamp_max(1)
    return torch.where(V > 0, x / V.clamp_min(torch.finfo(x.dtype).tiny), 1) * raised
