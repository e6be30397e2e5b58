"""What cannot be attacked is refused in words; what merely looks odd is attacked all the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import clcnn
from clcnn.attacks import (
    CW,
    FGSM,
    PGD,
    Attack,
    AttackError,
    EvaluationWarning,
    Manifold,
    Noise,
    Square,
    Stealth,
    StraightThrough,
    WorstCase,
    examine,
)
from clcnn.embeddings import LinearEmbedding
from clcnn.errors import DataError

EPS = 0.1
SHAPE = (2, 4, 4)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(32, 16), nn.Tanh(), nn.Linear(16, 4)).eval()


def problem(count: int = 12) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    x = torch.rand(count, *SHAPE)
    with torch.no_grad():
        return x, network()(x).argmax(1)


def embedding() -> LinearEmbedding:
    return LinearEmbedding(rank=6).fit([problem(40)[0]])


class Spoiled(torch.autograd.Function):
    """The identity, whose gradient is not finite for images with a bright first pixel."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        bright = (x[:, 0, 0, 0] > 0.8).view(-1, 1, 1, 1)
        return torch.where(bright, float("nan"), grads[0])


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize(
    "make",
    [
        FGSM,
        lambda eps, norm: PGD(eps, norm=norm, steps=3),
        lambda eps, norm: CW(eps, norm=norm, max_iter=3, initial_const=1.0),
        lambda eps, norm: Manifold(eps, embedding(), norm=norm, steps=3),
    ],
    ids=["fgsm", "pgd", "cw", "manifold"],
)
def test_gradients_that_are_not_finite_are_reported(make: Callable[..., Attack], norm: str) -> None:
    model = network()
    x, y = problem()
    x[:, 0, 0, 0] = 0.5
    x[:3, 0, 0, 0] = 1.0  # three of them, in any ball of 0.1
    with torch.no_grad():
        y = model(x).argmax(1)
    attack = make(EPS, norm=norm)
    with pytest.warns(EvaluationWarning, match="gradients not finite: 3 samples"):
        x_adv = attack(lambda x: model(Spoiled.apply(x)), x, y)
    # the others go on, as if those three were not there
    alone = attack(model, x[3:], y[3:])
    assert torch.allclose(x_adv[3:], alone, atol=1e-6)
    with torch.no_grad():
        assert cross_entropy(model(x_adv[3:]), y[3:]) > cross_entropy(model(x[3:]), y[3:])


def test_examining_shows_gradients_that_are_not_finite() -> None:
    model = network()
    x, y = problem()
    x[:, 0, 0, 0] = 0.5
    x[:3, 0, 0, 0] = 1.0
    found = [finding.check for finding in examine(lambda x: model(Spoiled.apply(x)), x, y)]
    assert found == ["gradients not finite", "zero gradients"]


class WithDropout(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.network, self.dropout = network(), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.network(x))


def test_a_part_in_train_mode_is_refused() -> None:
    x, y = problem()
    model = WithDropout().eval()
    model.dropout.train()
    assert not model.training
    for attacked in (
        lambda: PGD(EPS)(model, x, y),
        lambda: WorstCase([PGD(EPS)]).strongest(model, x, y),
        lambda: examine(model, x, y),
    ):
        with pytest.raises(AttackError, match=r"found it in dropout.*call model\.eval\(\)"):
            attacked()
    robust = clcnn.control(network(), ["input"], embedding=LinearEmbedding(rank=6)).fit(x)
    robust.model[2].train()
    with pytest.raises(AttackError, match="found it in 2"):
        StraightThrough(PGD(EPS))(robust, x, y)


def test_examining_needs_images_and_steps() -> None:
    x, y = problem()
    with pytest.raises(DataError, match="got steps = 0"):
        examine(network(), x, y, steps=0)
    with pytest.raises(DataError, match="eps = nan"):
        examine(network(), x, y, eps=float("nan"))
    with pytest.raises(DataError, match="expected at least one"):
        examine(network(), x[:0], y[:0])
    assert examine(network(), x, y, eps=0.0) == []  # nothing is climbed, so nothing can rise
    x[0, 0, 0, 0] = float("nan")
    (finding,) = examine(network(), x, y)
    assert "1 of 12 images have values that are nan" in finding.sentence


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_refused(dtype: torch.dtype) -> None:
    x, y = problem()
    with pytest.raises(DataError, match=rf"got images of {dtype}, expected float32 or float64"):
        FGSM(EPS)(network().to(dtype), x.to(dtype), y)


