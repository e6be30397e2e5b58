"""The whole spectrum: variances, levels by maximum likelihood, what the network is sensitive to."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import nn

import clcnn
from clcnn import Feedback, SpectralEmbedding
from clcnn.embeddings.spectrum import Levels
from clcnn.errors import DataError, FitError, LoadError

SHAPE = (2, 6, 5)
D = 60


def clean(n: int, seed: int = 0) -> torch.Tensor:
    """Separable Gaussian states with variances over four decades, around 0.5."""
    generator = torch.Generator().manual_seed(99)
    bases = []
    for size in SHAPE:
        rough = torch.randn(size, size, generator=generator, dtype=torch.float64)
        bases.append(torch.linalg.qr(rough)[0])
    generator.manual_seed(seed)
    x = torch.randn(n, *SHAPE, generator=generator, dtype=torch.float64)
    scales = [torch.logspace(0, -1, size, dtype=torch.float64) for size in SHAPE]
    x = torch.einsum("nabc,a,b,c->nabc", x, *scales)
    return 0.5 + torch.einsum("nabc,ia,jb,kc->nijk", x, *bases)


@pytest.fixture(scope="module")
def fitted() -> SpectralEmbedding:
    embedding = SpectralEmbedding().fit([clean(2000)])
    generator = torch.Generator().manual_seed(5)
    k = torch.rand(D, generator=generator, dtype=torch.float64) ** 4
    embedding.sensitivity = k / k.mean()
    return embedding


def test_a_full_orthonormal_basis_and_its_variances() -> None:
    x = clean(500)
    embedding = SpectralEmbedding().fit(list(x.split(90)))
    z = embedding.coefficients(x)
    centred = (x - x.mean(0)).flatten(1)
    torch.testing.assert_close(z.square().sum(1), centred.square().sum(1))
    torch.testing.assert_close(z.var(0), embedding.variances)
    covariance = torch.from_numpy(np.cov(centred.T.numpy()))
    assert torch.linalg.eigvalsh(covariance).max() >= embedding.variances.max() * (1 - 1e-9)
    assert torch.equal(SpectralEmbedding().fit(iter(x.split(90))).variances, embedding.variances)


def test_levels_are_the_likelihoods_maximum(fitted: SpectralEmbedding) -> None:
    generator = torch.Generator().manual_seed(1)
    lam, k = fitted.variances.numpy(), fitted.sensitivity.numpy()
    true = [(0.0, 0.0), (0.02, 0.0), (0.0, 0.05), (0.01, 0.03), (0.05, 0.1)]
    z = torch.stack(
        [
            torch.randn(D, generator=generator, dtype=torch.float64)
            .clamp(-2.5, 2.5)
            .mul(torch.from_numpy(lam + s + k * g).sqrt())
            for s, g in true
            for _ in range(4)
        ]
    )
    found = fitted.levels_of(z)

    def minus_log_likelihood(levels: np.ndarray, squares: np.ndarray) -> float:
        v = lam + levels[0] + k * levels[1]
        return float(np.sum(np.log(v) + squares / v))

    for place, row in enumerate(z.numpy()):
        best = min(
            (
                minimize(
                    minus_log_likelihood,
                    start,
                    args=(row**2,),
                    bounds=[(0, None), (0, None)],
                    method="L-BFGS-B",
                    options={"ftol": 1e-14, "gtol": 1e-10},
                )
                for start in ([1e-3, 1e-3], [0.1, 0.1], [0.3, 0.0], [0.0, 0.5])
            ),
            key=lambda one: one.fun,
        )
        ours = np.array([float(found.white[place]), float(found.sensitive[place])])
        lost = minus_log_likelihood(ours, row**2) - best.fun
        assert -1e-6 <= lost < 0.6, (place, ours, best.x)  # of a sum over 60 coefficients


def test_levels_are_right_on_average() -> None:
    embedding = SpectralEmbedding().fit([clean(4000)])
    generator = torch.Generator().manual_seed(2)
    x = clean(200, seed=1)
    noise = torch.randn(x.shape, generator=generator, dtype=torch.float64)
    for std in (0.05, 0.2):
        white = embedding.levels(x + std * noise).white
        assert float(white.median()) == pytest.approx(std**2, rel=0.25)
    assert float(embedding.levels(x).white.median()) < 0.05**2 / 10


def test_one_shape_is_all_white() -> None:
    """Without gradients k = 1, which nothing tells from white noise."""
    embedding = SpectralEmbedding().fit([clean(300)])
    levels = embedding.levels(clean(20, seed=3))
    assert torch.equal(levels.sensitive, torch.zeros(20, dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_directions_that_clean_states_never_use_say_nothing(dtype: torch.dtype) -> None:
    # a channel that is always 0 (behind a ReLU, say) and a border of zeros
    x = torch.zeros(1500, 3, 8, 7, dtype=dtype)
    x[:, :2, 1:7, 1:6] = clean(1500).to(dtype)
    padded = SpectralEmbedding().fit([x])
    noise = torch.randn(100, *SHAPE, generator=torch.Generator().manual_seed(3), dtype=dtype)
    perturbed = x[:100].clone()
    perturbed[:, :2, 1:7, 1:6] += 0.1 * noise
    whole = SpectralEmbedding().fit([clean(1500).to(dtype)])
    expected = whole.levels(perturbed[:, :2, 1:7, 1:6]).white
    assert float(expected.median()) == pytest.approx(0.01, rel=0.2)
    torch.testing.assert_close(padded.levels(perturbed).white, expected, rtol=1e-3, atol=1e-6)
    assert (padded.departure(perturbed) > padded.departure(x[:100]).max()).double().mean() > 0.9
    torch.testing.assert_close(
        padded.departure(perturbed),
        whole.departure(perturbed[:, :2, 1:7, 1:6]),
        rtol=1e-2,
        atol=1e-2,
    )


def test_a_gradient_where_no_clean_state_shows_a_level() -> None:
    embedding = SpectralEmbedding().fit([clean(500).float()])
    embedding.clean_level = torch.tensor(0.0)
    s = torch.tensor([1e-3, 5.0, 1e4], requires_grad=True)
    taken = embedding.taken_for(Levels(s, torch.zeros_like(s)), 16.0)
    (slope,) = torch.autograd.grad(taken.sum(), s)
    assert taken.isfinite().all()
    assert slope.isfinite().all()


def test_the_pull_solves_its_quadratic_problem(fitted: SpectralEmbedding) -> None:
    z = fitted.coefficients(clean(5, seed=4))
    white, sensitive = torch.full((5,), 0.02).double(), torch.linspace(0.01, 0.4, 5).double()
    u = fitted.coefficients(
        fitted.pull(z, white, sensitive) + fitted.mean.view(SHAPE)
    ).requires_grad_()
    n = white[:, None] + fitted.sensitivity * sensitive[:, None]
    loss = ((z + u).square() / fitted.variances + u.square() / n).sum()
    (slope,) = torch.autograd.grad(loss, u)
    assert slope.abs().max() < 1e-9 * (z.abs() / fitted.variances).max()


def test_it_hears_what_a_linear_network_answers_to() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(D, 2).double()).eval()
    x = clean(400)
    robust = clcnn.control(network, ["input"], embedding=SpectralEmbedding(), solver=Feedback())
    embedding = robust.fit(x).embeddings[0]
    assert isinstance(embedding, SpectralEmbedding)
    weight = network[1].weight.detach()
    direction = (weight[0] - weight[1]).view(1, *SHAPE)
    k = embedding.coefficients(direction + embedding.mean.view(1, *SHAPE)).square().squeeze(0)
    torch.testing.assert_close(embedding.sensitivity, k * (D / k.sum()))
    assert float(embedding.sensitivity.mean()) == pytest.approx(1.0)


def test_what_cannot_be_heard() -> None:
    x = clean(30)
    deaf = nn.Sequential(nn.Flatten(), nn.Linear(D, 3).double()).eval()
    nn.init.zeros_(deaf[1].weight)
    robust = clcnn.control(deaf, ["input"], embedding=SpectralEmbedding(), solver=Feedback())
    with pytest.raises(FitError, match=r"at cut 'input': no gradient .* other than zero"):
        robust.fit(x)
    network = nn.Sequential(nn.Flatten(), nn.Linear(D, 3).double()).eval()
    robust = clcnn.control(network, ["input"], embedding=SpectralEmbedding(), solver=Feedback())
    with pytest.raises(FitError, match="iterated only once"):
        robust.fit(iter([x]))
    one = nn.Sequential(nn.Flatten(), nn.Linear(D, 1).double()).eval()
    robust = clcnn.control(one, ["input"], embedding=SpectralEmbedding(), solver=Feedback())
    with pytest.raises(FitError, match="at least two classes"):
        robust.fit(x)


def test_what_was_learned_is_restored(fitted: SpectralEmbedding) -> None:
    tensors = fitted.state_dict()
    back = SpectralEmbedding(**fitted.config()).restore(tensors, SHAPE)
    x = clean(3, seed=9)
    assert torch.equal(back.project(x), fitted.project(x))
    with pytest.raises(LoadError, match=r"SpectralEmbedding for states of shape \(2, 6, 4\)"):
        SpectralEmbedding().restore(tensors, (2, 6, 4))


def bordered() -> torch.Tensor:
    """Clean states with a row that is always empty."""
    x = clean(200).float()
    x[:, :, 0] = 0
    return x


def test_a_control_that_is_moved_to_more_digits_stays_what_it_was() -> None:
    x = bordered()
    embedding = SpectralEmbedding().fit([x])
    noisy = x[:16] + 0.1 * torch.randn(x[:16].shape, generator=torch.Generator().manual_seed(1))
    noisy[:, :, 0] = 0  # nothing reaches the border
    before = embedding.levels(noisy).white
    assert (before > 1e-3).all()
    after = embedding.double().levels(noisy.double()).white
    torch.testing.assert_close(after.float(), before, rtol=1e-3, atol=1e-6)
    again = SpectralEmbedding().fit([x.double()]).levels(noisy.double()).white
    torch.testing.assert_close(again.float(), before, rtol=1e-2, atol=1e-5)
    for dtype in (torch.float16, torch.bfloat16):
        with pytest.raises(DataError, match=f"found {dtype} states; expected float32"):
            SpectralEmbedding().fit([x.to(dtype)])


def test_what_is_not_fitted_or_no_setting_says_so() -> None:
    with pytest.raises(FitError, match="not fitted"):
        SpectralEmbedding().mean_variance  # noqa: B018
    with pytest.raises(FitError, match="not fitted"):
        clcnn.TailEmbedding().mean_variance  # noqa: B018
    with pytest.raises(DataError, match="found memory=-1"):
        SpectralEmbedding(memory=-1)
    for settings, words in (
        ({"of": "auto"}, "found of='auto'"),
        ({"of": clcnn.LinearEmbedding}, "expected an embedding, such as"),
        ({"holdout": "a"}, "found holdout='a'"),
    ):
        with pytest.raises(DataError, match=words):
            clcnn.TailEmbedding(**settings)  # type: ignore[arg-type]
    for settings, words in (
        ({"widths": 24}, "found widths=24"),
        ({"strengths": 5}, "strengths=5"),
        ({"lr": "a"}, "found lr='a'"),
        ({"seed": "a"}, "found seed='a'"),
        ({"seed": 2**70}, "expected a whole number from 0"),
    ):
        with pytest.raises(DataError, match=words):
            clcnn.RefinedEmbedding(**settings)  # type: ignore[arg-type]
