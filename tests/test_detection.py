"""Detection: conformal p-values, their guarantee on fresh data, the scores, what keeps them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import clcnn
from clcnn.detection import calibrated, detect
from clcnn.errors import DataError, FitError, LoadError

CUTS = ["input", "1"]


def images(n: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    rough = torch.rand(n, 1, 3, 3, generator=generator, dtype=torch.float64)
    smooth = nn.functional.interpolate(rough, size=6, mode="bilinear")
    return smooth + 0.01 * torch.randn(smooth.shape, generator=generator, dtype=torch.float64)


def noise(n: int, std: float, shape: tuple[int, ...] = (1, 6, 6)) -> Tensor:
    generator = torch.Generator().manual_seed(7)
    return std * torch.randn(n, *shape, generator=generator, dtype=torch.float64)


def network() -> nn.Module:
    torch.manual_seed(1)
    layers = [nn.Conv2d(1, 4, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(144, 4)]
    return nn.Sequential(*layers).double().eval()


def fitted(embedding: clcnn.Embedding, solver: clcnn.Solver) -> clcnn.ControlledModule:
    robust = clcnn.control(network(), CUTS, embedding=embedding, solver=solver, weights=[2.0, 0.5])
    return robust.fit(images(400, seed=0))


LINEAR = clcnn.LinearEmbedding(rank=9)
DEFENCES = [
    (clcnn.SpectralEmbedding(), clcnn.Feedback()),
    (LINEAR, clcnn.Greedy()),
    (LINEAR, clcnn.Reactive()),
    (LINEAR, clcnn.PMP(iterations=2)),
    (LINEAR, clcnn.PMP(iterations=2, start="greedy")),
    (LINEAR, clcnn.MSA(iterations=2)),
]
NAMES = ["feedback", "greedy", "reactive", "pmp", "pmp from greedy", "msa"]


@settings(max_examples=200)
@given(
    st.lists(st.integers(0, 6), min_size=1, max_size=30),
    st.lists(st.integers(-1, 7), min_size=1, max_size=5),
)
def test_p_values_count_the_clean_scores_that_are_as_high(clean: list[int], new: list[int]) -> None:
    scores = calibrated(torch.tensor(clean, dtype=torch.float64), alpha=0.9)
    found = detect(torch.tensor(new, dtype=torch.float64), scores, alpha=0.5)
    by_hand = [(1 + sum(c >= s for c in clean)) / (len(clean) + 1) for s in new]
    assert found.p_value.tolist() == pytest.approx(by_hand)
    assert found.flagged.tolist() == [p <= 0.5 for p in by_hand]


@pytest.mark.parametrize(("n", "alpha"), [(19, 0.05), (30, 0.05), (99, 0.1)])
def test_clean_data_are_flagged_no_more_often_than_promised(n: int, alpha: float) -> None:
    # Exact for a continuous score: P(flagged) = floor(alpha (n + 1)) / (n + 1).
    generator = torch.Generator().manual_seed(0)
    draws = torch.randn(20_000, n + 1, generator=generator, dtype=torch.float64).exp()
    flagged = [
        bool(detect(row[:1], calibrated(row[1:], alpha), alpha).flagged) for row in draws[:4000]
    ]
    promised = int(alpha * (n + 1) + 1e-9) / (n + 1)
    assert promised <= alpha
    rate = sum(flagged) / len(flagged)
    assert abs(rate - promised) < 4 * (promised * (1 - promised) / len(flagged)) ** 0.5


def test_on_fresh_images_of_the_sample_the_rate_keeps_its_guarantee() -> None:
    sample = clcnn.data.sample()
    x, fresh = sample.train[0], sample.test[0]
    robust = clcnn.control(
        clcnn.models.load("resnet20-cifar10"),
        ["input"],
        embedding=clcnn.SpectralEmbedding(),
        solver=clcnn.Feedback(),
    ).fit(x[:600])
    p = robust.calibrate(x[600:1200]).detect(fresh[:600]).p_value
    for alpha in (0.05, 0.15):
        # No more than the share of clean images that score above 0: beyond, ties enlarge p.
        # Both the calibration and the fresh images are 600 draws: the rate's variance is twice a
        # binomial's, and three of its standard deviations are allowed.
        rate = float((p <= alpha).double().mean())
        assert abs(rate - alpha) < 3 * (2 * alpha * (1 - alpha) / 600) ** 0.5
    noisy = (fresh[:100] + noise(100, 0.08, (3, 32, 32)).float()).clamp(0, 1)
    assert robust.detect(noisy).flagged.double().mean() > 0.7


@pytest.mark.parametrize(("embedding", "solver"), DEFENCES, ids=NAMES)
def test_perturbed_samples_are_flagged_each_by_itself(
    embedding: clcnn.Embedding, solver: clcnn.Solver
) -> None:
    robust = fitted(embedding, solver).calibrate(images(200, seed=1))
    x = images(50, seed=2)
    x[25:] += noise(25, 0.15)
    found = robust.detect(x)
    assert found.flagged[25:].all()
    assert found.flagged[:25].double().mean() < 0.25
    alone = torch.cat([robust.detect(one).score for one in x.split(1)])
    assert torch.allclose(alone, found.score, rtol=1e-9)
    assert torch.equal(found.score, robust.solve(x).score)


def test_an_iterative_solver_scores_by_J_without_control() -> None:
    robust = fitted(LINEAR, clcnn.PMP(iterations=4))
    x = images(20, seed=3)
    idle = robust.configure(solver=clcnn.PMP(iterations=0)).solve(x)
    assert torch.equal(idle.score, idle.J)
    tolerance = float(idle.J.median())
    for solver in (
        robust.solver,
        clcnn.PMP(iterations=4, tolerance=tolerance),
        clcnn.PMP(iterations=2, start="greedy"),
    ):
        found = robust.configure(solver=solver).solve(x)
        assert torch.allclose(found.score, idle.J, rtol=1e-9)


def test_greedy_scores_the_states_that_arrive() -> None:
    robust = fitted(LINEAR, clcnn.Greedy())
    x = images(20, seed=3)
    solution = robust.solve(x)
    first, second = robust.embeddings
    arriving = robust.model[0](x + solution.u[0])
    by_hand = 2.0 * first.energy(x) + 0.5 * second.energy(arriving)
    assert torch.allclose(solution.score, by_hand)
    reactive = robust.configure(solver=clcnn.Reactive()).solve(x)
    assert torch.allclose(reactive.score, 2.0 * first.energy(x))


def test_the_spectral_departure_is_twice_a_log_likelihood_ratio() -> None:
    robust = fitted(clcnn.SpectralEmbedding(), clcnn.Feedback())
    E = robust.embeddings[0]
    x = images(30, seed=4)
    x[10:] += noise(20, 0.05)
    z, levels = E.coefficients(x), E.levels(x)
    perturbation = levels.white[:, None] + E.sensitivity * levels.sensitive[:, None]

    def log_p(variance: Tensor) -> Tensor:
        normal = torch.distributions.Normal(torch.zeros(()).double(), variance.sqrt())
        return normal.log_prob(z).sum(1)

    ratio = 2 * (log_p(E.variances + perturbation) - log_p(E.variances.expand_as(perturbation)))
    typical = (z.square() < 10 * (E.variances + perturbation)).all(1)
    assert typical.sum() > 15
    assert torch.allclose(E.departure(x)[typical], ratio[typical], rtol=1e-6, atol=1e-6)


def test_an_attacker_gets_the_gradient_of_the_score() -> None:
    robust = fitted(clcnn.SpectralEmbedding(), clcnn.Feedback())
    x = images(1, seed=5) + 0.05

    def score(v: Tensor) -> Tensor:
        return robust.solve(v, unroll=True).score

    assert torch.autograd.gradcheck(score, x.clone().requires_grad_(), atol=1e-4, rtol=1e-3)


def test_fewer_digits_than_the_calibration_had_are_refused() -> None:
    clean = torch.arange(20.0)
    with pytest.raises(FitError, match="Calibrate again after a change of dtype"):
        detect(torch.ones(2, dtype=torch.bfloat16), clean, 0.1)
    assert detect(torch.ones(2, dtype=torch.float64), clean, 0.1).flagged.tolist() == [False, False]


def test_a_change_of_what_is_scored_forgets_the_calibration_and_others_keep_it() -> None:
    robust = fitted(LINEAR, clcnn.Greedy()).calibrate(images(60, seed=1))
    x = images(5, seed=2)
    same = robust.configure(grad="straight_through")
    assert torch.equal(same.detect(x).p_value, robust.detect(x).p_value)
    moved = robust.configure(regularization=1.0)
    assert not torch.allclose(moved.solve(x).score, robust.solve(x).score), "R moves later states"
    others = (robust.configure(solver=clcnn.Reactive()), robust.configure(weights="mean"), moved)
    for other in others:
        with pytest.raises(FitError, match="not calibrated"):
            other.detect(x)
    assert len(robust.detect(x).score) == 5  # the first one is as it was
    with pytest.raises(FitError, match="not calibrated"):
        robust.fit(images(100, seed=9)).detect(x)


def test_a_file_keeps_the_calibration(tmp_path: Path) -> None:
    robust = fitted(LINEAR, clcnn.Greedy()).calibrate(images(60, seed=1), alpha=0.1)
    robust.save(tmp_path / "robust.safetensors")
    back = clcnn.load(tmp_path / "robust.safetensors", network())
    x = images(20, seed=2)
    assert back.alpha == 0.1
    assert torch.equal(back.detect(x).p_value, robust.detect(x).p_value)
    fitted(LINEAR, clcnn.Greedy()).save(tmp_path / "plain.safetensors")
    with pytest.raises(FitError, match="not calibrated"):
        clcnn.load(tmp_path / "plain.safetensors", network()).detect(x)


def test_a_file_without_its_scores_is_refused(tmp_path: Path) -> None:
    from clcnn import persistence

    robust = fitted(LINEAR, clcnn.Greedy()).calibrate(images(60, seed=1))
    robust.save(tmp_path / "robust.safetensors")
    header, tensors = persistence.read(tmp_path / "robust.safetensors")
    del tensors["clean_scores"]
    persistence.write(tmp_path / "cut.safetensors", header, tensors)
    with pytest.raises(LoadError, match="damaged"):
        clcnn.load(tmp_path / "cut.safetensors", network())


def test_what_cannot_be_calibrated_is_refused() -> None:
    robust = fitted(LINEAR, clcnn.Greedy())
    with pytest.raises(DataError, match="at least 19"):
        robust.calibrate(images(18, seed=1))
    for alpha in (0.0, 1.0, -0.1, 5):
        with pytest.raises(DataError, match="between 0 and 1"):
            robust.calibrate(images(60, seed=1), alpha=alpha)
    with pytest.raises(FitError, match="not finite"):
        calibrated(torch.tensor([1.0, float("nan")] * 20), 0.1)
    with pytest.raises(FitError, match="not calibrated"):
        robust.detect(images(2, seed=1))


def test_a_score_that_is_not_finite_is_flagged_and_an_empty_batch_is_empty() -> None:
    clean = calibrated(torch.arange(40.0), 0.05)
    found = detect(torch.tensor([float("nan"), float("inf"), 3.0]), clean, 0.05)
    assert found.flagged.tolist() == [True, True, False]
    robust = fitted(LINEAR, clcnn.PMP(iterations=1)).calibrate(images(60, seed=1))
    assert robust.detect(images(4, seed=1)[:0]).flagged.shape == (0,)
    assert "0 of 0" in repr(robust.detect(images(4, seed=1)[:0]))
