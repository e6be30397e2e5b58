"""What all linear embeddings share: an orthogonal projection around a mean."""

from __future__ import annotations

import copy
import warnings
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from math import prod
from typing import Any, Self

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from clcnn.embeddings.base import Embedding, check_saved
from clcnn.embeddings.principal import Kind, RankRule
from clcnn.embeddings.streams import check_fitted, check_state
from clcnn.errors import DataError, FitError


class OrthogonalEmbedding(Embedding):
    """E(x) = mean + P (x - mean), P = P' = P^2 of rank r; P is never formed.

    A kind writes `fit`, how P is applied to rows (`_project`, `_reject_`), what it costs, and its
    coefficients, ordered by falling variance so that the first ones are the best of their number.
    """

    mean: Tensor  # (d,)
    explained: Tensor  # ()
    n_samples: Tensor  # ()

    def __init__(self, rule: RankRule) -> None:
        super().__init__()
        self.rule = rule
        self.shape_: tuple[int, ...] | None = None
        for name in ("mean", "explained", "n_samples"):
            self.register_buffer(name, None)

    @abstractmethod
    def fit(self, states: Iterable[Tensor]) -> Self:
        """Learn the mean and P from batches of clean states."""

    @property
    @abstractmethod
    def rank_(self) -> int:
        """r = trace(P), the number of directions kept."""

    @property
    @abstractmethod
    def multiply_adds_(self) -> int:
        """Multiplications with additions that one residual of one sample takes."""

    @property
    def rank_step_(self) -> int:
        """What every rank of this kind is a multiple of."""
        return 1

    @abstractmethod
    def basis(self) -> Tensor:
        """U (d, r) with P = U U', U'U = I: formed on demand, and as large as it is."""

    @abstractmethod
    def truncated(self, rank: int) -> Self:
        """The same fit with its first ``rank`` directions only."""

    @abstractmethod
    def _coefficients(self, y: Tensor) -> Tensor:
        """U'y for rows y (batch, d): (batch, r)."""

    @abstractmethod
    def _project(self, y: Tensor) -> Tensor:
        """P y for rows y (batch, d)."""

    @abstractmethod
    def _reject_(self, y: Tensor) -> Tensor:
        """P y - y for rows y (batch, d), which may be overwritten."""

    @abstractmethod
    def _tensors(
        self, found: Mapping[str, tuple[int, ...]], shape: tuple[int, ...]
    ) -> dict[str, tuple[int, ...]]:
        """The shapes that saved tensors must have; what only they can tell is read in ``found``."""

    @property
    def n_samples_(self) -> int:
        """n, the number of states fitted."""
        check_fitted(self, self.shape_)
        return int(self.n_samples)

    @property
    def explained_(self) -> float:
        """trace(P C) / trace(C), with C the covariance of the fitted states."""
        check_fitted(self, self.shape_)
        return float(self.explained)

    def kept(self, x: Tensor) -> float:
        """1 - sum ||E(x) - x||^2 / sum ||x - mean||^2: `explained_`, for any states."""
        with torch.no_grad():
            whole = (x.flatten(1) - self.mean).double().square().sum()
            return 1.0 - float(self.energy(x).double().sum() / whole)

    def coefficients(self, x: Tensor) -> Tensor:
        """U'(x - mean), shape (batch, r), the most varying first."""
        self._check(x)
        return self._coefficients(x.flatten(1) - self.mean)

    def project(self, x: Tensor) -> Tensor:
        """E(x) = mean + P (x - mean)."""
        self._check(x)
        return (self.mean + self._project(x.flatten(1) - self.mean)).reshape(x.shape)

    def residual(self, x: Tensor) -> Tensor:
        """E(x) - x = -Q (x - mean), with Q = I - P never formed."""
        self._check(x)
        return self._reject_(x.flatten(1) - self.mean).reshape(x.shape)

    def energy(self, x: Tensor) -> Tensor:
        """||Q (x - mean)||^2 per sample; its gradient 2 Q (x - mean) needs no further product."""
        self._check(x)
        outputs: tuple[Tensor, Tensor] = _Deviation.apply(x, self)  # type: ignore[no-untyped-call]
        return outputs[0]

    def restore(self, tensors: Mapping[str, Tensor], shape: tuple[int, ...]) -> Self:
        """Take back what `fit` learned for states of ``shape``."""
        found = {name: tuple(value.shape) for name, value in tensors.items()}
        check_saved(self, tensors, self._tensors(found, tuple(shape)), shape)
        super().restore(tensors, shape)
        self.shape_ = tuple(shape)
        return self

    def extra_repr(self) -> str:
        """The rule, and once fitted the rank it gave."""
        rule = f"{self.rule.kind}={self.rule.value:g}"
        if self.shape_ is None:
            return f"{rule}, not fitted"
        return f"{rule}, rank {self.rank_} of {prod(self.shape_)}"

    def _check(self, x: Tensor) -> None:
        check_fitted(self, self.shape_)
        check_state(x, self.shape_, self.mean.dtype)

    def _scalar(self, value: float, dtype: torch.dtype) -> Tensor:
        return torch.tensor(value, dtype=dtype, device=self.mean.device)

    def _with_fewer(self, rank: int, variances: Tensor, kept: int) -> Self:
        """A copy for ``rank`` directions, of which ``variances`` tells the first ``kept``.

        What the directions themselves are is still the caller's to cut.
        """
        if not (0 < rank <= self.rank_ and rank % self.rank_step_ == 0):
            step = f" that {self.rank_step_} divides" if self.rank_step_ > 1 else ""
            raise DataError(
                f"rank={rank} found, expected a number from 1 to {self.rank_}{step}: an embedding "
                "can lose directions, not gain them. Fit again for more."
            )
        other = copy.deepcopy(self)
        other.rule = RankRule("rank", rank)
        other.explained = self.explained * (variances[:kept].sum() / variances.sum())
        return other


