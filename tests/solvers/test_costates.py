"""Three ways to the same gradient: explicit co-state recursion, autograd of J, the hooks."""

from __future__ import annotations

import pytest
import torch
from networks import NETWORKS, build, inputs
from torch import Tensor

import clcnn
from clcnn.objective import Objective, hamiltonian, quadratic, running_loss, total_cost
from clcnn.solvers.problem import Problem


def fitted(name: str) -> tuple[clcnn.ControlledModule, Tensor, tuple[Tensor, ...]]:
    model = build(name)
    robust = clcnn.control(
        model,
        model.cuts,
        embedding=clcnn.LinearEmbedding(rank=3),
        regularization=[0.1 * (t + 1) for t in range(len(model.cuts))],
        weights=[1.0 + t for t in range(len(model.cuts))],
    ).fit(inputs(model, 30))
    x = inputs(model, 5, seed=2)
    u = tuple(
        torch.randn(5, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(t))
        * 0.1
        for t, shape in enumerate(robust.shapes)
    )
    return robust, x, u


def stages(model: torch.nn.Module) -> list:
    """f_0 ... f_{T-1} written out by hand, independent of hooks."""
    kind = type(model).__name__
    if kind == "MLP":
        return [model.stem, model.hidden, model.head]
    if kind == "ResidualNet":
        return [
            model.stem,
            lambda z: model.layer1(z) - 0.3,
            torch.relu,
            model.layer2,
            model.head,
        ]
    return [
        lambda z: model.patches(z).flatten(2).transpose(1, 2) + model.position,
        model.block1,
        model.block2,
        lambda z: model.head(z)[:, 0],
    ]


def reconstruction(E: clcnn.LinearEmbedding, z: Tensor) -> Tensor:
    """||Q (z - mean)||^2 with Q formed densely, independent of the library's thin products."""
    Q = torch.eye(E.V.shape[0], dtype=z.dtype) - E.V @ E.V.T
    return ((z.flatten(1) - E.mean) @ Q).square().sum(1)


def explicit_recursion(
    objective: Objective, f: list, x0: Tensor, u: tuple[Tensor, ...]
) -> tuple[Tensor, ...]:
    """p_T = 0, p_t = grad_x H_t backwards in time; dJ/du_t = -(p_t - 2 R u_t)."""
    x = [x0]
    for f_t, u_t in zip(f[:-1], u[:-1], strict=True):
        x.append(f_t(x[-1] + u_t).detach())
    p_next, gradients = None, []
    for t in reversed(range(len(f))):
        x_t = x[t].detach().requires_grad_()
        z = x_t + u[t]
        loss = running_loss(
            objective.weights[t] * reconstruction(objective.embeddings[t], z),
            u[t],
            objective.regularization[t],
        )
        H = -loss if p_next is None else hamiltonian(p_next, f[t](z), loss)
        (p_next,) = torch.autograd.grad(H.sum(), x_t)
        gradients.append(2 * objective.regularization[t] * u[t] - p_next)
    return tuple(reversed(gradients))


def autograd_of_J(
    objective: Objective, f: list, x0: Tensor, u: tuple[Tensor, ...]
) -> tuple[Tensor, ...]:
    leaves = tuple(u_t.clone().requires_grad_() for u_t in u)
    x, losses = x0, []
    for t, (f_t, u_t) in enumerate(zip(f, leaves, strict=True)):
        z = x + u_t
        L = objective.weights[t] * reconstruction(objective.embeddings[t], z)
        losses.append(L + quadratic(u_t, objective.regularization[t]))
        x = f_t(z)
    return torch.autograd.grad(total_cost(losses).sum(), leaves)


@pytest.mark.parametrize("name", NETWORKS)
def test_recursion_autograd_and_hooks_agree(name: str) -> None:
    robust, x, u = fitted(name)
    f = stages(robust.model)
    objective = robust.objective
    by_recursion = explicit_recursion(objective, f, x, u)
    by_autograd = autograd_of_J(objective, f, x, u)
    done, by_hooks = Problem(robust.dynamics, objective, x).gradient(u)
    for a, b, c in zip(by_recursion, by_autograd, by_hooks, strict=True):
        torch.testing.assert_close(a, b, atol=1e-10, rtol=0)
        torch.testing.assert_close(c, b, atol=1e-10, rtol=0)
        assert b.abs().max() > 1e-3
    assert done.J_t.shape == (5, len(f))


@pytest.mark.parametrize("name", NETWORKS)
def test_hamiltonian_gradient_at_the_current_controls_is_minus_the_gradient_of_J(
    name: str,
) -> None:
    robust, x0, u = fitted(name)
    objective = robust.objective
    done, g = Problem(robust.dynamics, objective, x0).gradient(u)
    x = tuple(z - u_t for z, u_t in zip(done.z, u, strict=True))
    p = objective.costates(g, u)
    ascent = Problem(robust.dynamics, objective, x0).hamiltonian_gradient(x, p, u)
    for a, b in zip(ascent, g, strict=True):
        torch.testing.assert_close(a, -b, atol=1e-10, rtol=0)


@pytest.mark.parametrize("name", NETWORKS)
def test_gradient_against_finite_differences(name: str) -> None:
    robust, x, u = fitted(name)
    objective = robust.objective
    _, g = Problem(robust.dynamics, objective, x).gradient(u)
    generator = torch.Generator().manual_seed(5)
    for t in range(len(u)):
        direction = torch.randn(u[t].shape, generator=generator, dtype=torch.float64)
        h = 1e-6

        def J(step: float, t: int = t, direction: Tensor = direction) -> Tensor:
            moved = (*u[:t], u[t] + step * direction, *u[t + 1 :])
            done, _ = Problem(robust.dynamics, objective, x).gradient(moved)
            return done.J_t.sum(1)

        by_difference = (J(h) - J(-h)) / (2 * h)
        by_gradient = (g[t] * direction).flatten(1).sum(1)
        torch.testing.assert_close(by_gradient, by_difference, atol=1e-5, rtol=1e-5)
