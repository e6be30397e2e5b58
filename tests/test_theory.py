"""Each lemma of Appendix A on random networks, the equality, the bound, and what is refused."""

from __future__ import annotations

import itertools
import math
import runpy
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from clcnn import theory
from clcnn.errors import DataError

checked = settings(max_examples=60)


@dataclass(frozen=True)
class Case:
    """A well-posed linear network with data on a subspace, and perturbations of that data."""

    thetas: list[Tensor]
    V_0: Tensor
    x_0: Tensor  # (n, d), in span(V_0)
    z: Tensor  # (n, d)
    c: float

    @property
    def T(self) -> int:
        return len(self.thetas)

    @property
    def bases(self) -> list[Tensor]:
        return theory.transport_bases(self.thetas, self.V_0)

    @property
    def tolerance(self) -> float:
        """Rounding grows with the square of the condition number of the whole network."""
        return 1e-12 * float(np.linalg.cond(product(self.thetas)) ** 2 + 1)


def orthogonal(rng: np.random.Generator, d: int) -> np.ndarray:
    return np.linalg.qr(rng.standard_normal((d, d)))[0]


def make_case(
    seed: int, d: int, r: int, T: int, c: float, spread: float, scale: float = 1.0, n: int = 4
) -> Case:
    """Layers U diag(sigma) W' with log sigma uniform in [-spread, spread], times ``scale``."""
    rng = np.random.default_rng(seed)
    thetas = [
        (orthogonal(rng, d) * scale * np.exp(rng.uniform(-spread, spread, d))) @ orthogonal(rng, d)
        for _ in range(T)
    ]
    V_0 = orthogonal(rng, d)[:, :r]
    x_0 = rng.standard_normal((n, r)) @ V_0.T
    z = rng.standard_normal((n, d))
    V_0, x_0, z = (torch.from_numpy(np.ascontiguousarray(a)) for a in (V_0, x_0, z))
    return Case([torch.from_numpy(theta) for theta in thetas], V_0, x_0, z, c)


@st.composite
def cases(draw: st.DrawFn, max_spread: float = 0.5, max_scale: float = 1.3) -> Case:
    d = draw(st.integers(1, 7))
    return make_case(
        seed=draw(st.integers(0, 2**31)),
        d=d,
        r=draw(st.integers(0, d)),
        T=draw(st.integers(1, 5)),
        c=draw(st.sampled_from([0.0, 1e-3, 0.1, 0.5, 1.0, 3.0, 50.0])),
        spread=draw(st.floats(0, max_spread)),
        scale=draw(st.floats(1 / max_scale, max_scale)),
    )


def product(thetas: list[Tensor]) -> np.ndarray:
    return np.linalg.multi_dot([np.eye(len(thetas[0])), *(a.numpy() for a in thetas[::-1])])


def pseudo_inverse(A: np.ndarray) -> np.ndarray:
    """Singular values below 1e-8 count as 0, as is right for Q, whose own are 0 and 1."""
    return torch.linalg.pinv(torch.from_numpy(A), atol=1e-8, rtol=0.0).numpy()


def norm(A: Tensor) -> float:
    return float(np.linalg.norm(A.numpy(), 2)) if A.numel() else 0.0


def close(a: Tensor, b: Tensor, tolerance: float) -> None:
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


# --- alpha, the gain, the split -------------------------------------------------------------------


def test_alpha_of_known_values():
    assert theory.alpha(0) == 0
    assert theory.alpha(1) == 0.5
    assert theory.alpha(3) == 0.75


@checked
@given(cases())
def test_gain_minimises_the_performance_index(case: Case):
    # J(u) = |Q(x+u)|^2/2 + c|u|^2/2 is a least squares problem; a pseudo-inverse picks the least u.
    Q = np.eye(len(case.V_0)) - (case.V_0 @ case.V_0.T).numpy()
    stacked = np.vstack([Q, math.sqrt(case.c) * np.eye(len(Q))])
    for x in case.z.numpy():
        target = np.concatenate([-Q @ x, np.zeros(len(Q))])
        u = pseudo_inverse(stacked) @ target
        K = theory.feedback_gain(case.V_0, case.c)
        np.testing.assert_allclose(-K.numpy() @ x, u, atol=1e-9)


