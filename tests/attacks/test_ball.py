"""Norms: size, projection, steepest ascent and random points, against brute force."""

from __future__ import annotations

import pytest
import torch

from clcnn.attacks import L2, LINF
from clcnn.attacks.losses import ce, dlr, loss_called, margin
from clcnn.attacks.norms import Norm, norm_called
from clcnn.errors import DataError

NORMS = [(LINF, float("inf")), (L2, 2.0)]


def ordinary(d: torch.Tensor, order: float) -> torch.Tensor:
    return torch.linalg.vector_norm(d.flatten(1), ord=order, dim=1)


@pytest.mark.parametrize(("norm", "order"), NORMS)
def test_size_and_projection(norm: Norm, order: float) -> None:
    d = torch.randn(20, 3, 4, 4, dtype=torch.float64)
    d[0] *= 1e-3
    assert torch.allclose(norm.size(d), ordinary(d, order))
    eps = 0.5
    near = norm.project(d, eps)
    assert (ordinary(near, order) <= eps + 1e-12).all()
    assert torch.equal(near[0], d[0])  # inside already
    # nearest in the Euclidean sense: no random point of the ball is nearer
    for _ in range(50):
        other = norm.sample(d, torch.Generator().manual_seed(_)) * eps
        assert ((other - d).flatten(1).norm(dim=1) >= (near - d).flatten(1).norm(dim=1)).all()


@pytest.mark.parametrize(("norm", "order"), NORMS)
def test_steepest_beats_every_other_unit_step(norm: Norm, order: float) -> None:
    g = torch.randn(5, 2, 3, 3, dtype=torch.float64)
    best = norm.steepest(g)
    assert torch.allclose(ordinary(best, order), torch.ones(5, dtype=torch.float64))
    rise = (g * best).flatten(1).sum(1)
    for seed in range(50):
        step = norm.sample(g, torch.Generator().manual_seed(seed))
        assert ((g * step).flatten(1).sum(1) <= rise).all()
    assert torch.equal(norm.steepest(torch.zeros(1, 4)), torch.zeros(1, 4))


@pytest.mark.parametrize(("norm", "order"), NORMS)
def test_random_points_fill_the_ball(norm: Norm, order: float) -> None:
    like = torch.zeros(4000, 2)
    points = norm.sample(like, torch.Generator().manual_seed(0))
    sizes = ordinary(points, order)
    assert sizes.max() <= 1
    # in two dimensions a quarter of the points lies within half the radius
    assert (sizes < 0.5).float().mean() == pytest.approx(0.25, abs=0.03)
    assert points.mean(0).abs().max() < 0.05
    again = norm.sample(like, torch.Generator().manual_seed(0))
    assert torch.equal(points, again)


@pytest.mark.parametrize("scale", [1e-8, 1e-20, 1e-30, 1e30])
def test_slopes_of_any_size_have_a_direction(scale: float) -> None:
    """A confident softmax leaves slopes whose squares are 0 in float32."""
    g = torch.randn(4, 3, 5, 5, generator=torch.Generator().manual_seed(0))
    for norm in (LINF, L2):
        torch.testing.assert_close(norm.steepest(scale * g), norm.steepest(g))
    assert not L2.steepest(torch.zeros(2, 3)).any()


def test_losses() -> None:
    z = torch.tensor([[3.0, 1.0, 2.0, 0.0], [0.0, 5.0, 1.0, 4.0]])
    y = torch.tensor([0, 3])
    assert margin(z, y).tolist() == [-1.0, 1.0]
    assert dlr(z, y).tolist() == pytest.approx([-1 / 2, 1 / 4])
    assert torch.allclose(dlr(10 * z + 7, y), dlr(z, y))  # free of scale and shift
    by_hand = -torch.log(torch.softmax(z, 1)[torch.arange(2), y])
    assert torch.allclose(ce(z, y), by_hand)
    with pytest.raises(DataError, match="3 classes"):
        dlr(z[:, :2], torch.tensor([0, 1]))


def test_unknown_names() -> None:
    with pytest.raises(DataError, match="expected one of linf, l2"):
        norm_called("l1")
    with pytest.raises(DataError, match="expected one of ce, margin, dlr"):
        loss_called("hinge")
