"""Bases made orthonormal in place by products alone, with a QR only where these cannot."""

from __future__ import annotations

import torch
from torch import Tensor

_ROWS = 1024  # rows of a tall matrix in float64 at once
_PANELS = 4  # of a symmetric product, whose upper panels are not computed
_SMALLEST = 1e-5  # pivot of columns of norm 1: its square is well above the rounding of Y'Y


def gram(Y: Tensor) -> Tensor:
    """Y'Y in float64, without a float64 copy of Y (d, k)."""
    k = Y.shape[1]
    G = torch.zeros(k, k, dtype=torch.float64, device=Y.device)
    width = -(-k // _PANELS)
    for rows in Y.split(_ROWS):
        part = rows.double()
        for start in range(0, k, width):
            stop = min(k, start + width)
            G[start:stop, :stop].addmm_(part[:, start:stop].T, part[:, :stop])
    return G.tril() + G.tril(-1).T


def normalise(Y: Tensor) -> Tensor | None:
    """Y <- Y R^-1 in place, with Y'Y = R'R; return R, None if Y had dependent columns.

    Cholesky squares the condition number, so that the result is orthonormal to rounding only for
    a well conditioned Y. Where columns are nearly dependent, Y becomes the Q of a QR.
    """
    G = gram(Y)
    norms = G.diagonal().sqrt()
    if bool((norms > 0).all()):
        scaled, failed = torch.linalg.cholesky_ex(G / torch.outer(norms, norms), upper=True)
        if not failed and float(scaled.diagonal().min()) > _SMALLEST:
            R: Tensor = scaled * norms
            times_inverse(Y, R)
            return R
    Y.copy_(torch.linalg.qr(Y)[0])
    return None


def times_inverse(Y: Tensor, R: Tensor) -> Tensor:
    """Y <- Y R^-1 in place, for an upper triangular R."""
    R = R.to(Y.dtype)
    for rows in Y.split(_ROWS):
        rows.copy_(torch.linalg.solve_triangular(R, rows, upper=True, left=False))
    return Y