@checked
@given(cases())
def test_lemma_1(case: Case):
    one, P = torch.eye(len(case.V_0)).double(), theory.projection(case.V_0)
    Q = (one - P).numpy()
    K = torch.from_numpy(pseudo_inverse(case.c * one.numpy() + Q.T @ Q) @ Q.T @ Q)  # as defined
    a = theory.alpha(case.c)
    close(theory.feedback_gain(case.V_0, case.c), K, 1e-9)
    close(one - K, a * one + (1 - a) * P, 1e-9)
    eigenvalues = torch.linalg.eigvalsh(one - K)
    r = case.V_0.shape[1]  # c/(1+c) d - r times, then 1 r times
    expected = torch.tensor([a] * (len(one) - r) + [1.0] * r, dtype=torch.float64)
    close(eigenvalues, expected, 1e-9)


@checked
@given(cases())
def test_split(case: Case):
    par, perp = theory.split(case.z, case.V_0)
    close(par + perp, case.z, 1e-13)
    close((par * perp).sum(-1), torch.zeros(len(par)).double(), 1e-12)
    close(perp @ case.V_0, torch.zeros(len(par), case.V_0.shape[1]).double(), 1e-12)
    coordinates = np.linalg.lstsq(case.V_0.numpy(), case.z.numpy().T, rcond=None)[0]
    np.testing.assert_allclose(par.numpy(), (case.V_0.numpy() @ coordinates).T, atol=1e-12)
    assert theory.split(case.z[0], case.V_0)[0].shape == case.z[0].shape


# --- projections ----------------------------------------------------------------------------------


@st.composite
def projections(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor]:
    """An orthogonal basis and two oblique projections onto its span."""
    d = draw(st.integers(2, 7))
    r = draw(st.integers(1, d - 1))
    rng = np.random.default_rng(draw(st.integers(0, 2**31)))
    W = orthogonal(rng, d)
    V, N = W[:, :r], W[:, r:]
    oblique = [V @ V.T + V @ rng.standard_normal((r, d - r)) @ N.T for _ in range(2)]
    return torch.from_numpy(V.copy()), *(torch.from_numpy(P) for P in oblique)


@checked
@given(projections())
def test_proposition_on_projections(drawn: tuple[Tensor, Tensor, Tensor]):
    V, S, R = drawn
    P, r = theory.projection(V), V.shape[1]
    close(P @ P, P, 1e-12)
    close(P, P.T, 1e-15)
    close(S @ S, S, 1e-10)
    assert norm(P) == pytest.approx(1, abs=1e-12)  # 1
    assert norm(S) > 1  # 2, and by how much:
    assert norm(S) ** 2 == pytest.approx(1 + norm(S - S.T) ** 2, rel=1e-10)
    for A, B in itertools.permutations((P, S, R), 2):  # 3
        close(A @ B, B, 1e-10)
    for A in (P, S):  # 4
        assert torch.linalg.matrix_rank(A) == r
        assert A.trace().item() == pytest.approx(r, abs=1e-10)
    assert P.square().sum().item() == pytest.approx(r, abs=1e-10)
    assert S.square().sum().item() > r


@checked
@given(cases())
def test_bases_are_transported(case: Case):
    for s, V in enumerate(case.bases):
        image = torch.from_numpy(product(case.thetas[:s])) @ case.V_0 if s else case.V_0
        close(V.T @ V, torch.eye(V.shape[1]).double(), 1e-12)
        close(V @ (V.T @ image), image, case.tolerance)
    close(theory.transport_basis(case.thetas[0], case.V_0), case.bases[1], 0)


@checked
@given(cases())
def test_products(case: Case):
    for s, theta_bar in enumerate(theory.products(case.thetas)):
        expected = product(case.thetas[:s]) if s else np.eye(len(theta_bar))
        np.testing.assert_allclose(theta_bar.numpy(), expected, rtol=1e-10, atol=1e-12)
        assert theory.condition_number(theta_bar).item() == pytest.approx(
            norm(theta_bar) * norm(torch.linalg.inv(theta_bar)), rel=1e-9
        )


