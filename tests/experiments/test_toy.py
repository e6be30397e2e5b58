"""The toy of Figure 2 in miniature, and PMP beside dynamic programming on a grid."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from clcnn import PMP
from clcnn.experiments import toy as figure2
from clcnn.experiments.figure2 import STATES, states


@pytest.fixture(scope="module")
def toy() -> figure2.Toy:
    return figure2.make(seed=0, samples=450, iterations=300, epochs=120)


def test_control_brings_the_attacked_accuracy_back(toy: figure2.Toy) -> None:
    solution = figure2.solve(toy)
    before = figure2.accuracy(toy.network(toy.x_eps), toy.y)
    after = figure2.accuracy(solution.logits, toy.y)
    assert before < 0.92
    assert after >= before + 0.05
    assert figure2.accuracy(toy.robust(toy.x), toy.y) >= 0.98
    plain = toy.robust.configure(solver=PMP(iterations=0)).solve(toy.x_eps)
    assert (solution.J <= plain.J).all()
    assert solution.J.mean() < 0.1 * plain.J.mean()


def test_epsilon_is_the_smallest_that_reaches_the_papers_accuracy(toy: figure2.Toy) -> None:
    def left(eps: float) -> float:
        x_eps = figure2.fgsm(toy.network, toy.x_train, toy.y_train, eps)
        return figure2.accuracy(toy.network(x_eps), toy.y_train)

    assert left(toy.eps) <= figure2.ATTACKED_ACCURACY < left(toy.eps - 0.01)


def test_the_same_seed_gives_the_same_problem(toy: figure2.Toy) -> None:
    first, again = (figure2.make(seed=0, samples=450, iterations=5, epochs=2) for _ in range(2))
    assert torch.equal(again.x_eps, toy.x_eps)
    assert again.eps == toy.eps
    assert torch.equal(figure2.solve(first).u[0], figure2.solve(again).u[0])


class Grid:
    """V(t, x) = min_z ||E_t(z) - z||^2 + rho ||z - x||^2 + V(t+1, f_t(z)), z on a grid; V(2) = 0.

    u enters as z = x + u, so the minimum over u is one over z, and no interpolation is needed:
    V(1, f(z)) is computed for the images of all grid points.
    """

    def __init__(self, toy: figure2.Toy, rho: float, side: int = 101) -> None:
        self.f, self.rho = toy.network.residual, rho
        E = toy.robust.embeddings
        self.z0 = grid_around(toy.x_eps, side)
        self.z1 = grid_around(self.f(toy.x_eps), side)
        self.L0, self.L1 = E[0].energy(self.z0), E[1].energy(self.z1)
        self.V1 = minimum(self.f(self.z0), self.z1, self.L1, rho)

    def optimum(self, x: Tensor) -> Tensor:
        return minimum(x, self.z0, self.L0 + self.V1, self.rho)

    def rounded(self, x: Tensor, z0: Tensor, z1: Tensor) -> Tensor:
        """J of the grid points nearest to given states: an upper bound of the grid's optimum."""
        i = torch.cdist(z0, self.z0).argmin(1)
        j = torch.cdist(z1, self.z1).argmin(1)
        u0, u1 = self.z0[i] - x, self.z1[j] - self.f(self.z0[i])
        effort = self.rho * (u0.square().sum(1) + u1.square().sum(1))
        return self.L0[i] + self.L1[j] + effort


def grid_around(points: Tensor, side: int) -> Tensor:
    low, high = points.amin(0) - 0.5, points.amax(0) + 0.5
    axes = [torch.linspace(float(low[i]), float(high[i]), side) for i in (0, 1)]
    return torch.cartesian_prod(*axes)


def minimum(x: Tensor, z: Tensor, value: Tensor, rho: float) -> Tensor:
    """min_z value(z) + rho ||z - x||^2 for every row of x."""
    parts = [(value + rho * torch.cdist(part, z).square()).amin(1) for part in torch.split(x, 1000)]
    return torch.cat(parts)


@torch.no_grad()
def test_pmp_beside_dynamic_programming(toy: figure2.Toy) -> None:
    rho = 0.05
    solver = PMP(iterations=800, lr=0.01)
    robust = toy.robust.configure(solver=solver, regularization=rho)
    x = toy.x_eps[:40]
    solution = robust.solve(x)
    plain = robust.configure(solver=PMP(iterations=0)).solve(x)
    grid = Grid(toy, rho)
    best = grid.optimum(x)
    # The grid cannot be worse than the grid point nearest to what PMP found ...
    z0 = x + solution.u[0]
    z1 = toy.network.residual(z0) + solution.u[1]
    assert (best <= grid.rounded(x, z0, z1) + 1e-5).all()
    # ... and PMP, which is local, comes within 2 % of the uncontrolled cost of it.
    energies = [E.energy(z) for E, z in zip(robust.embeddings, (z0, z1), strict=True)]
    effort = rho * sum(u.square().sum(1) for u in solution.u)
    torch.testing.assert_close(solution.J, energies[0] + energies[1] + effort)
    gap = (solution.J - best) / plain.J
    assert (gap <= 0.02).double().mean() >= 0.95
    assert (best < 0.5 * plain.J).double().mean() > 0.5, "there must be something to gain"


def test_the_states_of_the_four_panels_are_those_of_the_accuracies(toy: figure2.Toy) -> None:
    rows = list(states(toy))
    assert len(rows) == 2 * 3 * len(toy.y)
    assert set(rows[0]) == set(STATES)
    for state, logits in (
        ("perturbed", toy.network(toy.x_eps)),
        ("controlled", figure2.solve(toy).logits),
    ):
        right = [int(r["right"]) for r in rows if (r["t"], r["state"]) == ("1", state)]
        assert sum(right) / len(right) == pytest.approx(figure2.accuracy(logits, toy.y))
    inputs = [
        (float(r["x"]), float(r["y"])) for r in rows if (r["t"], r["state"]) == ("0", "clean")
    ]
    assert torch.allclose(torch.tensor(inputs), toy.x, atol=1e-4)
