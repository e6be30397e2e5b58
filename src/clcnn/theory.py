"""Theorem 1: how far a perturbed, greedily controlled linear network strays from the clean one.

The network is x_{t+1} = theta_t (x_t + u_t), t = 0 ... T-1, its states have mean 0, and the columns
of V_t are an orthonormal basis of the subspace that clean states x_t lie in: x_0 in span(V_0) and
span(V_t) = theta_{t-1} span(V_{t-1}). The control is the greedy one, u_t = -K_t x_t.

Everything is a pure function of tensors: ``thetas`` is (theta_0, ..., theta_{T-1}), each (d, d) and
invertible; ``bases`` is (V_0, V_1, ...), each (d, r); vectors are rows, (d,) or (samples, d). Many
networks of one shape run at once if all of these carry the same leading axes, as in (nets, d, d),
(nets, d, r), (nets, samples, d). Rounding grows with the condition numbers: prefer float64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from clcnn.errors import DataError


def alpha(c: float) -> float:
    """c/(1+c) = alpha, what one control leaves of a perturbation off the subspace."""
    if not (math.isfinite(c) and c >= 0):
        raise DataError(
            f"control regularization c = {c}; expected a finite number >= 0. Use c = 0 for the "
            "strongest control and a large c for next to none."
        )
    return c / (1 + c)


def projection(V: Tensor) -> Tensor:
    """P = V V', the orthogonal projection onto span(V), (d, d)."""
    _check_basis(V)
    return V @ V.mT


def feedback_gain(V: Tensor, c: float) -> Tensor:
    """K = (c I + Q'Q)^{-1} Q'Q = Q / (1 + c), with Q = I - V V'; (d, d).

    The right-hand form is Lemma 1, I - K = alpha I + (1 - alpha) P. It is used because it also
    holds at c = 0, where Q'Q has no inverse: K = Q is the limit, and the pseudo-inverse's answer.
    """
    Q = _identity_like(V) - projection(V)
    return (1 - alpha(c)) * Q


def split(z: Tensor, V: Tensor) -> tuple[Tensor, Tensor]:
    """z_par + z_perp = z, with z_par = V V'z within span(V) and z_perp orthogonal to it."""
    _check_basis(V)
    _check_vectors("z", z, V)
    return _split(z, V)


def transport_basis(theta: Tensor, V: Tensor) -> Tensor:
    """orth(theta V), an orthonormal basis of theta span(V), (d, r)."""
    _check_network([theta])
    _check_basis(V, like=theta)
    return _orthonormal(theta @ V)


def transport_bases(thetas: Sequence[Tensor], V_0: Tensor) -> list[Tensor]:
    """V_t = orth(theta_{t-1} V_{t-1}) for t = 0 ... T: the bases that Theorem 1 asks for."""
    _check_network(thetas)
    _check_basis(V_0, like=thetas[0])
    bases = [V_0]
    for theta in thetas:
        bases.append(_orthonormal(theta @ bases[-1]))
    return bases


def products(thetas: Sequence[Tensor]) -> list[Tensor]:
    """theta_bar_s = theta_{s-1} ... theta_0 for s = 0 ... T, with theta_bar_0 = I."""
    _check_network(thetas)
    theta_bar = [_identity_like(thetas[0]).expand_as(thetas[0])]
    for theta in thetas:
        theta_bar.append(theta @ theta_bar[-1])
    return theta_bar


def condition_number(theta: Tensor) -> Tensor:
    """kappa(theta) = ||theta||_2 ||theta^{-1}||_2, the largest over the smallest singular value."""
    _check_network([theta])
    sigma: Tensor = torch.linalg.svdvals(theta)
    return sigma[..., 0] / sigma[..., -1]


def transported_projection(
    thetas: Sequence[Tensor], bases: Sequence[Tensor], t: int, s: int
) -> Tensor:
    """P_t^0 = V_t V_t', P_t^{s+1} = theta_{t-s-1}^{-1} P_t^s theta_{t-s-1}: P_t seen from t - s."""
    _check_network(thetas)
    _check_time("t", t, 0, min(len(thetas), len(bases) - 1))
    _check_time("s", s, 0, t)
    _check_basis(bases[t], like=thetas[0])
    P = projection(bases[t])
    for theta in reversed(thetas[t - s : t]):
        P = torch.linalg.solve(theta, P @ theta)
    return P


