"""Every embedding passes the one suite: the shipped ones, and one written by a third party."""

from __future__ import annotations

import pytest
import torch
from conformance import CHECKS, Case

from clcnn.embeddings import (
    AutoencoderEmbedding,
    Embedding,
    FrequencyEmbedding,
    LinearEmbedding,
    PatchEmbedding,
    SeparableEmbedding,
)
from clcnn.errors import DataError, FitError


class SphereEmbedding(Embedding):
    """E(x) = mean + radius (x - mean) / ||x - mean||: what a newcomer writes, and no more."""

    def __init__(self, stretch: float = 1.0) -> None:
        super().__init__()
        self.stretch = stretch

    def fit(self, states):
        x = torch.cat([batch.clone() for batch in states])
        self.register_buffer("mean", x.mean(0))
        distance = (x - self.mean).flatten(1).norm(dim=1).mean()
        self.register_buffer("radius", self.stretch * distance)
        return self

    def project(self, x):
        offset = x - self.mean
        norm = offset.flatten(1).norm(dim=1).reshape(-1, *[1] * (x.ndim - 1))
        return self.mean + self.radius * offset / norm


def autoencoder(**settings):
    return lambda: AutoencoderEmbedding(epochs=4, batch_size=16, **settings)


OWN = [
    Case("linear-energy", lambda: LinearEmbedding(energy=0.9), (2, 3, 4)),
    Case("linear-default", LinearEmbedding, (7,)),
    Case("linear-rank", lambda: LinearEmbedding(rank=3), (3, 4)),
    Case("linear-singular", lambda: LinearEmbedding(singular=0.8), (2, 3, 3)),
    Case("linear-gram", lambda: LinearEmbedding(energy=0.9), (3, 6, 6), n=40),
    Case("linear-randomised", lambda: LinearEmbedding(rank=3, memory=40_000), (3, 6, 6), n=150),
    Case("separable-energy", lambda: SeparableEmbedding(energy=0.9), (2, 3, 4)),
    Case("separable-default", SeparableEmbedding, (3, 6)),
    Case("separable-rank", lambda: SeparableEmbedding(rank=5), (2, 4, 3, 2)),
    Case("separable-flat", lambda: SeparableEmbedding(rank=3), (7,)),
    Case("patch-energy", lambda: PatchEmbedding(2, energy=0.9), (2, 4, 6)),
    Case("patch-rank", lambda: PatchEmbedding(3, rank=8), (2, 6)),
    Case("patch-channels", lambda: PatchEmbedding(1, rank=24), (3, 4, 3)),
    Case("patch-default", PatchEmbedding, (3, 8, 8)),
    Case("frequency-energy", lambda: FrequencyEmbedding(2, energy=0.9), (2, 4, 6)),
    Case("frequency-most", lambda: FrequencyEmbedding(2, rank=13), (2, 4, 2)),
    Case("frequency-signal", lambda: FrequencyEmbedding(3, rank=8), (2, 6)),
    Case("frequency-single", lambda: FrequencyEmbedding(1, rank=5), (3, 4, 3, 2)),
    Case("frequency-default", FrequencyEmbedding, (3, 8, 8)),
    Case("autoencoder-image", autoencoder(channels=(6, 8)), (2, 8, 8)),
    Case("autoencoder-padded", autoencoder(), (1, 6, 7)),
    Case("autoencoder-flat", autoencoder(hidden=(16, 8), latent=2), (5,)),
    Case("autoencoder-tokens", autoencoder(hidden=[12]), (3, 4)),
]
THIRD_PARTY = Case("third-party", SphereEmbedding, (2, 3, 4))


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__[6:])
@pytest.mark.parametrize("case", [*OWN, THIRD_PARTY], ids=lambda case: case.name)
def test_conforms(case, check):
    check(case)


