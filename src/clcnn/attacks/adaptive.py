"""Attacks by someone who knows that the network is controlled."""

from __future__ import annotations

from abc import abstractmethod
from copy import copy
from dataclasses import dataclass, field

import torch
from torch import Tensor

from clcnn.attacks.base import Attack, AttackError, Model, inside
from clcnn.control import ControlledModule
from clcnn.solvers.base import FeedbackSolver, Solver
from clcnn.solvers.per_cut import combine


@dataclass(frozen=True, init=False)
class Seeing(Attack):
    """Another attack, run on a view of the model; success is judged on the model itself."""

    inner: Attack

    def __init__(self, inner: Attack) -> None:
        if not isinstance(inner, Attack):
            raise AttackError(
                f"found {inner!r}, expected an attack with its settings, for instance "
                f"{type(self).__name__}(PGD(8 / 255))"
            )
        super().__init__(inner.eps, norm=inner.norm, batch_size=inner.batch_size, seed=inner.seed)
        object.__setattr__(self, "inner", inner)

    @abstractmethod
    def view(self, model: Model) -> Model:
        """The model as the inner attack sees it."""

    def run(self, model: Model, x: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        """The inner attack."""
        return self.inner.run(model, x, y, generator)

    def constrain(self, x_adv: Tensor, x: Tensor) -> Tensor:
        """As the inner attack does it."""
        return self.inner.constrain(x_adv, x)

    @property
    def label(self) -> str:
        """The wrapper's name around the inner attack's."""
        return f"{type(self).__name__}({self.inner.label})"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.inner!r})"


class Faithful(Seeing):
    """A view that answers as the model does: what beats it beats the model."""

    def for_verdicts(self) -> Attack:
        """The inner attack for verdicts."""
        other = copy(self)
        object.__setattr__(other, "inner", self.inner.for_verdicts())
        return other


class StraightThrough(Faithful):
    """Run the control, replay its final controls as constants, differentiate the rest (BPDA).

    The attacker knows the network, all embeddings and the solver, and takes du/dx as 0.
    """

    def view(self, model: Model) -> Model:
        """The controlled network with straight-through gradients."""
        return self.inner.view(controlled(model, self).configure(grad="straight_through"))


class Unrolled(Faithful):
    """Differentiate through every iteration of the solver.

    The attacker knows the network, all embeddings and the solver, and has the true gradient of
    what it computes. The backward pass runs each iteration again instead of keeping its graph, so
    memory hardly grows with the iterations, while time does.
    """

    def view(self, model: Model) -> Model:
        """The controlled network with unrolled gradients."""
        return self.inner.view(controlled(model, self).configure(grad="unroll"))


class ExactGradient(Faithful):
    """The gradient of logits and controls where the control is a closed form, u_t = pi_t(x_t).

    The attacker knows the network, all embeddings and the feedback law, and differentiates it
    exactly. An iterative solver has no such law and is refused: use `Unrolled` for it.
    """

    def view(self, model: Model) -> Model:
        """The controlled network with the exact gradients of its feedback."""
        robust = controlled(model, self)
        solver = robust.solver
        if not isinstance(solver, Solver):
            solver = combine(solver, robust.cuts)
        if not isinstance(solver, FeedbackSolver):
            raise AttackError(
                f"ExactGradient found the iterative solver {solver!r}, expected a closed form such "
                "as Greedy or Reactive. Use Unrolled, which differentiates through the iterations."
            )
        return self.inner.view(robust.configure(grad="unroll"))


@dataclass(frozen=True, init=False, repr=False)
class Transfer(Seeing):
    """Examples made on another network, judged on the one under attack.

    The attacker knows the ``source`` only: the plain network inside the controlled one when it is
    left out (an attacker who does not know of the control: the oblivious threat), or any model, for
    instance the controlled one under other settings,
    ``Transfer(StraightThrough(PGD(eps)), source=robust.configure(solver=...))``.
    """

    source: Model | None = field(default=None)

    def __init__(self, inner: Attack, source: Model | None = None) -> None:
        super().__init__(inner)
        object.__setattr__(self, "source", source)

    @property
    def is_oblivious(self) -> bool:
        """Whether the source is the plain network inside the one under attack."""
        return self.source is None

    def view(self, model: Model) -> Model:
        """The source."""
        source = controlled(model, self).model if self.source is None else self.source
        return self.inner.view(source)

    def __repr__(self) -> str:
        source = "plain" if self.source is None else type(self.source).__name__
        return f"Transfer({self.inner!r}, source={source})"


def controlled(model: Model, attack: Attack) -> ControlledModule:
    """The controlled network under attack, or a clear error when it is none."""
    model = inside(model)
    if not isinstance(model, ControlledModule):
        raise AttackError(
            f"{type(attack).__name__} attacks a controlled network, found a "
            f"{type(model).__name__}: pass what clcnn.control(model).fit(...) returned, or use "
            "the inner attack itself on a plain network"
        )
    return model
