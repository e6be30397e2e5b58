"""One small basis for each axis of a state, and the set of their products that varies most."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf, prod
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
from clcnn.embeddings.principal import RankRule, check_variance, drop_rounding
from clcnn.embeddings.streams import States, check_fitted
from clcnn.errors import FitError

_BLOCK = 256  # samples in float64 at once


class SeparableEmbedding(OrthogonalEmbedding):
    """E(x) = mean + U diag(1_S) U'(x - mean), U = U_1 x U_2 x ... x U_K, one basis an axis.

    U_k holds the eigenvectors of the covariance along axis k (the higher-order SVD); S is the set
    of coefficients of U'(x - mean) with the largest variance, of r elements by one of
    (``energy=0.99`` if none is given):

    - ``rank``: r itself;
    - ``energy``: the smallest r whose coefficients have that share of the variance of all.

    For a state of shape (C, H, W) a residual costs at most 2 (C + H + W) multiply-adds a feature,
    and `fit` learns C^2 + H^2 + W^2 numbers and a set, which few samples determine well. `fit`
    reads the states twice; those of an iterator are kept, up to ``memory`` bytes.

    Learned: ``basis_1`` ... ``basis_K`` (n_k, m_k), without columns that no element of S uses;
    ``kept_at`` (r,), the elements of S as positions in (m_1, ..., m_K); ``variances`` (r,).
    """

    kept_at: Tensor
    variances: Tensor
    kept_mask: Tensor  # (m_1, ..., m_K), 1 for the elements of S; follows from kept_at

    def __init__(
        self, rank: int | None = None, energy: float | None = None, memory: int = 2**31
    ) -> None:
        super().__init__(rank_rule(rank, energy))
        self.memory = memory
        for name in ("kept_at", "variances"):
            self.register_buffer(name, None)
        self.register_buffer("kept_mask", None, persistent=False)

    def config(self) -> dict[str, Any]:
        """The constructor arguments."""
        return {self.rule.kind: self.rule.value, "memory": self.memory}

    def fit(self, states: Iterable[Tensor]) -> Self:
        """Find the bases, then the variances of all coefficients, in float64."""
        with torch.inference_mode(False), torch.no_grad():
            stream, batches, moments = first_pass(states, self.memory)
            n, d = moments.n, moments.mean.numel()
            check_rank(self.rule, d)
            bases = [fix_signs(torch.linalg.eigh(S)[1].flip(1)) for S in moments.modes]
            squares = torch.zeros_like(moments.mean)
            for block in chunks(batches):
                squares += _transform(block - moments.mean, bases).square().sum(0)
            variances, order = torch.sort(squares.flatten() / (n - 1), descending=True, stable=True)
            variances = drop_rounding(variances, n, d)
            r = self.rule.choose(variances)
            assert r is not None  # all variances are given, and the rank was checked
            self.shape_ = stream.shape
            self.mean = moments.mean.flatten().to(stream.dtype)
            self.explained = self._scalar(
                float(variances[:r].sum() / variances.sum()), stream.dtype
            )
            self.n_samples = self._scalar(n, torch.int64)
            self._take(bases, order[:r], variances[:r])
        warn_arbitrary(r, int((self.variances == 0).sum()))
        return self

    def _take(self, bases: Sequence[Tensor], order: Tensor, variances: Tensor) -> None:
        """Keep the coefficients at ``order``, and of each basis only the columns that they use."""
        dtype = self.mean.dtype
        indices = torch.unravel_index(order, [U.shape[1] for U in bases])
        new = []
        for k, (U, index) in enumerate(zip(bases, indices, strict=True), start=1):
            used, index = torch.unique(index, return_inverse=True)
            self.register_buffer(f"basis_{k}", U[:, used].to(dtype).contiguous())
            new.append((index, len(used)))
        at = torch.zeros_like(order)
        for index, size in new:
            at = at * size + index
        self.kept_at = at
        self.variances = variances.to(dtype)
        self._mark()

    def _mark(self) -> None:
        sizes = [U.shape[1] for U in self._bases()]
        mask = self.mean.new_zeros(prod(sizes))
        mask[self.kept_at] = 1
        self.kept_mask = mask.reshape(sizes)

    def _bases(self) -> list[Tensor]:
        assert self.shape_ is not None
        return [self.get_buffer(f"basis_{k}") for k in range(1, len(self.shape_) + 1)]

    def _tensors(
        self, found: Mapping[str, tuple[int, ...]], shape: tuple[int, ...]
    ) -> dict[str, tuple[int, ...]]:
        (r,) = found.get("kept_at", ())[:1] or (0,)
        columns = [found.get(f"basis_{k}", (0, 0))[-1] for k in range(1, len(shape) + 1)]
        bases = {
            f"basis_{k}": (n, m) for k, (n, m) in enumerate(zip(shape, columns, strict=True), 1)
        }
        vectors = {"mean": (prod(shape),), "kept_at": (r,), "variances": (r,)}
        return bases | vectors | {"explained": (), "n_samples": ()}

    def restore(self, tensors: Mapping[str, Tensor], shape: tuple[int, ...]) -> Self:
        """Take back what `fit` learned for states of ``shape``."""
        super().restore(tensors, shape)
        self._mark()
        return self

    def truncated(self, rank: int) -> Self:
        """The ``rank`` coefficients of the largest variance."""
        other = self._with_fewer(rank, self.variances, rank)
        other._take(self._bases(), self.kept_at[:rank], self.variances[:rank])
        return other

    @property
    def rank_(self) -> int:
        """r, the number of coefficients kept."""
        check_fitted(self, self.shape_)
        return len(self.kept_at)

    @property
    def multiply_adds_(self) -> int:
        """Twice the products along all axes; the choice of coefficients is one multiplication."""
        check_fitted(self, self.shape_)
        sizes, total = list(self.shape_ or ()), 0
        for k in self._axes():
            m = self.kept_mask.shape[k]
            total += prod(sizes) * m
            sizes[k] = m
        return 2 * total + self.kept_mask.numel()

    def basis(self) -> Tensor:
        """U's columns in S, (d, r)."""
        check_fitted(self, self.shape_)
        wanted = torch.eye(self.rank_, dtype=self.mean.dtype, device=self.mean.device)
        box = wanted.new_zeros(self.rank_, self.kept_mask.numel())
        box[:, self.kept_at] = wanted
        return self._expand(box.reshape(-1, *self.kept_mask.shape)).flatten(1).T

    def extra_repr(self) -> str:
        """The rule, the rank it gave and the columns used along each axis."""
        used = "" if self.shape_ is None else f" in {' x '.join(map(str, self.kept_mask.shape))}"
        return super().extra_repr() + used

    def _axes(self) -> list[int]:
        """The axes in the order in which their products cost least together.

        Of two neighbours, a before b is cheaper if m_a / (1 - m_a/n_a) < m_b / (1 - m_b/n_b). Axes
        that lose nothing can be in any order: the last, which is the fastest in memory, goes first.
        """

        def weight(k: int) -> tuple[float, int]:
            n, m = (self.shape_ or ())[k], self.kept_mask.shape[k]
            return (m / (1 - m / n) if m < n else inf), -k

        return sorted(range(self.kept_mask.ndim), key=weight)

    def _reduce(self, y: Tensor) -> Tensor:
        """U'y over the box of the columns used, (batch, m_1, ..., m_K)."""
        z, bases = y.reshape(-1, *(self.shape_ or ())), self._bases()
        for k in self._axes():
            z = along(z, k, bases[k])
        return z

    def _expand(self, z: Tensor) -> Tensor:
        """U z, (batch, *state), for z over the box."""
        bases = self._bases()
        for k in reversed(self._axes()):
            z = along(z, k, bases[k].T)
        return z

    def _coefficients(self, y: Tensor) -> Tensor:
        return self._reduce(y).flatten(1)[:, self.kept_at]

    def _project(self, y: Tensor) -> Tensor:
        return self._expand(self._reduce(y).mul_(self.kept_mask)).reshape(y.shape)

    def _reject_(self, y: Tensor) -> Tensor:
        return self._project(y).sub_(y)


