"""Any nn.Module as a dynamical system, cut at the inputs of named submodules, not rewritten."""

from __future__ import annotations

import difflib
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from clcnn.dynamics.base import INPUT, Dynamics
from clcnn.dynamics.probe import check_not_compiled, probe
from clcnn.errors import CutError
from clcnn.types import Steer


class _LastCutReached(BaseException):
    """Ends a forward pass early; a BaseException, so that no ``except Exception`` swallows it."""


class HookedDynamics(Dynamics):
    """x_{t+1} = f_t(steer(t, x_t)), where x_t is the input of the submodule named ``cuts[t]``.

    Forward pre-hooks stand in the model only during a call and act only in the calling thread, so
    other threads may use the same model, controlled or plain, at the same time. ``copied`` names
    cuts whose submodule changes its input in place; they get a copy, so that what ``steer`` keeps
    stays what it was.
    """

    def __init__(
        self,
        model: nn.Module,
        cuts: Sequence[str],
        *,
        allow_bypass: bool = False,
        copied: Sequence[str] = (),
    ) -> None:
        self.model = model
        self.cuts = tuple(cuts)
        self.allow_bypass = allow_bypass
        self.copied = frozenset(copied)
        check_not_compiled(model)
        check_names(model, self.cuts)

    def rollout(self, x0: Tensor, steer: Steer) -> Tensor:
        """x_0 -> logits, every cut steered exactly once."""
        with self._hooks(steer, stop=False) as run:
            logits = self.model(run.enter(x0))
        run.check_all_fired()
        if not isinstance(logits, Tensor):
            raise CutError(
                f"the model returned {describe(logits)}; expected one tensor of logits. Wrap it in "
                "a module whose forward returns the logits alone."
            )
        return logits

    def sweep(self, x0: Tensor, steer: Steer) -> None:
        """As `rollout`, but the forward pass ends at the last cut."""
        with self._hooks(steer, stop=True) as run:
            try:
                self.model(run.enter(x0))
            except _LastCutReached:
                return
        run.check_all_fired()

    def inspect(self, x: Tensor) -> tuple[tuple[int, ...], ...]:
        """Probe the cuts on x: one tensor each, fired once, in order, none bypassed."""
        findings = probe(self, x, allow_bypass=self.allow_bypass)
        self.copied = frozenset(findings.changed_in_place)
        return findings.shapes

    @contextmanager
    def _hooks(self, steer: Steer, *, stop: bool) -> Iterator[_Run]:
        run = _Run(self.cuts, self.copied, steer, stop)
        handles = []
        try:
            for t, name in enumerate(self.cuts):
                if name != INPUT:
                    module = self.model.get_submodule(name)
                    handles.append(
                        module.register_forward_pre_hook(run.pre_hook(t), with_kwargs=True)
                    )
            yield run
        finally:
            for handle in handles:
                handle.remove()


class _Run:
    """One forward pass: which cut is due, and what the hooks do when it fires."""

    def __init__(
        self, cuts: tuple[str, ...], copied: frozenset[str], steer: Steer, stop: bool
    ) -> None:
        self.cuts, self.copied, self.steer, self.stop = cuts, copied, steer, stop
        self.due = 0
        self.thread = threading.get_ident()

    def enter(self, x0: Tensor) -> Tensor:
        """The network's own input, steered if it is a cut."""
        return self._arrive(0, x0) if self.cuts[:1] == (INPUT,) else x0

    def pre_hook(self, t: int) -> Any:
        """The forward pre-hook of cut t."""

        def hook(
            module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None
        ) -> Any:
            # Another thread may meet this hook while it is being removed: torch then no longer
            # knows that it takes keyword arguments.
            if threading.get_ident() != self.thread or kwargs is None:
                return None
            x = self._one_tensor(t, args, kwargs)
            z = self._arrive(t, x)
            if any(value is x for value in args):
                return tuple(z if value is x else value for value in args), kwargs
            return args, {key: z if value is x else value for key, value in kwargs.items()}

        return hook

    def _arrive(self, t: int, x: Tensor) -> Tensor:
        name = self.cuts[t]
        if t < self.due:
            raise CutError(
                f"cut {name!r} fired twice in one forward pass, so it is not one state but several "
                "(a module used in several places, such as a shared ReLU). Cut at a module that "
                "runs once, or give each use a module of its own."
            )
        if t > self.due:
            raise CutError(
                f"cut {name!r} fired before {self.cuts[self.due]!r}, which stands before it in the "
                "list (or never fires). List the cuts in the order in which the network runs them."
            )
        self.due += 1
        z = self.steer(t, x)
        if self.stop and self.due == len(self.cuts):
            raise _LastCutReached
        return z.clone() if name in self.copied else z

    def _one_tensor(self, t: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
        others = [v for v in (*args, *kwargs.values()) if isinstance(v, (list, tuple, dict)) and v]
        if len(tensors) != 1 or others:
            found = ", ".join(describe(value) for value in (*args, *kwargs.values())) or "nothing"
            raise CutError(
                f"the input of cut {self.cuts[t]!r} is not one tensor but {found}. Cut where a "
                "single tensor passes, for instance at the boundary of the block around it."
            )
        return tensors[0]

    def check_all_fired(self) -> None:
        """Fail when a cut was passed by."""
        if self.due < len(self.cuts):
            never = ", ".join(repr(name) for name in self.cuts[self.due :])
            raise CutError(
                f"the forward pass ended and never ran cut {never}. Expected each cut's submodule "
                "to be called once by the model's forward, as a module (not through its weights or "
                "its .forward). Leave it out, or cut at a module that is called."
            )


def describe(value: object) -> str:
    """A few words on what a value is, for error messages."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, (list, tuple, dict)):
        return f"a {type(value).__name__} of {len(value)}"
    return f"a {type(value).__name__}"


def check_names(model: nn.Module, cuts: tuple[str, ...]) -> None:
    """Every cut is the input or the name of a submodule, named once."""
    if not cuts:
        raise CutError(
            "no cut was given; expected at least one. Pass at=['input'] to control the input only."
        )
    known = [name for name, _ in model.named_modules(remove_duplicate=False) if name]
    for name in cuts:
        if not isinstance(name, str):
            raise CutError(f"a cut is {describe(name)}; expected the name of a submodule.")
        if name != INPUT and name not in known:
            near = difflib.get_close_matches(name, [INPUT, *known], n=3)
            children = [INPUT, *(child for child, _ in model.named_children())]
            hint = (
                f"Did you mean {' or '.join(repr(match) for match in near)}?"
                if near
                else f"Top-level names: {', '.join(children[:12])}."
            )
            raise CutError(
                f"unknown cut {name!r}: {type(model).__name__} has no such submodule. {hint}"
            )
    repeated = sorted({name for name in cuts if cuts.count(name) > 1})
    if repeated:
        raise CutError(
            f"cut {repeated[0]!r} is listed {cuts.count(repeated[0])} times; list it once."
        )
    if INPUT in cuts[1:]:
        raise CutError(f"{INPUT!r} stands at place {cuts.index(INPUT) + 1}; it must come first.")
