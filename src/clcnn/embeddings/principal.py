"""Principal components of a stream of states: exact while they fit a memory budget."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from clcnn.embeddings.bases import add_product, departure, normalise
from clcnn.embeddings.streams import States
from clcnn.errors import FitError

_CHUNK = 256  # rows kept together; batches may be as small as one row
_PANEL = 2048  # features of all rows in float64 at once
_EPS = torch.finfo(torch.float64).eps

Method = Literal["covariance", "gram", "randomised"]
Kind = Literal["rank", "energy", "singular"]


@dataclass(frozen=True)
class Components:
    """C ~ V diag(eigenvalues) V', with C the covariance of n states around their mean."""

    mean: Tensor  # (d,)
    V: Tensor  # (d, r), orthonormal columns
    eigenvalues: Tensor  # (r,), falling, 0 where they are but rounding
    explained: float  # sum(eigenvalues) / trace(C)
    error: float  # ||C V - V diag(eigenvalues)||_F / trace(C); 0 stands for rounding only
    n: int
    method: Method


@dataclass(frozen=True)
class RankRule:
    """r as a number, or the smallest r whose first values reach a share of the sum of all."""

    kind: Kind
    value: float

    def check(self, n: int, d: int) -> None:
        """Raise where no r can satisfy the rule for n states of dimension d."""
        if n < 2:
            raise FitError(
                f"the states to fit hold {n} sample, expected at least 2: one sample has no "
                "variance. Pass more data."
            )
        if self.kind == "rank" and self.value > min(n - 1, d):
            raise FitError(
                f"rank={self.value:.0f} is more than the {min(n - 1, d)} directions that {n} "
                f"states of dimension {d} can span around their mean. Lower the rank, "
                + ("fit on more samples, " if n - 1 < d else "")
                + "or choose it by energy=0.99."
            )

    def choose(self, eigenvalues: Tensor, total: float | None = None) -> int | None:
        """Return r for falling eigenvalues whose full sum is ``total``, None if too few given."""
        if self.kind == "rank":
            return int(self.value) if self.value <= len(eigenvalues) else None
        # The square roots are the singular values up to the factor sqrt(n - 1), which cancels.
        values = eigenvalues.sqrt() if self.kind == "singular" else eigenvalues
        reached = values.cumsum(0)
        whole = float(reached[-1]) if total is None else total
        # A share of 1 must be reachable in floating point: allow for the rounding of the sum.
        enough = (reached >= self.value * whole * (1 - 4 * _EPS)).nonzero()
        return int(enough[0]) + 1 if len(enough) else None


def covariance_bytes(d: int) -> int:
    """Return the peak of the covariance path: C, its eigenvectors and LAPACK's workspace."""
    return 4 * 8 * d * d


def gram_bytes(n: int, d: int, itemsize: int) -> int:
    """Return the peak of the Gram path: the rows, and its decomposition or the QR of V."""
    return n * d * itemsize + max(4 * 8 * n * n, 8 * n * n + 2 * 8 * n * d)


