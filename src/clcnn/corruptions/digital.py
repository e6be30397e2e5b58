"""What image processing does: contrast, warping, coarse pixels, JPEG."""

from __future__ import annotations

import io

import numpy as np
import torch
from torch import Tensor

from clcnn.corruptions.draws import Draws
from clcnn.corruptions.grids import bilinear, smoothed
from clcnn.errors import DataError


def contrast(x: Tensor, severity: int, draws: Draws) -> Tensor:
    """mu + c (x - mu), mu the mean of each channel."""
    c = (0.75, 0.5, 0.4, 0.3, 0.15)[severity - 1]
    mean = x.mean((2, 3), keepdim=True)
    return mean + c * (x - mean)


def elastic_transform(x: Tensor, severity: int, draws: Draws) -> Tensor:
    """x at A p + a (g * u)(p): a random affine map A, then a smooth random displacement.

    (a, the sigma of g, how far A moves each corner of a triangle), in parts of the shorter side.
    """
    a, sigma, far = (
        (0, 0, 0.08),
        (0.05, 0.2, 0.07),
        (0.08, 0.06, 0.06),
        (0.1, 0.04, 0.05),
        (0.1, 0.03, 0.03),
    )[severity - 1]
    side = min(x.shape[2:])
    x = bilinear(x, *_affine(x, far * side, draws), twice=False)
    if not a:
        return x
    u = draws.uniform(-1, 1, 2, *x.shape[2:])
    down, right = (a * side * smoothed(u, sigma * side, truncate=3, mirror=True)).unbind(1)
    i, j = _places(x)
    return bilinear(x, i + down, j + right, twice=True)


def _affine(x: Tensor, far: float, draws: Draws) -> tuple[Tensor, Tensor]:
    """Where each pixel comes from, if three points around the centre move by up to ``far``."""
    height, width = x.shape[2:]
    arm = max(min(height, width) // 3, 1)
    centre = torch.tensor([height // 2, width // 2], dtype=x.dtype)
    before = centre + arm * torch.tensor([[1, 1], [-1, 1], [-1, -1]], dtype=x.dtype)  # (3, 2)
    after = before + draws.uniform(-far, far, 3, 2)
    ones = torch.ones(len(x), 3, 1, dtype=x.dtype)
    B = torch.linalg.solve(torch.cat([after, ones], 2), before.expand(len(x), -1, -1))  # (b, 3, 2)
    i, j = _places(x)
    rows, columns = (
        B[:, 0, k, None, None] * i + B[:, 1, k, None, None] * j + B[:, 2, k, None, None]
        for k in (0, 1)
    )
    return rows, columns


def _places(x: Tensor) -> tuple[Tensor, Tensor]:
    i, j = (torch.arange(n, dtype=x.dtype) for n in x.shape[2:])
    return i[:, None], j


def pixelate(x: Tensor, severity: int, draws: Draws) -> Tensor:
    """x on a grid of c times as many rows and columns, by means over boxes, and back."""
    c = (0.95, 0.9, 0.85, 0.75, 0.65)[severity - 1]
    rows, columns = (_coarse(n, max(int(n * c), 1)) for n in x.shape[2:])
    return rows @ x @ columns.T


def _coarse(n: int, m: int) -> Tensor:
    """P (n, n): n values to m, each the mean of those whose centres it covers, and back to n."""
    down = _boxes(n, m)
    return _boxes(m, n) @ down


def _boxes(n: int, m: int) -> Tensor:
    """W (m, n): the mean over the inputs with centres in each output's box, at least one wide.

    Lengths are in units of 1 / 2m of an input, whole numbers: many centres lie on a border.
    """
    reach = max(n, m)
    away = (2 * torch.arange(n) + 1) * m - (2 * torch.arange(m)[:, None] + 1) * n
    inside = ((away > -reach) & (away <= reach)).to(torch.float64)
    return inside / inside.sum(1, keepdim=True)


def jpeg_compression(x: Tensor, severity: int, draws: Draws) -> Tensor:
    """x through a JPEG file of quality c."""
    c = (80, 65, 58, 50, 40)[severity - 1]
    try:
        from PIL import Image
    except ImportError as error:
        raise DataError("JPEG compression needs Pillow: pip install 'clcnn[data]'") from error
    pixels = (255 * x).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
    images = []
    for picture in pixels.squeeze(3) if x.shape[1] == 1 else pixels:
        file = io.BytesIO()
        Image.fromarray(picture).save(file, "JPEG", quality=c)
        with Image.open(file) as opened:
            images.append(np.asarray(opened))
    return torch.from_numpy(np.stack(images)).view(pixels.shape).permute(0, 3, 1, 2).to(x) / 255
