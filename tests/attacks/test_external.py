"""AutoAttack and Square: as strong as they should be, and nothing they flag is hidden."""

from __future__ import annotations

import sys
import warnings

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
    AutoAttack,
    EvaluationWarning,
    Noise,
    Square,
    StraightThrough,
)
from clcnn.errors import DataError, GradientError

pytest.importorskip("pyautoattack")

EPS = 0.1


def left(model: nn.Module, attack: Attack, x: Tensor, y: Tensor) -> int:
    x_adv = attack(model, x, y)
    with torch.no_grad():
        return int((model(x_adv).argmax(1) == y).sum())


def test_standard_autoattack_is_at_least_as_strong_as_pgd(victim: Victim) -> None:
    x, y = victim.right(6)
    with warnings.catch_warnings():
        warnings.simplefilter("error", EvaluationWarning)  # a plain network raises no flag
        attack = AutoAttack(2 * EPS)
        after = left(victim.network, attack, x, y)
    assert after <= left(victim.network, PGD(2 * EPS, steps=50), x, y) < 6
    assert attack.findings == []


def test_targets_fit_the_number_of_classes() -> None:
    """Nine targets, as published, do not exist among four classes."""
    network = nn.Sequential(nn.Flatten(), nn.Linear(12, 4)).eval()
    x = 0.3 + 0.4 * torch.rand(20, 3, 2, 2)
    with torch.no_grad():
        z = network(x)
    y = z.argmax(1)
    W = network[1].weight.detach()
    others = [z[:, y_k] for y_k in range(4)]
    # exact: class k is reached if its margin is below eps ||w_y - w_k||_1
    reach = torch.stack(
        [(z.amax(1) - others[k]) / (W[y] - W[k]).abs().sum(1).clamp_min(1e-9) for k in range(4)], 1
    ).scatter(1, y[:, None], float("inf"))
    eps = float(reach.amin(1).median())
    for parts in (("apgd-t",), ("fab-t",)):
        attack = AutoAttack(eps, version="custom", parts=parts)
        with torch.no_grad():
            gone = network(attack(network, x, y)).argmax(1) != y
        assert gone[reach.amin(1) < 0.95 * eps].all()
        assert not gone[reach.amin(1) > 1.001 * eps].any()
        assert attack.findings == []


def test_the_dynamic_defence_flag_is_reported(victim: Victim, robust: ControlledModule) -> None:
    x, y = victim.right(2)
    attack = AutoAttack(3 * EPS, version="custom", parts=("apgd-ce",))
    iterative = robust.configure(solver=clcnn.PMP(iterations=1))
    with pytest.warns(EvaluationWarning, match="dynamic defense"):
        StraightThrough(attack)(iterative, x, y)
    assert ["dynamic" in finding.sentence for finding in attack.findings] == [True]
    # its counter of calls never goes back by itself: a plain network afterwards is not flagged
    fresh = AutoAttack(3 * EPS, version="custom", parts=("apgd-ce",))
    fresh(victim.network, x, y)
    assert fresh.findings == []
    # a closed form computes no gradient at inference
    StraightThrough(fresh)(robust.configure(solver=clcnn.Greedy()), x, y)
    assert fresh.findings == []


def test_a_random_model_and_one_without_gradients_are_flagged(victim: Victim) -> None:
    x, y = victim.right(4)
    attack = AutoAttack(EPS, version="custom", parts=("apgd-dlr",))
    with pytest.warns(EvaluationWarning, match="randomized defense"):
        attack(lambda x: victim.network(x) + 0.01 * torch.rand(len(x), 10), x, y)

    def saturated(x: Tensor) -> Tensor:
        z = victim.network(x)
        return z.detach().argmax(1, keepdim=True).eq(torch.arange(10)).to(z) + 0 * z

    with pytest.warns(EvaluationWarning) as raised:
        attack(saturated, x, y)
    assert any("zero gradient" in str(warning.message) for warning in raised)
    assert len(attack.findings) >= 2


def test_rand_averages_gradients_and_raises_no_flag(victim: Victim) -> None:
    x, y = victim.right(1)
    attack = AutoAttack(EPS, version="rand")
    noisy = lambda x: victim.network(x) + 0.01 * torch.rand(len(x), 10)  # noqa: E731
    attack(noisy, x, y)
    assert attack.findings == []


def test_square_needs_no_gradient_and_beats_noise(victim: Victim, robust: ControlledModule) -> None:
    x, y = victim.right(40)
    queries = left(victim.network, Square(EPS, queries=200), x, y)
    assert queries < left(victim.network, Noise(EPS, tries=20), x, y)
    assert queries < 40
    assert robust.grad == "none"
    with torch.no_grad():
        before = int((robust(x[:10]).argmax(1) == y[:10]).sum())
    assert left(robust, Square(EPS, queries=20), x[:10], y[:10]) <= before
    flat = nn.Sequential(nn.Linear(4, 3)).eval()
    points = torch.rand(2, 4)
    with pytest.raises(DataError, match=r"expected \(batch, channels, height, width\)"):
        Square(EPS)(flat, points, flat(points).argmax(1))


def test_gradients_without_a_view_raise_the_cores_error(
    victim: Victim, robust: ControlledModule
) -> None:
    x, y = victim.right(2)
    tracing = sys.gettrace()
    attack = AutoAttack(EPS, version="custom", parts=("apgd-ce",))
    with pytest.warns(EvaluationWarning), pytest.raises(GradientError, match="straight_through"):
        attack(robust, x, y)
    assert sys.gettrace() is tracing


def test_too_few_classes_and_a_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(12, 3)).eval()
    x = torch.rand(4, 3, 2, 2)
    y = network(x).argmax(1)
    with pytest.raises(AttackError, match="needs 4 classes or more, found 3"):
        AutoAttack(EPS)(network, x, y)
    monkeypatch.setitem(sys.modules, "pyautoattack", None)
    for attack in (AutoAttack(EPS), Square(EPS)):
        with pytest.raises(AttackError, match=r"pip install 'clcnn\[attacks\]'"):
            attack(network, x, y)


def test_inputs_that_are_no_images() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 4)).eval()
    x = torch.rand(10, 12)
    y = network(x).argmax(1)
    for attack in (AutoAttack(EPS), AutoAttack(EPS, version="custom", parts=("square",))):
        with pytest.raises(DataError, match=r"expected \(batch, channels, height, width\)"):
            attack(network, x, y)
    parts = ("apgd-ce", "apgd-t", "fab-t")
    assert left(network, AutoAttack(0.5, version="custom", parts=parts), x, y) < 10
    with pytest.raises(DataError, match=r"shape \(10, 3, 4\), which the package takes for one"):
        AutoAttack(EPS, version="custom", parts=parts)(network, x.view(10, 3, 4), y)


@pytest.mark.filterwarnings("ignore::clcnn.attacks.EvaluationWarning")
@pytest.mark.parametrize("classes", [2, 3])
def test_few_classes_are_enough_for_parts_without_their_loss(classes: int) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(12, classes)).eval()
    x = torch.rand(10, 3, 2, 2)
    y = network(x).argmax(1)
    for part in ("apgd-ce", "fab", "fab-t", "square"):
        attack = AutoAttack(1.0, version="custom", parts=(part,))
        assert left(network, attack, x, y) <= 3, part
    needed = {"apgd-t": 4, "apgd-dlr": 3}
    for part, least in needed.items():
        attack = AutoAttack(1.0, version="custom", parts=(part,))
        if classes < least:
            with pytest.raises(AttackError, match=f"{part} needs {least} classes or more"):
                attack(network, x, y)
        else:
            assert left(network, attack, x, y) <= 3
