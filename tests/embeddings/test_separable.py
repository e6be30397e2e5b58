"""SeparableEmbedding: its bases and set against NumPy, brute force over sets, its errors."""

from __future__ import annotations

from functools import reduce
from itertools import combinations

import numpy as np
import pytest
import torch
from projections import dense, states

from clcnn.embeddings import LinearEmbedding, SeparableEmbedding
from clcnn.errors import DataError, FitError


def mode_bases(y):
    """The left singular vectors of each unfolding of the centred states y, by NumPy's SVD."""
    bases = []
    for axis in range(1, y.ndim):
        unfolded = np.moveaxis(y, axis, 0).reshape(y.shape[axis], -1)
        bases.append(np.linalg.svd(unfolded, full_matrices=False)[0])
    return bases


def centred(x):
    return (x - x.mean(0)).numpy()


@pytest.mark.parametrize("rank", [1, 5, 17, 48])
def test_against_the_higher_order_svd(rank):
    x = states()
    embedding = SeparableEmbedding(rank=rank).fit(list(x.split(7)))
    y = centred(x)
    U = reduce(np.kron, mode_bases(y))  # (d, d): U_1 x U_2 x U_3
    variance = np.square(y.reshape(len(y), -1) @ U).sum(0) / (len(y) - 1)
    best = np.argsort(-variance)[:rank]
    np.testing.assert_allclose(dense(embedding), U[:, best] @ U[:, best].T, atol=1e-9)
    np.testing.assert_allclose(embedding.variances.numpy(), variance[best], rtol=1e-9)


@pytest.mark.parametrize("rank", [1, 3, 6])
def test_no_other_set_of_that_size_keeps_more(rank):
    x = states(shape=(2, 2, 3))
    embedding = SeparableEmbedding(rank=rank).fit(x)
    y = centred(x).reshape(len(x), -1)
    U = reduce(np.kron, mode_bases(centred(x)))
    variance = np.square(y @ U).sum(0)
    shares = [sum(variance[list(S)]) for S in combinations(range(12), rank)]
    assert embedding.explained_ == pytest.approx(max(shares) / variance.sum())


def test_a_set_keeps_more_than_a_box():
    x = states(200, (4, 4, 4))
    embedding = SeparableEmbedding(rank=8).fit(x)
    y = centred(x)
    bases = [U[:, :2] for U in mode_bases(y)]
    box = np.square(y.reshape(len(y), -1) @ reduce(np.kron, bases)).sum() / np.square(y).sum()
    assert embedding.explained_ > box


def test_states_of_a_product_structure_are_found_exactly():
    """x = A z B' with z 2 x 3: rank 6, in a box of 2 x 3, and cheap."""
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(50, 2, 3, generator=generator, dtype=torch.float64)
    A, B = torch.randn(2, 7, generator=generator), torch.randn(3, 9, generator=generator)
    x = torch.einsum("nij,ia,jb->nab", z, A.double(), B.double()) + 3
    embedding = SeparableEmbedding(energy=1.0).fit(x)
    assert (embedding.rank_, tuple(embedding.kept_mask.shape)) == (6, (2, 3))
    torch.testing.assert_close(embedding.project(x), x)
    # Rows first: 7 x 9 x 2, then columns: 2 x 9 x 3; the other order would cost 189 + 42.
    assert embedding.multiply_adds_ == 2 * (126 + 54) + 6
    assert "rank 6 of 63 in 2 x 3" in repr(embedding)


def test_vectors_are_plain_principal_components():
    x = states(80, (9,))
    torch.testing.assert_close(
        SeparableEmbedding(rank=4).fit(x).project(x), LinearEmbedding(rank=4).fit(x).project(x)
    )


def test_few_samples_are_enough():
    """A full basis of 20 samples keeps little of new ones; the separable basis what it promises."""
    x, new = states(220, (4, 8, 8)).split([20, 200])
    separable, full = SeparableEmbedding(energy=0.9).fit(x), LinearEmbedding(energy=0.9).fit(x)
    assert separable.kept(new) > 0.8 > full.kept(new) + 0.1


class TestErrors:
    def test_rank_above_the_dimension(self):
        with pytest.raises(FitError, match=r"rank=49 is more than the 48 dimensions"):
            SeparableEmbedding(rank=49).fit(states())
        assert SeparableEmbedding(rank=48).fit(states(5)).rank_ == 48  # more than the samples

    def test_settings(self):
        with pytest.raises(DataError, match="expected one of rank"):
            SeparableEmbedding(rank=2, energy=0.9)
        with pytest.raises(DataError, match="expected a share"):
            SeparableEmbedding(energy=2)
        with pytest.raises(DataError, match="expected an integer"):
            SeparableEmbedding(rank=0)
        with pytest.raises(TypeError, match="singular"):
            SeparableEmbedding(singular=0.9)

    def test_an_iterator_larger_than_memory(self):
        x = states()
        with pytest.raises(FitError, match=r"exceed memory=10000 bytes.*re-iterable"):
            SeparableEmbedding(rank=3, memory=10_000).fit(iter(x.split(10)))
        SeparableEmbedding(rank=3, memory=10_000).fit(x.split(10))
