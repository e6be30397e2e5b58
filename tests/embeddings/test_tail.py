"""TailEmbedding: the level and the pull of any embedding, measured on states held out."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import clcnn
from clcnn import AutoEmbedding, AutoencoderEmbedding, Feedback, LinearEmbedding, TailEmbedding
from clcnn.errors import DataError, FitError, LoadError
from clcnn.persistence import pack_embedding, unpack_embedding

D, RANK, SMALL = 24, 5, 0.01


def states(n: int, seed: int = 0) -> Tensor:
    """RANK directions of variance 1, and SMALL in all others."""
    generator = torch.Generator().manual_seed(seed)
    basis = torch.linalg.qr(torch.randn(D, D, generator=torch.Generator().manual_seed(9)).double())
    z = torch.randn(n, D, generator=generator, dtype=torch.float64)
    z[:, RANK:] *= SMALL**0.5
    return z @ basis[0].T + 3.0


@pytest.fixture(scope="module")
def fitted() -> TailEmbedding:
    return TailEmbedding(LinearEmbedding(rank=RANK), holdout=0.5).fit(states(4000))


def test_it_finds_the_variances_that_the_states_have(fitted: TailEmbedding) -> None:
    assert float(fitted.visible) == pytest.approx((D - RANK) / D)
    assert float(fitted.tail) == pytest.approx(SMALL, rel=0.03)
    mean = (RANK + (D - RANK) * SMALL) / D
    assert float(fitted.mean_variance) == pytest.approx(mean, rel=0.06)
    s = fitted.levels(states(2000, seed=1)).white
    assert float((s > fitted.clean_level).double().mean()) == pytest.approx(0.05, abs=0.02)


@pytest.mark.parametrize("level", [0.005, 0.05, 1.0])
def test_the_level_is_that_of_the_noise(fitted: TailEmbedding, level: float) -> None:
    x = states(3000, seed=2)
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(3), dtype=x.dtype)
    levels = fitted.levels(x + level**0.5 * noise)
    # E max(0, s) is E s up to the few samples whose s would be negative.
    assert float(levels.white.mean()) == pytest.approx(level, rel=0.12)
    assert not levels.sensitive.any()


def test_the_pull_minimises_its_cost_and_has_greedy_as_its_limit(fitted: TailEmbedding) -> None:
    x = states(6, seed=4)
    F = fitted.of
    z = fitted.coefficients(x)
    n = torch.full((6,), 0.03, dtype=torch.float64)
    u = fitted.pull(z, n, torch.zeros_like(n)).requires_grad_()
    cost = F.energy(x + u) / fitted.tail + u.square().sum(1) / n
    (g,) = torch.autograd.grad(cost.sum(), u)
    assert g.abs().max() < 1e-9
    far = fitted.pull(z, 1e12 * n, torch.zeros_like(n))
    assert torch.allclose(far, F.residual(x), atol=1e-9)


def test_the_departure_is_twice_a_log_likelihood_ratio(fitted: TailEmbedding) -> None:
    x = states(8, seed=5) + 0.2
    r = fitted.coefficients(x).square().sum(1)
    s, tail, m = fitted.levels(x).white, fitted.tail, D - RANK

    def log_p(variance: Tensor) -> Tensor:
        return -0.5 * (r / variance + m * variance.log())

    assert torch.allclose(fitted.departure(x), 2 * (log_p(tail + s) - log_p(tail)))
    assert (fitted.departure(x) >= 0).all()


@pytest.mark.parametrize(
    "of", [LinearEmbedding(rank=RANK), AutoEmbedding(), AutoencoderEmbedding(epochs=2)]
)
def test_it_goes_around_any_embedding_and_into_a_file(of: clcnn.Embedding, tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(D, 16), nn.Tanh(), nn.Linear(16, 3)).double().eval()
    robust = clcnn.control(
        net, ["input", "1"], embedding=TailEmbedding(of), solver=Feedback(preset="strong")
    ).fit(states(300))
    x = states(40, seed=6)
    noisy = x + torch.randn(x.shape, generator=torch.Generator().manual_seed(1), dtype=x.dtype)
    quiet, busy = (robust.solve(v).u[0].norm(dim=1) for v in (x, noisy))
    assert busy.median() > 3 * quiet.median()
    alone = torch.cat([robust(one) for one in noisy.split(1)])
    assert torch.allclose(alone, robust(noisy))
    robust.save(tmp_path / "tail.safetensors")
    back = clcnn.load(tmp_path / "tail.safetensors", net)
    assert torch.equal(back(noisy), robust(noisy))
    assert type(back.embeddings[0].of) is type(robust.embeddings[0].of)
    exact = robust.configure(grad="unroll")
    leaf = noisy[:2].clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda v: exact(v), leaf, atol=1e-4, rtol=1e-3)


def test_the_share_that_a_residual_shows_is_measured_where_it_is_not_known() -> None:
    class Halved(clcnn.Embedding):
        """E(x) = x / 2: half of any noise is seen, a quarter of its energy."""

        def fit(self, states):  # type: ignore[no-untyped-def]
            list(states)
            return self

        def project(self, x: Tensor) -> Tensor:
            return x / 2

    fitted = TailEmbedding(Halved()).fit(states(400))
    assert float(fitted.visible) == pytest.approx(0.25, rel=0.1)


@pytest.mark.parametrize("seed", range(8))
def test_a_last_batch_with_nobody_held_out(seed: int) -> None:
    x = states(101)
    fitted = TailEmbedding(LinearEmbedding(rank=RANK), seed=seed).fit(list(x.split(20)))
    whole = TailEmbedding(LinearEmbedding(rank=RANK), seed=seed).fit(x)
    assert float(fitted.tail) == pytest.approx(float(whole.tail))


def test_what_cannot_be_fitted_is_refused() -> None:
    with pytest.raises(DataError, match="without levels of its own"):
        TailEmbedding(clcnn.SpectralEmbedding())
    with pytest.raises(DataError, match="share between 0 and 1"):
        TailEmbedding(holdout=1.0)
    with pytest.raises(FitError, match="9 samples found, expected at least 10"):
        TailEmbedding().fit(states(9))
    with pytest.raises(FitError, match="leaves nothing over"):
        TailEmbedding(LinearEmbedding(rank=D)).fit(states(400))
    with pytest.raises(FitError, match="before it was fitted"):
        TailEmbedding().levels(states(3))
    fitted = TailEmbedding(LinearEmbedding(rank=3)).fit(states(100))
    packed, tensors = pack_embedding(fitted), dict(fitted.state_dict())
    del tensors["tail"]
    with pytest.raises(LoadError, match="saved tensors of a TailEmbedding"):
        unpack_embedding(packed, tensors, (D,), {})
    with pytest.raises(clcnn.SolveError, match="TailEmbedding"):
        clcnn.control(
            nn.Sequential(nn.Linear(D, 3)).double().eval(),
            ["input"],
            embedding=LinearEmbedding(rank=3),
            solver=Feedback(),
        ).fit(states(50))(states(2))