def test_inside_inference_mode() -> None:
    model = network()
    x, y = problem()
    robust = clcnn.control(
        model, ["input"], embedding=LinearEmbedding(rank=6), solver=clcnn.PMP(iterations=2)
    ).fit(x)
    worst = WorstCase([StraightThrough(PGD(EPS, steps=3))])
    attacks: list[tuple[Attack, nn.Module]] = [
        (PGD(EPS, steps=3), model),
        (CW(EPS, max_iter=3, initial_const=1.0), model),
        (Noise(EPS), model),
        (Manifold(EPS, embedding(), steps=3), model),
        (Stealth(EPS, steps=3), robust),
        (worst, robust),
    ]
    for attack, target in attacks:
        outside = attack(target, x, y)
        with torch.inference_mode():
            inside = attack(target, x.clone(), y.clone())
            assert torch.is_inference_mode_enabled()
        assert torch.equal(inside, outside)
        assert not inside.is_inference()
    with torch.inference_mode():
        made, labels = x.clone(), y.clone()
        known = FGSM(EPS)(model, x, y).clone()
        assert examine(model, made, labels) == []
        strongest = worst.strongest(robust, made, labels, known=[known])
    assert torch.equal(PGD(EPS, steps=3)(model, made, labels), PGD(EPS, steps=3)(model, x, y))
    again = worst.strongest(robust, x, y, known=[known.clone()])
    assert torch.equal(strongest.robust, again.robust)
    with torch.inference_mode():
        born_inside = network()
    with pytest.raises(AttackError, match=r"inside torch\.inference_mode"):
        PGD(EPS)(born_inside, x, y)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FGSM(float("inf")), "expected eps >= 0, finite"),
        (lambda: FGSM(EPS, batch_size=2.5), "expected batch_size as a whole number, got 2.5"),
        (lambda: PGD(EPS, steps=2.0), "expected steps as a whole number, got 2.0"),
        (lambda: PGD(EPS, restarts="2"), "expected restarts as a whole number, got '2'"),
        (lambda: PGD(EPS, step_size=float("nan")), "expected step_size > 0, finite, got nan"),
        (lambda: Manifold(EPS, embedding(), step_size=float("nan")), "expected step_size > 0"),
        (lambda: Manifold(EPS, embedding(), steps=1.5), "expected steps as a whole number"),
        (lambda: Stealth(EPS, step_size=float("nan")), "expected step_size > 0"),
        (lambda: Stealth(EPS, steps=1.5), "expected steps as a whole number"),
        (lambda: CW(EPS, max_iter=1.5), "expected max_iter as a whole number"),
        (lambda: Noise(EPS, tries=1.5), "expected tries as a whole number"),
        (lambda: Square(EPS, queries=1e3), "expected queries as a whole number"),
        (lambda: WorstCase(PGD(EPS)), r"expected at least one attack in a list, got PGD\("),
    ],
)
def test_settings_that_make_no_sense(make: Callable[[], Attack], message: str) -> None:
    with pytest.raises(DataError, match=message):
        make()


@pytest.mark.parametrize("attack", [FGSM(EPS), WorstCase([FGSM(EPS)])], ids=lambda a: a.label)
def test_images_that_are_no_images(attack: Attack) -> None:
    model = network()
    x, y = problem()
    with pytest.raises(DataError, match=r"as a ndarray, expected a torch\.Tensor"):
        attack(model, x.numpy(), y)  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"labels as a list, expected a torch\.Tensor"):
        attack(model, x, y.tolist())  # type: ignore[arg-type]
    with pytest.raises(DataError, match="got images as a ndarray"):
        examine(model, x.numpy(), y)  # type: ignore[arg-type]
    x[4] = float("nan")
    with pytest.raises(DataError, match=r"got nan in 1 of 12 images, expected \[0, 1\]: leave"):
        attack(model, x, y)
