"""FrequencyEmbedding: against NumPy on blocks taken by slicing, on fields whose answer is known."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from projections import dense, states

import clcnn
from clcnn.embeddings import FrequencyEmbedding, LinearEmbedding, SeparableEmbedding
from clcnn.embeddings.blocks import from_blocks, from_spectrum, spectrum, to_blocks
from clcnn.errors import DataError, FitError, LoadError


def projection(x, b, rank):
    """P from the definition: dense bases by NumPy's SVD, blocks of columns by slicing."""
    y = (x - x.mean(0)).numpy()
    C, H, W = y.shape[1:]
    rows = np.linalg.svd(np.moveaxis(y, 2, 0).reshape(H, -1), full_matrices=False)[0]
    columns = np.linalg.svd(np.moveaxis(y, 3, 0).reshape(W, -1), full_matrices=False)[0]
    y = y.reshape(len(y), -1)
    found = []
    for i in range(0, H, b):
        for j in range(0, W, b):
            U = np.kron(np.eye(C), np.kron(rows[:, i : i + b], columns[:, j : j + b]))
            variance, V = np.linalg.eigh(U.T @ (y.T @ y / (len(y) - 1)) @ U)
            found += [(v, U @ V[:, k]) for k, v in enumerate(variance)]
    found.sort(key=lambda one: -one[0])
    U = np.stack([direction for _, direction in found[:rank]], 1)
    return U @ U.T, np.array([v for v, _ in found])


@pytest.mark.parametrize("rank", [1, 5, 17, 30, 48])  # blocks that keep none, few, most, all
@pytest.mark.parametrize("b", [1, 2])
def test_against_the_definition(b, rank):
    x = states()
    embedding = FrequencyEmbedding(b, rank=rank).fit(list(x.split(7)))
    P, variances = projection(x, b, rank)
    np.testing.assert_allclose(dense(embedding), P, atol=1e-9)
    np.testing.assert_allclose(embedding.variances.numpy(), variances[:rank], rtol=1e-9)
    assert embedding.explained_ == pytest.approx(variances[:rank].sum() / variances.sum())


def test_all_frequencies_in_one_block_are_the_full_basis():
    x = states(80, (2, 4, 4))
    one, full = FrequencyEmbedding(4, rank=5).fit(x), LinearEmbedding(rank=5).fit(x)
    torch.testing.assert_close(one.project(x), full.project(x))
    torch.testing.assert_close(one.variances, full.eigenvalues)


@pytest.mark.parametrize("shape", [(3, 4, 4), (2, 8), (2, 4, 4, 2)])
@pytest.mark.parametrize("rank", [4, 9])
def test_it_keeps_more_than_the_separable_kind_and_the_more_the_larger_the_block(shape, rank):
    """A basis for the channels of each frequency can be the one for all: it keeps no less."""
    x = states(120, shape)
    separable = SeparableEmbedding(rank=rank).fit(x).explained_
    kept = [FrequencyEmbedding(b, rank=rank).fit(x).explained_ for b in (1, 2)]
    full = LinearEmbedding(rank=rank).fit(x).explained_
    assert separable < kept[0] < kept[1] <= full + 1e-12


def waves(n=4000, C=3, H=8, W=8):
    """Independent waves, each with a mixture of the channels of its own."""
    generator = torch.Generator().manual_seed(0)
    place = torch.arange(H, dtype=torch.float64)
    frequency = torch.arange(H, dtype=torch.float64)[:, None]
    cosine = torch.cos(torch.pi * (place + 0.5) * frequency / H)  # (frequency, place)
    cosine /= cosine.norm(dim=1, keepdim=True)
    z = torch.randn(n, C, H, W, generator=generator, dtype=torch.float64)
    mix = torch.randn(H, W, C, C, generator=generator, dtype=torch.float64)
    z = torch.einsum("ncij,ijcd->ndij", z, mix) / (1 + frequency + frequency.T)
    return torch.einsum("ndij,ih,jw->ndhw", z, cosine, cosine)


def test_a_field_of_independent_waves_takes_no_more_directions_than_the_full_basis():
    x = waves()
    for energy in (0.9, 0.99):
        full = LinearEmbedding(energy=energy).fit(x).rank_
        ranks = [FrequencyEmbedding(b, energy=energy).fit(x).rank_ for b in (1, 2)]
        assert full <= ranks[1] <= ranks[0] <= 1.05 * full
        assert SeparableEmbedding(energy=energy).fit(x).rank_ > 1.2 * full


def test_few_samples_are_enough():
    x, new = waves(240).split([40, 200])
    own, full = FrequencyEmbedding(2, energy=0.97).fit(x), LinearEmbedding(energy=0.97).fit(x)
    assert own.kept(new) > 0.9 > full.kept(new) + 0.02


def test_blocks_without_a_direction_are_left_out():
    """x = A z B' with z 2 x 2 in each of 3 channels: one block of 2 x 2, and cheap."""
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(50, 3, 2, 2, generator=generator, dtype=torch.float64)
    A, B = torch.randn(2, 8, generator=generator), torch.randn(2, 6, generator=generator)
    x = torch.einsum("ncij,ia,jb->ncab", z, A.double(), B.double()) + 3
    embedding = FrequencyEmbedding(2, energy=1.0).fit(x)
    assert (embedding.rank_, tuple(embedding.V.shape)) == (12, (12, 12))
    assert (tuple(embedding.basis_2.shape), tuple(embedding.basis_3.shape)) == ((8, 2), (6, 2))
    torch.testing.assert_close(embedding.project(x), x)
    # All of the one block is kept, which takes no product; the columns first, then the rows.
    assert embedding.multiply_adds_ == 2 * (3 * 8 * 6 * 2 + 3 * 8 * 2 * 2)
    assert "block=2, energy=1, rank 12 of 144 in 1 blocks of 12" in repr(embedding)