def transported_control(
    thetas: Sequence[Tensor], bases: Sequence[Tensor], c: float, t: int, s: int
) -> Tensor:
    """G_t^s = alpha I + (1 - alpha) P_t^s: the controlled step I - K_t seen from t - s."""
    a = alpha(c)
    P = transported_projection(thetas, bases, t, s)
    return a * _identity_like(P) + (1 - a) * P


def error_map(thetas: Sequence[Tensor], bases: Sequence[Tensor], c: float, t: int) -> Tensor:
    """F_t = G_{t-1}^{t-1} ... G_0^0, so that the error at t is theta_bar_t F_t z (Lemma G)."""
    _check_network(thetas)
    _check_time("t", t, 1, len(thetas))
    F = _identity_like(thetas[0])
    for s in range(t):
        F = transported_control(thetas, bases, c, s, s) @ F
    return F


def error_map_closed_form(
    thetas: Sequence[Tensor], bases: Sequence[Tensor], c: float, t: int
) -> Tensor:
    """F_t = alpha^t I + (1 - alpha) sum_{s<t} alpha^s P_s^s (Lemma F).

    Unlike the product it holds only if each V_s spans theta_{s-1} V_{s-1}, which is checked.
    """
    _check_network(thetas)
    _check_time("t", t, 1, len(thetas))
    _check_transported(thetas[: t - 1], bases)
    a = alpha(c)
    F = a**t * _identity_like(thetas[0])
    for s in range(t):
        F = F + (1 - a) * a**s * transported_projection(thetas, bases, s, s)
    return F


def gamma(thetas: Sequence[Tensor], t: int) -> Tensor:
    """gamma_t = max_{s <= t} (1 + kappa(theta_bar_s)^2) ||I - theta_bar_s' theta_bar_s||_2.

    How far the network is from orthogonal: 0 if every theta_s is.
    """
    _check_time("t", t, 0, len(thetas))
    return _gamma(_spectra(thetas, t))


def theorem_bound(thetas: Sequence[Tensor], V_0: Tensor, z: Tensor, c: float, t: int) -> Tensor:
    """||theta_bar_t||^2 (a^{2t} ||z_perp||^2 + ||z_par||^2
    + g ||z||^2 (g a^2 (1 - a^{t-1})^2 + 2 (a - a^t))), with a = alpha(c) and g = gamma_t.

    The right-hand side of Theorem 1 at t >= 1, for perturbations z = (perturbed - clean) x_0 of
    shape (..., d); one number a sample.
    """
    _check_time("t", t, 1, len(thetas))
    a, spectra = alpha(c), _spectra(thetas, t)
    _check_basis(V_0, like=thetas[0])
    z_par, z_perp = split(z, V_0)
    gain = _per_sample(spectra[t, ..., 0], z)  # ||theta_bar_t||_2
    g = _per_sample(_gamma(spectra), z)
    excess = g * (g * a**2 * (1 - a ** (t - 1)) ** 2 + 2 * (a - a**t))
    squares = a ** (2 * t) * _square(z_perp) + _square(z_par) + excess * _square(z)
    return gain.square() * squares


def orthogonal_error(thetas: Sequence[Tensor], V_0: Tensor, z: Tensor, c: float, t: int) -> Tensor:
    """alpha^{2t} ||z_perp||^2 + ||z_par||^2, the equality of Theorem 1 for orthogonal networks.

    The exact squared error at t, one number a sample; refuses a network that is not orthogonal.
    """
    _check_network(thetas)
    _check_time("t", t, 0, len(thetas))
    for s, theta in enumerate(thetas):
        defect = (torch.linalg.svdvals(theta).square() - 1).abs().max().item()
        if defect > _tolerance(theta):
            raise DataError(
                f"theta_{s} is not orthogonal: ||I - theta'theta||_2 = {defect:.3g}; expected at "
                f"most {_tolerance(theta):.1g}. Use theorem_bound, which needs no orthogonality."
            )
    _check_basis(V_0, like=thetas[0])
    z_par, z_perp = split(z, V_0)
    return alpha(c) ** (2 * t) * _square(z_perp) + _square(z_par)


