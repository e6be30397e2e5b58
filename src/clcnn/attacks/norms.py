"""Norms as data: size, projection, steepest ascent and random points of the ball, per sample."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from clcnn.errors import DataError

_TINY = 1e-12


@dataclass(frozen=True)
class Norm:
    """A norm on perturbations of shape (batch, *image); every function works sample by sample.

    ``size(d)`` is ||d|| of shape (batch,); ``project(d, eps)`` the nearest point of the ball;
    ``steepest(g)`` the unit direction along which the slope g rises most;
    ``sample(like, generator)`` a uniform point of the unit ball.
    """

    name: str
    size: Callable[[Tensor], Tensor]
    project: Callable[[Tensor, float], Tensor]
    steepest: Callable[[Tensor], Tensor]
    sample: Callable[[Tensor, torch.Generator], Tensor]


def _per_sample(values: Tensor, like: Tensor) -> Tensor:
    return values.view(-1, *(1,) * (like.ndim - 1))


def _linf_size(d: Tensor) -> Tensor:
    return d.flatten(1).abs().amax(1)


def _linf_project(d: Tensor, eps: float) -> Tensor:
    return d.clamp(-eps, eps)


def _linf_sample(like: Tensor, generator: torch.Generator) -> Tensor:
    return (2 * torch.rand(like.shape, generator=generator) - 1).to(like)


def _l2_size(d: Tensor) -> Tensor:
    return d.flatten(1).square().sum(1).sqrt()


def _l2_project(d: Tensor, eps: float) -> Tensor:
    factor = (eps / _l2_size(d).clamp_min(_TINY)).clamp_max(1)
    return d * _per_sample(factor, d)


def _l2_steepest(g: Tensor) -> Tensor:
    # A confident softmax leaves slopes whose squares are beyond the dtype: scaled to 1 first.
    largest = _linf_size(g).clamp_min(torch.finfo(g.dtype).tiny)
    g = g / _per_sample(largest, g)
    return g / _per_sample(_l2_size(g).clamp_min(_TINY), g)


def _l2_sample(like: Tensor, generator: torch.Generator) -> Tensor:
    direction = _l2_steepest(torch.randn(like.shape, generator=generator))
    radius = torch.rand(len(like), generator=generator) ** (1 / like[0].numel())
    return (direction * _per_sample(radius, direction)).to(like)


LINF = Norm("linf", _linf_size, _linf_project, torch.sign, _linf_sample)
L2 = Norm("l2", _l2_size, _l2_project, _l2_steepest, _l2_sample)

NORMS = {norm.name: norm for norm in (LINF, L2)}


def norm_called(name: str) -> Norm:
    """The norm by its name."""
    if name not in NORMS:
        raise DataError(f"norm {name!r} is unknown, expected one of {', '.join(NORMS)}")
    return NORMS[name]
