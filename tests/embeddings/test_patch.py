"""PatchEmbedding: its basis against NumPy on patches cut by hand, and its errors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from projections import dense, states

from clcnn.embeddings import LinearEmbedding, PatchEmbedding
from clcnn.errors import DataError, FitError


def patches_of(x, p):
    """(n, G, C p p) by slicing: the oracle for every reshape in the embedding."""
    H, W = x.shape[2:]
    cut = [
        x[:, :, i : i + p, j : j + p].reshape(len(x), 1, -1)
        for i in range(0, H, p)
        for j in range(0, W, p)
    ]
    return np.concatenate(cut, 1)


@pytest.mark.parametrize("p", [1, 2])
def test_against_principal_components_of_the_patches(p):
    x = states()
    y = (x - x.mean(0)).numpy()
    patches = patches_of(y, p)
    G, size = patches.shape[1:]
    S = np.einsum("ngi,ngj->ij", patches, patches)
    eigenvalues, U = np.linalg.eigh(S)
    for k in range(1, size + 1):
        embedding = PatchEmbedding(p, rank=k * G).fit(list(x.split(7)))
        V = U[:, ::-1][:, :k]
        expected = patches @ V @ V.T
        found = patches_of((embedding.project(x) - x.mean(0)).numpy(), p)
        np.testing.assert_allclose(found, expected, atol=1e-10)
        assert embedding.explained_ == pytest.approx(eigenvalues[::-1][:k].sum() / S.trace())


def test_no_other_shared_basis_keeps_more():
    x = states()
    embedding = PatchEmbedding(2, rank=18).fit(x)  # 3 directions of 8
    patches = patches_of((x - x.mean(0)).numpy(), 2)
    rng = np.random.default_rng(0)
    own = embedding.V.numpy()
    whole = np.square(patches).sum()
    for step in (3.0, 0.3, 0.03, 0.003):
        for _ in range(30):
            V = np.linalg.qr(own + step * rng.normal(size=own.shape))[0]
            assert np.square(patches @ V).sum() / whole < embedding.explained_


def test_one_patch_is_the_full_basis_and_signals_have_patches_too():
    x = states(shape=(2, 4, 4))
    torch.testing.assert_close(
        PatchEmbedding(4, rank=5).fit(x).project(x), LinearEmbedding(rank=5).fit(x).project(x)
    )
    signal = states(shape=(3, 8))
    P = dense(PatchEmbedding(4, rank=6).fit(signal))  # 2 patches of 4 steps, 3 directions each
    inside = np.arange(24).reshape(3, 8)[:, :4].flatten()
    outside = np.setdiff1d(np.arange(24), inside)
    assert np.abs(P[np.ix_(inside, outside)]).max() < 1e-12
    np.testing.assert_allclose(P[np.ix_(inside, inside)], P[np.ix_(outside, outside)], atol=1e-12)


def test_the_energy_rule_takes_the_fewest_directions():
    x = states()
    embedding = PatchEmbedding(2, energy=0.8).fit(x)
    assert embedding.explained_ >= 0.8
    assert embedding.truncated(embedding.rank_ - 6).explained_ < 0.8
    assert "patch=2, energy=0.8, rank" in repr(embedding)


class TestErrors:
    def test_sizes_that_do_not_divide(self):
        with pytest.raises(FitError, match=r"patch=3 does not divide 4 x 6.*1, 2. Take patch=2"):
            PatchEmbedding(3).fit(states())
        with pytest.raises(FitError, match=r"does not divide 5 x 7, expected one of 1"):
            PatchEmbedding(2).fit(states(shape=(2, 5, 7)))

    def test_vectors(self):
        with pytest.raises(FitError, match=r"are vectors, .* patch=2, .*LinearEmbedding"):
            PatchEmbedding(2).fit(states(shape=(8,)))

    def test_ranks_that_are_no_multiple(self):
        with pytest.raises(FitError, match=r"rank=20 .* multiple of the 6 patches.*rank=18"):
            PatchEmbedding(2, rank=20).fit(states())
        with pytest.raises(FitError, match=r"multiple of the 6 patches up to 48.*rank=48"):
            PatchEmbedding(2, rank=54).fit(states())
        with pytest.raises(DataError, match="that 6 divides"):
            PatchEmbedding(2, rank=18).fit(states()).truncated(8)

    def test_settings(self):
        for wrong in (0, -1, 2.5):
            with pytest.raises(DataError, match="expected an integer of at least 1"):
                PatchEmbedding(wrong)
        with pytest.raises(DataError, match="expected one of rank"):
            PatchEmbedding(2, rank=6, energy=0.9)
