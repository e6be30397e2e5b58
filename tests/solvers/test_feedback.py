"""Feedback: the stated problem, its limits, each sample by itself, gradients, files."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import clcnn
from clcnn import Feedback, Greedy, LinearEmbedding, SpectralEmbedding
from clcnn.embeddings.spectrum import Levels
from clcnn.errors import SolveError

SHAPE = (1, 6, 6)


def images(n: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    rough = torch.rand(n, 1, 3, 3, generator=generator, dtype=torch.float64)
    return nn.functional.interpolate(rough, size=6, mode="bilinear")


def network() -> nn.Module:
    torch.manual_seed(1)
    layers = [nn.Conv2d(1, 4, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(144, 4)]
    return nn.Sequential(*layers).double().eval()


@pytest.fixture(scope="module")
def robust() -> clcnn.ControlledModule:
    return clcnn.control(
        network(), ["input", "1"], embedding=SpectralEmbedding(), solver=Feedback()
    ).fit(images(400))


def noise(n: int, std: float) -> torch.Tensor:
    generator = torch.Generator().manual_seed(7)
    return std * torch.randn(n, *SHAPE, generator=generator, dtype=torch.float64)


def test_clean_samples_are_left_alone_and_perturbed_ones_pulled_back(
    robust: clcnn.ControlledModule,
) -> None:
    x = images(200, seed=1)
    perturbed = x + noise(200, 0.1)
    quiet, busy = (robust.solve(v).u[0].flatten(1).norm(dim=1) for v in (x, perturbed))
    assert busy.median() > 20 * quiet.median()
    restored = perturbed + robust.solve(perturbed).u[0]
    assert (restored - x).norm() < 0.8 * (perturbed - x).norm()


def test_more_strength_is_more_control_up_to_the_ceiling(robust: clcnn.ControlledModule) -> None:
    x = images(40, seed=2) + noise(40, 0.05)
    sizes = []
    for strength in (0, 4, 16, 64, 1e9):
        one = robust.configure(solver=Feedback(strength=strength))
        sizes.append(float(one.solve(x).u[0].norm()))
    assert sizes == sorted(sizes)
    embedding = robust.embeddings[0]
    assert isinstance(embedding, SpectralEmbedding)
    feigned = Levels(*(torch.full((1,), 1e12, dtype=torch.float64) for _ in range(2)))
    taken = Feedback(strength=1e9, ceiling=0.3).taken_for(feigned, embedding)
    assert float(taken) <= 0.3 * float(embedding.variances.mean()) * (1 + 1e-9)


def test_honest_noise_raises_less_suspicion(robust: clcnn.ControlledModule) -> None:
    embedding = copy.deepcopy(robust.embeddings[0])
    assert isinstance(embedding, SpectralEmbedding)
    embedding.clean_level = torch.tensor(1e-4, dtype=torch.float64)
    s = embedding.clean_level * torch.tensor([1.0, 2.0, 100.0], dtype=torch.float64)
    taken = Feedback(ceiling=1e9).taken_for(Levels(s, torch.zeros_like(s)), embedding)
    assert taken[2] < taken[0] < taken[1]


def test_it_contains_the_greedy_control(robust: clcnn.ControlledModule) -> None:
    """lambda_i infinite for i <= r and c n_i beyond gives the projection step of Greedy(c)."""
    x = images(300)
    embedding = SpectralEmbedding().fit([x])
    r, c = 5, 0.7
    order = embedding.variances.argsort(descending=True)
    n = torch.full((len(x),), 0.3, dtype=torch.float64)
    embedding.variances = torch.full_like(embedding.variances, c * 0.3)
    embedding.variances[order[:r]] = torch.inf
    z = embedding.coefficients(x)
    u = embedding.pull(z, n, torch.zeros_like(n))
    linear = LinearEmbedding(rank=r).fit([x])
    columns = torch.eye(36, dtype=torch.float64)[order[:r]]
    basis = embedding._back(columns).flatten(1).T
    linear.V, linear.mean = basis.contiguous(), embedding.mean
    torch.testing.assert_close(u, linear.residual(x) / (1 + c))
    net = network()
    greedy = clcnn.control(net, ["input"], embedding=linear, solver=Greedy(c=c)).fit(x)
    greedy.embeddings[0] = linear
    torch.testing.assert_close(greedy.solve(x).u[0], u)


def test_it_holds_back_where_the_network_goes_by_the_picture(tmp_path: Path) -> None:
    """A = mean(k lambda) / mean(lambda) for a network that looks at one known direction alone."""
    x = images(300) + noise(300, 0.03)  # no direction is empty
    centred = (x - x.mean(0)).flatten(1)
    directions = torch.linalg.eigh(centred.T @ centred)[1]
    spread = []
    for column, warned in ((-1, True), (0, False)):
        net = nn.Sequential(nn.Identity(), nn.Flatten(), nn.Linear(36, 2)).double().eval()
        with torch.no_grad():
            net[2].weight.copy_(torch.stack([directions[:, column], -directions[:, column]]))
        plain = clcnn.control(net, ["input"], embedding=SpectralEmbedding(), solver=Feedback())
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            fitted = plain.fit(x)
        assert bool([w for w in said if "authority" in str(w.message)]) == warned
        embedding = fitted.embeddings[0]
        assert isinstance(embedding, SpectralEmbedding)
        z = embedding._transform(directions[:, [column]].T).squeeze(0)
        A = 36 * float((z.square() * embedding.variances).sum() / embedding.variances.sum())
        assert float(embedding.overlap) == pytest.approx(A, rel=1e-6)
        assert float(embedding.authority) == pytest.approx(1 / (1 + (A / 1.5) ** 8), rel=1e-6)
        noisy = images(20, 3) + noise(20, 0.1)
        free = fitted.configure(solver=Feedback(authority=1))
        spread.append(float(fitted.solve(noisy).u[0].norm() / free.solve(noisy).u[0].norm()))
        off = fitted.configure(solver=Feedback(authority=0, preset="strong"))
        assert torch.equal(off(noisy), net(noisy))
        deeper = clcnn.control(net, ["1"], embedding=SpectralEmbedding(), solver=Feedback())
        deeper = deeper.fit(x)  # the same states, behind the input: no rule is known there
        assert deeper.remarks() == []
        everything = fitted.configure(solver=Feedback(authority=1))
        torch.testing.assert_close(deeper(noisy), everything(noisy))
        assert everything.remarks() == []
        by_cut = fitted.configure(solver={"input": Feedback()})
        assert by_cut.remarks() == fitted.remarks()
        assert len(fitted.remarks()) == warned
        path = tmp_path / "robust.safetensors"
        fitted.configure(solver=Feedback(authority=0.25)).save(path)
        again = clcnn.load(path, net)
        assert again.solver == Feedback(authority=0.25)
        quarter = fitted.configure(solver=Feedback(authority=0.25))
        assert torch.equal(again(noisy), quarter(noisy))
    assert spread[0] < 0.01
    assert spread[1] > 0.99


@pytest.mark.parametrize("authority", [-0.1, 1.1, "all", True])
def test_authority_is_a_share(authority: object) -> None:
    with pytest.raises(SolveError, match="authority"):
        Feedback(authority=authority)  # type: ignore[arg-type]


def test_every_sample_by_itself(robust: clcnn.ControlledModule) -> None:
    x = torch.cat([images(6, seed=3), images(6, seed=4) + noise(6, 0.2)])
    together = robust(x)
    alone = torch.cat([robust(one.unsqueeze(0)) for one in x])
    torch.testing.assert_close(together, alone, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(robust.solve(x).logits, together)
    assert robust(x[:0]).shape == (0, 4)


def test_exact_gradient_against_finite_differences(robust: clcnn.ControlledModule) -> None:
    x = images(2, seed=5) + noise(2, 0.1)
    exact = robust.configure(grad="unroll", solver=Feedback(preset="strong"))
    leaf = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(exact(leaf)[:, 0].sum(), leaf)
    direction = noise(2, 1.0)
    h = 1e-6
    with torch.no_grad():
        rise = (exact(x + h * direction) - exact(x - h * direction))[:, 0].sum() / (2 * h)
    torch.testing.assert_close((slope * direction).sum(), rise, rtol=1e-5, atol=1e-7)


def test_trust_bounds_every_entry(robust: clcnn.ControlledModule) -> None:
    x = images(20, seed=6) + noise(20, 0.3)
    assert robust.solve(x).u[0].abs().max() > 0.05
    held = robust.configure(solver=Feedback(trust=0.05)).solve(x)
    assert all(u.abs().max() <= 0.05 for u in held.u)


def test_files(robust: clcnn.ControlledModule, tmp_path: Path) -> None:
    one = robust.configure(solver=Feedback(strength=7.5, trust=0.2))
    one.save(tmp_path / "f.safetensors")
    back = clcnn.load(tmp_path / "f.safetensors", network())
    assert back.solver == Feedback(strength=7.5, trust=0.2)
    x = images(5, seed=8) + noise(5, 0.1)
    assert torch.equal(back(x), one(x))


def test_beside_other_one_pass_control(robust: clcnn.ControlledModule) -> None:
    mixed = robust.configure(solver={"input": Feedback(), "1": Greedy()})
    x = images(4, seed=9) + noise(4, 0.1)
    torch.testing.assert_close(mixed.solve(x).u[0], robust.solve(x).u[0])


def test_each_cut_may_have_its_own_one_pass_control() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(12, 10), nn.Tanh(), nn.Linear(10, 3)).eval()
    x = torch.randn(300, 4) @ torch.randn(4, 12)
    mixed = clcnn.control(
        net,
        ["input", "2"],
        embedding={"input": SpectralEmbedding(), "2": clcnn.LinearEmbedding(rank=3)},
        solver={"input": Feedback(), "2": clcnn.Greedy()},
    ).fit(x)
    assert mixed(x[:4]).shape == (4, 3)
    for given in (clcnn.LinearEmbedding(rank=3), "auto"):
        with pytest.raises(SolveError, match="at cut 'input'; Feedback needs"):
            clcnn.control(net, ["input"], embedding=given, solver=Feedback()).fit(x)


def test_what_is_asked_wrongly() -> None:
    assert Feedback(strength=np.float32(3)).strength == 3
    with pytest.raises(SolveError, match=r"Did you mean Feedback\(preset='strong'\)"):
        Feedback("strong")  # type: ignore[arg-type]
    plain = clcnn.control(network(), ["input"], embedding=LinearEmbedding(rank=3))
    plain = plain.fit(images(50)).configure(solver=Feedback())
    with pytest.raises(SolveError, match=r"LinearEmbedding at cut 'input'.*SpectralEmbedding"):
        plain(images(2))
    for wrong in ({"strength": -1}, {"strength": float("nan")}, {"suspicion": -0.1}):
        with pytest.raises(SolveError, match="expected a number of at least 0"):
            Feedback(**wrong)
    for wrong in ({"knee": 0}, {"ceiling": -1}, {"trust": 0}):
        with pytest.raises(SolveError, match="expected a number above 0"):
            Feedback(**wrong)
    with pytest.raises(SolveError, match="expected one of 'default', 'strong'"):
        Feedback(preset="weak")


def test_with_a_floor_alone_it_is_one_linear_map_for_all_samples_below_it(
    robust: clcnn.ControlledModule,
) -> None:
    E = robust.embeddings[0]
    floor = 0.01
    fixed = robust.configure(solver=Feedback(strength=0, floor=floor))
    x = images(60, seed=3)
    x = x[E.levels(x).white < floor * E.mean_variance]
    assert len(x) > 20
    u = fixed.solve(x).u[0]
    n = floor * E.mean_variance
    by_hand = -E._back(E.coefficients(x) * (n / (E.variances + n)))
    assert torch.allclose(u, by_hand)
    loud = images(20, seed=4) + noise(20, 0.3)
    assert torch.allclose(
        fixed.solve(loud).u[0], robust.configure(solver=Feedback(strength=0)).solve(loud).u[0]
    )


def test_presets_give_strength_and_floor_and_either_may_be_set(
    robust: clcnn.ControlledModule,
) -> None:
    x = images(10, seed=5) + noise(10, 0.02)
    for preset, (strength, floor) in {"default": (16, 0), "strong": (128, 0)}.items():
        named, said = Feedback(preset=preset), Feedback(strength=strength, floor=floor)
        a, b = (robust.configure(solver=solver)(x) for solver in (named, said))
        assert torch.equal(a, b)
    with pytest.raises(SolveError, match="floor"):
        Feedback(floor=-0.1)


def test_levels_may_be_carried_from_the_first_cut_on(robust: clcnn.ControlledModule) -> None:
    x = images(30, seed=4) + noise(30, 0.1)
    carrying = robust.configure(solver=Feedback(carry=True))
    solution = carrying.solve(x)
    each = robust.solve(x)
    assert torch.equal(solution.u[0], each.u[0])  # the first cut finds its own
    at, behind = robust.embeddings
    assert isinstance(at, SpectralEmbedding)
    assert isinstance(behind, SpectralEmbedding)
    levels = at.levels(x)
    grown = behind.mean_variance / at.mean_variance
    carried = Levels(levels.white * grown, levels.sensitive * grown)
    state = network()[:1](x + solution.u[0])
    expected = behind.pull(
        behind.coefficients(state), carried.white, Feedback().taken_for(carried, behind)
    )
    assert torch.allclose(solution.u[1], expected, atol=1e-12)
    assert not torch.allclose(solution.u[1], each.u[1])
    assert torch.equal(carrying.solve(x).u[1], solution.u[1])  # nothing stays from the first call
    mixed = robust.configure(solver={"input": Greedy(), "1": Feedback(carry=True)})
    own = robust.configure(solver={"input": Greedy(), "1": Feedback()})
    assert torch.equal(mixed(x), own(x))
