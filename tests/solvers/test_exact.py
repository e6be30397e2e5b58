"""Solvers against the exact optimum of linear-quadratic problems."""

from __future__ import annotations

import pytest
import torch
from networks import build, inputs
from problems import linear_problem
from torch import Tensor

import clcnn
from clcnn import MSA, PMP, Greedy, Reactive, Riccati, SolveError, Status
from clcnn.solvers.problem import Problem


def samples(n: int = 6, d: int = 5) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    return 3 * torch.randn(n, d, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("R", [0.01, 0.1, 1.0])
def test_riccati_is_the_least_squares_optimum(R: float, seed: int) -> None:
    problem = linear_problem(R=R, seed=seed, weights=(1.0, 0.5, 2.0))
    u, J = problem.exact(samples())
    solution = Riccati().solve(problem.dynamics, problem.objective, samples())
    torch.testing.assert_close(torch.cat(solution.u, dim=1), u, atol=1e-9, rtol=1e-9)
    torch.testing.assert_close(solution.J, J, atol=1e-9, rtol=1e-9)


def test_riccati_with_a_diagonal_R_and_without_R() -> None:
    diagonal = [torch.rand(d, dtype=torch.float64) for d in (5, 6, 4)]
    problem = linear_problem(R=diagonal)
    u, J = problem.exact(samples())
    solution = Riccati().solve(problem.dynamics, problem.objective, samples())
    torch.testing.assert_close(solution.J, J, atol=1e-9, rtol=1e-9)
    torch.testing.assert_close(torch.cat(solution.u, dim=1), u, atol=1e-8, rtol=1e-8)
    free = linear_problem(R=0.0)
    solution = Riccati().solve(free.dynamics, free.objective, samples())
    torch.testing.assert_close(solution.J, free.exact(samples())[1], atol=1e-9, rtol=0)


def test_riccati_refuses_what_is_not_affine() -> None:
    problem = linear_problem()
    problem.dynamics.stages[0] = torch.nn.Sequential(problem.dynamics.stages[0], torch.nn.Tanh())
    with pytest.raises(SolveError, match=r"from 'input' to 'stage1' is not affine.*PMP"):
        Riccati().solve(problem.dynamics, problem.objective, samples())
    with pytest.raises(SolveError, match=r"at most 4"):
        Riccati(max_features=4).solve(problem.dynamics, problem.objective, samples())


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "solver",
    [
        PMP(iterations=400, lr=0.05),
        PMP(iterations=400, lr=0.05, method="gradient"),
        PMP(iterations=300, lr=0.05, method="momentum", beta1=0.8),
        PMP(iterations=400, lr=0.05, start="greedy"),
        MSA(iterations=60, lr=0.2, damping=0.3),
        MSA(iterations=60, lr=0.2, damping=0.3, start="greedy"),
    ],
    ids=lambda s: f"{type(s).__name__}-{getattr(s, 'method', '')}-{s.start}",
)
def test_iterative_solvers_reach_riccati(solver: PMP, seed: int) -> None:
    problem = linear_problem(R=0.1, seed=seed)
    x = samples()
    best = Riccati().solve(problem.dynamics, problem.objective, x).J
    plain = PMP(iterations=0).solve(problem.dynamics, problem.objective, x).J
    found = solver.solve(problem.dynamics, problem.objective, x).J
    assert ((found - best) <= 1e-3 * plain).all()
    assert (found >= best - 1e-9).all()
    assert (plain > 10 * best).any(), "the problem must leave something to gain"


def test_plain_gradient_ascent_is_the_textbook_iteration() -> None:
    problem = linear_problem(R=0.1)
    x = samples()
    u = [torch.zeros(6, d, dtype=torch.float64) for d in (5, 6, 4)]
    for _ in range(3):
        leaves = [u_t.clone().requires_grad_() for u_t in u]
        J = (
            Problem(problem.dynamics, problem.objective, x)
            .evaluate(lambda t, _, v=leaves: v[t])
            .J_t
        )
        g = torch.autograd.grad(J.sum(), leaves)
        u = [u_t - 0.02 * g_t for u_t, g_t in zip(u, g, strict=True)]
    solution = PMP(iterations=3, lr=0.02, method="gradient").solve(
        problem.dynamics, problem.objective, x
    )
    for mine, theirs in zip(solution.u, u, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-12, rtol=0)


@pytest.mark.parametrize("method", ["adam", "momentum"])
def test_steps_are_those_of_torch_optim(method: str) -> None:
    problem = linear_problem(R=0.1)
    x = samples()
    u = [torch.zeros(6, d, dtype=torch.float64, requires_grad=True) for d in (5, 6, 4)]
    if method == "adam":
        optimiser: torch.optim.Optimizer = torch.optim.Adam(u, lr=0.02)
    else:
        optimiser = torch.optim.SGD(u, lr=0.001, momentum=0.9)
    for _ in range(12):
        optimiser.zero_grad()
        Problem(problem.dynamics, problem.objective, x).evaluate(
            lambda t, _: u[t]
        ).J_t.sum().backward()
        optimiser.step()
    solver = PMP(iterations=12, lr=optimiser.defaults["lr"], method=method)
    solution = solver.solve(problem.dynamics, problem.objective, x)
    assert (solution.status == Status.ITERATIONS).all()
    for mine, theirs in zip(solution.u, u, strict=True):
        torch.testing.assert_close(mine, theirs.detach(), atol=1e-10, rtol=0)


