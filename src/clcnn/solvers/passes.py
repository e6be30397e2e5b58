"""Forward and backward passes through controlled dynamics, shared by all solvers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from clcnn.dynamics.base import Dynamics
from clcnn.objective import Objective, hamiltonian
from clcnn.types import Controls


@dataclass(frozen=True)
class Evaluation:
    """One pass under the controls u: J_t (batch, T), the states z_t, the logits if asked for."""

    u: Controls
    J_t: Tensor
    z: Controls
    logits: Tensor | None


@contextmanager
def grad_mode(enabled: bool) -> Iterator[None]:
    """Gradients on or off, whatever the caller's mode; inference mode, which has none, is left."""
    with torch.inference_mode(False), torch.set_grad_enabled(enabled):
        yield


def evaluate(
    dynamics: Dynamics,
    objective: Objective,
    x0: Tensor,
    control: Callable[[int, Tensor], Tensor | None] | None,
    *,
    with_logits: bool = False,
) -> Evaluation:
    """x_{t+1} = f_t(x_t + u_t), L_t for all t; ``control(t, x_t)`` gives u_t (None: no control)."""
    losses: list[Tensor] = []
    u: list[Tensor] = []
    z: list[Tensor] = []

    def steer(t: int, x: Tensor) -> Tensor:
        u_t = None if control is None else control(t, x)
        z_t = x if u_t is None else x + u_t
        u_t = torch.zeros_like(x) if u_t is None else u_t
        losses.append(objective.running_loss(t, z_t, u_t))
        u.append(u_t)
        z.append(z_t)
        return z_t

    logits = None
    if with_logits:
        logits = dynamics.rollout(x0, steer)
    else:
        dynamics.sweep(x0, steer)
    return Evaluation(tuple(u), torch.stack(losses, dim=1), tuple(z), logits)


def gradient(
    dynamics: Dynamics, objective: Objective, x0: Tensor, u: Controls | None, *, unroll: bool
) -> tuple[Evaluation, Controls]:
    """dJ/du_t for all t by one forward and one backward pass; u = None starts from zero.

    The sum over the batch, never the mean, is differentiated: each sample's gradient is its own.
    Only the controls are asked for, so no gradient of a weight is computed.
    """
    with torch.enable_grad():

        def control(t: int, x: Tensor) -> Tensor:
            start = torch.zeros_like(x) if u is None else u[t]
            return start if unroll and start.requires_grad else start.detach().requires_grad_()

        done = evaluate(dynamics, objective, x0, control)
        g = torch.autograd.grad(done.J_t.sum(), done.u, create_graph=unroll)
    if unroll:
        return done, g
    detached = Evaluation(
        tuple(u_t.detach() for u_t in done.u),
        done.J_t.detach(),
        tuple(z_t.detach() for z_t in done.z),
        None,
    )
    return detached, g


def hamiltonian_gradient(
    dynamics: Dynamics,
    objective: Objective,
    x0: Tensor,
    x: Controls,
    p: Controls,
    u: Controls,
    *,
    unroll: bool,
) -> Controls:
    """dH_t/du_t with states x_t and co-states p_{t+1} held, all t in one severed pass.

    Each cut ignores the state that arrives, except to score it against p, and sends on its own
    x_t + u_t, so that no stage sees another stage's control.
    """
    with torch.enable_grad():
        u = tuple(
            u_t if unroll and u_t.requires_grad else u_t.detach().requires_grad_() for u_t in u
        )
        terms: list[Tensor] = []

        def steer(t: int, arriving: Tensor) -> Tensor:
            z = x[t] + u[t]
            loss = objective.running_loss(t, z, u[t])
            terms.append(-loss if t == 0 else hamiltonian(p[t], arriving, loss))
            return z

        dynamics.sweep(x0, steer)
        return torch.autograd.grad(torch.stack(terms).sum(), u, create_graph=unroll)