def test_what_most_blocks_keep_or_lose_is_multiplied_not_more():
    x = states(300, (4, 8, 8))
    embedding = FrequencyEmbedding(2, rank=256).fit(x)
    s, transforms = 16, 2 * 2 * 256 * 8
    for rank in (1, 20, 128, 230, 256):
        cost = embedding.truncated(rank).multiply_adds_
        assert cost <= transforms + 1.5 * 2 * s * min(rank, 256 - rank)


@pytest.mark.parametrize("shape", [(3, 4, 8), (2, 8), (2, 4, 4, 6)])
def test_blocks_hold_neighbours_of_all_channels(shape):
    z = torch.arange(2 * int(np.prod(shape))).reshape(2, *shape)
    frequencies_first = z.permute(*range(len(shape), 1, -1), 0, 1)
    blocks = to_blocks(frequencies_first, 2)
    first = z[(slice(None), slice(None), *[slice(0, 2)] * (len(shape) - 1))].flatten(1)
    assert torch.equal(blocks[0].sort(1)[0], first.sort(1)[0])
    last = z[(slice(None), slice(None), *[slice(-2, None)] * (len(shape) - 1))].flatten(1)
    assert torch.equal(blocks[-1].sort(1)[0], last.sort(1)[0])
    assert torch.equal(from_blocks(blocks, [n // 2 for n in shape[1:]], 2), frequencies_first)


def test_the_spectrum_is_the_product_along_every_axis_and_comes_back():
    y = states(5, (3, 4, 6))
    rows, columns = (torch.linalg.qr(torch.randn(n, n, dtype=y.dtype))[0] for n in (4, 6))
    some = [rows[:, :2], columns[:, :5]]
    z = spectrum(y, some)
    assert torch.allclose(z, torch.einsum("bchw,hi,wj->jibc", y, *some))
    assert torch.allclose(from_spectrum(z, some), torch.einsum("jibc,hi,wj->bchw", z, *some))
    assert torch.allclose(from_spectrum(spectrum(y, [rows, columns]), [rows, columns]), y)


def test_exported_it_serves_any_batch():
    x = states(shape=(2, 8, 8))
    embedding = FrequencyEmbedding(2, rank=70).fit(x)
    batch = {"x": {0: torch.export.Dim("batch", min=2)}}
    program = torch.export.export(embedding, (x[:3],), dynamic_shapes=batch).module()
    for n in (2, 7):
        torch.testing.assert_close(program(x[:n]), embedding.project(x[:n]))


class TestErrors:
    def test_sizes_that_do_not_divide(self):
        with pytest.raises(FitError, match=r"block=3 does not divide 4 x 6.*1, 2. Take block=2"):
            FrequencyEmbedding(3).fit(states())
        with pytest.raises(FitError, match=r"are vectors, .* block=2, .*LinearEmbedding"):
            FrequencyEmbedding(2).fit(states(shape=(8,)))

    def test_rank_above_the_dimension(self):
        with pytest.raises(FitError, match=r"rank=49 is more than the 48 dimensions"):
            FrequencyEmbedding(2, rank=49).fit(states())
        with pytest.warns(UserWarning, match="the others are arbitrary"):
            assert FrequencyEmbedding(2, rank=48).fit(states(5)).rank_ == 48

    def test_settings(self):
        for wrong in (0, -1, 2.5):
            with pytest.raises(DataError, match="expected an integer of at least 1"):
                FrequencyEmbedding(wrong)
        with pytest.raises(DataError, match="expected one of rank"):
            FrequencyEmbedding(2, rank=6, energy=0.9)

    def test_an_iterator_larger_than_memory(self):
        x = states()
        with pytest.raises(FitError, match=r"exceed memory=10000 bytes.*re-iterable"):
            FrequencyEmbedding(2, rank=3, memory=10_000).fit(iter(x.split(10)))
        FrequencyEmbedding(2, rank=3, memory=10_000).fit(x.split(10))

    def test_tensors_of_another_block(self):
        saved = FrequencyEmbedding(2, rank=6).fit(states()).state_dict()
        with pytest.raises(LoadError, match=r"FrequencyEmbedding .*expected .*'V': \(2, 6\)"):
            clcnn.FrequencyEmbedding(1).restore(saved, (2, 4, 6))


@pytest.mark.parametrize("shape", [(3, 4, 8), (2, 8), (2, 4, 4, 6)])
def test_an_empty_batch_is_empty(shape):
    x = states(60, shape)
    embedding = FrequencyEmbedding(2, rank=5).fit(x)
    assert embedding.residual(x[:0]).shape == (0, *shape)
    assert embedding.energy(x[:0]).shape == (0,)
    assert embedding.coefficients(x[:0]).shape == (0, 5)


@pytest.mark.parametrize("block", [2.0, 0, -1, "2", None])
def test_a_block_is_a_whole_number(block):
    with pytest.raises(DataError, match="expected an integer of at least 1"):
        FrequencyEmbedding(block)
    with pytest.raises(DataError, match="expected an integer of at least 1"):
        clcnn.PatchEmbedding(block)