class Rows:
    """States kept as they come, in chunks, for as long as they are few."""

    def __init__(self, held: bool) -> None:
        self.chunks: list[Tensor] = []
        self.n = 0
        self._held = held
        self._small: list[Tensor] = []

    def add(self, x: Tensor) -> None:
        """Keep the batch x (b, d): as a copy, for its producer may overwrite it, unless held."""
        self._small.append(x if self._held else x.clone())
        self.n += len(x)
        if sum(map(len, self._small)) >= _CHUNK:
            self.gather()

    def gather(self) -> list[Tensor]:
        """Return all chunks, the last one as short as it is."""
        if self._small:
            self.chunks.append(self._small[0] if len(self._small) == 1 else torch.cat(self._small))
            self._small = []
        return self.chunks

    def panels(self, mean: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Yield X - mean in float64, some features of all rows at a time; each overwrites the last.

        Every number is converted once, and all panels together take no more room than one.
        """
        d = len(mean)
        width = min(d, _PANEL)
        buffer = mean.new_empty(self.n, width)
        for start in range(0, d, width):
            columns = slice(start, min(d, start + width))
            panel = buffer[:, : columns.stop - start]
            row = 0
            for chunk in self.gather():
                torch.sub(chunk[:, columns], mean[columns], out=panel[row : row + len(chunk)])
                row += len(chunk)
            yield columns, panel


class SecondMoment:
    """S = sum_i (x_i - mean)(x_i - mean)' in float64, updated batch by batch without cancelling."""

    def __init__(self, d: int, device: torch.device) -> None:
        self.n = 0
        self.mean = torch.zeros(d, dtype=torch.float64, device=device)
        self.S = torch.zeros(d, d, dtype=torch.float64, device=device)

    def add(self, x: Tensor) -> None:
        """S += sum_b (x_b - m)(x_b - m)' + (n b / (n + b)) (m - mean)(m - mean)'."""
        b, x = len(x), x.double()
        m = x.mean(0)
        centred = x - m
        step = m - self.mean
        self.S.addmm_(centred.T, centred)
        self.S.addr_(step, step, alpha=self.n * b / (self.n + b))
        self.mean += step * (b / (self.n + b))
        self.n += b


def exact(states: States, rule: RankRule, memory: int) -> Components | None:
    """Components of all states, None if neither their rows nor a d x d matrix fit ``memory``."""
    rows = Rows(states.held)
    moment: SecondMoment | None = None
    for batch in states:
        x = batch.flatten(1)
        if moment is not None:
            moment.add(x)
            continue
        rows.add(x)
        d = x.shape[1]
        too_big = gram_bytes(rows.n, d, x.element_size()) > memory
        if covariance_bytes(d) <= memory and (rows.n >= d or too_big):
            moment = SecondMoment(d, x.device)
            for chunk in rows.gather():
                moment.add(chunk)
            rows.chunks.clear()
        elif too_big:
            return None
    return _from_moment(moment, rule) if moment is not None else _from_rows(rows, rule)


def _from_moment(moment: SecondMoment, rule: RankRule) -> Components:
    """C = U diag(lambda) U'."""
    n, d = moment.n, len(moment.mean)
    rule.check(n, d)
    check_variance(float(moment.S.trace()) / (n - 1), moment.mean)
    eigenvalues, U = torch.linalg.eigh(moment.S.div_(n - 1))
    eigenvalues, r, explained = _keep(eigenvalues, n, d, rule)
    V = U[:, -r:].flip(1)
    return Components(moment.mean, V, eigenvalues, explained, 0.0, n, "covariance")


def _from_rows(rows: Rows, rule: RankRule) -> Components:
    """X X' = U diag(s^2) U',  V = X' U / s, with X the (n, d) centred rows and n < d."""
    chunks, n = rows.gather(), rows.n
    d, dtype = chunks[0].shape[1], chunks[0].dtype
    rule.check(n, d)
    mean = sum((chunk.sum(0, dtype=torch.float64) for chunk in chunks), torch.zeros(())) / n
    gram = mean.new_zeros(n, n)
    for _, X in rows.panels(mean):
        add_product(gram, X)
    check_variance(float(gram.trace()) / (n - 1), mean)
    eigenvalues, U = torch.linalg.eigh(gram.div_(n - 1))  # reads the lower triangle only
    del gram
    eigenvalues, r, explained = _keep(eigenvalues, n, d, rule)
    s = ((n - 1) * eigenvalues).sqrt()
    U = U[:, -r:].flip(1).div_(torch.where(s > 0, s, 1.0))
    V = mean.new_empty(d, r)
    for columns, X in rows.panels(mean):
        torch.mm(X.T, U, out=V[columns])
    # A Gram matrix squares the condition number, which costs small directions their orthogonality:
    # give it back where what is lost shows in the states' dtype. Large ones come first, and stay.
    if departure(V) > r**0.5 * max(8 * _EPS, 0.01 * torch.finfo(dtype).eps):
        normalise(V)
    return Components(mean, V, eigenvalues, explained, 0.0, n, "gram")


def _keep(rising: Tensor, n: int, d: int, rule: RankRule) -> tuple[Tensor, int, float]:
    """Eigenvalues as eigh gives them -> the r largest, falling; r; their share of the sum."""
    eigenvalues = drop_rounding(rising.flip(0)[: min(n - 1, d)], n, d)
    r = rule.choose(eigenvalues)
    assert r is not None  # all eigenvalues are given, and `check` bounded the rank
    return eigenvalues[:r], r, float(eigenvalues[:r].sum() / eigenvalues.sum())


def drop_rounding(eigenvalues: Tensor, n: int, d: int, eps: float = _EPS) -> Tensor:
    """Falling eigenvalues, with 0 for those that rounding explains, of the first or the states.

    ``eps`` is that of the products with the states, whose squares the eigenvalues are.
    """
    rounding = float(eigenvalues[0]) * max(n, d) * max(_EPS, eps**2)
    return torch.where(eigenvalues > rounding, eigenvalues, 0.0)


def check_variance(total: float, mean: Tensor) -> None:
    """Raise if all states are equal, up to the rounding of their mean."""
    if total <= (16 * _EPS * float(mean.norm())) ** 2:
        raise FitError(
            "the states to fit have zero variance: all samples are equal, so that there is no "
            "manifold to learn. Check that the samples differ and that the layers before are not "
            "dead (all ReLUs at 0), or leave this cut out."
        )
