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


def to_blocks(z: Tensor, b: int) -> Tensor:
    """(batch, C, m_2, ..., m_K) -> (G, batch, s), s over (b, ..., C, b): in one copy.

    The channels stand before the last axis of the block, which makes the copy twice as fast.
    """
    batch, C, *sizes = z.shape
    m = len(sizes)
    parts = z.reshape(batch, C, *(size for n in sizes for size in (n // b, b)))
    inside = [3 + 2 * k for k in range(m)]
    order = [*(2 + 2 * k for k in range(m)), 0, *inside[:-1], 1, inside[-1]]
    return parts.permute(order).reshape(prod(n // b for n in sizes), batch, C * b**m)


def from_blocks(z: Tensor, C: int, grid: Sequence[int], b: int) -> Tensor:
    """(G, batch, s) -> (batch, C, m_2, ..., m_K), with m_k = b times the grid's."""
    m, batch = len(grid), z.shape[1]
    parts = z.reshape(*grid, batch, *[b] * (m - 1), C, b)
    inside = [*range(m + 1, 2 * m), 2 * m + 1]
    order = [m, 2 * m, *(axis for k in range(m) for axis in (k, inside[k]))]
    return parts.permute(order).reshape(batch, C, *[b * n for n in grid])


def _rounded_up(k: int) -> int:
    """The next number of two binary digits: 0, 1, 2, 3, 4, 6, 8, 12, 16, 24 ..."""
    step = 1 << max(0, k.bit_length() - 2)
    return -(-k // step) * step


def _complement(V: Tensor) -> Tensor:
    """W' (s - k, s), rows that are orthonormal and orthogonal to the k columns of V (s, k)."""
    Q: Tensor = torch.linalg.qr(V.double(), mode="complete")[0]
    return Q[:, V.shape[1] :].T.to(V.dtype)
