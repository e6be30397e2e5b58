"""Any nn.Module as a dynamical system, cut at the inputs of named submodules, not rewritten."""

from __future__ import annotations

import copy
import difflib
import threading
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from clcnn.dynamics.base import INPUT, Dynamics, check_logits, describe
from clcnn.dynamics.probe import probe
from clcnn.dynamics.stand_in import Speedups, StandIn
from clcnn.errors import CutError
from clcnn.types import Steer


class _LastCutReached(BaseException):
    """Ends a forward pass early; a BaseException, so that no ``except Exception`` swallows it."""


class HookedDynamics(Dynamics):
    """x_{t+1} = f_t(steer(t, x_t)), where x_t is the input of the submodule named ``cuts[t]``.

    Forward pre-hooks stand in the model only during a call and act only in the calling thread, so
    other threads may use the same model, controlled or plain, at the same time. Steering that
    changes nothing gives bitwise the model's own logits, in the grad mode of the call (some of
    torch's layers compute differently with gradients on and off).
    """

    def __init__(
        self, model: nn.Module, cuts: Sequence[str], *, allow_bypass: bool = False
    ) -> None:
        self.model = model
        self.cuts = tuple(cuts)
        self.allow_bypass = allow_bypass
        self.stand_in: StandIn | None = None
        check_not_compiled(model, self.cuts)
        check_names(model, self.cuts)

    @property
    def rounds(self) -> bool:
        """Whether a stand-in in bfloat16 runs `sweep`."""
        return self.stand_in is not None and self.stand_in.speedups.bfloat16

    def rollout(self, x0: Tensor, steer: Steer) -> Tensor:
        """x_0 -> logits, every cut steered exactly once."""
        run = _Run(self, self.model, steer, stop=False)
        try:
            run.install()
            logits = self.model(run.enter(x0))
        finally:
            # First of all, by a plain store that no interrupt can split: hooks that an interrupt
            # keeps from being removed do nothing from here on.
            run.active = False
            run.remove()
        run.check_all_fired()
        return check_logits(logits)

    def sweep(self, x0: Tensor, steer: Steer) -> None:
        """As `rollout`, but the forward pass ends at the last cut, and a stand-in may run it."""
        model, stand_in = self.model, self.stand_in
        if stand_in is not None:
            model, x0, steer = stand_in.module(), stand_in.lay_out(x0), stand_in.between(steer)
        run = _Run(self, model, steer, stop=True)
        try:
            run.install()
            entered = run.enter(x0)
            model(entered if stand_in is None else stand_in.enter(entered))
        except _LastCutReached:
            return
        finally:
            run.active = False
            run.remove()
        run.check_all_fired()

    def inspect(self, x: Tensor) -> tuple[tuple[int, ...], ...]:
        """Probe the cuts on x: one tensor each, fired once, in order, none bypassed."""
        findings = probe(self, x, allow_bypass=self.allow_bypass)
        self.copied = frozenset(findings.changed_in_place)
        return findings.shapes

    def accelerated(self, example: Tensor, speedups: Speedups) -> HookedDynamics:
        """The same dynamics whose `sweep` runs a faster copy of the network."""
        other = copy.copy(self)
        other.stand_in = StandIn(self.model, self.cuts, example, speedups)
        return other


class _Run:
    """One forward pass: which cut is due, and what the hooks do when it fires."""

    def __init__(
        self, dynamics: HookedDynamics, model: nn.Module, steer: Steer, *, stop: bool
    ) -> None:
        self.model, self.cuts, self.copied = model, dynamics.cuts, dynamics.copied
        self.steer, self.stop = steer, stop
        self.due = 0
        self.active = True
        self.thread = threading.get_ident()
        self.handles: list[RemovableHandle] = []

    def install(self) -> None:
        """Put the hooks in place, after clearing away what an interrupted call left behind."""
        for t, name in enumerate(self.cuts):
            if name == INPUT:
                continue
            module = self.model.get_submodule(name)
            for key, hook in list(module._forward_pre_hooks.items()):
                if isinstance(hook, _Hook) and hook.is_stale(self.thread):
                    module._forward_pre_hooks.pop(key, None)
                    module._forward_pre_hooks_with_kwargs.pop(key, None)
            self.handles.append(module.register_forward_pre_hook(_Hook(self, t), with_kwargs=True))

    def remove(self) -> None:
        """Take the hooks out again."""
        for handle in self.handles:
            handle.remove()

    def enter(self, x0: Tensor) -> Tensor:
        """The network's own input, steered if it is a cut."""
        if self.cuts[0] == INPUT:
            return self._arrive(0, x0)
        return x0.clone() if INPUT in self.copied else x0

    def fire(self, t: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The arguments that cut t's submodule is to see instead."""
        x = self._one_tensor(t, args, kwargs)
        z = self._arrive(t, x)
        if any(value is x for value in args):
            return tuple(z if value is x else value for value in args), kwargs
        return args, {key: z if value is x else value for key, value in kwargs.items()}

    def _arrive(self, t: int, x: Tensor) -> Tensor:
        name = self.cuts[t]
        if t < self.due:
            raise CutError(
                f"cut {name!r} fired twice in one forward pass, so it is not one state but several "
                "(a module used in several places, such as a shared ReLU, or run again by "
                "activation checkpointing). Cut at a module that runs once, or give each use a "
                "module of its own."
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


class _Hook:
    """The forward pre-hook of one cut in one run."""

    def __init__(self, run: _Run, t: int) -> None:
        self.run, self.t = run, t

    def __call__(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None
    ) -> Any:
        # Another thread may meet this hook while it is being removed: torch then no longer knows
        # that it takes keyword arguments.
        ours = self.run.active and self.run.thread == threading.get_ident()
        return self.run.fire(self.t, args, kwargs) if ours and kwargs is not None else None

    def is_stale(self, thread: int) -> bool:
        """Left behind by an earlier call of this thread."""
        return not self.run.active and self.run.thread == thread


def is_compiled(module: nn.Module) -> bool:
    """Whether hooks added to the module's submodules now would never fire."""
    kinds = {"OptimizedModule", "RecursiveScriptModule", "TopLevelTracedModule", "TracedModule"}
    in_place = getattr(module, "_compiled_call_impl", None) is not None
    return in_place or type(module).__name__ in kinds


def check_not_compiled(model: nn.Module, cuts: tuple[str, ...]) -> None:
    """Refuse cuts at or inside a compiled module; one between two cuts does no harm."""
    for name, module in model.named_modules():
        around = not name or any(f"{cut}.".startswith(f"{name}.") for cut in cuts)
        if around and is_compiled(module):
            where = f"submodule {name!r}" if name else "the model"
            raise CutError(
                f"{where} is already compiled ({type(module).__name__}), and hooks added now would "
                "never fire. Expected the plain nn.Module: control it first, or pass the module "
                "that was compiled (`compiled._orig_mod`)."
            )


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