@checked
@given(cases())
def test_lemma_P(case: Case):
    bases, r = case.bases, case.V_0.shape[1]
    for t in range(case.T + 1):
        for s in range(t + 1):
            P = theory.transported_projection(case.thetas, bases, t, s)
            close(P @ P, P, case.tolerance)  # 1
            V = bases[t - s]  # 2: maps into span(V_{t-s}), and leaves it as it is
            close(V @ (V.T @ P), P, case.tolerance)
            close(P @ V, V, case.tolerance)
            between = product(case.thetas[t - s : t]) if s else np.eye(len(V))
            bound = np.linalg.cond(between) ** 2 * r  # 3
            assert P.square().sum().item() <= bound * (1 + 1e-9) + 1e-12
            oblique = np.linalg.inv(between) @ theory.projection(bases[t]).numpy() @ between
            np.testing.assert_allclose(P.numpy(), oblique, atol=case.tolerance)


# --- the error, from t back to the input ----------------------------------------------------------


def simulate(case: Case) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Both trajectories in numpy, the control from the paper's definition with a pseudo-inverse."""
    xbar, x = [(case.x_0 + case.z).numpy().T], [case.x_0.numpy().T]
    span = case.V_0.numpy()
    one = np.eye(len(span))
    for theta in case.thetas:
        Q = one - span @ np.linalg.pinv(span)
        u = -pseudo_inverse(case.c * one + Q.T @ Q) @ Q.T @ Q @ xbar[-1]
        xbar.append(theta.numpy() @ (xbar[-1] + u))
        x.append(theta.numpy() @ x[-1])
        span = theta.numpy() @ span
    return xbar, x


@checked
@given(cases())
def test_greedy_trajectory_and_error_against_a_plain_simulation(case: Case):
    xbar, x = simulate(case)
    states = theory.greedy_trajectory(case.thetas, case.bases, case.x_0 + case.z, case.c)
    errors = theory.greedy_error(case.thetas, case.V_0, case.x_0, case.z, case.c)
    assert errors.shape == (case.T + 1, len(case.z))
    for t in range(case.T + 1):
        np.testing.assert_allclose(states[t].numpy().T, xbar[t], rtol=1e-7, atol=1e-8)
        np.testing.assert_allclose(errors[t], np.sum((xbar[t] - x[t]) ** 2, 0), 1e-7, 1e-8)
    alone = theory.greedy_error(case.thetas, case.V_0, case.x_0[0], case.z[0], case.c)
    close(alone, errors[:, 0], 1e-12)


@checked
@given(cases())
def test_lemma_G(case: Case):
    xbar, x = simulate(case)
    for t in range(1, case.T + 1):
        G = [theory.transported_control(case.thetas, case.bases, case.c, s, s) for s in range(t)]
        mapped = case.z.T
        for G_s in G:
            mapped = G_s @ mapped
        error = product(case.thetas[:t]) @ mapped.numpy()
        np.testing.assert_allclose(error, xbar[t] - x[t], rtol=1e-7, atol=1e-8)
    # theta_{t-s-1} G_t^{s+1} = G_t^s theta_{t-s-1}, the step of the induction
    for s in range(case.T):
        inner = theory.transported_control(case.thetas, case.bases, case.c, case.T, s)
        outer = theory.transported_control(case.thetas, case.bases, case.c, case.T, s + 1)
        theta = case.thetas[case.T - s - 1]
        close(theta @ outer, inner @ theta, 10 * case.tolerance)


@checked
@given(cases())
def test_lemma_F(case: Case):
    for t in range(1, case.T + 1):
        by_product = theory.error_map(case.thetas, case.bases, case.c, t)
        in_closed_form = theory.error_map_closed_form(case.thetas, case.bases, case.c, t)
        close(by_product, in_closed_form, 10 * case.tolerance)


def test_lemma_F_needs_transported_bases():
    case = make_case(1, d=5, r=2, T=3, c=1.0, spread=0.3)
    strangers = [make_case(seed, d=5, r=2, T=1, c=1.0, spread=0).V_0 for seed in range(3)]
    a, P = 0.5, [theory.transported_projection(case.thetas, strangers, s, s) for s in range(3)]
    formula = a**3 * torch.eye(5) + (1 - a) * sum(a**s * P[s] for s in range(3))
    F = theory.error_map(case.thetas, strangers, case.c, 3)
    assert norm(F - formula) > 1e-2
    with pytest.raises(DataError, match=r"V_1 does not span theta_0 V_0.*transport_bases"):
        theory.error_map_closed_form(case.thetas, strangers, case.c, 3)


