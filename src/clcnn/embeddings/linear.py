"""The linear embedding: orthogonal projection onto the principal directions of clean states."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from math import prod
from typing import Any, Self, get_args

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from clcnn.embeddings.base import Embedding
from clcnn.embeddings.principal import Components, Kind, Method, RankRule, exact
from clcnn.embeddings.randomised import randomised
from clcnn.embeddings.streams import States, check_fitted, check_state
from clcnn.errors import DataError, LoadError

_METHODS: tuple[Method, ...] = get_args(Method)
_SCALARS = ("explained", "error", "n_samples", "method")


class LinearEmbedding(Embedding):
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
    plus two for each time the basis has to grow.

    Learned: ``V`` (d, r), ``mean`` (d,), ``eigenvalues`` (r,), and for reports ``rank_``,
    ``n_samples_``, ``method_``, ``explained_`` (the share of the eigenvalue sum kept) and
    ``error_`` = ||C V - V diag(eigenvalues)||_F / trace(C), with C the covariance: each eigenvalue
    is within error_ * trace(C) of a true one. It is 0 for the exact methods.
    """

    V: Tensor
    mean: Tensor
    eigenvalues: Tensor
    explained: Tensor
    error: Tensor
    n_samples: Tensor
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
    ) -> None:
        super().__init__()
        if rank is None and energy is None and singular is None:
            energy = 0.99
        self.rule = _rule(rank, energy, singular)
        _check_settings(memory, passes, oversampling)
        self.memory = memory
        self.passes = passes
        self.oversampling = oversampling
        self.seed = seed
        self.shape_: tuple[int, ...] | None = None
        for name in ("V", "mean", "eigenvalues", *_SCALARS):
            self.register_buffer(name, None)

    def config(self) -> dict[str, Any]:
        """The constructor arguments (``energy`` is a method's name too, hence not the default)."""
        settings = ("memory", "passes", "oversampling", "seed")
        return {self.rule.kind: self.rule.value} | {name: getattr(self, name) for name in settings}

    def fit(self, states: Iterable[Tensor]) -> Self:
        """Find V and the mean from batches of clean states, in float64, kept in their dtype."""
        with torch.inference_mode(False), torch.no_grad():
            stream = States(states)
            found = exact(stream, self.rule, self.memory)
            if found is None:
                found = randomised(
                    stream, self.rule, self.memory, self.passes, self.oversampling, self.seed
                )
            self._take(found, stream)
        arbitrary = int((found.eigenvalues == 0).sum())
        if arbitrary:
            warnings.warn(
                f"rank={self.rank_} is more than the {self.rank_ - arbitrary} directions in which "
                "the states vary; the others are arbitrary. Lower it, or choose energy=0.99.",
                stacklevel=2,
            )
        return self

    def _take(self, found: Components, stream: States) -> None:
        def scalar(value: float, dtype: torch.dtype) -> Tensor:
            return torch.tensor(value, dtype=dtype, device=found.V.device)

        self.shape_ = stream.shape
        # In the one layout that a saved file has too, so that a restored V rounds as this one does.
        self.V = _fix_signs(found.V.to(stream.dtype)).contiguous()
        self.mean = found.mean.to(stream.dtype)
        self.eigenvalues = found.eigenvalues.to(stream.dtype)
        self.explained = scalar(found.explained, stream.dtype)
        self.error = scalar(found.error, stream.dtype)
        self.n_samples = scalar(found.n, torch.int64)
        self.method = scalar(_METHODS.index(found.method), torch.int64)

    def restore(self, tensors: Mapping[str, Tensor], shape: tuple[int, ...]) -> Self:
        """Take back what `fit` learned for states of ``shape``."""
        found = {name: tuple(value.shape) for name, value in tensors.items()}
        d, r = prod(shape), found.get("eigenvalues", (0,))[0]
        expected = {"V": (d, r), "mean": (d,), "eigenvalues": (r,)} | dict.fromkeys(_SCALARS, ())
        if found != expected:
            raise LoadError(
                f"the saved tensors of a LinearEmbedding for states of shape {tuple(shape)} have "
                f"shapes {found}, expected {expected}. Load the file with the network and the "
                "embedding that saved it."
            )
        super().restore(tensors, shape)
        self.shape_ = tuple(shape)
        return self

    @property
    def rank_(self) -> int:
        """r, the number of directions kept."""
        check_fitted(self, self.shape_)
        return self.V.shape[1]

    @property
    def n_samples_(self) -> int:
        """n, the number of states fitted."""
        check_fitted(self, self.shape_)
        return int(self.n_samples)

    @property
    def method_(self) -> Method:
        """How V was found."""
        check_fitted(self, self.shape_)
        return _METHODS[int(self.method)]

    @property
    def explained_(self) -> float:
        """(lambda_1 + ... + lambda_r) / trace(C)."""
        check_fitted(self, self.shape_)
        return float(self.explained)

    @property
    def error_(self) -> float:
        """||C V - V diag(eigenvalues)||_F / trace(C)."""
        check_fitted(self, self.shape_)
        return float(self.error)

    def coefficients(self, x: Tensor) -> Tensor:
        """V'(x - mean), shape (batch, r)."""
        self._check(x)
        return (x.flatten(1) - self.mean) @ self.V

    def project(self, x: Tensor) -> Tensor:
        """E(x) = mean + V V'(x - mean)."""
        return torch.addmm(self.mean, self.coefficients(x), self.V.T).reshape(x.shape)

    def residual(self, x: Tensor) -> Tensor:
        """E(x) - x = -Q (x - mean), with Q = I - V V' never formed."""
        self._check(x)
        return _residual(x, self.V, self.mean)

    def energy(self, x: Tensor) -> Tensor:
        """||Q (x - mean)||^2 per sample; its gradient 2 Q (x - mean) needs no further product."""
        self._check(x)
        return _deviation(x, self.V, self.mean)[0]

    def extra_repr(self) -> str:
        """The rule, and once fitted the rank it gave."""
        rule = f"{self.rule.kind}={self.rule.value:g}"
        if self.shape_ is None:
            return f"{rule}, not fitted"
        return f"{rule}, rank {self.rank_} of {prod(self.shape_)}, {self.method_}"

    def _check(self, x: Tensor) -> None:
        check_fitted(self, self.shape_)
        check_state(x, self.shape_, self.V.dtype)


