"""Attackers who know of the control: exact answers, and what each of them sees."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from victims import Victim

import clcnn
from clcnn import ControlledModule
from clcnn.attacks import (
    PGD,
    Attack,
    AttackError,
    ExactGradient,
    Stealth,
    StraightThrough,
    Transfer,
    Unrolled,
    trajectory,
)
from clcnn.errors import FitError, GradientError

EPS = 0.1


def linear_under_control() -> tuple[ControlledModule, Tensor, Tensor]:
    """Two affine layers and two classes under greedy control: the logits are affine in x."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(20, 12), nn.Linear(12, 2)).eval()
    clean = 0.5 + 0.05 * torch.randn(100, 6) @ torch.randn(6, 20)
    robust = clcnn.control(
        network, ["input", "1"], embedding=clcnn.LinearEmbedding(rank=4), solver=clcnn.Greedy(c=0.2)
    ).fit(clean)
    x = 0.3 + 0.4 * torch.rand(30, 20)
    with torch.no_grad():
        return robust, x, robust(x).argmax(1)


def effective_weights(robust: ControlledModule) -> tuple[Tensor, Tensor]:
    """d logits / d x by hand: with the control's own derivative, and with u held constant."""
    W0, W1 = robust.model[0].weight.detach(), robust.model[1].weight.detach()
    step = []
    for E, d in zip(robust.embeddings, (20, 12), strict=True):
        Q = torch.eye(d) - E.V @ E.V.T
        step.append(torch.eye(d) - Q / 1.2)
    return W1 @ step[1] @ W0 @ step[0], W1 @ W0


def gap(robust: ControlledModule, x: Tensor, y: Tensor) -> Tensor:
    with torch.no_grad():
        z = robust(x)
    return z.gather(1, y[:, None]).squeeze(1) - z.gather(1, 1 - y[:, None]).squeeze(1)


@pytest.mark.parametrize("seeing", [ExactGradient, Unrolled])
def test_the_true_gradient_finds_the_optimum(seeing: type[Attack]) -> None:
    robust, x, y = linear_under_control()
    exact, _ = effective_weights(robust)
    x_adv = seeing(PGD(EPS, loss="margin"))(robust, x, y)
    drop = gap(robust, x, y) - gap(robust, x_adv, y)
    best = EPS * (exact[0] - exact[1]).abs().sum()
    assert torch.allclose(drop, best.expand(30), rtol=1e-4)


def test_straight_through_takes_the_controls_as_constants() -> None:
    robust, x, y = linear_under_control()
    exact, held = effective_weights(robust)
    x_adv = StraightThrough(PGD(EPS, loss="margin"))(robust, x, y)
    sign = (2.0 * y - 1)[:, None]  # away from the right class
    expected = -EPS * sign * (held[1] - held[0]).sign()
    assert torch.allclose(x_adv - x, expected, atol=1e-6)
    drop = gap(robust, x, y) - gap(robust, x_adv, y)
    assert (drop < EPS * (exact[0] - exact[1]).abs().sum()).all()  # it pays for what it ignores


def test_transfer_is_the_attack_on_the_source_judged_on_the_target(
    victim: Victim, robust: ControlledModule
) -> None:
    x, y = victim.x[:100], victim.y[:100]
    with torch.no_grad():
        right, plain_right = robust(x).argmax(1) == y, victim.network(x).argmax(1) == y
    transferred = Transfer(PGD(EPS, steps=5))(robust, x, y)
    direct = PGD(EPS, steps=5)(victim.network, x, y)
    both = right & plain_right
    # other batches round differently, which may turn the sign of a slope that is almost zero
    assert torch.isclose(transferred[both], direct[both], atol=1e-6).float().mean() > 0.999
    assert torch.equal(transferred[~right], x[~right])
    other = robust.configure(solver=clcnn.Greedy(), grad="unroll")
    with torch.no_grad():
        both = right & (other(x).argmax(1) == y)
    x_adv = Transfer(PGD(EPS, steps=5), source=other)(robust, x, y)
    direct = PGD(EPS, steps=5)(other, x, y)
    assert torch.isclose(x_adv[both], direct[both], atol=1e-6).float().mean() > 0.999


def test_knowing_more_does_more_harm(victim: Victim, robust: ControlledModule) -> None:
    """On average over samples, the true gradient raises the loss most, that of elsewhere least."""
    x, y = victim.x[:60], victim.y[:60]
    loss = nn.CrossEntropyLoss()

    def harm(attack: Attack) -> float:
        x_adv = attack(robust, x, y)
        with torch.no_grad():
            return float(loss(robust(x_adv), y))

    oblivious = harm(Transfer(PGD(EPS, steps=10)))
    straight_through = harm(StraightThrough(PGD(EPS, steps=10)))
    unrolled = harm(Unrolled(PGD(EPS, steps=10)))
    assert oblivious < unrolled
    assert straight_through < unrolled


