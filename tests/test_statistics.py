"""Intervals and paired tests against scipy, brute force and their own promise."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom, binomtest, multinomial, norm
from sklearn.metrics import roc_auc_score

from clcnn.statistics import Z_95, auroc, likeliest, mcnemar, mean, paired, tango, wilson


@pytest.mark.parametrize(("k", "n"), [(0, 10), (1, 7), (50, 100), (424, 500), (10, 10)])
def test_wilson_is_scipys(k: int, n: int) -> None:
    expected = binomtest(k, n).proportion_ci(0.95, method="wilson")
    assert wilson(k / n, n) == pytest.approx((expected.low, expected.high), abs=1e-6)


@pytest.mark.parametrize(("b", "c"), [(0, 0), (1, 0), (3, 9), (9, 3), (12, 12), (40, 71)])
def test_mcnemar_is_the_binomial_test(b: int, c: int) -> None:
    expected = 1.0 if b + c == 0 else binomtest(b, b + c, 0.5).pvalue
    assert mcnemar(b, c) == pytest.approx(expected, rel=1e-12)


def test_mcnemar_of_thousands() -> None:
    assert mcnemar(2000, 2100) == pytest.approx(2 * binom.cdf(2000, 4100, 0.5), rel=1e-9)
    assert 0 < mcnemar(1000, 3000) < 1e-100


@pytest.mark.parametrize(("b", "c", "D"), [(7, 2, 0.1), (0, 5, -0.3), (4, 0, 0.4), (3, 3, 0.0)])
def test_the_constrained_likelihood_is_largest_there(b: int, c: int, D: float) -> None:
    n = 30
    q = np.linspace(max(0.0, -D), (1 - D) / 2, 200_001)[1:-1]
    with np.errstate(divide="ignore"):
        rest = (n - b - c) * np.log1p(-2 * q - D)
        L = b * np.log(q + D) + (c * np.log(q) if c else 0) + rest
    assert likeliest(n, b, c, D) == pytest.approx(q[L.argmax()], abs=1e-5)


@pytest.mark.parametrize(("n", "b", "c"), [(30, 7, 2), (50, 0, 5), (20, 20, 0), (1000, 31, 44)])
def test_tango_holds_just_the_differences_that_the_score_test_accepts(
    n: int, b: int, c: int
) -> None:
    low, high = tango(n, b, c)
    grid = np.linspace(-1, 1, 20_001)
    accepted = []
    for D in grid[1:-1]:
        variance = n * (2 * likeliest(n, b, c, D) + D * (1 - D))
        accepted.append(abs(b - c - n * D) <= Z_95 * math.sqrt(variance))
    inside = grid[1:-1][np.array(accepted)]
    assert low == pytest.approx(inside.min(), abs=1.1e-4)
    assert high == pytest.approx(inside.max(), abs=1.1e-4)


def test_tango_without_disagreement_has_a_closed_form() -> None:
    z2 = Z_95**2
    assert tango(100, 0, 0) == pytest.approx((-z2 / (100 + z2), z2 / (100 + z2)), abs=1e-9)


@pytest.mark.parametrize(("only_first", "only_second"), [(0.1, 0.1), (0.25, 0.02), (0.02, 0.0)])
def test_tango_covers_the_truth_about_95_times_in_100(
    only_first: float, only_second: float
) -> None:
    n, D = 40, only_first - only_second
    counts = np.array([(b, c, n - b - c) for b in range(n + 1) for c in range(n + 1 - b)])
    chances = multinomial.pmf(counts, n, [only_first, only_second, 1 - only_first - only_second])
    likely = chances > 1e-9
    intervals = [tango(n, int(b), int(c)) for b, c, _ in counts[likely]]
    inside = np.array([low <= D <= high for low, high in intervals])
    covered = chances[likely][inside].sum()
    assert 0.93 < covered <= 1


def test_paired_puts_it_together_and_turns_with_its_order() -> None:
    one, other = paired(200, 30, 12), paired(200, 12, 30)
    assert one.difference == pytest.approx(0.09)
    assert (one.low, one.high) == pytest.approx((-other.high, -other.low))
    assert one.p == other.p
    assert one.is_real
    assert other.is_real
    assert not paired(200, 12, 13).is_real


def test_more_disagreements_than_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="expected no more"):
        tango(10, 8, 3)


def test_the_mean_of_values_has_the_interval_that_it_promises() -> None:
    found = mean([0.0, 0.5, 1.0, 0.5])
    assert (found.n, found.value) == (4, 0.5)
    spread = (2 * 0.25 / 3) ** 0.5
    assert found.high - 0.5 == pytest.approx(1.959964 * spread / 2)
    assert 0.5 - found.low == pytest.approx(found.high - 0.5)
    random = np.random.default_rng(0)
    draws = random.beta(2, 1, size=(2000, 200))  # of mean 2/3
    held = [m.low < 2 / 3 < m.high for m in map(mean, draws.tolist())]
    assert np.mean(held) == pytest.approx(0.95, abs=0.015)
    with pytest.raises(ValueError, match="found 1 values"):
        mean([0.5])


@pytest.mark.parametrize("digits", [0, 3], ids=["with ties", "without"])
def test_the_area_under_the_curve_is_sklearns(digits: int) -> None:
    random = np.random.default_rng(0)
    low, high = random.normal(0, 2, 80).round(digits), random.normal(1.5, 2, 50).round(digits)
    labels = np.r_[np.zeros(80), np.ones(50)]
    expected = roc_auc_score(labels, np.r_[low, high])
    assert auroc(low.tolist(), high.tolist()).value == pytest.approx(expected)


def test_the_area_has_the_interval_that_it_promises() -> None:
    random = np.random.default_rng(1)
    truth = norm.cdf(1 / math.sqrt(2))
    draws = [(random.normal(0, 1, 60), random.normal(1, 1, 40)) for _ in range(400)]
    found = [auroc(low.tolist(), high.tolist()) for low, high in draws]
    covered = sum(area.low <= truth <= area.high for area in found)
    assert 0.91 < covered / 400 < 0.985
    with pytest.raises(ValueError, match="at least 2"):
        auroc([1.0], [2.0, 3.0])


def test_two_scores_of_one_object_are_not_independent() -> None:
    random = np.random.default_rng(2)
    truth = norm.cdf(1 / math.sqrt(2))
    found, spread = [], []
    for _ in range(400):
        common = random.normal(0, 1, 60)
        low, high = (
            math.sqrt(0.8) * common + math.sqrt(0.2) * random.normal(0, 1, 60) for _ in "ab"
        )
        places = random.permutation(60)[:40]
        found.append(auroc(low.tolist(), (1 + high[places]).tolist(), places.tolist()))
        spread.append(auroc(low.tolist(), (1 + high[places]).tolist()))
    covered = [np.mean([a.low <= truth <= a.high for a in areas]) for areas in (found, spread)]
    assert 0.92 < covered[0] < 0.975
    assert covered[1] > 0.985, "as if they were independent, the interval is too wide"
    alike = auroc([0.0, 1.0, 2.0], [5.0, 6.0, 7.0], [0, 1, 2])
    assert (alike.value, alike.high) == (1, 1)
    assert alike.low == pytest.approx(wilson(1.0, 3)[0]), "three objects prove little"
    with pytest.raises(ValueError, match="2 places for 3 values"):
        auroc([0.0, 1.0, 2.0], [1.0, 2.0, 3.0], [0, 1])
