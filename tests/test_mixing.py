"""Batches mixed for learning: every sample in its turn, whatever the loader's own batches are."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clcnn.errors import DataError
from clcnn.states import Batches, Loader


def numbered(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.arange(n, dtype=torch.float32).reshape(n, 1), torch.arange(n)


def mixed(loader: Loader, size: int, seed: int = 0) -> list[list[int]]:
    found = []
    for x, y in Batches(loader).mixed(size, torch.Generator().manual_seed(seed)):
        samples = [int(v) for v in x[:, 0]]
        assert y is None or y.tolist() == samples  # labels stay with their samples
        found.append(samples)
    return found


@given(st.integers(1, 700), st.integers(1, 90), st.integers(1, 300), st.booleans())
def test_batches_have_the_size_asked_for_and_no_sample_twice(
    n: int, size: int, own: int, whole: bool
) -> None:
    x, y = numbered(n)
    loader = (x, y) if whole else list(zip(x.split(own), y.split(own), strict=True))
    found = mixed(loader, size)
    if n < size:
        assert [sorted(batch) for batch in found] == [list(range(n))]
        return
    assert [len(batch) for batch in found] == [size] * (n // size)
    samples = [sample for batch in found for sample in batch]
    assert len(set(samples)) == len(samples)


def test_tensors_are_mixed_as_a_whole_and_each_time_anew() -> None:
    x, _ = numbered(2000)  # as if sorted by class: a batch must not see one end alone
    first = mixed(x, 64)
    assert all(min(batch) < 500 and max(batch) >= 1500 for batch in first)
    assert mixed(x, 64) == first
    generator = torch.Generator().manual_seed(0)
    passes = [[b[0].tolist() for b in Batches(x).mixed(64, generator)] for _ in range(2)]
    assert passes[0] != passes[1]


def test_labels_in_some_batches_only_are_refused() -> None:
    x, y = numbered(8)
    with pytest.raises(DataError, match="labels in all or in none"):
        mixed([(x[:4], y[:4]), (x[4:],)], 6)
