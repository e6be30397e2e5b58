"""How much a measured share is worth, and the difference of two on the same samples."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Z_95 = 1.959964
"""The normal quantile of a two-sided 95 % interval."""


def wilson(share: float, n: int, z: float = Z_95) -> tuple[float, float]:
    """(p + z^2/2n -+ z sqrt(p (1 - p)/n + z^2/4n^2)) / (1 + z^2/n): the 95 % interval of p."""
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)


@dataclass(frozen=True)
class Mean:
    """The mean of ``n`` independent values with its 95 % interval."""

    n: int
    value: float
    low: float
    high: float


def mean(values: Sequence[float], z: float = Z_95) -> Mean:
    """m -+ z s / sqrt(n), s^2 = sum (v_i - m)^2 / (n - 1): for values that are no mere 0 or 1.

    A sample that is measured many times over is one value, the mean of its measurements.
    """
    n = len(values)
    if n < 2:
        raise ValueError(f"found {n} values; expected at least 2, as one shows no spread.")
    m = math.fsum(values) / n
    half = z * math.sqrt(math.fsum((v - m) ** 2 for v in values) / (n - 1) / n)
    return Mean(n, m, m - half, m + half)


def auroc(
    low: Sequence[float],
    high: Sequence[float],
    of: Sequence[int] | None = None,
    z: float = Z_95,
) -> Mean:
    """P(Y > X) + P(Y = X)/2, X of ``low`` and Y of ``high``, with a 95 % interval.

    The area A under the receiver operating characteristic of a score that should be higher for Y.
    Its variance is DeLong's, that of P(X < y_j) over j divided by their number, plus that of
    P(Y > x_i). If y_j is of the same object as x_i with i = ``of``[j], the two are not independent,
    and each object counts with the sum of its terms (Obuchowski, Biometrics 53, 1997, 567-578).
    Where all agree (A = 0 or 1) no spread is seen, and the interval is that of a share of the
    fewer of both.
    """
    m, n = len(low), len(high)
    if min(m, n) < 2:
        raise ValueError(f"found {m} and {n} values; expected at least 2 of each.")
    if of is not None and (len(of) != n or len(set(of)) != n or not 0 <= min(of) <= max(of) < m):
        raise ValueError(f"found {len(of)} places for {n} values; expected other ones below {m}.")
    below, above = sorted(low), sorted(high)

    def share(values: Sequence[float], v: float) -> float:
        """Of sorted values those below v, ties counting half."""
        return (bisect_left(values, v) + bisect_right(values, v)) / (2 * len(values))

    over = [share(below, y) for y in high]
    under = [1 - share(above, x) for x in low]
    area = math.fsum(over) / n
    if area in (0.0, 1.0):
        return Mean(m + n, area, *wilson(area, min(m, n), z))
    if of is None:
        half = math.hypot(*(v.high - v.value for v in (mean(over, z), mean(under, z))))
    else:
        terms = [(v - area) / m for v in under]
        for place, v in zip(of, over, strict=True):
            terms[place] += (v - area) / n
        half = z * math.sqrt(math.fsum(t * t for t in terms) * m / (m - 1))
    return Mean(m + n, area, max(0.0, area - half), min(1.0, area + half))


@dataclass(frozen=True)
class Paired:
    """The difference of two shares measured on the same ``n`` samples, first minus second.

    ``p`` is McNemar's exact p-value, ``low`` and ``high`` Tango's 95 % interval; ``only_first``
    and ``only_second`` count the samples that one of the two got right and the other did not.
    """

    n: int
    only_first: int
    only_second: int
    difference: float
    low: float
    high: float
    p: float

    @property
    def is_real(self) -> bool:
        """Whether the interval leaves out 0."""
        return self.low > 0 or self.high < 0


def paired(n: int, only_first: int, only_second: int) -> Paired:
    """Compare two shares by the samples on which they disagree, of ``n`` in all."""
    low, high = tango(n, only_first, only_second)
    p = mcnemar(only_first, only_second)
    difference = (only_first - only_second) / n
    return Paired(n, only_first, only_second, difference, low, high, p)


def mcnemar(only_first: int, only_second: int) -> float:
    """min(1, 2 P(X <= min(b, c))), X ~ Binomial(b + c, 1/2): the exact two-sided p-value.

    Under the null hypothesis each sample on which the two disagree is as likely to go either way.
    """
    n = only_first + only_second
    ways: int = 1  # of choosing k of n; whole numbers, as 2^n soon exceeds any float
    tail: int = 1
    for k in range(min(only_first, only_second)):
        ways = ways * (n - k) // (k + 1)
        tail += ways
    return min(1.0, float(2 * tail / 2**n))


def tango(n: int, only_first: int, only_second: int, z: float = Z_95) -> tuple[float, float]:
    """All D with |b - c - n D| <= z sqrt(n (2 q(D) + D (1 - D))): Tango's score interval.

    D is the difference of paired proportions, q(D) the likeliest probability that only the second
    is right, given D. It keeps close to 95 % where the usual interval fails: few samples, shares
    near 0 or 1, no disagreement at all (Statistics in Medicine 17, 1998, 891-908).
    """
    b, c = only_first, only_second
    if n < 1 or min(b, c) < 0 or b + c > n:
        raise ValueError(f"found {b} and {c} disagreements among {n} samples; expected no more.")

    def score(D: float) -> float:
        distance = b - c - n * D
        variance = n * (2 * likeliest(n, b, c, D) + D * (1 - D))
        if variance <= 0:
            return math.copysign(math.inf, distance) if distance else 0.0
        return distance / math.sqrt(variance)

    estimate = (b - c) / n
    low = _falls_through(score, z, -1.0, estimate)
    high = _falls_through(score, -z, estimate, 1.0)
    return low, high


def likeliest(n: int, b: int, c: int, D: float) -> float:
    """q maximising b log(q + D) + c log q + (n - b - c) log(1 - 2 q - D)."""
    B = -b - c + (2 * n - b + c) * D
    C = -c * D * (1 - D)
    root = math.sqrt(max(0.0, B * B - 8 * n * C))
    return max(0.0, -D, (root - B) / (4 * n))


def _falls_through(f: Callable[[float], float], level: float, left: float, right: float) -> float:
    """Where the falling function f passes ``level`` between left and right, by halving."""
    for _ in range(60):
        middle = (left + right) / 2
        if f(middle) > level:
            left = middle
        else:
            right = middle
    return (left + right) / 2