@pytest.mark.parametrize("c", [0.0, 0.5, 3.0])
def test_greedy_is_the_closed_form(c: float) -> None:
    problem = linear_problem(R=0.7)
    solution = Greedy(c=c).solve(problem.dynamics, problem.objective, samples())
    x = samples()
    for t, (E, u) in enumerate(zip(problem.objective.embeddings, solution.u, strict=True)):
        Q = torch.eye(x.shape[1], dtype=x.dtype) - E.V @ E.V.T
        torch.testing.assert_close(u, -(x - E.mean) @ Q / (1 + c), atol=1e-12, rtol=0)
        x = (x + u) @ problem.A[t].T + problem.b[t]
    assert (solution.status == Status.SOLVED).all()


@pytest.mark.parametrize("diagonal", [False, True])
def test_greedy_minimises_each_running_loss_with_its_weight_and_R(diagonal: bool) -> None:
    R = [torch.rand(d, dtype=torch.float64) + 0.05 for d in (5, 6, 4)] if diagonal else 0.7
    problem = linear_problem(R=R, weights=(1.0, 0.25, 3.0))
    solution = Greedy().solve(problem.dynamics, problem.objective, samples())
    x = samples()
    for t, u in enumerate(solution.u):
        leaf = u.clone().requires_grad_()
        loss = problem.objective.running_loss(t, x + leaf, leaf).sum()
        (g,) = torch.autograd.grad(loss, leaf)
        torch.testing.assert_close(g, torch.zeros_like(g), atol=1e-9, rtol=0)
        x = (x + u) @ problem.A[t].T + problem.b[t]


def test_greedy_takes_c_from_R_and_a_given_c_overrides() -> None:
    problem = linear_problem(R=0.7)
    from_R = Greedy().solve(problem.dynamics, problem.objective, samples())
    same = Greedy(c=0.7).solve(problem.dynamics, problem.objective, samples())
    other = Greedy(c=0.1).solve(problem.dynamics, problem.objective, samples())
    torch.testing.assert_close(from_R.u[1], same.u[1])
    assert (from_R.u[0] - other.u[0]).abs().max() > 0.1


def test_reactive_acts_at_the_input_only() -> None:
    problem = linear_problem()
    reactive = Reactive(c=0.2).solve(problem.dynamics, problem.objective, samples())
    greedy = Greedy(c=0.2).solve(problem.dynamics, problem.objective, samples())
    torch.testing.assert_close(reactive.u[0], greedy.u[0])
    assert all((u == 0).all() for u in reactive.u[1:])
    problem.dynamics.cuts = ("first", "second", "third")
    with pytest.raises(SolveError, match="Add 'input'"):
        Reactive().solve(problem.dynamics, problem.objective, samples())


@pytest.mark.parametrize("layouts", ["uuuu", "ugmv", "Ugmv", "uGmv", "uGMV", "UGMV"])
def test_adam_does_not_care_how_memory_is_laid_out(layouts: str) -> None:
    """Capitals: channels last."""
    generator = torch.Generator().manual_seed(0)
    shape = (2, 3, 4, 5)

    def draw(name: str) -> Tensor:
        value = torch.rand(shape, generator=generator, dtype=torch.float64)
        last = name.isupper()
        return value.to(memory_format=torch.channels_last) if last else value

    u, g, m, v = (draw(name) for name in layouts)
    k, solver = 3, clcnn.PMP(lr=0.1)
    new_m, new_v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    step = (new_m / (1 - 0.9**4)) / ((new_v / (1 - 0.999**4)).sqrt() + 1e-8)
    moved, memory = solver.update(0, k, u, g, (m.clone(), v.clone()))
    torch.testing.assert_close(moved, u - 0.1 * step, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(memory[0], new_m)
    torch.testing.assert_close(memory[1], new_v)


def test_adam_agrees_on_a_network_in_channels_last() -> None:
    model = build("residual")
    robust = clcnn.control(
        model,
        model.cuts,
        embedding=clcnn.LinearEmbedding(rank=5),
        solver=clcnn.PMP(iterations=4, lr=0.01),
    ).fit(inputs(model, 40, seed=3))
    x = inputs(model, 5)
    expected = robust.solve(x).J
    for found in (
        robust.solve(x.to(memory_format=torch.channels_last)),
        robust.accelerate().solve(x),
    ):
        torch.testing.assert_close(found.J, expected, rtol=1e-6, atol=0)
