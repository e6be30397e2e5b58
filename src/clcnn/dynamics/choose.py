"""Cuts for a network whose user names none."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from clcnn.dynamics.base import INPUT
from clcnn.dynamics.hooked import HookedDynamics
from clcnn.dynamics.probe import Trace, check_not_compiled, trace_dependence
from clcnn.errors import CutError


def choose_cuts(model: nn.Module, x: Tensor) -> tuple[str, ...]:
    """The input and the inputs of those top-level children that are states."""
    check_not_compiled(model)
    cuts = [INPUT] if x.is_floating_point() else []
    cuts += _children_in_order(model, x)
    if not cuts:
        raise CutError(
            f"{type(model).__name__} has no top-level child whose input is a single tensor, and "
            "its own input is not floating point. Name the cuts: at=[...]."
        )
    while True:
        trace = trace_dependence(HookedDynamics(model, cuts), x)
        unsound = next((t for t in range(len(cuts)) if _unsound(trace, cuts, t)), None)
        if unsound is None:
            return tuple(cuts)
        if len(cuts) == 1:
            raise CutError(
                f"no top-level child of {type(model).__name__} is a sound cut: the last one tried, "
                f"{cuts[0]!r}, is bypassed. Name the cuts: at=[...]."
            )
        del cuts[unsound]


def _unsound(trace: Trace, cuts: Sequence[str], t: int) -> bool:
    reaching = trace.depends_on[t + 1]
    return reaching != [cuts[t]] or trace.same_as_before[t]


def _children_in_order(model: nn.Module, x: Tensor) -> list[str]:
    """Top-level children called once with one floating tensor, in the order of their calls."""
    calls: list[tuple[str, bool]] = []

    def listen(name: str) -> object:
        def hook(module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
            values = [*args, *kwargs.values()]
            tensor = values[0] if len(values) == 1 else None
            single = isinstance(tensor, Tensor) and tensor.is_floating_point() and tensor.dim() > 1
            calls.append((name, single))

        return hook

    handles = []
    try:
        for name, child in model.named_children():
            handles.append(
                child.register_forward_pre_hook(listen(name), with_kwargs=True)  # type: ignore[arg-type]
            )
        with torch.no_grad():
            model(x)
    finally:
        for handle in handles:
            handle.remove()
    names = [name for name, _ in calls]
    return [name for name, single in calls if single and names.count(name) == 1]