class ModeMoments:
    """S_k = sum_i Y_i Y_i', Y_i the state x_i - mean unfolded along axis k, in float64.

    Updated batch by batch around the mean so far, as that of the whole is not known before the end.
    """

    def __init__(self) -> None:
        self.n = 0
        self.mean = torch.zeros((), dtype=torch.float64)
        self.modes: list[Tensor] = []

    def add(self, batch: Tensor) -> None:
        """S_k += the batch's own S_k around its mean m, and (n b / (n + b)) of that of m - mean."""
        b, x = len(batch), batch.double()
        m = x.mean(0)
        x = x - m
        if not self.n:
            self.mean = torch.zeros_like(m)
            self.modes = [m.new_zeros(size, size) for size in m.shape]
        step = m - self.mean
        for k, S in enumerate(self.modes):
            rows = x.movedim(k + 1, 0).reshape(len(S), -1)
            S.addmm_(rows, rows.T)
            rows = step.movedim(k, 0).reshape(len(S), -1)
            S.addmm_(rows, rows.T, alpha=self.n * b / (self.n + b))
        self.mean += step * (b / (self.n + b))
        self.n += b


def first_pass(
    states: Iterable[Tensor], memory: int
) -> tuple[States, Iterable[Tensor], ModeMoments]:
    """The stream, its batches to be read again (kept, if they come once), and their moments."""
    stream = States(states)
    batches: Iterable[Tensor] = held(stream, memory) if stream.one_shot else stream
    moments = ModeMoments()
    for block in chunks(batches):
        moments.add(block)
    check_samples(moments.n)
    variance = float(moments.modes[0].trace()) / (moments.n - 1)
    check_variance(variance, moments.mean.flatten())
    return stream, batches, moments


