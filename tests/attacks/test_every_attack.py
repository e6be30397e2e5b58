"""What every attack promises, adaptive ones and those of other packages included."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import clcnn
from clcnn import ControlledModule
from clcnn.attacks import (
    CW,
    FGSM,
    PGD,
    Attack,
    AttackError,
    AutoAttack,
    ExactGradient,
    Manifold,
    Noise,
    Square,
    Stealth,
    StraightThrough,
    Transfer,
    Unrolled,
    WorstCase,
)
from clcnn.attacks.subspace import SubspaceCW
from clcnn.errors import DataError

EPS = 0.1
SHAPE = (2, 6, 6)


def network() -> nn.Sequential:
    """Steep enough that random search within EPS turns some of its answers."""
    torch.manual_seed(0)
    layers = nn.Sequential(
        nn.Flatten(), nn.Linear(72, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4)
    )
    nn.init.normal_(layers[1].weight, std=0.5)
    return layers.eval()


def controlled() -> ControlledModule:
    torch.manual_seed(1)
    clean = 0.5 + 0.2 * torch.randn(60, 8) @ torch.randn(8, 72) / 8**0.5
    return clcnn.control(
        network(),
        ["input", "3"],
        embedding=clcnn.LinearEmbedding(rank=8),
        solver=clcnn.Greedy(c=1.0),
    ).fit(clean.clamp(0, 1).view(60, *SHAPE))


ROBUST = controlled()
EMBEDDING = ROBUST.embeddings[0]

PLAIN: list[Attack] = [
    Noise(EPS, tries=3),
    Noise(EPS, distribution="gaussian"),
    Noise(1.0, distribution="gaussian", norm="l2"),
    CW(EPS, initial_const=0.1, max_iter=5),
    CW(1.0, norm="l2", initial_const=0.1, max_iter=5),
    Manifold(EPS, EMBEDDING, steps=5),
    Manifold(1.0, EMBEDDING, norm="l2", steps=5, random_start=True),
    SubspaceCW(EPS, EMBEDDING, learning_rate=0.05, max_iter=20),
    WorstCase([FGSM(EPS), PGD(EPS, steps=3, restarts=2)]),
    Square(EPS, queries=30),
    Square(1.0, norm="l2", queries=30),
    AutoAttack(EPS, version="custom", parts=("apgd-ce",)),
]
ADAPTIVE: list[Attack] = [
    StraightThrough(PGD(EPS, steps=5)),
    StraightThrough(CW(EPS, initial_const=1, max_iter=5)),
    Unrolled(PGD(EPS, steps=5, random_start=True)),
    Unrolled(FGSM(1.0, norm="l2")),
    ExactGradient(PGD(EPS, steps=5, loss="margin")),
    Stealth(EPS, steps=5),
    Stealth(1.0, steps=5, norm="l2", straight_through=True),
    Transfer(PGD(EPS, steps=5)),
    Transfer(StraightThrough(PGD(EPS)), source=ROBUST.configure(solver=clcnn.Greedy(c=0.1))),
    WorstCase([StraightThrough(PGD(EPS, steps=5)), Square(EPS, queries=10)]),
    Square(EPS, queries=30),
]
EVERY = [(attack, network()) for attack in PLAIN] + [(attack, ROBUST) for attack in ADAPTIVE]
each_attack = pytest.mark.parametrize(
    ("attack", "model"), EVERY, ids=[f"{a.label}-{a.norm}-{m.__class__.__name__}" for a, m in EVERY]
)


def problem(model: nn.Module, count: int = 16) -> tuple[Tensor, Tensor]:
    """Images labelled as the model sees them, two of them at the border."""
    torch.manual_seed(2)
    x = torch.rand(count, *SHAPE)
    x[0], x[1] = 0.0, 1.0
    with torch.no_grad():
        return x, model(x).argmax(1)


@each_attack
def test_ball_bounds_seed_and_nothing_left_behind(attack: Attack, model: nn.Module) -> None:
    x, y = problem(model)
    original = x.clone()
    state = torch.get_rng_state()
    x_adv = attack(model, x, y)
    assert torch.equal(torch.get_rng_state(), state)  # the global seed is not its business
    assert torch.equal(x, original)
    assert not x_adv.requires_grad
    assert x_adv.dtype == x.dtype
    assert x_adv.min() >= 0
    assert x_adv.max() <= 1
    order = {"linf": float("inf"), "l2": 2.0}[attack.norm]
    distance = torch.linalg.vector_norm((x_adv - x).flatten(1), ord=order, dim=1)
    assert 0 < distance.max() <= attack.eps + 1e-6
    assert all(p.grad is None for p in model.parameters())
    with torch.no_grad():  # as an evaluation would call it, and twice the same
        assert torch.equal(x_adv, attack(model, x, y))
        if not isinstance(attack, Noise):
            assert cross_entropy(model(x_adv), y) > cross_entropy(model(x), y)


@each_attack
def test_edge_cases(attack: Attack, model: nn.Module) -> None:
    x, y = problem(model, 5)
    assert attack(model, x[:0], y[:0]).shape == (0, *SHAPE)
    assert attack(model, x[2:3], y[2:3]).shape == (1, *SHAPE)
    wrong = (y + 1) % 4
    kept = attack(model, x, wrong)  # all are misclassified as they are
    assert torch.equal(kept, x)
    with pytest.raises(DataError, match="expected int64 class numbers"):
        attack(model, x, y.to(torch.int32))
    with pytest.raises(DataError, match="expected int64 class numbers"):
        attack(model, x, y.float())
    with pytest.raises(DataError, match=r"expected\s\[0, 1\]"):
        attack(model, 2 * x + 0.1, y)
    with pytest.raises(DataError, match="expected 0 to 3"):
        attack(model, x, y + 4)


@pytest.mark.parametrize("attack", PLAIN, ids=lambda a: f"{a.label}-{a.norm}")
def test_a_model_that_returns_a_tuple_is_refused(attack: Attack) -> None:
    model = network()
    x, y = problem(model, 5)
    with pytest.raises(AttackError, match=r"returned tuple.*expected logits"):
        attack(lambda x: (model(x), x), x, y)  # type: ignore[arg-type,return-value]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Noise(0.0),
        lambda: CW(0.0),
        lambda: Manifold(0.0, EMBEDDING),
        lambda: Square(0.0),
        lambda: AutoAttack(0.0),
        lambda: Stealth(0.0),
        lambda: StraightThrough(PGD(0.0)),
        lambda: Transfer(PGD(0.0)),
        lambda: WorstCase([StraightThrough(PGD(0.0)), Stealth(0.0)]),
    ],
)
def test_epsilon_zero_returns_the_images(make: Callable[[], Attack]) -> None:
    x, y = problem(ROBUST, 5)
    attack = make()
    x_adv = attack(ROBUST, x, y)
    assert torch.equal(x_adv, x)
    assert x_adv is not x


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Noise(EPS, distribution="salt"), "expected one of uniform, gaussian"),
        (lambda: Noise(EPS, std=0.1), "for gaussian noise only"),
        (lambda: Noise(EPS, distribution="gaussian", std=-1), "expected std > 0"),
        (lambda: Noise(EPS, tries=0), "expected tries >= 1, got 0"),
        (lambda: CW(EPS, max_iter=0), "expected max_iter >= 1, got 0"),
        (lambda: CW(EPS, decrease_factor=1), "expected decrease_factor between 0 and 1, got 1"),
        (lambda: CW(EPS, largest_const=1e-6), "expected largest_const > initial_const"),
        (lambda: CW(EPS, const_factor=1), "expected const_factor > 1"),
        (lambda: CW(EPS, norm="l1"), "expected one of linf, l2"),
        (lambda: Manifold(EPS, nn.Identity()), "expected a fitted Embedding"),
        (lambda: Manifold(EPS, EMBEDDING, steps=0), "expected steps >= 1, got 0"),
        (lambda: Manifold(EPS, EMBEDDING, step_size=0), "expected step_size > 0"),
        (lambda: Manifold(EPS, EMBEDDING, loss="l"), "expected one of"),
        (lambda: Stealth(EPS, adapt=0.5), "expected adapt >= 1"),
        (lambda: Stealth(EPS, steps=0), "expected steps >= 1"),
        (lambda: Square(EPS, queries=0), "expected queries >= 1"),
        (lambda: AutoAttack(EPS, version="best"), "expected one of standard"),
        (lambda: AutoAttack(EPS, version="custom"), "expected version 'custom'"),
        (lambda: AutoAttack(EPS, parts=("square",)), "expected version 'custom'"),
        (lambda: WorstCase([]), "expected at least one attack"),
        (lambda: WorstCase([PGD(0.1), PGD(0.2)]), "differ in their ball"),
        (lambda: WorstCase([PGD(0.1), PGD(0.1, norm="l2")]), "differ in their ball"),
    ],
)
def test_settings_that_make_no_sense(make: Callable[[], Attack], message: str) -> None:
    with pytest.raises(DataError, match=message):
        make()
