"""FGSM, PGD and the frame that they run in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from clcnn.attacks import CW, FGSM, PGD, Attack, AttackError, Noise
from clcnn.attacks.base import Model
from clcnn.errors import DataError

EPS = 8 / 255


def linear(seed: int = 0, classes: int = 3) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(12, classes)).eval()


def bent(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 3)).eval()


def problem(model: nn.Module, count: int = 40) -> tuple[Tensor, Tensor]:
    """Images, labelled as the model sees them, so that all start out right."""
    x = torch.rand(count, 3, 2, 2)
    with torch.no_grad():
        return x, model(x).argmax(1)


ATTACKS: list[Attack] = [
    FGSM(EPS),
    FGSM(0.5, norm="l2"),
    PGD(EPS),
    PGD(EPS, steps=3, random_start=True, restarts=3, loss="margin"),
    PGD(0.5, norm="l2", loss="dlr", steps=5, step_size=0.3),
    PGD(0.5, norm="l2", random_start=True, steps=2),
    PGD(2.0, steps=2),
]


@pytest.mark.parametrize("attack", ATTACKS, ids=repr)
def test_what_every_attack_promises(attack: Attack) -> None:
    model = bent()
    x, y = problem(model)
    x[0], x[1] = 0.0, 1.0  # at the border
    y = model(x).argmax(1)
    original = x.clone()
    x_adv = attack(model, x, y)
    assert torch.equal(x, original)
    assert not x_adv.requires_grad
    assert x_adv.dtype == x.dtype
    assert x_adv.min() >= 0
    assert x_adv.max() <= 1
    order = {"linf": float("inf"), "l2": 2.0}[attack.norm]
    distance = torch.linalg.vector_norm((x_adv - x).flatten(1), ord=order, dim=1)
    assert distance.max() <= attack.eps + 1e-6
    assert distance.max() > 0
    assert cross_entropy(model(x_adv), y) > cross_entropy(model(x), y)
    assert all(p.grad is None for p in model.parameters())
    assert torch.equal(x_adv, attack(model, x, y))  # seeded
    with torch.no_grad():  # as an evaluation would call it
        assert torch.equal(x_adv, attack(model, x, y))


def test_fgsm_is_its_formula() -> None:
    model = bent()
    x, y = problem(model)
    at = x.clone().requires_grad_()
    cross_entropy(model(at), y).backward()
    assert at.grad is not None
    by_hand = (x + EPS * at.grad.sign()).clamp(0, 1)
    assert torch.allclose(FGSM(EPS)(model, x, y), by_hand, atol=1e-6)


def test_pgd_is_its_recursion() -> None:
    model = bent()
    x, y = problem(model)
    by_hand = x.clone()
    for _ in range(6):
        at = by_hand.clone().requires_grad_()
        (slope,) = torch.autograd.grad(cross_entropy(model(at), y, reduction="sum"), at)
        moved = by_hand + EPS / 4 * slope.sign()
        by_hand = torch.minimum(torch.maximum(moved, x - EPS), x + EPS).clamp(0, 1)
    assert torch.allclose(PGD(EPS, steps=6)(model, x, y), by_hand, atol=1e-6)


class Striped(nn.Module):
    """Wrong in a narrow band, right on both sides of it, with a slope that leads beyond."""

    def forward(self, x: Tensor) -> Tensor:
        level = x.flatten(1).mean(1)
        wrong = ((level > 0.515) & (level < 0.525)).to(x)
        rising = level - level.detach()  # no value of its own, but a slope
        return torch.stack([1 - 2 * wrong - rising, rising], 1)


def test_pgd_keeps_a_success_that_it_walks_past() -> None:
    x, y = torch.full((3, 3, 2, 2), 0.5), torch.zeros(3, dtype=torch.int64)
    x[1] += 0.3  # too far from the band
    attack = PGD(0.08, steps=8, step_size=0.01)
    x_adv = attack(Striped().eval(), x, y)
    assert (Striped()(x_adv).argmax(1) != y).tolist() == [True, False, True]
    assert torch.allclose(x_adv[1], x[1] + 0.08), "where none fools, the last iterate"


class InPlace(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.sub_(0.5).div_(0.25))


@pytest.mark.parametrize("attack", [FGSM(EPS), PGD(EPS, restarts=2), Noise(EPS), CW(EPS)], ids=repr)
def test_a_model_that_writes_over_its_input_leaves_the_images_alone(attack: Attack) -> None:
    inner = bent()
    calm = nn.Sequential(Shifted(), inner).eval()
    x, y = problem(calm, 4)
    before = x.clone()
    found = attack(InPlace(inner).eval(), x, y)
    assert torch.equal(x, before)
    assert torch.allclose(found, attack(calm, x, y), atol=1e-6)


class Shifted(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x - 0.5) / 0.25


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_pgd_finds_the_optimum_of_a_linear_two_class_model(norm: str) -> None:
    """The margin moves by at most eps ||w||_*, w the difference of the rows: exact oracle."""
    model = linear(classes=2)
    weight = model[1].weight.detach()
    x, y = 0.4 + 0.2 * torch.rand(30, 3, 2, 2), torch.zeros(30, dtype=torch.int64)
    with torch.no_grad():
        y = model(x).argmax(1)
    eps = 0.2
    w = weight[0] - weight[1]
    dual = w.abs().sum() if norm == "linf" else w.norm()
    x_adv = PGD(eps, steps=40, norm=norm, loss="margin")(model, x, y)
    with torch.no_grad():
        z, z_adv = model(x), model(x_adv)
    sign = 1.0 - 2.0 * y
    drop = sign * ((z[:, 0] - z[:, 1]) - (z_adv[:, 0] - z_adv[:, 1]))
    assert torch.allclose(drop, (eps * dual).expand(30), rtol=1e-3)


def test_batches_do_not_change_the_result() -> None:
    model = bent()
    x, y = problem(model)
    whole = PGD(EPS, steps=4)(model, x, y)
    assert torch.allclose(PGD(EPS, steps=4, batch_size=7)(model, x, y), whole, atol=1e-7)


def test_restarts_only_help() -> None:
    model = bent(3)
    x, y = problem(model, 200)

    def left(attack: Attack) -> Tensor:
        with torch.no_grad():
            return model(attack(model, x, y)).argmax(1) == y

    single = left(PGD(EPS, steps=2, step_size=EPS / 2))
    several = left(PGD(EPS, steps=2, step_size=EPS / 2, restarts=5))
    assert not (several & ~single).any()


def test_epsilon_zero_returns_the_images() -> None:
    model = bent()
    x, y = problem(model)
    x_adv = PGD(0.0)(model, x, y)
    assert torch.equal(x_adv, x)
    assert x_adv is not x
    assert FGSM(EPS)(model, x[:0], y[:0]).shape == (0, 3, 2, 2)


def test_misclassified_images_come_back_unchanged() -> None:
    model = bent()
    x, y = problem(model)
    wrong = torch.arange(40) % 2 == 0
    y = torch.where(wrong, (y + 1) % 3, y)
    x_adv = PGD(EPS)(model, x, y)
    assert torch.equal(x_adv[wrong], x[wrong])
    assert (x_adv[~wrong] != x[~wrong]).flatten(1).any(1).all()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda x, y: (x, y.to(torch.int32)), "torch.int32"),
        (lambda x, y: (x, y.float()), "expected int64"),
        (lambda x, y: (x, y[:-1]), r"expected int64 class numbers of shape \(40,\)"),
        (lambda x, y: (x * 255, y), r"expected \[0, 1\]"),
        (lambda x, y: (x - 0.5, y), r"expected \[0, 1\]"),
        (lambda x, y: (x / 0 * 0, y), r"nan.*expected \[0, 1\]"),
        (lambda x, y: ((x * 255).byte(), y), "uint8"),
        (lambda x, y: (x, y + 3), "expected 0 to 2"),
    ],
)
def test_bad_input(spoil: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], message: str) -> None:
    model = bent()
    with pytest.raises(DataError, match=message):
        FGSM(EPS)(model, *spoil(*problem(model)))


def test_models_that_cannot_be_attacked() -> None:
    model = bent()
    x, y = problem(model)
    with pytest.raises(AttackError, match=r"returned tuple.*expected logits"):
        FGSM(EPS)(lambda x: (model(x), 1), x, y)  # type: ignore[arg-type,return-value]
    with pytest.raises(AttackError, match=r"returned \(120,\)"):
        FGSM(EPS)(lambda x: model(x).flatten(), x, y)
    with pytest.raises(AttackError, match="no gradient"):
        FGSM(EPS)(lambda x: model(x).detach(), x, y)
    with pytest.raises(AttackError, match=r"call model\.eval\(\)"):
        FGSM(EPS)(model.train(), x, y)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FGSM(-0.1), "expected eps >= 0"),
        (lambda: FGSM(float("nan")), "expected eps >= 0"),
        (lambda: FGSM(0.1, batch_size=0), "expected batch_size >= 1, got 0"),
        (lambda: FGSM(0.1, norm="l7"), "expected one of"),
        (lambda: PGD(0.1, steps=0), "expected steps >= 1, got 0"),
        (lambda: PGD(0.1, restarts=0), "expected restarts >= 1, got 0"),
        (lambda: PGD(0.1, step_size=0), "expected step_size > 0, finite, got 0"),
        (lambda: PGD(0.1, loss="mse"), "expected one of"),
    ],
)
def test_settings_that_make_no_sense(make: Callable[[], Attack], message: str) -> None:
    with pytest.raises(DataError, match=message):
        make()


@dataclass(frozen=True)
class Cheat(Attack):
    """An attack that overrides the projection and leaves the ball."""

    def run(self, model: Model, x: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        return x + 10 * self.eps

    def constrain(self, x_adv: Tensor, x: Tensor) -> Tensor:
        return x_adv.clamp(0, 1)


@dataclass(frozen=True)
class Wild(Attack):
    """An attack that returns anything; the frame brings it back."""

    value: float = 100.0

    def run(self, model: Model, x: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        return torch.full_like(x, self.value)


def test_the_frame_projects_and_checks() -> None:
    model = bent()
    x, y = problem(model)
    assert (Wild(EPS)(model, x, y) - x).abs().max() <= EPS + 1e-6
    with pytest.raises(AttackError, match=r"Cheat returned images at a distance of 0\.31"):
        Cheat(EPS)(model, 0.5 * x, model(0.5 * x).argmax(1))
    with pytest.raises(AttackError, match="distance of nan"):
        Wild(EPS, float("nan"))(model, x, y)