@checked
@given(cases(max_spread=1.0))
def test_lemma_cond(case: Case):
    theta, V = case.thetas[0], case.V_0
    P_hat = theory.projection(theory.transport_basis(theta, V))
    oblique = torch.linalg.inv(theta) @ P_hat @ theta
    close(oblique @ oblique, oblique, 1e-9)  # 1: a projection onto span(V)
    close(oblique @ V, V, 1e-9)
    close(V @ (V.T @ oblique), oblique, 1e-9)
    close(theory.transported_projection(case.thetas, case.bases, 1, 1), oblique, 1e-9)
    defect = norm(torch.eye(len(theta)) - theta.T @ theta)
    kappa = theory.condition_number(theta).item()
    gap = norm(oblique - theory.projection(V))
    assert gap <= (1 + kappa**2) * defect + 1e-9  # 2
    assert gap <= (kappa - 1 / kappa) / 2 + 1e-9  # the sharper, scale-free form in docs/theory.md


@checked
@given(cases())
def test_corollary_and_gamma(case: Case):
    P_0 = theory.projection(case.V_0)
    rights = []
    for s in range(case.T + 1):
        theta_bar = product(case.thetas[:s]) if s else np.eye(len(P_0))
        defect = np.linalg.norm(np.eye(len(P_0)) - theta_bar.T @ theta_bar, 2)
        rights.append((1 + np.linalg.cond(theta_bar) ** 2) * defect)
        P = theory.transported_projection(case.thetas, case.bases, s, s)
        assert norm(P - P_0) <= rights[s] + case.tolerance
        assert theory.gamma(case.thetas, s).item() == pytest.approx(
            max(rights), rel=1e-7, abs=1e-10
        )


# --- Theorem 1 ------------------------------------------------------------------------------------


@checked
@given(cases(max_spread=0, max_scale=1))
def test_equality_for_orthogonal_networks(case: Case):
    errors = theory.greedy_error(case.thetas, case.V_0, case.x_0, case.z, case.c)
    xbar, x = simulate(case)
    for t in range(case.T + 1):
        exact = theory.orthogonal_error(case.thetas, case.V_0, case.z, case.c, t)
        np.testing.assert_allclose(np.sum((xbar[t] - x[t]) ** 2, 0), exact, 1e-10, 1e-10)
        close(errors[t], exact, 1e-10)
        assert theory.gamma(case.thetas, t) < 1e-12
        if t:
            bound = theory.theorem_bound(case.thetas, case.V_0, case.z, case.c, t)
            close(bound, exact, 1e-10)


@pytest.mark.parametrize("c", [0.0, 0.3, 2.0])
def test_equality_tells_a_wrong_alpha_or_power(c: float):
    case = make_case(0, d=6, r=2, T=4, c=c, spread=0)
    error = theory.greedy_error(case.thetas, case.V_0, case.x_0, case.z, c)[4]
    par, perp = (part.square().sum(-1) for part in theory.split(case.z, case.V_0))
    a = c / (1 + c)
    close(error, a**8 * perp + par, 1e-10)
    misprint = 1 / (1 + c)  # the entry in the paper's proof of Lemma 1
    assert ((error - (misprint**8 * perp + par)).abs() > 1e-6).all()
    if c:
        assert ((error - (a**10 * perp + par)).abs() > 1e-6).all()
        assert ((error - (a**4 * perp + par)).abs() > 1e-6).all()


@checked
@given(cases())
def test_bound_is_the_papers_formula(case: Case):
    one, a = np.eye(len(case.V_0)), case.c / (1 + case.c)
    par = case.z.numpy() @ (case.V_0 @ case.V_0.T).numpy()
    squares = [np.sum(x**2, 1) for x in (case.z.numpy() - par, par, case.z.numpy())]
    gamma = 0.0
    for t in range(1, case.T + 1):
        A = product(case.thetas[:t])
        defect = np.linalg.norm(one - A.T @ A, 2)
        gamma = max(gamma, (1 + np.linalg.cond(A) ** 2) * defect)
        rest = gamma * (gamma * a**2 * (1 - a ** (t - 1)) ** 2 + 2 * (a - a**t))
        right = a ** (2 * t) * squares[0] + squares[1] + rest * squares[2]
        bound = theory.theorem_bound(case.thetas, case.V_0, case.z, case.c, t)
        np.testing.assert_allclose(bound, np.linalg.norm(A, 2) ** 2 * right, 1e-7, 1e-9)


