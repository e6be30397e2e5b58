"""One basis for all patches of a state."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from math import gcd, prod
from typing import Any, Self

import torch
from torch import Tensor

from clcnn.embeddings.orthogonal import (
    OrthogonalEmbedding,
    check_samples,
    fix_signs,
    rank_rule,
    warn_arbitrary,
)
from clcnn.embeddings.principal import check_variance, drop_rounding
from clcnn.embeddings.streams import States, check_fitted
from clcnn.errors import DataError, FitError

_BLOCK = 256  # samples in float64 at once


class PatchEmbedding(OrthogonalEmbedding):
    """E(x) = mean + P (x - mean), P = V V' on each of G patches, with one V (C p^m, k) for all.

    A state (C, n_1, ..., n_m), such as an image's (C, H, W), is cut into patches of p along each
    axis but the first; they do not overlap. V holds the first k principal directions of all
    patches of all states. The rank is r = k G, by one of (``energy=0.99`` if none is given):

    - ``rank``: r itself, a multiple of G;
    - ``energy``: the smallest k whose directions have that share of the variance of all.

    A residual costs 2 k multiply-adds a feature, and every sample gives G patches to learn from.
    With ``patch=1`` only the channels are mixed. `fit` reads the states once.

    Learned: ``V``, ``mean`` (d,), ``eigenvalues`` (k,), falling.
    """

    V: Tensor
    eigenvalues: Tensor

    def __init__(
        self, patch: int = 4, rank: int | None = None, energy: float | None = None
    ) -> None:
        super().__init__(rank_rule(rank, energy))
        self.patch = check_size(patch, "patch")
        for name in ("V", "eigenvalues"):
            self.register_buffer(name, None)

    def config(self) -> dict[str, Any]:
        """The constructor arguments."""
        return {"patch": self.patch, self.rule.kind: self.rule.value}

    def fit(self, states: Iterable[Tensor]) -> Self:
        """Find V and the mean from batches of clean states, in float64, kept in their dtype."""
        with torch.inference_mode(False), torch.no_grad():
            stream = States(states)
            n, mean, S = self._moments(stream)
            check_samples(n)
            check_variance(float(S.trace()) / (n - 1), mean)
            k_max, G = len(S), rank_step(stream.shape, self.patch)
            # Eigenvalues per patch: those of the state's covariance P is optimal for, G times each.
            rising, U = torch.linalg.eigh(S / (G * (n - 1)))
            eigenvalues = drop_rounding(rising.flip(0), n * G, k_max)
            k = self._choose(eigenvalues, G)
            self.shape_ = stream.shape
            self.mean = mean.to(stream.dtype)
            self.V = fix_signs(U[:, -k:].flip(1).to(stream.dtype)).contiguous()
            self.eigenvalues = eigenvalues[:k].to(stream.dtype)
            explained = float(eigenvalues[:k].sum() / eigenvalues.sum())
            self.explained = self._scalar(explained, stream.dtype)
            self.n_samples = self._scalar(n, torch.int64)
        warn_arbitrary(self.rank_, G * int((self.eigenvalues == 0).sum()))
        return self

    def _moments(self, stream: States) -> tuple[int, Tensor, Tensor]:
        """n, the mean, S = sum (y - its mean)(y - its mean)' over all patches y of all states."""
        n, mean, S = 0, torch.zeros(()), torch.zeros(())
        for batch in stream:
            if not n:
                check_divides(stream.shape, self.patch)
                size = stream.shape[0] * self.patch ** (len(stream.shape) - 1)
                mean = torch.zeros(batch[0].numel(), dtype=torch.float64, device=batch.device)
                S = mean.new_zeros(size, size)
            for block in torch.split(batch.flatten(1), _BLOCK):
                b, x = len(block), block.double()
                m = x.mean(0)
                step = m - mean
                Y = _columns(x - m, stream.shape, self.patch)
                S.addmm_(Y, Y.T)
                Y = _columns(step[None], stream.shape, self.patch)
                S.addmm_(Y, Y.T, alpha=n * b / (n + b))
                mean += step * (b / (n + b))
                n += b
        return n, mean, S

    def _choose(self, eigenvalues: Tensor, G: int) -> int:
        if self.rule.kind != "rank":
            k = self.rule.choose(eigenvalues)
            assert k is not None  # all eigenvalues are given
            return k
        k, rest = divmod(int(self.rule.value), G)
        if rest or k > len(eigenvalues):
            near = G * min(max(1, round(self.rule.value / G)), len(eigenvalues))
            raise FitError(
                f"rank={self.rule.value:.0f} found, expected a multiple of the {G} patches up to "
                f"{G * len(eigenvalues)}: each keeps the same directions. Take rank={near}, or "
                "choose it by energy=0.99."
            )
        return k

    def _tensors(
        self, found: Mapping[str, tuple[int, ...]], shape: tuple[int, ...]
    ) -> dict[str, tuple[int, ...]]:
        (k,) = found.get("eigenvalues", ())[:1] or (0,)
        size = shape[0] * self.patch ** (len(shape) - 1)
        return {
            "V": (size, k),
            "mean": (prod(shape),),
            "eigenvalues": (k,),
            "explained": (),
            "n_samples": (),
        }

    def truncated(self, rank: int) -> Self:
        """V's first rank / G columns."""
        k = rank // self.rank_step_
        other = self._with_fewer(rank, self.eigenvalues, k)
        other.V = self.V[:, :k].contiguous()
        other.eigenvalues = self.eigenvalues[:k].clone()
        return other

    @property
    def rank_(self) -> int:
        """r = k G."""
        return self.rank_step_ * self.V.shape[1]

    @property
    def rank_step_(self) -> int:
        """G, the number of patches."""
        check_fitted(self, self.shape_)
        return rank_step(self.shape_ or (), self.patch)

    @property
    def multiply_adds_(self) -> int:
        """2 d k: V'y and V times it, for each patch y."""
        check_fitted(self, self.shape_)
        return 2 * prod(self.shape_ or ()) * self.V.shape[1]

    def basis(self) -> Tensor:
        """V for each patch, (d, r), in the order of `coefficients`."""
        check_fitted(self, self.shape_)
        k, G = self.V.shape[1], self.rank_step_
        one_patch_each = torch.eye(G, dtype=self.V.dtype, device=self.V.device)
        columns = torch.einsum("ck,hg->ckhg", self.V, one_patch_each)  # (size, k, G, G)
        columns = columns.reshape(len(self.V), -1)
        return self._rows(columns, k * G).T

    def extra_repr(self) -> str:
        """The rule, the rank it gave and the patches."""
        return f"patch={self.patch}, {super().extra_repr()}"

    def _rows(self, columns: Tensor, batch: int) -> Tensor:
        """Patches as columns (C p^m, batch G) back in states as rows (batch, d)."""
        shape, p = self.shape_ or (), self.patch
        m = len(shape) - 1
        grid = [n // p for n in shape[1:]]
        parts = columns.reshape(shape[0], *[p] * m, batch, *grid)
        order = [m + 1, 0, *(axis for a in range(m) for axis in (m + 2 + a, 1 + a))]
        return parts.permute(order).reshape(batch, prod(shape))

    def _coefficients(self, y: Tensor) -> Tensor:
        z = self.V.T @ _columns(y, self.shape_ or (), self.patch)
        return z.reshape(self.V.shape[1], y.shape[0], self.rank_step_).movedim(1, 0).flatten(1)

    def _project(self, y: Tensor) -> Tensor:
        Y = _columns(y, self.shape_ or (), self.patch)
        return self._rows(self.V @ (self.V.T @ Y), y.shape[0])

    def _reject_(self, y: Tensor) -> Tensor:
        Y = _columns(y, self.shape_ or (), self.patch)
        return self._rows(torch.addmm(Y, self.V, self.V.T @ Y, beta=-1), y.shape[0])


def _columns(rows: Tensor, shape: tuple[int, ...], p: int) -> Tensor:
    """States as rows (batch, d) -> their patches as columns (C p^m, batch G), in one copy.

    As columns, since the innermost loop of the copy then runs over the patches, which are many, and
    not over the few pixels that a patch has in a row.
    """
    m = len(shape) - 1
    split = [size for n in shape[1:] for size in (n // p, p)]
    parts = rows.reshape(rows.shape[0], shape[0], *split)
    order = [1, *range(3, 3 + 2 * m, 2), 0, *range(2, 2 + 2 * m, 2)]
    return parts.permute(order).reshape(shape[0] * p**m, rows.shape[0] * rank_step(shape, p))


def rank_step(shape: tuple[int, ...], patch: int) -> int:
    """G, the patches of a state."""
    return prod(n // patch for n in shape[1:])


def check_size(size: int, name: str) -> int:
    """Raise where a patch's or a block's side is no whole number of at least 1."""
    try:
        whole = operator.index(size)
    except TypeError:
        whole = 0
    if whole < 1:
        raise DataError(f"{name}={size!r} found, expected an integer of at least 1.")
    return whole


def check_divides(shape: tuple[int, ...], size: int, name: str = "patch") -> None:
    """Raise where a state of ``shape`` cannot be cut into whole parts, and say which can."""
    if len(shape) < 2:
        raise FitError(
            f"states of shape {shape} are vectors, which have no place for {name}={size}, "
            "expected (channels, ...), such as (C, H, W). Use LinearEmbedding."
        )
    if any(n % size for n in shape[1:]):
        common = gcd(*shape[1:])
        fits = [p for p in range(1, common + 1) if common % p == 0]
        nearest = min(fits, key=lambda p: abs(p - size))
        raise FitError(
            f"{name}={size} does not divide {' x '.join(map(str, shape[1:]))}, expected one of "
            f"{', '.join(map(str, fits))}. Take {name}={nearest}."
        )