def excess(robust: ControlledModule, x_adv: Tensor, x: Tensor) -> Tensor:
    """sum_t max(0, r_t(x_adv) / r_t(x) - 1), the states taken without the library's callback."""
    layers = [None, robust.model.stem, nn.Sequential(robust.model.stem, robust.model.layer1)]

    def residuals(x: Tensor) -> list[Tensor]:
        states = [x if layer is None else layer(x) for layer in layers]
        pairs = zip(robust.embeddings, states, strict=True)
        return [(E.project(s) - s).flatten(1).square().sum(1) for E, s in pairs]

    with torch.no_grad():
        pairs = zip(residuals(x_adv), residuals(x), strict=True)
        return sum((now / clean - 1).clamp_min(0) for now, clean in pairs)


def test_stealth_keeps_every_residual_at_its_clean_level(
    victim: Victim, robust: ControlledModule
) -> None:
    x, y = victim.right(80)
    with torch.no_grad():
        keep = robust(x).argmax(1) == y
    x, y = x[keep], y[keep]
    quiet = Stealth(EPS)(robust, x, y)
    loud = Transfer(PGD(EPS))(robust, x, y)
    assert excess(robust, quiet, x).median() < 0.05
    assert excess(robust, loud, x).median() > 5 * excess(robust, quiet, x).median()
    loss = nn.CrossEntropyLoss()
    with torch.no_grad():
        assert loss(victim.network(quiet), y) > 1.2 * loss(victim.network(x), y)
    z, r = trajectory(robust, x)
    assert torch.equal(z, victim.network(x))
    assert r.shape == (len(x), 3)


def test_stealth_against_an_embedding_that_sees_nothing_in_clean_images() -> None:
    """Feedback's levels are 0 on most clean images: no share of that can be a measure."""
    robust = clcnn.models.hardened("resnet20-cifar10", "strong")
    x, y = (part[:24] for part in clcnn.data.sample("cifar10").test)
    with torch.no_grad():
        z, r = trajectory(robust, x)
    unseen = (r[:, 0] == 0) & (z.argmax(1) == y)
    x, y = x[unseen], y[unseen]
    assert len(x) > 8
    eps = 4 / 255
    with torch.no_grad():
        quiet = Stealth(eps, steps=15)(robust, x, y)
        loud = Transfer(PGD(eps))(robust, x, y)
        z, seen = trajectory(robust, quiet)
        assert (z.argmax(1) != y).double().mean() > 0.8
        assert seen.median() < 0.5 * trajectory(robust, loud)[1].median()


def test_the_multiplier_adapts(victim: Victim, robust: ControlledModule) -> None:
    """From a multiplier far too small, only an adapting one ends up quiet."""
    x, y = victim.right(40)
    adapting = Stealth(EPS, multiplier=1e-3)(robust, x, y)
    fixed = Stealth(EPS, multiplier=1e-3, adapt=1.0)(robust, x, y)
    assert excess(robust, adapting, x).mean() < 0.2 * excess(robust, fixed, x).mean()


def test_a_plain_network_is_refused(victim: Victim) -> None:
    x, y = victim.right(3)
    for attack in (
        StraightThrough(PGD(EPS)),
        Unrolled(PGD(EPS)),
        ExactGradient(PGD(EPS)),
        Transfer(PGD(EPS)),
        Stealth(EPS),
    ):
        name = type(attack).__name__
        with pytest.raises(AttackError, match=rf"{name} attacks a controlled network, found a Net"):
            attack(victim.network, x, y)
    with pytest.raises(AttackError, match=r"expected an attack with its settings"):
        StraightThrough(PGD)  # type: ignore[arg-type]


def test_exact_gradients_need_a_closed_form(victim: Victim, robust: ControlledModule) -> None:
    x, y = victim.right(3)
    with pytest.raises(AttackError, match=r"iterative solver PMP.*Use Unrolled"):
        ExactGradient(PGD(EPS))(robust, x, y)
    per_cut = {name: clcnn.Greedy(c=float(t)) for t, name in enumerate(robust.cuts)}
    ExactGradient(PGD(EPS, steps=1))(robust.configure(solver=per_cut), x, y)


def test_without_a_view_the_core_says_what_to_choose(
    victim: Victim, robust: ControlledModule
) -> None:
    x, y = victim.right(3)
    with pytest.raises(GradientError, match="straight_through"):
        PGD(EPS)(robust, x, y)
    with pytest.raises(FitError, match="fit"):
        StraightThrough(PGD(EPS))(clcnn.control(victim.network), x, y)
    source = nn.Sequential(victim.network).train()
    with pytest.raises(AttackError, match=r"call model\.eval\(\)"):
        Transfer(PGD(EPS), source=source)(robust, x, y)
    victim.network.eval()