def greedy_trajectory(
    thetas: Sequence[Tensor], bases: Sequence[Tensor], x_0: Tensor, c: float
) -> list[Tensor]:
    """x_{t+1} = theta_t (x_t + u_t) with u_t = -K_t x_t; returns x_0 ... x_T."""
    _check_network(thetas)
    _check_vectors("x_0", x_0, thetas[0])
    if len(bases) < len(thetas):
        raise DataError(
            f"{len(bases)} bases for {len(thetas)} layers; expected one for the input of each "
            "layer. Use transport_bases(thetas, V_0)."
        )
    strength = 1 - alpha(c)
    x = [x_0]
    for theta, V in zip(thetas, bases, strict=False):
        _check_basis(V, like=theta)
        _, x_perp = _split(x[-1], V)
        x.append((x[-1] - strength * x_perp) @ theta.mT)
    return x


def greedy_error(thetas: Sequence[Tensor], V_0: Tensor, x_0: Tensor, z: Tensor, c: float) -> Tensor:
    """||xbar_t - x_t||^2 for t = 0 ... T, by running both networks; shape (T + 1, ...).

    xbar starts at x_0 + z and is controlled greedily, on bases transported from V_0; x starts at
    x_0 and is not controlled. x_0 must lie in span(V_0), or the control would act on clean data.
    """
    bases = transport_bases(thetas, V_0)
    _check_vectors("z", z, V_0)
    _check_in_span(x_0, V_0)
    controlled = greedy_trajectory(thetas, bases, x_0 + z, c)
    clean = [x_0]
    for theta in thetas:
        clean.append(clean[-1] @ theta.mT)
    return torch.stack([_square(xbar - x) for xbar, x in zip(controlled, clean, strict=True)])


def _square(x: Tensor) -> Tensor:
    return x.square().sum(-1)


def _identity_like(x: Tensor) -> Tensor:
    return torch.eye(x.shape[-2], dtype=x.dtype, device=x.device)


def _per_sample(value: Tensor, z: Tensor) -> Tensor:
    """One value a network, with an axis for each sample axis of z."""
    return value.reshape(value.shape + (1,) * (z.ndim - 1 - value.ndim))


def _orthonormal(A: Tensor) -> Tensor:
    basis: Tensor = torch.linalg.qr(A).Q
    return basis


def _split(z: Tensor, V: Tensor) -> tuple[Tensor, Tensor]:
    z_par = (z @ V) @ V.mT
    return z_par, z - z_par


def _spectra(thetas: Sequence[Tensor], t: int) -> Tensor:
    """The singular values of theta_bar_0 ... theta_bar_t, (t + 1, ..., d), largest first."""
    return _check_invertible("theta_bar", torch.stack(products(thetas)[: t + 1]))


def _gamma(spectra: Tensor) -> Tensor:
    kappa = spectra[..., 0] / spectra[..., -1]
    # The singular values of I - theta'theta are |1 - sigma^2|: no second decomposition.
    defect = (1 - spectra.square()).abs().amax(-1)
    return ((1 + kappa.square()) * defect).amax(0)


def _tolerance(x: Tensor) -> float:
    return math.sqrt(torch.finfo(x.dtype).eps)


def _check_floating(name: str, x: Tensor) -> None:
    if not x.is_floating_point():
        raise DataError(
            f"{name} has dtype {x.dtype}; expected floating point. Use {name}.double()."
        )
    if not torch.isfinite(x).all():
        raise DataError(f"{name} holds inf or nan; expected finite numbers. Look where it is made.")


def _check_like(name: str, x: Tensor, like: Tensor) -> None:
    if (x.dtype, x.device) != (like.dtype, like.device):
        raise DataError(
            f"{name} is {x.dtype} on {x.device}; expected {like.dtype} on {like.device} as the "
            f"rest. Use {name}.to(...)."
        )


def _check_invertible(name: str, stack: Tensor) -> Tensor:
    """The singular values of each name_t = stack[t], once all are known to be invertible."""
    _check_floating(name, stack)
    sigma: Tensor = torch.linalg.svdvals(stack)
    singular = sigma[..., -1] <= stack.shape[-1] * torch.finfo(stack.dtype).eps * sigma[..., 0]
    if singular.any():
        first = tuple(singular.nonzero()[0].tolist())
        raise DataError(
            f"{name}_{first[0]} is singular to working precision: its singular values reach from "
            f"{sigma[first][0].item():.3g} down to {sigma[first][-1].item():.3g}; expected an "
            "invertible matrix. Use better conditioned layers, fewer of them, or float64."
        )
    return sigma


