"""Noise fills its ball; the manifold attack stays on the manifold."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

import pytest
import torch
from torch import Tensor, nn
from victims import Victim

import clcnn
from clcnn.attacks import FGSM, PGD, Manifold, Noise, departure
from clcnn.embeddings import Embedding

EPS = 0.1


def zeros_class(x: Tensor) -> Tensor:
    """A network that always answers 0."""
    return torch.nn.functional.one_hot(torch.zeros(len(x), dtype=torch.int64), 3).float()


def test_noise_is_distributed_as_it_says() -> None:
    x, y = torch.full((200, 3, 8, 8), 0.5), torch.zeros(200, dtype=torch.int64)
    uniform = (Noise(EPS)(zeros_class, x, y) - x).flatten()
    assert uniform.abs().max() == pytest.approx(EPS, rel=1e-3)
    assert uniform.std() == pytest.approx(EPS / 3**0.5, rel=0.02)
    gaussian = (Noise(EPS, distribution="gaussian", std=0.02)(zeros_class, x, y) - x).flatten()
    assert gaussian.std() == pytest.approx(0.02, rel=0.02)
    at_most = (Noise(EPS, distribution="gaussian")(zeros_class, x, y) - x).abs()
    assert (at_most > 0.999 * EPS).float().mean() == pytest.approx(0.0455, abs=0.005)  # 2 sigma
    round_ball = Noise(1.0, distribution="gaussian", norm="l2")(zeros_class, x, y) - x
    lengths = round_ball.flatten(1).norm(dim=1)
    assert lengths.mean() == pytest.approx(0.97, abs=0.03)


def test_more_tries_only_help(victim: Victim) -> None:
    x, y = victim.right(200)

    def left(tries: int) -> Tensor:
        with torch.no_grad():
            x_adv = Noise(0.3, tries=tries)(victim.network, x, y)
            return victim.network(x_adv).argmax(1) == y

    once, often = left(1), left(10)
    assert not (often & ~once).any()
    assert often.sum() < once.sum()


def test_the_perturbation_stays_in_the_subspace(victim: Victim) -> None:
    E = clcnn.LinearEmbedding(rank=40).fit([victim.train])
    x, _ = victim.right(100)
    x = 0.3 + 0.4 * x  # no pixel reaches 0 or 1
    with torch.no_grad():
        y = victim.network(x).argmax(1)
    x_adv = Manifold(EPS, E)(victim.network, x, y)
    d = (x_adv - x).flatten(1)
    outside = d - d @ E.V @ E.V.T
    assert (outside.norm(dim=1) <= 1e-4 * d.norm(dim=1)).all()
    assert torch.allclose(d.abs().amax(1), torch.full((100,), EPS), rtol=1e-3)
    assert departure(E, x, x_adv).max() <= 1e-4
    pgd = PGD(EPS)(victim.network, x, y)
    share = departure(E, x, pgd)
    d = (pgd - x).flatten(1)
    assert torch.allclose(share, (d - d @ E.V @ E.V.T).norm(dim=1) / d.norm(dim=1), atol=1e-5)
    assert share.min() > 0.3


def test_it_is_stronger_than_noise_inside_the_subspace(victim: Victim) -> None:
    E = clcnn.LinearEmbedding(rank=40).fit([victim.train])
    x, y = victim.right(200)

    def left(x_adv: Tensor) -> int:
        with torch.no_grad():
            return int((victim.network(x_adv).argmax(1) == y).sum())

    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    inside = E.project(x + noise) - E.project(x)
    inside = EPS * inside / inside.abs().amax((1, 2, 3), keepdim=True)
    by_chance = left((x + inside).clamp(0, 1))
    assert left(Manifold(EPS, E)(victim.network, x, y)) <= by_chance - 20
    cut_off = departure(E, x, Manifold(EPS, E)(victim.network, x, y))
    assert 0 < cut_off.max() < 0.5  # black pixels cannot get darker


class Curve(Embedding):
    """E(x) = tanh(W' tanh(W x)): not linear, not idempotent, known through `project` alone."""

    def __init__(self) -> None:
        super().__init__()
        self.W = nn.Parameter(torch.randn(5, 48) / 4)

    def fit(self, states: Iterable[Tensor]) -> Self:
        return self

    def project(self, x: Tensor) -> Tensor:
        return torch.tanh(torch.tanh(x.flatten(1) @ self.W.T) @ self.W).view_as(x)


def test_any_embedding_will_do() -> None:
    E = Curve()
    network = nn.Sequential(nn.Flatten(), nn.Linear(48, 3)).eval()
    x = 0.2 + 0.6 * torch.rand(20, 3, 4, 4)
    with torch.no_grad():
        y = network(x).argmax(1)
    x_adv = Manifold(EPS, E, steps=1)(network, x, y)
    # one step from v = 0, by hand, the factor a constant
    v = torch.zeros_like(x).requires_grad_()
    loss = nn.functional.cross_entropy(network(x + E.project(x + v) - E.project(x)), y)
    (g,) = torch.autograd.grad(loss, v)
    delta = (E.project(x + EPS / 4 * g.sign()) - E.project(x)).detach()
    s = (EPS / delta.abs().amax((1, 2, 3), keepdim=True)).clamp_max(1)
    assert torch.allclose(x_adv, (x + s * delta).clamp(0, 1), atol=1e-6)
    assert all(p.grad is None for p in E.parameters())
    with torch.no_grad():
        weaker = nn.functional.cross_entropy(network(x_adv), y)
        manifold = nn.functional.cross_entropy(network(Manifold(EPS, E)(network, x, y)), y)
        anywhere = nn.functional.cross_entropy(network(FGSM(EPS)(network, x, y)), y)
    assert weaker < manifold < anywhere