class _Deviation(torch.autograd.Function):
    """x -> (||r||^2 per sample, r) with r = -Q (x - mean); d||r||^2/dx = -2 r, dr/dx = -Q.

    The residual is an output so that the backward pass can reuse it: a second derivative then
    follows through it by the chain rule, and a first one costs no product. x is not kept, so that
    a layer that changes it in place does no harm.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, embedding: OrthogonalEmbedding) -> tuple[Tensor, Tensor]:
        rows = embedding._reject_(x.flatten(1) - embedding.mean)
        return torch.linalg.vecdot(rows, rows), rows.reshape(x.shape)

    @staticmethod
    def setup_context(
        ctx: FunctionCtx,
        inputs: tuple[Tensor, OrthogonalEmbedding],
        output: tuple[Tensor, Tensor],
    ) -> None:
        ctx.save_for_backward(output[1])
        ctx.set_materialize_grads(False)
        ctx.embedding = inputs[1]  # type: ignore[attr-defined]

    @staticmethod
    def backward(
        ctx: Any, grad_energy: Tensor | None, grad_residual: Tensor | None
    ) -> tuple[Tensor | None, None]:
        (residual,) = ctx.saved_tensors
        grad = None
        if grad_energy is not None:
            grad = residual * (-2 * grad_energy).reshape(-1, *[1] * (residual.ndim - 1))
        if grad_residual is not None:
            # A copy: the gradient that arrives here is not ours to overwrite.
            rows = grad_residual.flatten(1).clone()
            through = ctx.embedding._reject_(rows).reshape(grad_residual.shape)
            grad = through if grad is None else grad + through
        return grad, None


def rank_rule(
    rank: int | None, energy: float | None = None, singular: float | None = None
) -> RankRule:
    """The one rule that is given; energy=0.99 if none is."""
    if rank is None and energy is None and singular is None:
        energy = 0.99
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


def check_samples(n: int) -> None:
    """Raise where there are too few states for a variance."""
    if n < 2:
        raise FitError(
            f"the states to fit hold {n} sample, expected at least 2: one sample has no variance. "
            "Pass more data."
        )


def warn_arbitrary(rank: int, arbitrary: int) -> None:
    """Warn where some of the ``rank`` directions are those in which no state varies."""
    if arbitrary:
        warnings.warn(
            f"rank={rank} is more than the {rank - arbitrary} directions in which the states vary; "
            "the others are arbitrary. Lower it, or choose energy=0.99.",
            stacklevel=3,
        )


def fix_signs(V: Tensor) -> Tensor:
    """Make each column's largest entry positive: a principal direction has no sign of its own."""
    if not V.numel():
        return V
    largest = V.gather(0, V.abs().argmax(0, keepdim=True))
    return V * torch.where(largest < 0, -1, 1).to(V.dtype)