def _check_network(thetas: Sequence[Tensor]) -> None:
    if not len(thetas):
        raise DataError("thetas is empty; expected one matrix a layer. Pass at least one layer.")
    for t, theta in enumerate(thetas):
        if theta.ndim < 2 or theta.shape[-2] != theta.shape[-1] or not theta.numel():
            raise DataError(
                f"theta_{t} has shape {tuple(theta.shape)}; expected a square matrix (d, d). "
                "Theorem 1 holds for layers that are linear, invertible and of one width."
            )
        _check_like(f"theta_{t}", theta, thetas[0])
        if theta.shape != thetas[0].shape:
            raise DataError(
                f"theta_{t} has shape {tuple(theta.shape)}; expected {tuple(thetas[0].shape)} as "
                "theta_0. Theorem 1 holds for layers of one width."
            )
    _check_invertible("theta", torch.stack(list(thetas)))


def _check_basis(V: Tensor, like: Tensor | None = None) -> None:
    _check_floating("V", V)
    if V.ndim < 2 or V.shape[-1] > V.shape[-2] or not V.shape[-2]:
        raise DataError(
            f"V has shape {tuple(V.shape)}; expected (d, r) with r <= d. Put one basis vector in "
            "each column."
        )
    if like is not None:
        _check_like("V", V, like)
        if V.shape[:-1] != like.shape[:-1]:
            raise DataError(
                f"V has shape {tuple(V.shape)}; expected {(*like.shape[:-1], V.shape[-1])} for "
                f"layers of shape {tuple(like.shape)}. Pass a basis of the layers' input space."
            )
    defect = (V.mT @ V - _identity_like(V.mT)).abs()
    if defect.numel() and defect.max() > _tolerance(V):
        raise DataError(
            f"V is not orthonormal: V'V differs from I by {defect.max().item():.3g}; expected at "
            f"most {_tolerance(V):.1g}. Use torch.linalg.qr(V).Q."
        )


def _check_transported(thetas: Sequence[Tensor], bases: Sequence[Tensor]) -> None:
    for s, theta in enumerate(thetas):
        image = theta @ bases[s]
        _, off = split(image.mT, bases[s + 1])
        if bases[s].shape != bases[s + 1].shape or off.norm() > _tolerance(theta) * image.norm():
            raise DataError(
                f"V_{s + 1} does not span theta_{s} V_{s}: {off.norm().item():.3g} of "
                f"{image.norm().item():.3g} is outside; expected nothing. "
                "Use transport_bases(thetas, V_0)."
            )


def _check_vectors(name: str, x: Tensor, like: Tensor) -> None:
    _check_floating(name, x)
    _check_like(name, x, like)
    nets, d = like.shape[:-2], like.shape[-2]
    samples = x.ndim - 1 - len(nets)
    if not (int(bool(nets)) <= samples <= 1) or x.shape != (*nets, *x.shape[len(nets) : -1], d):
        wanted = ", ".join(map(str, (*nets, "samples", d)))
        raise DataError(
            f"{name} has shape {tuple(x.shape)}; expected ({wanted}), one sample a row. "
            f"Use {name}.flatten(1) for states with more axes."
        )


def _check_in_span(x_0: Tensor, V_0: Tensor) -> None:
    _check_vectors("x_0", x_0, V_0)
    _, outside = _split(x_0, V_0)
    shares = outside.norm(dim=-1) / x_0.norm(dim=-1).clamp_min(torch.finfo(x_0.dtype).tiny)
    if (shares > _tolerance(x_0)).any():
        raise DataError(
            f"x_0 is not in the span of V_0: a share of {shares.max().item():.3g} of its norm is "
            f"outside; expected at most {_tolerance(x_0):.1g}. Project it, split(x_0, V_0)[0], or "
            "take a larger r: the control would erase that part of the clean data."
        )


def _check_time(name: str, value: int, lowest: int, highest: int) -> None:
    if not lowest <= value <= highest:
        raise DataError(
            f"{name} = {value}; expected {lowest} <= {name} <= {highest}, as there are layers and "
            f"bases for. Pass more layers or a {name} in range."
        )
