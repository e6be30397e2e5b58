"""Theorem 1: ||xbar_t - x_t||^2 and its bound against t, c and r, in rows.

Two linear networks share their layers: an orthogonal one, where the theorem is an equality, and one
whose singular values lie within 1 +- spread, where it is a bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from clcnn import theory
from clcnn.evaluation.results import COLUMNS as CELL_COLUMNS

COLUMNS = (
    *CELL_COLUMNS,  # eps is the length of z; states have no accuracy: its columns are empty
    "varied",  # which of t, c and r the row is a step of
    "t",
    "c",
    "r",
    "d",
    "error",  # ||xbar_t - x_t||^2 of greedily controlled states, mean over perturbations
    "bound",  # the right-hand side of Theorem 1, mean; the exact error where layers are orthogonal
    "uncontrolled",  # ||theta_bar_t z||^2, mean
    "largest_ratio",  # error / bound, the largest of any perturbation: at most 1 but for rounding
)


@dataclass(frozen=True)
class Settings:
    """Depth T, width d, rank r of the data's subspace, perturbations of length 1."""

    depth: int = 8
    width: int = 32
    rank: int = 4
    samples: int = 64
    spread: float = 0.01
    seed: int = 0
    strengths: tuple[float, ...] = (0.0, 0.1, 0.5, 2.0)


@dataclass(frozen=True)
class LinearNetwork:
    """Layers, clean data in the span of the first basis vector, and perturbations z."""

    name: str
    thetas: list[Tensor]
    basis: Tensor  # (d, d): the first r columns are V_0
    x_0: Tensor  # (n, d)
    z: Tensor  # (n, d)
    is_orthogonal: bool

    def error(self, t: int, c: float, r: int) -> Tensor:
        """||xbar_t - x_t||^2 by simulation, one number a perturbation."""
        return theory.greedy_error(self.thetas, self.basis[:, :r], self.x_0, self.z, c)[t]

    def uncontrolled(self, t: int) -> Tensor:
        """||theta_bar_t z||^2, what the perturbation grows to without control."""
        return (self.z @ theory.products(self.thetas)[t].T).square().sum(-1)

    def bound(self, t: int, c: float, r: int) -> Tensor:
        """The theorem's right-hand side: the equality if the network is orthogonal."""
        right = theory.orthogonal_error if self.is_orthogonal else theory.theorem_bound
        return right(self.thetas, self.basis[:, :r], self.z, c, t)


def networks(settings: Settings) -> tuple[LinearNetwork, LinearNetwork]:
    """The orthogonal network, and the one near it."""
    draw = torch.Generator().manual_seed(settings.seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    d, n = settings.width, settings.samples
    layers = [torch.linalg.qr(normal(d, d)).Q for _ in range(settings.depth)]
    sigmas = [1 + settings.spread * normal(d).clamp(-2, 2) / 2 for _ in layers]
    basis = torch.linalg.qr(normal(d, d)).Q
    x_0 = normal(n, 1) @ basis[:, :1].T
    z = torch.nn.functional.normalize(normal(n, d), dim=-1)
    near = [layer * sigma for layer, sigma in zip(layers, sigmas, strict=True)]
    return (
        LinearNetwork("orthogonal", layers, basis, x_0, z, True),
        LinearNetwork(f"within {settings.spread:g} of it", near, basis, x_0, z, False),
    )


def run(settings: Settings) -> Iterator[dict[str, str]]:
    """A row for each network and step along t, c and r."""
    T, d, r = settings.depth, settings.width, settings.rank
    sweeps = {
        "t": [(t, c, r) for c in settings.strengths for t in range(1, T + 1)],
        "c": [(t, 10 ** (k / 4), r) for t in sorted({1, T // 2, T}) for k in range(-8, 9)],
        "r": [(min(3, T), c, k) for c in settings.strengths for k in _ranks(d)],
    }
    for network in networks(settings):
        for varied, places in sweeps.items():
            for t, c, k in places:
                yield _row(network, varied, t, c, k)


def _ranks(d: int) -> list[int]:
    return sorted({*(2**k for k in range(int(math.log2(d)) + 1)), d})


def _row(network: LinearNetwork, varied: str, t: int, c: float, r: int) -> dict[str, str]:
    error, bound = network.error(t, c, r), network.bound(t, c, r)
    values = {
        **dict.fromkeys(COLUMNS, ""),
        "network": network.name,
        "defence": "greedy",
        "attack": "random direction",
        "eps": 1,
        "threat": "oblivious",
        "n": len(network.z),
        "varied": varied,
        "t": t,
        "c": c,
        "r": r,
        "d": len(network.basis),
        "error": float(error.mean()),
        "bound": float(bound.mean()),
        "uncontrolled": float(network.uncontrolled(t).mean()),
        "largest_ratio": float((error / bound).max()),
    }
    return {k: f"{v:.10g}" if isinstance(v, float) else str(v) for k, v in values.items()}
