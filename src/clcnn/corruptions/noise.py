"""Noise of sensors: thermal, of few photons, and of dead pixels."""

from __future__ import annotations

import torch
from torch import Tensor

from clcnn.corruptions.draws import Draws


def gaussian_noise(x: Tensor, severity: int, draws: Draws) -> Tensor:
    """x + n, n ~ N(0, c^2)."""
    c = (0.04, 0.06, 0.08, 0.09, 0.10)[severity - 1]
    return x + c * draws.normal(*x.shape[1:])


def shot_noise(x: Tensor, severity: int, draws: Draws) -> Tensor:
    """Poisson(c x) / c: the fewer photons c at full brightness, the noisier."""
    c = (500, 250, 100, 75, 50)[severity - 1]
    return draws.poisson(c * x) / c


def impulse_noise(x: Tensor, severity: int, draws: Draws) -> Tensor:
    """A share c of all values is 0 or 1, as likely the one as the other."""
    c = (0.01, 0.02, 0.03, 0.05, 0.07)[severity - 1]
    u = draws.uniform(0, 1, *x.shape[1:])
    return torch.where(u < c, (u < c / 2).to(x), x)
