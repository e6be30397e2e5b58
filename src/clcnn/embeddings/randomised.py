"""Principal components of more states than memory holds: a randomised, filtered range finder.

N. Halko, P.-G. Martinsson, J. Tropp, "Finding structure with randomness", SIAM Review 2011, with
the Chebyshev filter of Y. Zhou, Y. Saad, M. Tiago, J. Chelikowsky, J. Comp. Phys. 2006 in place of
plain powers of C: as many passes give a better basis.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from clcnn.embeddings.bases import add_product, gram, mirrored, normalise, times_inverse
from clcnn.embeddings.principal import Components, RankRule, check_variance, drop_rounding
from clcnn.embeddings.streams import States
from clcnn.errors import FitError

_FIRST_SKETCH = 64  # columns to begin with when the rank is not known; doubled until they suffice
_ROWS = 512  # rows multiplied together: enough for BLAS, few beside a basis
_WEIGHTS = 4099  # a prime, so that no column of a sketch meets its weights in step


@dataclass(frozen=True)
class _Totals:
    """What the first pass finds: n, mean and trace(C) exactly, and a sketch of the states' span."""

    n: int
    mean: Tensor  # (d,), float64
    trace: float
    sketch: Tensor  # (k, d)


def randomised(
    states: States, rule: RankRule, memory: int, passes: int, oversampling: int, seed: int
) -> Components:
    """Y = p(C) Q, Q <- orth(Y), repeated;  Q' C Q = W diag(lambda) W',  V = Q W.

    Each product with C is one pass over the states, after a first pass for the mean, trace(C) and
    a sketch to begin with. The basis Q grows until the rule is met with ``oversampling`` columns
    to spare; ``passes`` passes are made with the last one. Held at once: three (d, k) matrices and
    a batch. Products of the states are in their dtype (float32 at least), everything that is
    summed up over them or small is in float64.
    """
    _check_possible(states, rule)
    generator = torch.Generator().manual_seed(seed)
    wanted = int(rule.value) + oversampling if rule.kind == "rank" else _FIRST_SKETCH
    totals = _totals(states, wanted, memory, generator)
    n, d = totals.n, len(totals.mean)
    rule.check(n, d)
    check_variance(totals.trace, totals.mean)
    limit = min(n - 1, d, memory // _bytes(d, 1))
    least = int(rule.value) if rule.kind == "rank" else 1
    if least > limit:
        raise _too_small(rule, memory, f"a basis of {least} columns needs {_bytes(d, least)}")
    k = min(wanted, limit)
    Q = totals.sketch[:k].T.contiguous()
    eps = torch.finfo(Q.dtype).eps
    normalise(Q)
    before: Tensor | None = None
    made = 0
    while True:
        Y, H = _covariance_times(Q, states, totals)
        made += 1
        last = made >= passes
        rising, W = _ritz(H, gram(Q)) if last else (torch.linalg.eigvalsh(H), H)
        eigenvalues = drop_rounding(rising.flip(0), n, d, eps)
        r = rule.choose(eigenvalues, totals.trace * (1 - max(1e-12, eps)))
        enough = r is not None and (k == limit or r + oversampling <= k)
        if last and (enough or k == limit):
            break
        Q, before = _filter(Y, Q, before, float(eigenvalues[-1]))
        # Random columns say little before C has multiplied them once: grow from the second pass.
        if made > 1 and not enough and k < limit:
            k, made, before = min(2 * k, limit), 0, None
            Q = _grow(Q, k, generator)
    if r is None:
        share = float(eigenvalues.sum()) / totals.trace
        raise _too_small(rule, memory, f"the {k} columns that fit it reach {share:.4f}")
    W, eigenvalues = W.flip(1)[:, :r].to(Q.dtype), eigenvalues[:r]
    V = Q @ W
    explained = min(1.0, float(eigenvalues.sum()) / totals.trace)
    error = _residual(Y, W, V, eigenvalues, eps) / totals.trace
    return Components(totals.mean, V, eigenvalues, explained, error, n, "randomised")


def _bytes(d: int, k: int) -> int:
    """Return what three (d, k) matrices in float64 take; in float32 this leaves room for a QR."""
    return 3 * 8 * d * k


def _check_possible(states: States, rule: RankRule) -> None:
    if states.one_shot:
        raise FitError(
            "the states come from an iterator, which can be read only once, and a randomised fit "
            "(asked for, or because they exceed the memory budget) takes several passes. Pass a "
            "re-iterable (a list, a DataLoader), raise memory=, or fit on fewer samples."
        )
    if rule.kind == "singular":
        raise FitError(
            f"singular={rule.value} needs all singular values, which a randomised fit (asked for, "
            "or because the states exceed the memory budget) does not find. Raise memory=, fit on "
            "fewer samples, or choose the rank by energy= or rank=."
        )


def _too_small(rule: RankRule, memory: int, found: str) -> FitError:
    return FitError(
        f"{rule.kind}={rule.value:g} cannot be reached within memory={memory} bytes: {found}. "
        f"Raise memory=, or lower {rule.kind}=."
    )


def _totals(states: States, wanted: int, memory: int, generator: torch.Generator) -> _Totals:
    """n, mean, trace(C) = sum_i ||x_i - mean||^2 / (n - 1), and X' S with few columns.

    S adds sample i, with a random weight, to column i mod k: a sketch that costs no product and is
    half a power of C ahead of random columns. What it loses to rounding only changes its luck.
    """
    weights = torch.randn(_WEIGHTS, generator=generator, dtype=torch.float64)
    n, trace, mean, sketch, added = 0, 0.0, torch.zeros(()), torch.zeros(()), torch.zeros(())
    for batch in states:
        for x in torch.split(batch.flatten(1).to(_working(batch.dtype)), _ROWS):
            b, d = x.shape
            if not n:
                mean = torch.zeros(d, dtype=torch.float64, device=x.device)
                sketch = x.new_zeros(min(wanted, d, memory // _bytes(d, 1)), d)
                added = x.new_zeros(len(sketch))
                weights = weights.to(x)
            # Around the block's own mean, rounded: exact, whatever the shift, and small numbers.
            shift = x.mean(0)
            rest = x - shift
            off = rest.sum(0).double() / b
            step = off + shift - mean
            squares = float(torch.linalg.vector_norm(rest, dim=1).double().square().sum())
            trace += squares - b * float(off.square().sum())
            trace += float(step.square().sum()) * (n * b / (n + b))
            mean = mean + step * (b / (n + b))
            i = 0
            while i < b and len(sketch):
                column = (n + i) % len(sketch)
                j = min(b, i + len(sketch) - column)
                weight = weights[torch.arange(n + i, n + j, device=x.device) % _WEIGHTS]
                sketch[column : column + j - i].addcmul_(x[i:j], weight[:, None])
                added[column : column + j - i] += weight
                i = j
            n += b
    sketch.addr_(added, mean.to(sketch), alpha=-1)
    return _Totals(n, mean, trace / max(n - 1, 1), sketch)


def _working(dtype: torch.dtype) -> torch.dtype:
    """The dtype of the products: the states', but no less than float32."""
    return torch.promote_types(dtype, torch.float32)


def _centred(states: States, mean: Tensor, rows: int) -> Iterator[Tensor]:
    """x - mean in blocks of up to ``rows`` where batches are smaller; each overwrites the last."""
    buffer, filled = mean.new_empty(0, len(mean)), 0
    for batch in states:
        for x in torch.split(batch.flatten(1), _ROWS):
            if filled + len(x) > len(buffer):
                if filled:
                    yield buffer[:filled]
                filled = 0
                if len(x) > len(buffer):
                    buffer = mean.new_empty(max(rows, len(x)), len(mean))
            torch.sub(x, mean, out=buffer[filled : filled + len(x)])
            filled += len(x)
    yield buffer[:filled]


def _covariance_times(Q: Tensor, states: States, totals: _Totals) -> tuple[Tensor, Tensor]:
    """C Q = sum_i (x_i - mean) ((x_i - mean)' Q) / (n - 1) and Q' C Q; one pass, C never formed."""
    k = Q.shape[1]
    Y, H = torch.zeros_like(Q), totals.mean.new_zeros(k, k)
    n, squares = 0, 0.0
    for X in _centred(states, totals.mean.to(Q.dtype), min(k, _ROWS)):
        Z = X @ Q  # (b, k)
        Y.addmm_(X.T, Z)
        add_product(H, Z.double().T)
        n += len(X)
        squares += float(torch.linalg.vector_norm(X, dim=1).double().square().sum())
    trace = squares / (totals.n - 1)
    if n != totals.n or abs(trace - totals.trace) > 1e-4 * totals.trace:
        raise FitError(
            f"the states differ between two passes: {totals.n} samples of total variance "
            f"{totals.trace:.6g}, then {n} of {trace:.6g}. Pass an iterable that gives the same "
            "states each time: no random augmentation, dropout or sampling."
        )
    return Y.div_(totals.n - 1), mirrored(H).div_(totals.n - 1)


def _filter(Y: Tensor, Q: Tensor, before: Tensor | None, b: float) -> tuple[Tensor, Tensor | None]:
    """Q+ = (4/b) C Q - 2 Q - Q-, orthonormalised, and Q in the same scale; Y = C Q is overwritten.

    The recurrence of the Chebyshev polynomials on [0, b], begun with Q+ = (2/b) C Q - Q. They stay
    within [-1, 1] there and grow fastest beyond. b is the smallest Ritz value of the basis, never
    above the true eigenvalue of that rank, so that no wanted direction is damped.
    """
    if b > 0:
        Y.mul_((2 if before is None else 4) / b).sub_(Q, alpha=1 if before is None else 2)
        if before is not None:
            Y.sub_(before)
    R = normalise(Y)
    if b <= 0 or R is None:
        return Y, None
    return Y, times_inverse(Q, R)


def _ritz(H: Tensor, G: Tensor) -> tuple[Tensor, Tensor]:
    """H W = G W diag(lambda), W' G W = I, with G = Q'Q all but the identity; lambda rising."""
    L = torch.linalg.cholesky(G)
    half = torch.linalg.solve_triangular(L, H, upper=False)
    rising, W = torch.linalg.eigh(torch.linalg.solve_triangular(L, half.T, upper=False))
    return rising, torch.linalg.solve_triangular(L.T, W, upper=True)


def _residual(Y: Tensor, W: Tensor, V: Tensor, eigenvalues: Tensor, eps: float) -> float:
    """||C V - V diag(lambda)||_F with C V = Y W, and what the rounding of Y may hide of it."""
    values, total = eigenvalues.to(Y.dtype), 0.0
    for Y_rows, V_rows in zip(torch.split(Y, _ROWS), torch.split(V, _ROWS), strict=True):
        total += float((Y_rows @ W - V_rows * values).double().square().sum())
    return float((total + (eps * float(torch.linalg.vector_norm(Y))) ** 2) ** 0.5)


def _grow(Q: Tensor, k: int, generator: torch.Generator) -> Tensor:
    """An orthonormal basis of k columns: those of Q first, then random ones."""
    d, old = Q.shape
    random = torch.randn(d, k - old, generator=generator, dtype=Q.dtype).to(Q.device)
    basis = torch.cat([Q, random], 1)
    normalise(basis)
    return basis
