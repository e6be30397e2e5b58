"""CW against ART's and foolbox's at the same budget, and against exact answers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from victims import Victim

from clcnn.attacks import CW

EPS = 8 / 255


class Counting(nn.Module):
    """Counts the images that a network is asked about."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.images = 0
        self.sizes: list[int] = []
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        self.images += len(x)
        self.sizes.append(len(x))
        return self.network(x)


def broken(network: nn.Module, x_adv: Tensor, y: Tensor) -> Tensor:
    with torch.no_grad():
        return network(x_adv).argmax(1) != y


def test_at_least_as_successful_as_art_at_the_same_budget(victim: Victim) -> None:
    evasion = pytest.importorskip("art.attacks.evasion")
    from art.estimators.classification import PyTorchClassifier

    x, y = victim.right(16)
    budget = {"learning_rate": 0.02, "max_iter": 5, "initial_const": 0.1, "const_factor": 4.0}
    theirs, ours = Counting(victim.network), Counting(victim.network)
    classifier = PyTorchClassifier(
        theirs, nn.CrossEntropyLoss(), x.shape[1:], 10, clip_values=(0, 1)
    )
    art = evasion.CarliniLInfMethod(classifier, verbose=False, **budget)
    x_art = torch.from_numpy(art.generate(x.numpy(), y.numpy()))
    for eps in (0.03, 0.06):
        # ART's result brought into the ball, which keeps all that it found within eps
        clipped = x + (x_art - x).clamp(-eps, eps)
        art_breaks = broken(victim.network, clipped, y)
        ours.images = 0
        x_adv = CW(eps, **budget)(ours, x, y)
        we_break = broken(victim.network, x_adv, y)
        assert we_break.sum() >= max(1, int(art_breaks.sum()))
        assert ours.images < theirs.images


def test_at_least_as_successful_as_foolbox_in_l2(victim: Victim) -> None:
    foolbox = pytest.importorskip("foolbox")
    x, y = victim.right(30)
    fmodel = foolbox.PyTorchModel(victim.network, bounds=(0, 1))
    attack = foolbox.attacks.L2CarliniWagnerAttack(
        binary_search_steps=4, steps=20, stepsize=0.02, initial_const=0.1
    )
    eps = 0.8
    _, clipped, _ = attack(fmodel, x, y, epsilons=eps)
    x_adv = CW(eps, norm="l2", learning_rate=0.02, max_iter=20, initial_const=0.1)(
        victim.network, x, y
    )
    assert broken(victim.network, x_adv, y).sum() >= broken(victim.network, clipped, y).sum() > 3


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_finds_what_a_linear_network_allows(norm: str) -> None:
    """A sample can be broken exactly if margin < eps ||w||_*, w the difference of the rows."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(48, 2)).eval()
    x = 0.4 + 0.2 * torch.rand(80, 3, 4, 4)
    with torch.no_grad():
        z = network(x)
    y = z.argmax(1)
    w = (network[1].weight[0] - network[1].weight[1]).detach()
    need = (z[:, 0] - z[:, 1]).abs() / (w.abs().sum() if norm == "linf" else w.norm())
    eps = float(need.median())
    x_adv = CW(eps, norm=norm, initial_const=1e-3, max_iter=20)(network, x, y)
    gone = broken(network, x_adv, y)
    assert not gone[need > eps * 1.0001].any()
    assert gone[need < 0.9 * eps].all()


@pytest.mark.parametrize("shade", [0.0, 1.0])
def test_black_and_white_pixels_move(shade: float) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(48, 2)).eval()
    x = torch.full((2, 3, 4, 4), shade)
    y = network(x).argmax(1)
    inward = x + 0.9 * EPS * (1 - 2 * shade)
    slope = (network[1].weight[1 - y[0]] - network[1].weight[y[0]]).detach().reshape(1, 3, 4, 4)
    allowed = torch.where(slope * (0.5 - shade) > 0, inward, x)
    gap = network(allowed)[0, 1 - y[0]] - network(allowed)[0, y[0]]
    with torch.no_grad():  # nine tenths of what is allowed are just enough
        network[1].bias[1 - y[0]] -= gap - 1e-4
    assert (network(x).argmax(1) == y).all()
    x_adv = CW(EPS)(network, x, y)
    assert broken(network, x_adv, y).all()
    assert (x_adv - x).abs().max() <= EPS + 1e-6


def test_finished_images_leave_and_no_image_sees_another(victim: Victim) -> None:
    x, y = victim.right(40)
    attack = CW(0.06, max_iter=5, initial_const=0.1)
    watched = Counting(victim.network)
    together = broken(victim.network, attack(watched, x, y), y)
    assert 3 < together.sum() < 40
    assert watched.sizes == sorted(watched.sizes, reverse=True)
    assert watched.images < 0.9 * 40 * len(watched.sizes)
    alone = [
        bool(
            broken(victim.network, attack(victim.network, x[i : i + 1], y[i : i + 1]), y[i : i + 1])
        )
        for i in range(12)
    ]
    assert alone == together[:12].tolist()


def test_confidence_asks_for_a_margin(victim: Victim) -> None:
    x, y = victim.right(40)
    with torch.no_grad():
        z = victim.network(CW(0.3, confidence=1.0, max_iter=20)(victim.network, x, y))
    z_y = z.gather(1, y[:, None]).squeeze(1)
    gap = z.scatter(1, y[:, None], float("-inf")).amax(1) - z_y
    assert (gap[gap > 0] > 1.0).float().mean() > 0.8


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_asking_for_confidence_loses_no_success(norm: str) -> None:
    torch.manual_seed(3)
    network = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 4)).double().eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter *= 3
        x = torch.rand(60, 12).double()
        y = network(x).argmax(1)
    eps = 0.1 if norm == "linf" else 0.25

    def margins(confidence: float) -> Tensor:
        with torch.no_grad():
            z = network(
                CW(eps, norm=norm, confidence=confidence, initial_const=1e-3)(network, x, y)
            )
        return z.scatter(1, y[:, None], float("-inf")).amax(1) - z.gather(1, y[:, None]).squeeze(1)

    plain = margins(0.0)
    fooled = plain > 0
    assert 20 < fooled.sum() < 55
    for confidence in (0.5, 2.0):
        found = margins(confidence)
        assert (found[fooled] > 0).all()
        assert (found[fooled] >= plain[fooled]).all()
        assert found[fooled].mean() > 2 * plain[fooled].mean()