def _residual(x: Tensor, V: Tensor, mean: Tensor) -> Tensor:
    """V V'(x - mean) - (x - mean), with one new tensor of x's size."""
    centred = x.flatten(1) - mean
    return centred.addmm_(centred @ V, V.T, beta=-1).reshape(x.shape)


class _Deviation(torch.autograd.Function):
    """x -> (||r||^2 per sample, r) with r = -Q (x - mean); d||r||^2/dx = -2 r, dr/dx = -Q.

    The residual is an output so that the backward pass can reuse it: a second derivative then
    follows through it by the chain rule, and a first one costs no product. x is not kept, so that
    a layer that changes it in place does no harm.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, V: Tensor, mean: Tensor) -> tuple[Tensor, Tensor]:
        residual = _residual(x, V, mean)
        flat = residual.flatten(1)
        return torch.linalg.vecdot(flat, flat), residual

    @staticmethod
    def setup_context(
        ctx: FunctionCtx, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]
    ) -> None:
        ctx.save_for_backward(output[1], inputs[1])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(
        ctx: Any, grad_energy: Tensor | None, grad_residual: Tensor | None
    ) -> tuple[Tensor | None, None, None]:
        residual, V = ctx.saved_tensors
        grad = None
        if grad_energy is not None:
            grad = residual * (-2 * grad_energy).reshape(-1, *[1] * (residual.ndim - 1))
        if grad_residual is not None:
            flat = grad_residual.flatten(1)
            through = torch.addmm(flat, flat @ V, V.T, beta=-1).reshape(grad_residual.shape)
            grad = through if grad is None else grad + through
        return grad, None, None


def _deviation(x: Tensor, V: Tensor, mean: Tensor) -> tuple[Tensor, Tensor]:
    outputs: tuple[Tensor, Tensor] = _Deviation.apply(x, V, mean)  # type: ignore[no-untyped-call]
    return outputs


def _fix_signs(V: Tensor) -> Tensor:
    """Make each column's largest entry positive: a principal direction has no sign of its own."""
    if not V.numel():
        return V
    largest = V.gather(0, V.abs().argmax(0, keepdim=True))
    return V * torch.where(largest < 0, -1, 1).to(V.dtype)


def _rule(rank: int | None, energy: float | None, singular: float | None) -> RankRule:
    given: dict[Kind, float | None] = {"rank": rank, "energy": energy, "singular": singular}
    rules = [RankRule(kind, value) for kind, value in given.items() if value is not None]
    if len(rules) != 1:
        found = ", ".join(f"{rule.kind}={rule.value}" for rule in rules)
        raise DataError(f"{found} found, expected one of rank, energy and singular. Drop the rest.")
    kind, value = rules[0].kind, rules[0].value
    if kind == "rank" and (value < 1 or value != int(value)):
        raise DataError(f"rank={value} found, expected an integer of at least 1.")
    if kind != "rank" and not 0 < value <= 1:
        raise DataError(f"{kind}={value} found, expected a share in (0, 1], such as 0.99.")
    return rules[0]


def _check_settings(memory: int, passes: int, oversampling: int) -> None:
    if memory < 1 or passes < 2 or oversampling < 0:
        raise DataError(
            f"memory={memory}, passes={passes}, oversampling={oversampling} found, expected "
            "memory >= 1 (bytes), passes >= 2, oversampling >= 0."
        )