def random_networks(seed: int, nets: int) -> Case:
    """``nets`` well-posed networks of one random shape and c, of varied conditioning."""
    rng = np.random.default_rng(seed)
    draw = torch.Generator().manual_seed(seed)
    d, T = int(rng.integers(1, 11)), int(rng.integers(1, 9))
    r = int(rng.integers(0, d + 1))
    c = float(rng.choice([0.0, 10 ** rng.uniform(-3, 2)], p=[0.1, 0.9]))

    def normal(*shape: int) -> Tensor:
        return torch.randn(nets, *shape, generator=draw, dtype=torch.float64)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(nets, *shape, generator=draw, dtype=torch.float64)

    # from orthogonal to 1e-4 up to singular values a factor e^2 apart, and half of them rescaled
    spread = 10 ** (4 * uniform(1, 1) - 4)
    scale = torch.where(uniform(1, 1) < 0.5, 1.0, (2 * uniform(1, 1) - 1).exp())
    thetas = []
    for _ in range(T):
        U, W = (torch.linalg.qr(normal(d, d)).Q for _ in range(2))
        thetas.append(scale * (U * (spread * (2 * uniform(1, d) - 1)).exp()) @ W)
    V_0 = torch.linalg.qr(normal(d, r)).Q
    x_0 = normal(1, r) @ V_0.mT
    # Two random perturbations, and for each t the one that the error at t grows most for.
    responses = theory.greedy_trajectory(
        thetas, theory.transport_bases(thetas, V_0), torch.eye(d).double().expand(nets, d, d), c
    )
    worst = [torch.linalg.svd(response.mT).Vh[:, :1] for response in responses[1:]]
    z = torch.cat([normal(2, d), *worst], dim=1)
    return Case(thetas, V_0, x_0.expand_as(z), z, c)


def test_bound_is_never_violated_on_8000_networks():
    checks, largest, needs_gamma = 0, 0.0, 0
    for seed in range(200):
        case = random_networks(seed, nets=40)
        errors = theory.greedy_error(case.thetas, case.V_0, case.x_0, case.z, case.c)
        gains = torch.linalg.matrix_norm(torch.stack(theory.products(case.thetas)), 2)
        par, perp = (part.square().sum(-1) for part in theory.split(case.z, case.V_0))
        a = theory.alpha(case.c)
        for t in range(1, case.T + 1):
            bound = theory.theorem_bound(case.thetas, case.V_0, case.z, case.c, t)
            gain = gains[t][:, None]
            scale = gain**2 * (case.z.square().sum(-1) + case.x_0.square().sum(-1))
            # Where c = 0 and z is orthogonal to V_0, the bound is 0 and the error is rounding.
            excess = errors[t] - bound * (1 + 1e-9)
            assert (excess <= 1e-20 * scale).all(), (seed, t)
            checks += excess.numel()
            safe = bound > 1e-12 * scale
            largest = max(largest, torch.where(safe, errors[t] / bound, 0).max().item())
            without = gain**2 * (a ** (2 * t) * perp + par)
            needs_gamma += int((errors[t] > 1.01 * without + 1e-9 * scale).sum())
    assert checks > 150_000
    assert largest > 0.999  # the bound is reached, so a smaller one would be caught
    assert needs_gamma > 100  # and it fails without its gamma term


def test_bound_fails_for_bases_that_are_not_transported():
    failures = 0
    for seed in range(50):
        case = make_case(seed, d=4, r=2, T=3, c=0.1, spread=0)
        strangers = [make_case(1000 + seed + s, 4, 2, 1, 0.1, 0).V_0 for s in range(2)]
        bases = [case.V_0, *strangers]
        x = theory.greedy_trajectory(case.thetas, bases, case.x_0 + case.z, case.c)[-1]
        clean = case.x_0 @ torch.from_numpy(product(case.thetas)).T
        bound = theory.theorem_bound(case.thetas, case.V_0, case.z, case.c, case.T)
        failures += int(((x - clean).square().sum(-1) > bound).any())
    assert failures > 10


