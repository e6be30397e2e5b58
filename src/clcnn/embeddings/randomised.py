"""Principal components of more states than memory holds: a randomised range finder.

N. Halko, P.-G. Martinsson, J. Tropp, "Finding structure with randomness", SIAM Review 2011.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from clcnn.embeddings.principal import Components, RankRule, check_variance, drop_rounding
from clcnn.embeddings.streams import States
from clcnn.errors import FitError

_FIRST_SKETCH = 64  # columns to begin with when the rank is not known; doubled until they suffice
_BLOCK = 1024  # rows in float64 at once


@dataclass(frozen=True)
class _Totals:
    """What one pass finds exactly: n, the mean and trace(C)."""

    n: int
    mean: Tensor  # (d,)
    trace: float


def randomised(
    states: States, rule: RankRule, memory: int, passes: int, oversampling: int, seed: int
) -> Components:
    """Y = C Q, Q <- qr(Y), repeated;  Q' C Q = W diag(lambda) W',  V = Q W.

    Each product with C is one pass over the states, after a first pass for the mean and trace(C).
    The basis Q grows until the rule is met with ``oversampling`` columns to spare; ``passes``
    passes are made with the last one. Held at once: three (d, k) float64 matrices and a batch.
    """
    _check_possible(states, rule)
    totals = _totals(states)
    n, d = totals.n, len(totals.mean)
    rule.check(n, d)
    check_variance(totals.trace, totals.mean)
    affordable = memory // (3 * 8 * d)
    limit = min(n - 1, d, affordable)
    least = int(rule.value) if rule.kind == "rank" else 1
    if least > limit:
        raise _too_small(rule, memory, f"a basis of {least} columns needs {3 * 8 * d * least}")
    k = min(least + oversampling if rule.kind == "rank" else _FIRST_SKETCH, limit)
    generator = torch.Generator().manual_seed(seed)
    Q = _grow(None, k, totals.mean, generator)
    made = 0
    while True:
        Y = _covariance_times(Q, states, totals)
        made += 1
        rising, W = torch.linalg.eigh(Q.T @ Y)
        eigenvalues, W = drop_rounding(rising.flip(0), n, d), W.flip(1)
        r = rule.choose(eigenvalues, totals.trace * (1 - 1e-12))
        enough = r is not None and (k == limit or r + oversampling <= k)
        if made >= passes and (enough or k == limit):
            break
        Q_next = torch.linalg.qr(Y)[0]
        # Random columns say little before C has multiplied them once: grow from the second pass.
        if made > 1 and not enough and k < limit:
            k, made = min(2 * k, limit), 0
            Q_next = _grow(Q_next, k, totals.mean, generator)
        Q = Q_next
    if r is None:
        share = float(eigenvalues.sum()) / totals.trace
        raise _too_small(rule, memory, f"the {k} columns that fit it reach {share:.4f}")
    W, eigenvalues = W[:, :r], eigenvalues[:r]
    V = Q @ W
    residual = torch.linalg.matrix_norm(Y @ W - V * eigenvalues)
    explained = min(1.0, float(eigenvalues.sum()) / totals.trace)
    error = float(residual) / totals.trace
    return Components(totals.mean, V, eigenvalues, explained, error, n, "randomised")


def _check_possible(states: States, rule: RankRule) -> None:
    if states.one_shot:
        raise FitError(
            "the states exceed the memory budget and come from an iterator, which can be read "
            "only once; fitting them takes several passes. Pass a re-iterable (a list, a "
            "DataLoader), raise memory=, or fit on fewer samples."
        )
    if rule.kind == "singular":
        raise FitError(
            f"singular={rule.value} needs all singular values, and the states exceed the memory "
            "budget that an exact fit is allowed. Raise memory=, fit on fewer samples, or choose "
            "the rank by energy= or rank=."
        )


def _too_small(rule: RankRule, memory: int, found: str) -> FitError:
    return FitError(
        f"{rule.kind}={rule.value:g} cannot be reached within memory={memory} bytes: {found}. "
        f"Raise memory=, or lower {rule.kind}=."
    )


def _blocks(states: States) -> Iterator[Tensor]:
    for batch in states:
        yield from torch.split(batch.flatten(1), _BLOCK)


def _totals(states: States) -> _Totals:
    """n, the mean and trace(C) = sum_i ||x_i - mean||^2 / (n - 1), updated block by block."""
    n, trace, mean = 0, 0.0, torch.zeros((), dtype=torch.float64)
    for block in _blocks(states):
        b, x = len(block), block.double()
        mean = mean.to(x.device)
        m = x.mean(0)
        step = m - mean
        trace += float((x - m).square().sum() + step.square().sum() * (n * b / (n + b)))
        mean = mean + step * (b / (n + b))
        n += b
    return _Totals(n, mean, trace / max(n - 1, 1))


def _covariance_times(Q: Tensor, states: States, totals: _Totals) -> Tensor:
    """C Q = sum_i (x_i - mean) ((x_i - mean)' Q) / (n - 1), one pass, never forming C."""
    Y = torch.zeros_like(Q)
    n, squares = 0, 0.0
    for block in _blocks(states):
        X = block - totals.mean  # (b, d), float64
        Y.addmm_(X.T, X @ Q)
        n += len(block)
        squares += float(X.square().sum())
    trace = squares / (totals.n - 1)
    if n != totals.n or abs(trace - totals.trace) > 1e-4 * totals.trace:
        raise FitError(
            f"the states differ between two passes: {totals.n} samples of total variance "
            f"{totals.trace:.6g}, then {n} of {trace:.6g}. Pass an iterable that gives the same "
            "states each time: no random augmentation, dropout or sampling."
        )
    return Y.div_(totals.n - 1)


def _grow(Q: Tensor | None, k: int, like: Tensor, generator: torch.Generator) -> Tensor:
    """An orthonormal basis of k columns: those of Q first, then random ones."""
    new = k - (0 if Q is None else Q.shape[1])
    random = torch.randn(len(like), new, generator=generator, dtype=like.dtype).to(like.device)
    basis: Tensor = torch.linalg.qr(random if Q is None else torch.cat([Q, random], 1))[0]
    return basis
