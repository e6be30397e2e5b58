"""The published code's manifold attack: against a plain loop, and what it is not."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from victims import Victim

import clcnn
from clcnn.attacks import Manifold, departure
from clcnn.attacks.subspace import SubspaceCW
from clcnn.errors import DataError


def searched(network: nn.Module, V: Tensor, x: Tensor, y: int, steps: int) -> Tensor:
    """One image, torch's own Adam, one search after the other."""
    nearest, tau = x, 1.0
    while tau > 1 / 256:
        a = torch.zeros(V.shape[1], requires_grad=True)
        adam = torch.optim.Adam([a], 0.005)
        for _ in range(steps):
            x_adv = nearest + (V @ a).view(x.shape)
            z = network(x_adv[None])[0]
            other = torch.cat([z[:y], z[y + 1 :]]).max()
            beyond = ((x_adv - x).abs() - tau).clamp_min(0).sum()
            loss = 1e-5 * (z[y] - other).clamp_min(0) + beyond
            if loss < 1e-9 and int(z.argmax()) != y:
                break
            adam.zero_grad()
            loss.backward()
            adam.step()
        else:
            return nearest
        nearest = x_adv.detach()
        tau = 0.9 * min(tau, float((nearest - x).abs().max()))
    return nearest


def test_it_is_what_a_loop_over_images_does(victim: Victim) -> None:
    E = clcnn.LinearEmbedding(rank=40).fit([victim.train])
    x, y = victim.right(6)
    x_adv = SubspaceCW(0.05, E, max_iter=30)(victim.network, x, y)
    for place in range(len(x)):
        found = searched(victim.network, E.V, x[place], int(y[place]), 30)
        clipped = torch.clamp(x[place] + (found - x[place]).clamp(-0.05, 0.05), 0, 1)
        assert torch.allclose(x_adv[place], clipped, atol=1e-5)


def test_an_image_is_attacked_alike_alone_and_among_others(victim: Victim) -> None:
    E = clcnn.LinearEmbedding(rank=40).fit([victim.train])
    x, y = victim.right(5)
    attack = SubspaceCW(0.1, E, max_iter=30)
    together = attack(victim.network, x, y)
    alone = torch.cat([attack(victim.network, x[i : i + 1], y[i : i + 1]) for i in range(5)])
    assert torch.allclose(together, alone, atol=1e-5)


def test_it_stops_at_the_border_where_the_other_goes_to_the_bound(victim: Victim) -> None:
    E = clcnn.LinearEmbedding(rank=40).fit([victim.train])
    x, _ = victim.right(60)
    x = 0.3 + 0.4 * x  # no pixel reaches 0 or 1
    with torch.no_grad():
        y = victim.network(x).argmax(1)
    near, far = SubspaceCW(0.2, E)(victim.network, x, y), Manifold(0.2, E)(victim.network, x, y)
    sizes = [(x_adv - x).flatten(1).abs().amax(1) for x_adv in (near, far)]
    with torch.no_grad():
        fooled = victim.network(near).argmax(1) != y
    inside = fooled & (sizes[0] < 0.199)
    assert inside.float().mean() > 0.8
    assert departure(E, x, near)[inside].max() <= 1e-4
    assert sizes[0][inside].median() < 0.5 * sizes[1][inside].median()


def test_what_it_refuses(victim: Victim) -> None:
    E = clcnn.LinearEmbedding(rank=4).fit([victim.train])
    with pytest.raises(DataError, match="found a AutoencoderEmbedding, expected a fitted Linear"):
        SubspaceCW(0.1, clcnn.AutoencoderEmbedding())  # type: ignore[arg-type]
    with pytest.raises(DataError, match="expected norm 'linf'"):
        SubspaceCW(0.1, E, norm="l2")
    for name, value in (("learning_rate", 0.0), ("const", math.nan), ("decrease_factor", 1.0)):
        with pytest.raises(DataError, match=f"expected {name} "):
            SubspaceCW(0.1, E, **{name: value})  # type: ignore[arg-type]