def test_a_network_by_hand():
    # d = 2, data on the first axis, theta = [[1, 1], [0, 1]], c = 1: worked out on paper.
    # z = e_2: controlled (0, 1/2) -> (1/2, 1/2); controlled (1/2, 1/4) -> (3/4, 1/4).
    theta = torch.tensor([[1.0, 1.0], [0.0, 1.0]]).double()
    V_0 = torch.tensor([[1.0], [0.0]]).double()
    x_0, z = torch.tensor([3.0, 0.0]).double(), torch.tensor([0.0, 1.0]).double()
    errors = theory.greedy_error([theta, theta], V_0, x_0, z, c=1.0)
    assert errors.tolist() == pytest.approx([1, 1 / 2, 10 / 16])
    P = theory.transported_projection([theta], [V_0, V_0], 1, 1)
    close(P, torch.tensor([[1.0, 1.0], [0.0, 0.0]]).double(), 1e-14)
    # theta'theta = [[1, 1], [1, 2]]: sigma^2 = (3 +- sqrt 5)/2, kappa^2 = (7 + 3 sqrt 5)/2
    golden, kappa_squared = (1 + math.sqrt(5)) / 2, (7 + 3 * math.sqrt(5)) / 2
    assert theory.condition_number(theta).item() == pytest.approx(golden**2)
    gamma = (1 + kappa_squared) * golden
    assert theory.gamma([theta], 1).item() == pytest.approx(gamma)
    bound = theory.theorem_bound([theta, torch.eye(2).double()], V_0, z, 1.0, 2).item()
    a = 0.5
    excess = gamma * (gamma * a**2 * (1 - a) ** 2 + 2 * (a - a**2))
    assert bound == pytest.approx(golden**2 * (a**4 + excess))


def test_global_optimum_may_err_more_than_greedy():
    # The claim of docs/theory.md: a lower J does not mean a lower error at every t.
    theta, Q, one = np.array([[1.0, 1.0], [0.0, 1.0]]), np.diag([0.0, 1.0]), np.eye(2)
    z = np.array([-1.0, 1.0])  # with x_0 = 0, V_t = e_1, c = 1, two layers
    zero = np.zeros((2, 2))
    residuals = np.block([[Q, zero], [one, zero], [Q @ theta, Q], [zero, one]])
    constant = np.concatenate([Q @ z, np.zeros(2), Q @ theta @ z, np.zeros(2)])
    u_0 = np.linalg.lstsq(residuals, -constant, rcond=None)[0][:2]
    optimal = np.sum((theta @ (z + u_0)) ** 2)
    layers, V_0 = [torch.from_numpy(theta)] * 2, torch.eye(2).double()[:, :1]
    zeros = torch.zeros(2).double()
    greedy = theory.greedy_error(layers, V_0, zeros, torch.from_numpy(z), c=1.0)[1].item()
    assert optimal == pytest.approx(0.52)
    assert greedy == pytest.approx(0.50)


def test_many_networks_at_once_agree_with_one_by_one():
    many = random_networks(seed=7, nets=3)
    t, c, bases = many.T, many.c, many.bases
    error = theory.greedy_error(many.thetas, many.V_0, many.x_0, many.z, c)
    bound = theory.theorem_bound(many.thetas, many.V_0, many.z, c, t)
    F = theory.error_map_closed_form(many.thetas, bases, c, t)
    for i in range(3):
        thetas, V_0 = [theta[i] for theta in many.thetas], many.V_0[i]
        close(theory.greedy_error(thetas, V_0, many.x_0[i], many.z[i], c), error[:, i], 1e-9)
        close(theory.theorem_bound(thetas, V_0, many.z[i], c, t), bound[i], 1e-9)
        single = theory.error_map(thetas, theory.transport_bases(thetas, V_0), c, t)
        close(single, F[i], 1e-6)
    assert theory.gamma(many.thetas, t).shape == (3,)


def test_no_samples_give_no_errors():
    assert theory.greedy_error([E], V, X[:0], X[:0], 1.0).shape == (2, 0)
    assert theory.theorem_bound([E], V, X[:0], 1.0, 1).shape == (0,)


