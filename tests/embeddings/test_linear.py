"""LinearEmbedding against scikit-learn's PCA, NumPy's SVD and its own mathematics."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import subspace_angles
from sklearn.decomposition import PCA
from torch.utils._python_dispatch import TorchDispatchMode

from clcnn.embeddings import LinearEmbedding, bases
from clcnn.errors import DataError, FitError, LoadError


def gaussian(n, d, decay=3.0, offset=5.0, seed=0):
    """n states with standard deviations falling by 10^-decay over the d principal directions."""
    generator = torch.Generator().manual_seed(seed)
    scales = torch.logspace(0, -decay, d, dtype=torch.float64)
    rotation = torch.linalg.qr(torch.randn(d, d, generator=generator, dtype=torch.float64))[0]
    z = torch.randn(n, d, generator=generator, dtype=torch.float64)
    return z * scales @ rotation + offset


def singular_values(x):
    x = x.double().numpy()
    return np.linalg.svd(x - x.mean(0), compute_uv=False)


def smallest_rank(values, share):
    """The rule, spelled out: add one value at a time until the share is reached."""
    reached = 0.0
    for r, value in enumerate(values, start=1):
        reached += value
        if reached >= share * values.sum():
            return r
    raise AssertionError


def assert_equal_to_pca(embedding, x, angle):
    pca = PCA(embedding.rank_, svd_solver="full").fit(x.double().numpy())
    V = embedding.V.double().numpy()
    assert np.rad2deg(subspace_angles(V, pca.components_.T)).max() < angle
    rtol = 1e-9 if x.dtype == torch.float64 else 1e-5
    np.testing.assert_allclose(embedding.eigenvalues, pca.explained_variance_, rtol=rtol)
    np.testing.assert_allclose(embedding.mean, pca.mean_, rtol=rtol)
    assert embedding.explained_ == pytest.approx(pca.explained_variance_ratio_.sum(), rel=rtol)
    return pca


# n, d, budget -> method; the third folds its rows into a covariance before n reaches d
PATHS = {
    "covariance": (400, 30, 2**31, "covariance"),
    "gram": (50, 300, 2**31, "gram"),
    "covariance, early": (78, 80, 205_000, "covariance"),
    "randomised": (500, 120, 120_000, "randomised"),
    "randomised, few samples": (100, 400, 480_000, "randomised"),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("path", PATHS)
def test_agrees_with_pca(path, dtype):
    n, d, memory, method = PATHS[path]
    x = gaussian(n, d, decay=6.0).to(dtype)
    embedding = LinearEmbedding(rank=9, memory=memory, passes=12).fit(list(x.split(13)))
    assert (embedding.method_, embedding.n_samples_, embedding.rank_) == (method, n, 9)
    assert embedding.V.dtype == embedding.mean.dtype == dtype
    pca = assert_equal_to_pca(embedding, x, angle=1e-4 if dtype == torch.float64 else 1e-2)
    by_pca = pca.inverse_transform(pca.transform(x.double().numpy()))
    tolerance = 1e-7 if dtype == torch.float64 else 1e-5
    np.testing.assert_allclose(embedding.project(x), by_pca, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("path", ["covariance", "gram", "covariance, early"])
@pytest.mark.parametrize("share", [0.5, 0.9, 0.99, 0.999])
def test_rules_against_a_plain_loop(path, share):
    n, d, memory, _ = PATHS[path]
    x = gaussian(n, d)
    s = singular_values(x)
    by_energy = LinearEmbedding(energy=share, memory=memory).fit(x)
    assert by_energy.rank_ == smallest_rank(s**2, share)
    assert by_energy.explained_ == pytest.approx((s**2)[: by_energy.rank_].sum() / (s**2).sum())
    assert LinearEmbedding(singular=share, memory=memory).fit(x).rank_ == smallest_rank(s, share)


def test_the_default_is_99_percent_of_the_energy():
    x = gaussian(200, 20)
    assert LinearEmbedding().fit(x).rank_ == LinearEmbedding(energy=0.99).fit(x).rank_
    assert LinearEmbedding().config()["energy"] == 0.99


@pytest.mark.parametrize("n", [20, 200])
def test_all_the_energy_is_the_true_dimension(n):
    flat = gaussian(n, 5, decay=1.0) @ gaussian(5, 60, offset=0.0, seed=1)
    assert LinearEmbedding(energy=1.0).fit(flat).rank_ == 5
    assert LinearEmbedding(singular=1.0).fit(flat).rank_ == 5


@pytest.mark.parametrize("sizes", [1, 7, 1000])
@pytest.mark.parametrize("path", ["covariance", "gram", "randomised"])
def test_batch_sizes_do_not_matter(path, sizes):
    n, d, memory, _ = PATHS[path]
    x = gaussian(n, d)
    whole = LinearEmbedding(rank=5, memory=memory).fit(x)
    parts = LinearEmbedding(rank=5, memory=memory).fit(list(x.split(sizes)))
    torch.testing.assert_close(parts.V, whole.V, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(parts.eigenvalues, whole.eigenvalues)


@pytest.mark.parametrize("n", [40, 300])
def test_a_far_off_mean_costs_no_accuracy(n):
    x = gaussian(n, 60, offset=0.0)
    # First batches unlike the rest, so that a shift by the first mean would cancel.
    shift = 1e4 * torch.linspace(0, 1, n, dtype=torch.float64)[:, None] * torch.eye(60)[0]
    near = LinearEmbedding(rank=5).fit(list(x.split(10)))
    far = LinearEmbedding(rank=5).fit(list((x + 1e7).split(10)))
    assert np.rad2deg(subspace_angles(near.V.numpy(), far.V.numpy())).max() < 1e-5
    drifting = LinearEmbedding(rank=5).fit(list((x + shift).split(10)))
    assert_equal_to_pca(drifting, x + shift, angle=1e-3)


def test_small_directions_of_few_samples_stay_orthonormal():
    x = gaussian(30, 500, decay=0.0) * torch.logspace(0, -5, 30, dtype=torch.float64)[:, None]
    V = LinearEmbedding(rank=29).fit(x).V
    torch.testing.assert_close(V.T @ V, torch.eye(29, dtype=V.dtype), rtol=0, atol=1e-12)


def test_the_largest_entry_of_each_column_is_positive():
    for path in ("covariance", "gram", "randomised"):
        n, d, memory, _ = PATHS[path]
        V = LinearEmbedding(rank=6, memory=memory).fit(gaussian(n, d)).V
        assert (V.gather(0, V.abs().argmax(0, keepdim=True)) > 0).all()


class TestRandomised:
    n, d = 700, 300
    memory = 1_200_000  # a covariance would take 2.9 MB, the basis may have 166 columns

    def test_the_basis_grows_until_the_energy_is_reached(self):
        x = gaussian(self.n, self.d, decay=1.2)
        embedding = LinearEmbedding(energy=0.95, memory=self.memory).fit(list(x.split(64)))
        best = smallest_rank(singular_values(x) ** 2, 0.95)
        assert embedding.method_ == "randomised"
        assert 64 < best <= embedding.rank_ <= 1.02 * best
        assert embedding.explained_ >= 0.95
        # The share is of the true total, and true of this V.
        centred = x - x.mean(0)
        kept = (centred @ embedding.V).square().sum() / centred.square().sum()
        assert embedding.explained_ == pytest.approx(float(kept), rel=1e-9)

    def test_each_eigenvalue_is_within_the_reported_error(self):
        x = gaussian(self.n, self.d, decay=1.2)
        true = singular_values(x) ** 2 / (self.n - 1)
        errors = []
        for passes in (2, 4, 8, 16):
            embedding = LinearEmbedding(rank=20, memory=self.memory, passes=passes).fit(x)
            distance = np.abs(embedding.eigenvalues.numpy()[:, None] - true).min(1)
            assert 0 < distance.max() <= embedding.error_ * true.sum()
            errors.append(embedding.error_)
        assert errors == sorted(errors, reverse=True)
        assert errors[-1] < 0.1 * errors[0]

    def test_exact_methods_report_no_error(self):
        assert LinearEmbedding(rank=3).fit(gaussian(50, 10)).error_ == 0
        assert LinearEmbedding(rank=3).fit(gaussian(10, 50)).error_ == 0

    def test_the_seed_matters_and_repeats(self):
        x = gaussian(self.n, self.d, decay=1.2)
        V = [LinearEmbedding(rank=9, memory=self.memory, seed=s).fit(x).V for s in (0, 0, 1)]
        assert torch.equal(V[0], V[1])
        assert not torch.equal(V[0], V[2])

    def test_more_columns_than_samples_have_directions(self):
        x = gaussian(40, 900, decay=1.0)
        memory = 24 * 900 * 39
        embedding = LinearEmbedding(energy=0.999, memory=memory).fit(x)
        assert embedding.method_ == "randomised"
        assert embedding.rank_ == smallest_rank(singular_values(x) ** 2, 0.999)
        assert_equal_to_pca(embedding, x, angle=1e-4)

    def test_it_can_be_asked_for_or_refused(self):
        x = gaussian(self.n, self.d, decay=1.2)
        asked = LinearEmbedding(rank=9, algorithm="randomised").fit(x)
        driven = LinearEmbedding(rank=9, memory=self.memory).fit(x)
        assert asked.method_ == driven.method_ == "randomised"
        assert torch.equal(asked.V, driven.V)
        assert LinearEmbedding(rank=9, algorithm="exact").fit(x).method_ == "covariance"
        with pytest.raises(FitError, match=r"more than memory=1200000.*randomised"):
            LinearEmbedding(rank=9, algorithm="exact", memory=self.memory).fit(x)
        assert LinearEmbedding(**asked.config()).algorithm == "randomised"

    def test_an_iterator_cannot_be_read_twice(self):
        x = gaussian(self.n, self.d)
        with pytest.raises(FitError, match=r"only once.*re-iterable"):
            LinearEmbedding(rank=3, memory=self.memory).fit(iter(x.split(50)))

    def test_singular_values_need_an_exact_fit(self):
        with pytest.raises(FitError, match=r"singular=0.9 needs all.*energy= or rank="):
            LinearEmbedding(singular=0.9, memory=self.memory).fit(gaussian(self.n, self.d))

    def test_a_basis_beyond_the_budget(self):
        x = gaussian(self.n, self.d, decay=0.1)
        with pytest.raises(FitError, match=r"rank=200 .*200 columns needs 1440000"):
            LinearEmbedding(rank=200, memory=self.memory).fit(x)
        with pytest.raises(FitError, match=r"energy=0.99 .*166 columns that fit it reach 0\.\d+"):
            LinearEmbedding(energy=0.99, memory=self.memory).fit(x)

    def test_states_that_change_between_passes(self):
        x = gaussian(self.n, self.d)

        class Augmented:
            def __init__(self, change):
                self.change, self.calls = change, 0

            def __iter__(self):
                self.calls += 1
                return iter(self.change(x, self.calls).split(100))

        for change in (lambda x, k: x[: 700 - k], lambda x, k: x * (1 + 0.1 * k)):
            with pytest.raises(FitError, match=r"differ between two passes.*same states"):
                LinearEmbedding(rank=3, memory=self.memory).fit(Augmented(change))


def power_basis(x, k, passes):
    """What plain powers of the covariance reach from random columns: NumPy, float64."""
    x = (x - x.mean(0)).double().numpy()
    Q = np.linalg.qr(np.random.default_rng(0).standard_normal((x.shape[1], k)))[0]
    for _ in range(passes - 1):
        Q = np.linalg.qr(x.T @ (x @ Q))[0]
    return np.linalg.svd(x @ Q, compute_uv=False) ** 2 / (len(x) - 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("decay", [0.5, 2.0])
def test_the_filter_beats_powers_with_as_many_passes(decay, dtype):
    x = gaussian(1500, 400, decay=decay).to(dtype)
    rank, passes = 30, 5
    true = singular_values(x)[:rank] ** 2 / (len(x) - 1)
    fitted = LinearEmbedding(rank=rank, memory=24 * 400 * 46, passes=passes).fit(x)
    assert fitted.method_ == "randomised"
    lost = true.sum() - float(fitted.eigenvalues.double().sum())
    by_powers = true.sum() - power_basis(x, 46, passes)[:rank].sum()
    # Rounding is the floor where either has found everything.
    assert lost < 0.6 * by_powers + 1e-6 * true.sum()


def test_float32_states_get_a_true_basis():
    x = gaussian(900, 300, decay=2.0, offset=30.0).float()
    embedding = LinearEmbedding(rank=40, memory=24 * 300 * 56).fit(list(x.split(50)))
    assert embedding.method_ == "randomised"
    V = embedding.V.double()
    torch.testing.assert_close(V.T @ V, torch.eye(40, dtype=V.dtype), rtol=0, atol=2e-6)
    centred = x.double() - x.double().mean(0)
    kept = (centred @ V).square().sum() / centred.square().sum()
    assert embedding.explained_ == pytest.approx(float(kept), rel=2e-6)
    C = centred.T @ centred / 899
    left = torch.linalg.matrix_norm(C @ V - V * embedding.eigenvalues.double())
    assert embedding.error_ == pytest.approx(float(left / C.trace()), rel=1e-2)
    true = singular_values(x) ** 2 / 899
    distance = np.abs(embedding.eigenvalues.double().numpy()[:, None] - true).min(1)
    assert distance.max() <= embedding.error_ * true.sum()


@pytest.mark.parametrize("path", PATHS)
def test_batches_that_are_overwritten(path):
    n, d, memory, method = PATHS[path]
    x = gaussian(n, d)

    class OneBuffer:
        def __iter__(self):
            buffer = torch.empty(13, d, dtype=x.dtype)
            for batch in x.split(13):
                buffer[: len(batch)] = batch
                yield buffer[: len(batch)]

    expected = LinearEmbedding(rank=5, memory=memory).fit(x)
    embedding = LinearEmbedding(rank=5, memory=memory).fit(OneBuffer())
    assert embedding.method_ == expected.method_ == method
    torch.testing.assert_close(embedding.V, expected.V, rtol=1e-8, atol=1e-8)


STREAM = """
import sys, torch
from clcnn.benchmarks.memory import peak
from clcnn.embeddings import LinearEmbedding

