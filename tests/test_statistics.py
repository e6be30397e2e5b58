"""Wilson's interval against scipy's."""

from __future__ import annotations

import pytest
from scipy.stats import binomtest

from clcnn.statistics import wilson


@pytest.mark.parametrize(("k", "n"), [(0, 10), (1, 7), (50, 100), (424, 500), (10, 10)])
def test_wilson_is_scipys(k: int, n: int) -> None:
    expected = binomtest(k, n).proportion_ci(0.95, method="wilson")
    assert wilson(k / n, n) == pytest.approx((expected.low, expected.high), abs=1e-6)