def test_float32_is_kept():
    case = make_case(3, d=4, r=2, T=2, c=0.5, spread=0.1)
    thetas, V_0 = [theta.float() for theta in case.thetas], case.V_0.float()
    error = theory.greedy_error(thetas, V_0, case.x_0.float(), case.z.float(), 0.5)
    assert error.dtype == torch.float32
    exact = theory.greedy_error(case.thetas, case.V_0, case.x_0, case.z, 0.5)
    close(error.double(), exact, 1e-4)


# --- what is refused ------------------------------------------------------------------------------

E = torch.eye(3).double()
V = E[:, :1].clone()
X = E[:1].clone()
SINGULAR = torch.diag(torch.tensor([1.0, 1.0, 0.0])).double()


@pytest.mark.parametrize(
    ("call", "found"),
    [
        (lambda: theory.alpha(-0.1), "c = -0.1; expected a finite number >= 0"),
        (lambda: theory.alpha(math.inf), "c = inf; expected"),
        (lambda: theory.feedback_gain(V, math.nan), "c = nan; expected"),
        (lambda: theory.split(X, 2 * V), "not orthonormal.*by 3; expected.*qr"),
        (lambda: theory.split(X, V.T), r"shape \(1, 3\); expected \(d, r\)"),
        (lambda: theory.split(X[:, :2], V), r"z has shape \(1, 2\); expected \(samples, 3\)"),
        (lambda: theory.split(X.float(), V), r"torch.float32.*expected torch.float64.*z\.to"),
        (lambda: theory.split(X.long(), V), r"dtype torch.int64; expected floating.*double"),
        (lambda: theory.split(X / 0, V), "z holds inf or nan"),
        (lambda: theory.products([]), "thetas is empty; expected one matrix"),
        (lambda: theory.products([E, E[:2]]), r"theta_1 has shape \(2, 3\); expected a square"),
        (lambda: theory.products([E, E[:2, :2]]), r"theta_1 has shape \(2, 2\); expected \(3, 3\)"),
        (lambda: theory.gamma([E, SINGULAR], 1), "theta_1 is singular.*expected an invertible"),
        (lambda: theory.condition_number(SINGULAR), "theta_0 is singular"),
        (lambda: theory.condition_number(E[:0, :0]), r"shape \(0, 0\); expected a square"),
        (lambda: theory.transport_basis(E, E[:2, :1]), r"V has shape \(2, 1\); expected \(3, 1\)"),
        (lambda: theory.theorem_bound([E], V, X, 1.0, 0), "t = 0; expected 1 <= t <= 1"),
        (lambda: theory.theorem_bound([E], V, X, 1.0, 2), "t = 2; expected 1 <= t <= 1"),
        (lambda: theory.transported_projection([E], [V, V], 1, 2), "s = 2; expected 0 <= s <= 1"),
        (lambda: theory.orthogonal_error([2 * E], V, X, 1.0, 1), "not orthogonal.*theorem_bound"),
        (lambda: theory.greedy_trajectory([E, E], [V], X, 1.0), "1 bases for 2 layers"),
        (
            lambda: theory.greedy_error([E], V, torch.ones(2, 3).double(), X, 1.0),
            r"x_0 is not in the span of V_0.*share of 0.816.*split\(x_0, V_0\)",
        ),
    ],
)
def test_bad_input_is_refused_with_a_remedy(call, found: str):
    with pytest.raises(DataError, match=f"(?s){found}"):
        call()


def test_a_product_that_underflows_to_singular_is_refused():
    theta = torch.diag(torch.tensor([1.0, 1e-9])).double()
    with pytest.raises(DataError, match="theta_bar_2 is singular to working precision"):
        theory.gamma([theta, theta], 2)


def test_the_example_draws_its_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    pytest.importorskip("matplotlib")
    example = runpy.run_path(str(Path(__file__).parents[1] / "examples" / "theory.py"))
    out = tmp_path / "new" / "theory.png"
    example["main"](["--out", str(out), "--depth", "3", "--width", "6", "--samples", "3"])
    assert out.read_bytes().startswith(b"\x89PNG")
    lines = capsys.readouterr().out.splitlines()
    near, exact = (float(line.split(":")[1]) for line in lines if "largest error" in line)
    assert near < 1
    assert exact == pytest.approx(1, abs=1e-9)
    with pytest.raises(SystemExit):
        example["main"](["--rank", "9", "--width", "8"])
    assert "--rank at most --width" in capsys.readouterr().err