class Stream:
    def __init__(self, n, d): self.n, self.d = n, d
    def __iter__(self):
        for i in range(self.n // 64):
            yield torch.randn(64, self.d, generator=torch.Generator().manual_seed(i))

def fit(n, d):
    embedding = LinearEmbedding(rank=16, memory=24 * d * 32, passes=2).fit(Stream(n, d))
    assert embedding.method_ == "randomised" and embedding.n_samples_ == n

fit(128, 1024)
print(peak(lambda: fit(int(sys.argv[1]), 8192)))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's high-water mark")
def test_the_peak_of_a_stream_does_not_grow_with_its_samples():
    def peak_for(n):
        run = [sys.executable, "-c", STREAM, str(n)]
        # Freed blocks go back at once, so that the mark is the fit's and not the allocator's mood.
        env = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1"}
        done = subprocess.run(run, capture_output=True, text=True, check=True, env=env)
        return int(done.stdout)

    few, many = peak_for(1024), peak_for(2048)  # states of 34 and 67 MB
    assert many < few + 4e6
    assert many < 30e6


class TestBases:
    def tall(self, decay, dtype=torch.float64):
        return (gaussian(300, 70, decay=0.0, offset=0.0) * torch.logspace(0, -decay, 70)).to(dtype)

    @pytest.mark.parametrize("k", [1, 3, 70])
    def test_a_gram_matrix(self, k):
        Y = self.tall(1.0)[:, :k]
        np.testing.assert_allclose(bases.gram(Y), Y.numpy().T @ Y.numpy(), atol=1e-12)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_normalised_in_place(self, dtype):
        Y = self.tall(3.0, dtype)
        before = Y.clone()
        R = bases.normalise(Y)
        eps = torch.finfo(dtype).eps
        torch.testing.assert_close(Y.T @ Y, torch.eye(70, dtype=dtype), rtol=0, atol=100 * eps)
        torch.testing.assert_close(Y @ R.to(dtype), before, rtol=0, atol=1000 * eps)

    def test_dependent_columns_become_orthonormal_all_the_same(self):
        Y = self.tall(0.0)
        Y[:, 40] = Y[:, 3]
        Y[:, 50] = 0
        span = Y[:, :40].clone()
        assert bases.normalise(Y) is None
        torch.testing.assert_close(Y.T @ Y, torch.eye(70, dtype=Y.dtype))
        torch.testing.assert_close(Y @ (Y.T @ span), span)

    def test_departure_from_orthogonality(self):
        V = torch.linalg.qr(self.tall(0.0))[0]
        assert bases.departure(V) < 1e-13
        V = V + 1e-6 * self.tall(0.0)
        true = torch.linalg.matrix_norm(V.T @ V - torch.eye(70, dtype=V.dtype))
        assert bases.departure(V) == pytest.approx(float(true), rel=0.3)


class Largest(TorchDispatchMode):
    """Watches every operation below: the largest tensor made, and the matrix products."""

    def __init__(self):
        super().__init__()
        self.numel, self.products = 0, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(tensor, torch.Tensor):
                self.numel = max(self.numel, tensor.numel())
        self.products += "mm" in function.__name__
        return out


class TestNothingLargeIsFormed:
    d = 2000

    @pytest.mark.parametrize(("memory", "method"), [(2**21, "randomised"), (2**25, "gram")])
    def test_in_a_fit(self, memory, method):
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(100, self.d, generator=generator).split(20)
        with Largest() as seen:
            embedding = LinearEmbedding(rank=5, memory=memory).fit(x)
        assert embedding.method_ == method
        assert seen.numel <= 100 * self.d < self.d**2 / 10
        assert method == "gram" or seen.numel <= max(21 * self.d, 20 * self.d)

    def test_in_use(self):
        generator = torch.Generator().manual_seed(0)
        states = torch.randn(40, self.d, generator=generator)
        embedding = LinearEmbedding(rank=5).fit(states)
        x = states[:6].clone().requires_grad_()
        with Largest() as seen:
            embedding.project(x), embedding.residual(x)
            energy = embedding.energy(x).sum()
        assert seen.numel == 5 * self.d or seen.numel == 6 * self.d
        with Largest() as backward:
            energy.backward()
        assert backward.products == 0


class TestEnergy:
    def fitted(self):
        x = gaussian(80, 12)
        return LinearEmbedding(rank=4).fit(x), x[:3]

    def test_first_and_second_derivative(self):
        embedding, x = self.fitted()
        V = embedding.V
        Q = torch.eye(12, dtype=V.dtype) - V @ V.T
        x = x.clone().requires_grad_()
        weights = torch.tensor([1.0, -2.0, 0.5], dtype=x.dtype)
        (gradient,) = torch.autograd.grad(embedding.energy(x) @ weights, x, create_graph=True)
        torch.testing.assert_close(gradient, 2 * weights[:, None] * (x - embedding.mean) @ Q)
        v = gaussian(3, 12, seed=5)
        (twice,) = torch.autograd.grad(gradient, x, v)
        torch.testing.assert_close(twice, 2 * weights[:, None] * v @ Q)

    def test_function_transforms(self):
        embedding, x = self.fitted()
        V = embedding.V
        hessian = torch.func.jacrev(torch.func.jacrev(lambda z: embedding.energy(z[None])[0]))(x[0])
        torch.testing.assert_close(hessian, 2 * (torch.eye(12, dtype=V.dtype) - V @ V.T))

    def test_a_layer_that_works_in_place_after_it(self):
        embedding, x = self.fitted()
        x = x.clone().requires_grad_()
        z = x * 1
        energy = embedding.energy(z).sum()
        torch.relu_(z)
        (gradient,) = torch.autograd.grad(energy, x)
        torch.testing.assert_close(gradient, -2 * embedding.residual(x))

    def test_shape_of_the_gradient(self):
        x = gaussian(80, 24).reshape(80, 2, 3, 4).to(memory_format=torch.channels_last)
        embedding = LinearEmbedding(rank=4).fit(x)
        leaf = x[:5].clone().requires_grad_()
        (gradient,) = torch.autograd.grad(embedding.energy(leaf).sum(), leaf)
        torch.testing.assert_close(gradient, -2 * embedding.residual(x[:5]))

    def test_coefficients(self):
        embedding, x = self.fitted()
        expected = (x - embedding.mean) @ embedding.V
        torch.testing.assert_close(embedding.coefficients(x), expected)


@settings(max_examples=40)
@given(
    n=st.integers(3, 30),
    d=st.integers(1, 30),
    rank=st.integers(1, 30),
    randomised=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_orthogonal_projection(n, d, rank, randomised, seed):
    rank = min(rank, n - 1, d)
    x = gaussian(n, d, decay=1.0, seed=seed)
    memory = 24 * d * rank if randomised else 2**31
    embedding = LinearEmbedding(rank=rank, memory=memory).fit(x)
    E, mean = embedding.project, embedding.mean
    a, b = gaussian(2, d, seed=seed + 1).split(1)
    torch.testing.assert_close(E(E(a)), E(a))  # idempotent
    left, right = (E(a) - mean) @ (b - mean).T, (a - mean) @ (E(b) - mean).T
    torch.testing.assert_close(left, right, rtol=1e-9, atol=1e-9)  # self-adjoint
    assert (E(a) - E(b)).norm() <= (a - b).norm() * (1 + 1e-9)  # non-expansive
    split = embedding.energy(a) + (E(a) - mean).square().sum(1)
    torch.testing.assert_close(split, (a - mean).square().sum(1))  # Pythagoras
    torch.testing.assert_close(E(mean[None]), mean[None])


class TestErrors:
    def test_rank_above_what_the_states_span(self):
        with pytest.raises(FitError, match=r"rank=10 .* 9 directions that 10 states.*more samples"):
            LinearEmbedding(rank=10).fit(gaussian(10, 50))
        with pytest.raises(FitError, match=r"rank=10 is more than the 5 directions"):
            LinearEmbedding(rank=10).fit(gaussian(50, 5))
        with pytest.raises(FitError, match=r"rank=10 is more than the 9 directions"):
            LinearEmbedding(rank=10, memory=30_000).fit(gaussian(10, 100))
        LinearEmbedding(rank=9).fit(gaussian(10, 50))
        LinearEmbedding(rank=5).fit(gaussian(50, 5))

    @pytest.mark.parametrize(("n", "memory"), [(10, 2**31), (100, 2**31), (100, 20_000)])
    def test_rank_above_the_directions_that_vary_warns(self, n, memory):
        flat = gaussian(n, 3, decay=1.0) @ gaussian(3, 40, offset=0.0, seed=1)
        with pytest.warns(UserWarning, match=r"rank=6 is more than the 3 directions"):
            V = LinearEmbedding(rank=6, memory=memory).fit(flat).V
        torch.testing.assert_close(V.T @ V, torch.eye(6, dtype=V.dtype))

    def test_settings(self):
        for wrong in ({"rank": 3, "energy": 0.9}, {"energy": 0.9, "singular": 0.9}):
            with pytest.raises(DataError, match="expected one of rank, energy and singular"):
                LinearEmbedding(**wrong)
        for wrong in ({"rank": 0}, {"rank": 2.5}):
            with pytest.raises(DataError, match="expected an integer of at least 1"):
                LinearEmbedding(**wrong)
        for wrong in ({"energy": 0.0}, {"energy": 99}, {"singular": -1}, {"energy": float("nan")}):
            with pytest.raises(DataError, match="expected a share"):
                LinearEmbedding(**wrong)
        for wrong in ({"memory": 0}, {"passes": 1}, {"oversampling": -1}):
            with pytest.raises(DataError, match="passes >= 2"):
                LinearEmbedding(**wrong)
        with pytest.raises(DataError, match=r"algorithm='full' found.*'randomised'"):
            LinearEmbedding(algorithm="full")

    def test_what_was_learned_is_not_there_before_fit(self):
        for name in ("rank_", "n_samples_", "method_", "explained_", "error_"):
            with pytest.raises(FitError, match="before it was fitted"):
                getattr(LinearEmbedding(), name)

    def test_restoring_what_does_not_fit(self):
        tensors = LinearEmbedding(rank=2).fit(gaussian(20, 6)).state_dict()
        with pytest.raises(LoadError, match="expected"):
            LinearEmbedding().restore(tensors, (7,))
        with pytest.raises(LoadError, match="expected"):
            LinearEmbedding().restore({k: v for k, v in tensors.items() if k != "V"}, (6,))

    def test_what_was_learned_is_restored(self):
        embedding = LinearEmbedding(rank=4, memory=120_000).fit(gaussian(500, 120))
        twin = LinearEmbedding(**embedding.config()).restore(embedding.state_dict(), (120,))
        for name in ("rank_", "n_samples_", "method_", "explained_", "error_"):
            assert getattr(twin, name) == getattr(embedding, name)
        assert repr(twin) == repr(embedding)
        assert "rank 4 of 120, randomised" in repr(twin)
        assert "not fitted" in repr(LinearEmbedding())
