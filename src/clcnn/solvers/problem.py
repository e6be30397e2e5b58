"""One batch's control problem, and the passes through it that all solvers share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.attention import SDPBackend, sdpa_kernel

from clcnn.dynamics.base import Dynamics
from clcnn.objective import Objective, hamiltonian
from clcnn.types import Controls

Policy: TypeAlias = Callable[[int, Tensor], Tensor | None]
"""(t, x_t) -> u_t, or None where nothing is to be added."""


@dataclass(frozen=True)
class Evaluation:
    """One pass under the controls u: J_t (batch, T), the states z_t, the logits if asked for."""

    u: Controls
    J_t: Tensor
    z: Controls
    logits: Tensor | None = None

    def take(self, which: Tensor) -> Evaluation:
        """The samples at places ``which``."""
        logits = None if self.logits is None else self.logits[which]
        return Evaluation(take(self.u, which), self.J_t[which], take(self.z, which), logits)


@dataclass(frozen=True)
class Problem:
    """min_u J(u) subject to x_{t+1} = f_t(x_t + u_t) from x0, for each sample of a batch.

    With ``unroll`` everything computed here stays differentiable with respect to x0.
    """

    dynamics: Dynamics
    objective: Objective
    x0: Tensor
    unroll: bool = False

    def take(self, which: Tensor) -> Problem:
        """The samples at places ``which``."""
        return replace(self, x0=self.x0[which])

    def evaluate(self, control: Policy | None, *, with_logits: bool = False) -> Evaluation:
        """x_{t+1} = f_t(x_t + u_t) and L_t for all t; ``control(t, x_t)`` gives u_t."""
        losses: list[Tensor] = []
        u: list[Tensor] = []
        z: list[Tensor] = []

        def steer(t: int, x: Tensor) -> Tensor:
            u_t = None if control is None else control(t, x)
            z_t = x if u_t is None else x + u_t
            u_t = torch.zeros_like(x) if u_t is None else u_t
            losses.append(self.objective.running_loss(t, z_t, u_t))
            u.append(u_t)
            z.append(z_t)
            return z_t

        logits = None
        if with_logits:
            logits = self.dynamics.rollout(self.x0, steer)
        else:
            self.dynamics.sweep(self.x0, steer)
        return Evaluation(tuple(u), torch.stack(losses, dim=1), tuple(z), logits)

    def answer(self, u: Controls | None) -> Evaluation:
        """J under u as all iterates are compared by it, and the network's own logits."""
        if not self.dynamics.rounds:
            return self.evaluate(_replay(u), with_logits=True)
        return replace(self.evaluate(_replay(u)), logits=self.logits(u))

    def logits(self, u: Controls | None) -> Tensor:
        """The logits under u alone: no cut is scored."""
        return self.dynamics.rollout(self.x0, lambda t, x: x if u is None else x + u[t])

    def gradient(self, u: Controls | None) -> tuple[Evaluation, Controls]:
        """dJ/du_t for all t by one forward and one backward pass; u = None is no control.

        The sum over the batch, never the mean, is differentiated: each sample's gradient is its
        own. Only the controls are asked for, so no gradient of a weight is computed.
        """
        T = self.dynamics.T
        if u is None:
            u = self.evaluate(None).u if self.unroll else None

        def passes(inputs: Controls, unroll: bool) -> Controls:
            x0, *given = inputs
            done, g = replace(self, x0=x0)._gradient(tuple(given) or None, unroll)
            return (done.J_t, *done.u, *done.z, *g)

        values = recomputed(passes, (self.x0, *(u or ())), self.unroll)
        J_t, rest = values[0], values[1:]
        at_u = rest[:T] if u is None else u
        return Evaluation(at_u, J_t, rest[T : 2 * T]), rest[2 * T :]

    def _gradient(self, u: Controls | None, unroll: bool) -> tuple[Evaluation, Controls]:
        with torch.enable_grad():

            def control(t: int, x: Tensor) -> Tensor:
                u_t = torch.zeros_like(x) if u is None else u[t]
                return u_t if u_t.requires_grad else u_t.requires_grad_()

            done = self.evaluate(control)
            return done, torch.autograd.grad(done.J_t.sum(), done.u, create_graph=unroll)

    def hamiltonian_gradient(self, x: Controls, p: Controls, u: Controls) -> Controls:
        """dH_t/du_t with states x_t and co-states p_{t+1} held, all t in one severed pass.

        Each cut ignores the state that arrives, except to score it against p, and sends on its own
        x_t + u_t, so that no stage sees another stage's control.
        """
        T = self.dynamics.T

        def passes(inputs: Controls, unroll: bool) -> Controls:
            x0, rest = inputs[0], inputs[1:]
            x, p, u = rest[:T], rest[T : 2 * T], rest[2 * T :]
            u = tuple(u_t if u_t.requires_grad else u_t.requires_grad_() for u_t in u)
            terms: list[Tensor] = []

            def steer(t: int, arriving: Tensor) -> Tensor:
                z = x[t] + u[t]
                loss = self.objective.running_loss(t, z, u[t])
                terms.append(-loss if t == 0 else hamiltonian(p[t], arriving, loss))
                return z

            with torch.enable_grad():
                self.dynamics.sweep(x0, steer)
                H = torch.stack(terms).sum()
                return torch.autograd.grad(H, u, create_graph=unroll)

        return recomputed(passes, (self.x0, *x, *p, *u), self.unroll)


def _replay(u: Controls | None) -> Policy | None:
    """(t, x_t) -> u_t for controls that are already known."""
    return None if u is None else (lambda t, x: u[t])


Passes: TypeAlias = Callable[[Controls, bool], Controls]


def recomputed(passes: Passes, inputs: Controls, unroll: bool) -> Controls:
    """``passes(inputs, unroll)`` on detached inputs; unrolled, the backward pass runs it again.

    So an unrolled solver keeps its iterates, not the graphs of all its passes.
    """
    if unroll:
        outputs: Controls = _Recomputed.apply(passes, *inputs)  # type: ignore[no-untyped-call]
        return outputs
    done = passes(tuple(value.detach() for value in inputs), False)
    return tuple(value.detach() for value in done)


class _Recomputed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, passes: Passes, *inputs: Tensor) -> Controls:
        ctx.passes = passes
        ctx.save_for_backward(*inputs)
        done = passes(tuple(value.detach() for value in inputs), False)
        return tuple(value.detach() for value in done)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        inputs = tuple(value.detach().requires_grad_() for value in ctx.saved_tensors)
        # The fused attention kernels have no second derivative; the plain one has.
        with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH), no_autocast(inputs[0]):
            outputs = ctx.passes(inputs, True)
            pairs = [(o, g) for o, g in zip(outputs, grads, strict=True) if o.requires_grad]
            found = torch.autograd.grad(
                [o for o, _ in pairs], inputs, [g for _, g in pairs], allow_unused=True
            )
        return (None, *found)


def no_autocast(like: Tensor) -> torch.autocast:
    """States and embeddings keep the dtype they were fitted in, whatever the caller's autocast."""
    return torch.autocast(like.device.type, enabled=False)


@contextmanager
def grad_mode(enabled: bool) -> Iterator[None]:
    """Gradients on or off, whatever the caller's mode; inference mode, which has none, is left."""
    with torch.inference_mode(False), torch.set_grad_enabled(enabled):
        yield


def take(tensors: tuple[Tensor, ...], which: Tensor) -> tuple[Tensor, ...]:
    """The samples at places ``which`` of every tensor."""
    return tuple(tensor[which] for tensor in tensors)
