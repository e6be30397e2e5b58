"""The linear embedding: orthogonal projection onto the principal directions of clean states."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from math import prod
from typing import Any, Literal, Self, get_args

import torch
from torch import Tensor

from clcnn.embeddings.orthogonal import (
    OrthogonalEmbedding,
    fix_signs,
    rank_rule,
    warn_arbitrary,
)
from clcnn.embeddings.principal import Components, Method, exact
from clcnn.embeddings.randomised import randomised
from clcnn.embeddings.streams import States, check_fitted
from clcnn.errors import DataError, FitError

Algorithm = Literal["auto", "exact", "randomised"]
_ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)
_METHODS: tuple[Method, ...] = get_args(Method)
_SCALARS = ("explained", "error", "n_samples", "method")


class LinearEmbedding(OrthogonalEmbedding):
    """E(x) = mean + V V'(x - mean), with the r columns of V the first principal directions.

    The rank r is given by one of (``energy=0.99`` if none is):

    - ``rank``: r itself;
    - ``energy``: the smallest r with lambda_1 + ... + lambda_r >= energy * sum(lambda), over the
      eigenvalues of the covariance (the paper's 1 - delta);
    - ``singular``: the same over the singular values of the centred states, sqrt((n - 1) lambda).

    `fit` holds at most about ``memory`` bytes beside one batch. It is exact while that suffices for
    the d x d covariance (32 d^2 bytes) or for the rows and the n x n Gram matrix of few samples;
    the default suffices for 5,000 float32 states of dimension 16,384. Beyond it is randomised:
    ``passes`` over the states with a basis of ``oversampling`` spare columns, drawn from ``seed``,
    plus two for each time the basis has to grow. ``algorithm="randomised"`` asks for that at once:
    several times faster where r is far below n and d. ``algorithm="exact"`` refuses to fall back.

    Learned: ``V`` (d, r), ``mean`` (d,), ``eigenvalues`` (r,), and for reports ``rank_``,
    ``n_samples_``, ``method_``, ``explained_`` (the share of the eigenvalue sum kept) and
    ``error_`` = ||C V - V diag(eigenvalues)||_F / trace(C), with C the covariance: each eigenvalue
    is within error_ * trace(C) of a true one. It is 0 for the exact methods.
    """

    V: Tensor
    eigenvalues: Tensor
    error: Tensor
    method: Tensor

    def __init__(
        self,
        rank: int | None = None,
        energy: float | None = None,
        singular: float | None = None,
        memory: int = 2**31,
        passes: int = 4,
        oversampling: int = 16,
        seed: int = 0,
        algorithm: Algorithm = "auto",
    ) -> None:
        super().__init__(rank_rule(rank, energy, singular))
        _check_settings(memory, passes, oversampling, algorithm)
        self.memory = memory
        self.passes = passes
        self.oversampling = oversampling
        self.seed = seed
        self.algorithm: Algorithm = algorithm
        for name in ("V", "eigenvalues", "error", "method"):
            self.register_buffer(name, None)

    def config(self) -> dict[str, Any]:
        """The constructor arguments (``energy`` is a method's name too, hence not the default)."""
        settings = ("memory", "passes", "oversampling", "seed", "algorithm")
        return {self.rule.kind: self.rule.value} | {name: getattr(self, name) for name in settings}

    def fit(self, states: Iterable[Tensor]) -> Self:
        """Find V and the mean from batches of clean states, kept in their dtype.

        Exact fits compute in float64; randomised ones multiply in the states' dtype.
        """
        with torch.inference_mode(False), torch.no_grad():
            stream = States(states)
            found = None
            if self.algorithm != "randomised":
                found = exact(stream, self.rule, self.memory)
            if found is None and self.algorithm == "exact":
                raise FitError(
                    f"an exact fit of these states takes more than memory={self.memory} bytes. "
                    'Allow more memory, or ask for algorithm="randomised".'
                )
            if found is None:
                found = randomised(
                    stream, self.rule, self.memory, self.passes, self.oversampling, self.seed
                )
            self._take(found, stream)
        warn_arbitrary(self.rank_, int((found.eigenvalues == 0).sum()))
        return self

    def _take(self, found: Components, stream: States) -> None:
        self.shape_ = stream.shape
        # In the one layout that a saved file has too, so that a restored V rounds as this one does.
        self.V = fix_signs(found.V.to(stream.dtype)).contiguous()
        self.mean = found.mean.to(stream.dtype)
        self.eigenvalues = found.eigenvalues.to(stream.dtype)
        self.explained = self._scalar(found.explained, stream.dtype)
        self.error = self._scalar(found.error, stream.dtype)
        self.n_samples = self._scalar(found.n, torch.int64)
        self.method = self._scalar(_METHODS.index(found.method), torch.int64)

    def _tensors(
        self, found: Mapping[str, tuple[int, ...]], shape: tuple[int, ...]
    ) -> dict[str, tuple[int, ...]]:
        d, r = prod(shape), found.get("eigenvalues", (0,))[0]
        return {"V": (d, r), "mean": (d,), "eigenvalues": (r,)} | dict.fromkeys(_SCALARS, ())

    def truncated(self, rank: int) -> Self:
        """V's first ``rank`` columns."""
        other = self._with_fewer(rank, self.eigenvalues, rank)
        other.V = self.V[:, :rank].contiguous()
        other.eigenvalues = self.eigenvalues[:rank].clone()
        return other

    @property
    def rank_(self) -> int:
        """r, the number of directions kept."""
        check_fitted(self, self.shape_)
        return self.V.shape[1]

    @property
    def multiply_adds_(self) -> int:
        """2 d r: V'y and V times it."""
        return 2 * prod(self.shape_ or ()) * self.rank_

    @property
    def method_(self) -> Method:
        """How V was found."""
        check_fitted(self, self.shape_)
        return _METHODS[int(self.method)]

    @property
    def error_(self) -> float:
        """||C V - V diag(eigenvalues)||_F / trace(C)."""
        check_fitted(self, self.shape_)
        return float(self.error)

    def basis(self) -> Tensor:
        """V."""
        check_fitted(self, self.shape_)
        return self.V

    def project(self, x: Tensor) -> Tensor:
        """E(x) = mean + V V'(x - mean)."""
        check_fitted(self, self.shape_)
        if self.V.dtype != x.dtype:
            return super().project(x)
        return torch.addmm(self.mean, self.coefficients(x), self.V.T).reshape(x.shape)

    def _coefficients(self, y: Tensor) -> Tensor:
        return (y.to(self.V.dtype) @ self.V).to(y.dtype)

    def _project(self, y: Tensor) -> Tensor:
        return ((y.to(self.V.dtype) @ self.V) @ self.V.T).to(y.dtype)

    def _reject_(self, y: Tensor) -> Tensor:
        if self.V.dtype != y.dtype:
            return self._project(y).sub_(y)
        return y.addmm_(y @ self.V, self.V.T, beta=-1)

    def in_bfloat16(self) -> LinearEmbedding:
        """The same with V, and both products with it, in bfloat16."""
        check_fitted(self, self.shape_)
        other = copy.copy(self)
        other._buffers = {**self._buffers, "V": self.V.to(torch.bfloat16)}
        return other

    def extra_repr(self) -> str:
        """The rule, and once fitted the rank it gave and how."""
        fitted = "" if self.shape_ is None else f", {self.method_}"
        return super().extra_repr() + fitted


def _check_settings(memory: int, passes: int, oversampling: int, algorithm: str) -> None:
    if algorithm not in _ALGORITHMS:
        raise DataError(f"algorithm={algorithm!r} found, expected one of {_ALGORITHMS}.")
    if memory < 1 or passes < 2 or oversampling < 0:
        raise DataError(
            f"memory={memory}, passes={passes}, oversampling={oversampling} found, expected "
            "memory >= 1 (bytes), passes >= 2, oversampling >= 0."
        )
