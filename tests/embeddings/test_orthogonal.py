"""Every kind of linear embedding against its own dense projection, formed here by NumPy."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from projections import dense, states
from torch.utils.flop_counter import FlopCounterMode

import clcnn
from clcnn.embeddings import (
    FrequencyEmbedding,
    LinearEmbedding,
    PatchEmbedding,
    SeparableEmbedding,
)
from clcnn.errors import DataError, FitError, LoadError

KINDS = {
    "linear": lambda rank: LinearEmbedding(rank=rank),
    "separable": lambda rank: SeparableEmbedding(rank=rank),
    "patch": lambda rank: PatchEmbedding(2, rank=rank),
    "frequency": lambda rank: FrequencyEmbedding(2, rank=rank),
}


@pytest.fixture(params=KINDS)
def fitted(request):
    x = states()
    return KINDS[request.param](18).fit(list(x.split(13))), x


def test_it_is_an_orthogonal_projection_of_its_rank(fitted):
    embedding, _ = fitted
    P = dense(embedding)
    np.testing.assert_allclose(P, P.T, atol=1e-12)
    np.testing.assert_allclose(P @ P, P, atol=1e-12)
    assert np.trace(P) == pytest.approx(embedding.rank_)
    assert embedding.rank_ == 18
    U = embedding.basis().numpy()
    np.testing.assert_allclose(U.T @ U, np.eye(18), atol=1e-12)
    np.testing.assert_allclose(U @ U.T, P, atol=1e-12)


def test_everything_follows_from_the_dense_projection(fitted):
    embedding, x = fitted
    P, x = dense(embedding), x[:7]
    y = (x.flatten(1) - embedding.mean).numpy()
    residual = (y @ P - y).reshape(x.shape)
    np.testing.assert_allclose(embedding.residual(x).numpy(), residual, atol=1e-12)
    energy = np.square(residual).reshape(7, -1).sum(1)
    np.testing.assert_allclose(embedding.energy(x).numpy(), energy, rtol=1e-12)
    coefficients = y @ embedding.basis().numpy()
    np.testing.assert_allclose(embedding.coefficients(x).numpy(), coefficients, atol=1e-12)
    leaf = x.clone().requires_grad_()
    weights = torch.linspace(-1, 2, 7, dtype=x.dtype)
    (first,) = torch.autograd.grad(embedding.energy(leaf) @ weights, leaf, create_graph=True)
    expected = -2 * weights[:, None].numpy() * residual.reshape(7, -1)
    np.testing.assert_allclose(first.detach().flatten(1).numpy(), expected, atol=1e-12)
    v = states(7, seed=5)
    (second,) = torch.autograd.grad(first, leaf, v)
    Qv = v.flatten(1).numpy() @ (np.eye(len(P)) - P)
    np.testing.assert_allclose(
        second.flatten(1).numpy(), 2 * weights[:, None].numpy() * Qv, atol=1e-12
    )


def test_explained_and_kept(fitted):
    embedding, x = fitted
    P, y = dense(embedding), (x.flatten(1) - x.flatten(1).mean(0)).numpy()
    share = np.square(y @ P).sum() / np.square(y).sum()
    assert embedding.explained_ == pytest.approx(share)
    assert embedding.kept(x) == pytest.approx(share)
    far = states(20, seed=9)
    y = (far.flatten(1) - embedding.mean).numpy()
    share = np.square(y @ P).sum() / np.square(y).sum()
    assert embedding.kept(far) == pytest.approx(share)
    assert embedding.n_samples_ == len(x)


def test_coefficients_come_by_falling_variance(fitted):
    embedding, x = fitted
    variance = embedding.coefficients(x).square().mean(0)
    G = embedding.rank_step_
    by_step = variance.reshape(-1, G).sum(1)
    assert torch.all(by_step[1:] <= by_step[:-1] * (1 + 1e-9))


def test_truncated_is_a_fit_of_smaller_rank(fitted):
    embedding, x = fitted
    smaller, again = embedding.truncated(6), type(embedding)(**embedding.config())
    again.rule = smaller.rule
    again.fit(list(x.split(13)))
    assert smaller.rank_ == again.rank_ == 6
    assert smaller.explained_ == pytest.approx(again.explained_)
    assert smaller.multiply_adds_ == again.multiply_adds_ < embedding.multiply_adds_
    torch.testing.assert_close(smaller.project(x), again.project(x))
    assert smaller.config() == again.config()
    assert embedding.rank_ == 18
    for wrong in (0, 19, -6):
        with pytest.raises(DataError, match="expected a number from 1 to 18"):
            embedding.truncated(wrong)


def test_multiply_adds_are_those_that_pytorch_counts(fitted):
    embedding, x = fitted
    with FlopCounterMode(display=False) as counted:
        embedding.project(x[:5])  # the same products; in-place ones are not counted
    products = counted.get_total_flops() / 2 / 5
    elementwise = embedding.kept_mask.numel() if hasattr(embedding, "kept_mask") else 0
    assert embedding.multiply_adds_ == products + elementwise


def test_no_product_in_the_backward_pass(fitted):
    embedding, x = fitted
    leaf = x[:5].clone().requires_grad_()
    energy = embedding.energy(leaf).sum()
    with FlopCounterMode(display=False) as counted:
        energy.backward()
    assert counted.get_total_flops() == 0


def test_function_transforms(fitted):
    embedding, x = fitted
    Q = torch.eye(x[0].numel(), dtype=x.dtype) - torch.from_numpy(dense(embedding))

    def energy(z):
        return embedding.energy(z[None])[0]

    hessian = torch.func.jacrev(torch.func.jacrev(energy))(x[0])
    torch.testing.assert_close(hessian.reshape(Q.shape), 2 * Q)
    by_vmap = torch.func.vmap(torch.func.grad(energy))(x[:4])
    torch.testing.assert_close(by_vmap, -2 * embedding.residual(x[:4]))
    jacobian = torch.func.jacrev(lambda z: embedding.residual(z[None])[0])(x[0])
    torch.testing.assert_close(jacobian.reshape(Q.shape), -Q)


def test_a_layer_that_works_in_place_after_it(fitted):
    embedding, x = fitted
    leaf = x[:3].clone().requires_grad_()
    z = leaf * 1
    energy = embedding.energy(z).sum()
    torch.relu_(z)
    (gradient,) = torch.autograd.grad(energy, leaf)
    torch.testing.assert_close(gradient, -2 * embedding.residual(x[:3]))


def test_empty_batches_and_other_layouts(fitted):
    embedding, x = fitted
    assert embedding.residual(x[:0]).shape == (0, *x.shape[1:])
    assert embedding.coefficients(x[:0]).shape == (0, 18)
    assert embedding.energy(x[:0].requires_grad_()).shape == (0,)
    last = x[:5].to(memory_format=torch.channels_last)
    torch.testing.assert_close(embedding.residual(last), embedding.residual(x[:5]))


@pytest.mark.parametrize("kind", KINDS)
def test_bfloat16_states(kind):
    rounded = states(dtype=torch.bfloat16)  # directions of about one variance depend on rounding
    exact, half = KINDS[kind](18).fit(rounded.double()), KINDS[kind](18).fit(rounded)
    x = states(5)
    residual = half.residual(x.to(torch.bfloat16))
    assert residual.dtype == torch.bfloat16
    assert half.explained_ == pytest.approx(exact.explained_, abs=0.01)
    torch.testing.assert_close(residual.double(), exact.residual(x), rtol=0.1, atol=0.1)


@pytest.mark.parametrize("kind", KINDS)
def test_batches_do_not_matter_nor_does_a_large_mean(kind):
    x = states()
    near = KINDS[kind](18).fit([x]).basis()
    P = near @ near.T
    for other in (x.split(1), x.split([1, 30, 29]), (x + 1e6).split(7)):
        U = KINDS[kind](18).fit(list(other)).basis()
        torch.testing.assert_close(U @ U.T, P, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_restoring_what_does_not_fit(kind):
    embedding = KINDS[kind](18).fit(states())
    tensors, config = embedding.state_dict(), embedding.config()
    for wrong in ((2, 4, 7), (4, 2, 6), (48,)):
        if kind == "linear" and prod(wrong) == 48:
            continue  # a full basis does not know the axes
        with pytest.raises(LoadError, match=r"have shapes .* expected"):
            type(embedding)(**config).restore(tensors, wrong)
    for name in tensors:
        fewer = {key: value for key, value in tensors.items() if key != name}
        with pytest.raises(LoadError, match="expected"):
            type(embedding)(**config).restore(fewer, embedding.shape_)


@pytest.mark.parametrize("kind", KINDS)
def test_a_diagonal_R_is_solved_exactly_by_greedy(kind):
    """u = argmin w ||Q (x + u - mean)||^2 + u' R u, against NumPy's dense solution."""
    x = states()
    stage = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 3)).double().eval()
    generator = torch.Generator().manual_seed(2)
    R = torch.rand(2, 4, 6, generator=generator, dtype=torch.float64)
    robust = clcnn.control(
        stage,
        ["input"],
        embedding=KINDS[kind](18),
        solver=clcnn.Greedy(),
        regularization=[R],
        weights=0.7,
    ).fit(x)
    (embedding,) = robust.embeddings
    far = states(3, seed=4)
    Q = np.eye(48) - dense(embedding)
    y = (far.flatten(1) - embedding.mean).numpy()
    expected = -np.linalg.solve(0.7 * Q + np.diag(R.flatten().numpy()), 0.7 * Q @ y.T).T
    np.testing.assert_allclose(robust.solve(far).u[0].flatten(1).numpy(), expected, atol=1e-9)


@pytest.mark.parametrize("kind", ["separable", "patch", "frequency"])
def test_saved_and_loaded(kind, tmp_path):
    x = states(dtype=torch.float32)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 3)).eval()
    robust = clcnn.control(model, ["input"], embedding=KINDS[kind](18)).fit(x)
    robust.save(tmp_path / "r.safetensors")
    loaded = clcnn.load(tmp_path / "r.safetensors", model)
    assert torch.equal(loaded(x[:5]), robust(x[:5]))
    assert repr(loaded.embeddings) == repr(robust.embeddings)
    assert loaded.embeddings[0].multiply_adds_ == robust.embeddings[0].multiply_adds_


@pytest.mark.parametrize("kind", ["separable", "patch", "frequency"])
def test_directions_in_which_nothing_varies(kind):
    x = states()
    x[:, 1] = 1.5  # a dead channel
    with pytest.warns(UserWarning, match=r"rank=48 is more than the \d+ directions"):
        embedding = KINDS[kind](48).fit(x)
    assert embedding.explained_ == pytest.approx(1)
    still = KINDS[kind](None).fit(x)
    assert still.rank_ < 48


def test_before_fit():
    for kind in KINDS.values():
        for name in ("rank_", "multiply_adds_", "explained_", "n_samples_"):
            with pytest.raises(FitError, match="before it was fitted"):
                getattr(kind(3), name)
        with pytest.raises(FitError, match="before it was fitted"):
            kind(3).basis()
        assert "not fitted" in repr(kind(3))


@settings(max_examples=40)
@given(
    shape=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    share=st.floats(0.05, 1.0),
    n=st.integers(3, 30),
    seed=st.integers(0, 2**16),
)
def test_separable_projections_of_any_shape(shape, share, n, seed):
    x = states(n, tuple(shape), seed=seed)
    embedding = SeparableEmbedding(energy=share).fit(x)
    P = dense(embedding)
    np.testing.assert_allclose(P @ P, P, atol=1e-9)
    np.testing.assert_allclose(P, P.T, atol=1e-9)
    assert np.trace(P) == pytest.approx(embedding.rank_)
    assert embedding.kept(x) >= share - 1e-9
    if embedding.rank_ > 1:
        assert embedding.truncated(embedding.rank_ - 1).kept(x) < share
