"""Bases made orthonormal in place by products alone, with a QR only where these cannot."""

from __future__ import annotations

import torch
from torch import Tensor

_ROWS = 1024  # rows of a tall matrix multiplied at once
_PANELS = 8  # of a symmetric product, whose upper panels are not computed
_PROBES = 8


def gram(Y: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
    """Y'Y in float64, from products in ``dtype``, without a copy of Y (d, k)."""
    k = Y.shape[1]
    G = torch.zeros(k, k, dtype=torch.float64, device=Y.device)
    for rows in torch.split(Y, _ROWS):
        add_product(G, rows.to(dtype).T)
    return mirrored(G)


def add_product(G: Tensor, A: Tensor) -> None:
    """G += A A' in its lower triangle; what is above the diagonal is left half done."""
    n = len(G)
    width = max(64, -(-n // _PANELS))
    for start in range(0, n, width):
        stop = min(n, start + width)
        panel = G[start:stop, :stop]
        if A.dtype == G.dtype:
            panel.addmm_(A[start:stop], A[:stop].T)
        else:
            panel += A[start:stop] @ A[:stop].T


def mirrored(G: Tensor) -> Tensor:
    """The symmetric matrix with the lower triangle of G."""
    return G.tril() + G.tril(-1).T


def normalise(Y: Tensor) -> Tensor | None:
    """Y <- Y R^-1 in place, with Y'Y = R'R; return R, None if Y had dependent columns.

    Cholesky squares the condition number: pivots of columns scaled to norm 1 say whether products
    in Y's own dtype suffice, or those in float64. Where neither does, Y becomes the Q of a QR.
    """
    for dtype in dict.fromkeys((Y.dtype, torch.float64)):
        G = gram(Y, dtype)
        norms = G.diagonal().sqrt()
        if not bool((norms > 0).all()):
            break
        scaled, failed = torch.linalg.cholesky_ex(G / torch.outer(norms, norms), upper=True)
        if not failed and float(scaled.diagonal().min()) > 100 * torch.finfo(dtype).eps ** 0.5:
            R: Tensor = scaled * norms
            times_inverse(Y, R)
            return R
    Y.copy_(torch.linalg.qr(Y)[0])
    return None


def times_inverse(Y: Tensor, R: Tensor) -> Tensor:
    """Y <- Y R^-1 in place, for an upper triangular R."""
    R = R.to(Y.dtype)
    for rows in torch.split(Y, _ROWS):
        rows.copy_(torch.linalg.solve_triangular(R, rows, upper=True, left=False))
    return Y


def departure(V: Tensor) -> float:
    """||V'V - I||_F, estimated by random vectors g: E ||(V'V - I) g||^2 is its square."""
    generator = torch.Generator().manual_seed(0)
    g = torch.randn(V.shape[1], _PROBES, generator=generator, dtype=V.dtype).to(V.device)
    return float(torch.linalg.matrix_norm(V.T @ (V @ g) - g) / _PROBES**0.5)
