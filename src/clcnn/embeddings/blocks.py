"""The coefficients of a state in blocks of neighbouring frequencies, and projections of each."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad


class Run(NamedTuple):
    """Blocks in a row, each multiplied by ``width`` directions: those it keeps, or those it loses.

    ``most`` says that it keeps most of its directions, so that the ones it loses are fewer.
    """

    most: bool
    width: int
    blocks: int


def arrange(V: Sequence[Tensor]) -> tuple[list[Run], list[int], Tensor]:
    """Put blocks that keep or lose about as many directions together: one product for all.

    V holds the directions V_g (s, k_g) of each block. One that keeps more than half of the s is
    cheaper by those it loses, P = I - W_g W_g'; numbers of directions are rounded up by rows of
    zeros. Returns the runs, the order of the blocks in them, and all rows V_g' or W_g' in turn.
    """
    members: dict[tuple[bool, int], list[int]] = {}
    for g, V_g in enumerate(V):
        s, k = V_g.shape
        members.setdefault((2 * k > s, _rounded_up(min(k, s - k))), []).append(g)
    runs, order, packed = [], [], []
    for (most, width), blocks in sorted(members.items()):
        runs.append(Run(most, width, len(blocks)))
        order += blocks
        for g in blocks:
            rows = _complement(V[g]) if most else V[g].T
            packed.append(pad(rows, (0, 0, 0, width - len(rows))))
    return runs, order, torch.cat(packed).contiguous()


def multiply(z: Tensor, runs: Sequence[Run], packed: Tensor) -> Tensor:
    """V_g V_g' z_g for the blocks z_g (batch, s) of z, in the order of `arrange`."""
    parts, row = [], 0
    for run, part in zip(runs, torch.split(z, [run.blocks for run in runs]), strict=True):
        rows = run.blocks * run.width
        V = packed[row : row + rows].reshape(run.blocks, run.width, part.shape[2])
        row += rows
        if not run.width:
            parts.append(part if run.most else torch.zeros_like(part))
        elif run.most:
            parts.append(torch.baddbmm(part, torch.bmm(part, V.mT), V, alpha=-1))
        else:
            parts.append(torch.bmm(torch.bmm(part, V.mT), V))
    return torch.cat(parts)


def spectrum(y: Tensor, bases: Sequence[Tensor]) -> Tensor:
    """U'y for states y (batch, C, n_2, ..., n_K): (m_K, ..., m_2, batch, C).

    Each product leaves the frequencies of its axis in front, so that nothing is ever permuted.
    """
    batch, C, done = y.shape[0], y.shape[1], 1
    for U in reversed(bases):
        rows = y.reshape(done, -1, len(U))
        y = torch.bmm(U.T.expand(done, -1, -1), rows.mT)
        done *= U.shape[1]
    return y.reshape(*(U.shape[1] for U in reversed(bases)), batch, C)


def from_spectrum(z: Tensor, bases: Sequence[Tensor]) -> Tensor:
    """U z for z (m_K, ..., m_2, batch, C): (batch, C, n_2, ..., n_K)."""
    batch, C, left = z.shape[-2], z.shape[-1], prod(z.shape[:-2])
    for U in bases:
        m = U.shape[1]
        left //= m
        z = torch.bmm(z.reshape(left, m, -1).mT, U.T.expand(left, -1, -1))
    return z.reshape(batch, C, *(len(U) for U in bases))


def to_blocks(z: Tensor, b: int) -> Tensor:
    """(m_K, ..., m_2, batch, C) -> (G, batch, s), G over (m_2 / b, ...), s over (b, ..., b, C)."""
    *sizes, batch, C = z.shape
    m = len(sizes)
    parts = z.reshape(*(size for n in sizes for size in (n // b, b)), batch, C)
    outside = range(2 * m - 2, -1, -2)
    inside = range(2 * m - 1, 0, -2)
    order = [*outside, 2 * m, *inside, 2 * m + 1]
    return parts.permute(order).reshape(prod(n // b for n in sizes), batch, C * b**m)


def from_blocks(z: Tensor, grid: Sequence[int], b: int) -> Tensor:
    """(G, batch, s) -> (m_K, ..., m_2, batch, C), with m_k = b times the grid's."""
    m, batch = len(grid), z.shape[1]
    parts = z.reshape(*grid, batch, *[b] * m, z.shape[2] // b**m)
    order = [axis for k in reversed(range(m)) for axis in (k, m + 1 + k)]
    return parts.permute(*order, m, 2 * m + 1).reshape(
        *(b * n for n in reversed(grid)), batch, parts.shape[-1]
    )


def _rounded_up(k: int) -> int:
    """The next number of two binary digits: 0, 1, 2, 3, 4, 6, 8, 12, 16, 24 ..."""
    step = 1 << max(0, k.bit_length() - 2)
    return -(-k // step) * step


def _complement(V: Tensor) -> Tensor:
    """W' (s - k, s), rows that are orthonormal and orthogonal to the k columns of V (s, k)."""
    Q: Tensor = torch.linalg.qr(V.double(), mode="complete")[0]
    return Q[:, V.shape[1] :].T.to(V.dtype)