@pytest.mark.parametrize("case", OWN, ids=lambda case: case.name)
class TestErrorsOfOurOwn:
    """A third party may raise what it likes; ours say what was found, expected, and to do."""

    def test_before_fit(self, case):
        for method in ("project", "residual", "energy"):
            with pytest.raises(FitError, match=r"before it was fitted. Call fit"):
                getattr(case.make(), method)(case.some())

    def test_wrong_shape(self, case):
        wrong = torch.zeros(5, *case.shape[:-1], case.shape[-1] + 3, dtype=torch.float64)
        for method in ("project", "residual", "energy"):
            with pytest.raises(DataError, match="expected"):
                getattr(case.fit(), method)(wrong)

    def test_wrong_dtype(self, case):
        with pytest.raises(DataError, match=r"float64.*\.to\(dtype\)"):
            case.fit(torch.float32).project(case.some(torch.float64))

    def test_empty_stream(self, case):
        for empty in ([], iter([]), [torch.zeros(0, *case.shape)], torch.zeros(0, *case.shape)):
            with pytest.raises(FitError, match="are empty"):
                case.make().fit(empty)

    def test_single_sample(self, case):
        with pytest.raises(FitError, match="hold 1 sample"):
            case.make().fit([torch.rand(1, *case.shape)])

    @pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
    def test_not_finite(self, case, bad):
        states = case.states()
        states[1][4].view(-1)[-1] = bad
        with pytest.raises(DataError, match=r"batch 1 .* 1 of its 17 samples \(4\)"):
            case.make().fit(states)

    def test_zero_variance(self, case):
        generator = torch.Generator().manual_seed(0)
        same = 1e3 * torch.rand(case.shape, generator=generator).expand(case.n, *case.shape)
        for dtype in (torch.float32, torch.float64):
            with pytest.raises(FitError, match="zero variance: all samples are equal"):
                case.make().fit(list(same.to(dtype).split(7)))
        with pytest.raises(FitError, match="zero variance"):
            case.make().fit(torch.zeros_like(same))

    def test_batches_that_differ(self, case):
        states = case.states()
        with pytest.raises(DataError, match=r"batch 1 .* one shape and dtype"):
            case.make().fit([states[0], states[1].float()])
        with pytest.raises(DataError, match=r"batch 1 .* one shape and dtype"):
            case.make().fit([states[0], states[1][..., :-1]])

    def test_what_is_no_batch(self, case):
        x = case.states()[0]
        with pytest.raises(DataError, match="is a tuple, expected a tensor"):
            case.make().fit([(x, torch.zeros(17))])
        with pytest.raises(DataError, match=r"int64.*x.float\(\) / 255"):
            case.make().fit([x.long()])
        with pytest.raises(DataError, match="Add the batch dimension"):
            case.make().fit([torch.rand(17)])
        with pytest.raises(DataError, match="Add the batch dimension"):
            case.make().fit(torch.rand(17))


@pytest.mark.parametrize("case", OWN, ids=lambda case: case.name)
def test_one_tensor_and_an_iterator_are_fitted_too(case):
    states = case.states()
    for one in (torch.cat(states), iter(states)):
        if case.name == "linear-randomised" and not isinstance(one, torch.Tensor):
            continue  # several passes: tested to raise in test_linear.py
        fitted = case.make().fit(one)
        torch.testing.assert_close(
            fitted.project(case.some()), case.fit().project(case.some()), rtol=1e-4, atol=1e-4
        )


@pytest.mark.parametrize("case", OWN, ids=lambda case: case.name)
def test_a_fit_inside_inference_mode_can_be_differentiated_outside(case):
    with torch.inference_mode():
        fitted = case.make().fit([batch + 0 for batch in case.states()])
    x = case.some().requires_grad_()
    (gradient,) = torch.autograd.grad(fitted.energy(x).sum(), x)
    (expected,) = torch.autograd.grad(case.fit().energy(x).sum(), x)
    assert torch.equal(gradient, expected)


def test_the_suite_can_fail():
    class Leaky(SphereEmbedding):
        """Centres with the batch at hand, the mistake the suite is there to find."""

        def project(self, x):
            return super().project(x) - x.mean(0) + self.mean

    case = Case("leaky", Leaky, (4,))
    check = next(check for check in CHECKS if check.__name__ == "check_each_sample_by_itself")
    with pytest.raises(AssertionError):
        check(case)
