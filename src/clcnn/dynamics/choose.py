"""Cuts for a network whose user names none."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from clcnn.dynamics.base import INPUT, check_mode
from clcnn.dynamics.hooked import HookedDynamics, is_compiled
from clcnn.dynamics.probe import Trace, trace_dependence
from clcnn.errors import CutError


def choose_cuts(model: nn.Module, x: Tensor) -> tuple[str, ...]:
    """The input and the inputs of those top-level children that are states."""
    check_mode(model)
    cuts = [INPUT, *_children_in_order(model, x)]
    while True:
        trace = trace_dependence(HookedDynamics(model, cuts), x)
        unsound = next((t for t in range(len(cuts)) if _unsound(trace, cuts, t)), None)
        if unsound is None:
            return tuple(cuts)
        if len(cuts) == 1:
            reason = trace.troubles.get(0) or trace.troubles.get(1) or "it is bypassed"
            raise CutError(
                f"no top-level child of {type(model).__name__} is a sound cut; the last one tried "
                f"was {cuts[0]!r}: {reason} Name the cuts: at=[...]."
            )
        del cuts[unsound]


def _unsound(trace: Trace, cuts: Sequence[str], t: int) -> bool:
    if t in trace.troubles or trace.repeats[t]:
        return True
    return t + 1 not in trace.troubles and trace.reaching[t + 1] != [cuts[t]]


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
            # A child of that name cannot be told from the network's own input.
            if name != INPUT and not is_compiled(child):
                handles.append(
                    child.register_forward_pre_hook(listen(name), with_kwargs=True)  # type: ignore[arg-type]
                )
        with torch.no_grad():
            model(x.clone())
    finally:
        for handle in handles:
            handle.remove()
    names = [name for name, _ in calls]
    return [name for name, single in calls if single and names.count(name) == 1]