def check_rank(rule: RankRule, d: int) -> None:
    """Raise where more directions are asked for than a state has dimensions."""
    if rule.kind == "rank" and rule.value > d:
        raise FitError(
            f"rank={rule.value:.0f} is more than the {d} dimensions of a state. Lower the rank, or "
            "choose it by energy=0.99."
        )


def chunks(batches: Iterable[Tensor]) -> Iterator[Tensor]:
    for batch in batches:
        yield from torch.split(batch, _BLOCK)


def along(z: Tensor, k: int, U: Tensor) -> Tensor:
    """sum_i z[..., i, ...] U[i, j] over axis k of each sample: one product, nothing is permuted."""
    batch, sizes, (n, m) = z.shape[0], list(z.shape[1:]), U.shape
    before, after = batch * prod(sizes[:k]), prod(sizes[k + 1 :])
    sizes[k] = m
    if after == 1:
        return (z.reshape(before, n) @ U).reshape(batch, *sizes)
    return torch.bmm(U.T.expand(before, m, n), z.reshape(before, n, after)).reshape(batch, *sizes)


def _transform(y: Tensor, bases: Sequence[Tensor]) -> Tensor:
    for k, U in enumerate(bases):
        y = along(y, k, U)
    return y


def held(stream: States, memory: int) -> list[Tensor]:
    """Copies of batches that can be read only once, to read them again."""
    held, used = [], 0
    for batch in stream:
        used += batch.numel() * batch.element_size()
        if used > memory:
            raise FitError(
                f"the states exceed memory={memory} bytes and come from an iterator, which can be "
                "read only once; fitting them takes several passes. Pass a re-iterable (a list, a "
                "DataLoader), raise memory=, or fit on fewer samples."
            )
        held.append(batch.clone())
    return held
