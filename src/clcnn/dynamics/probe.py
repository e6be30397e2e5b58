"""Are these cuts states? A state fires once, is one tensor, and nothing passes it by."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from clcnn.dynamics.base import INPUT, Dynamics
from clcnn.errors import CutError


@dataclass(frozen=True)
class Findings:
    """What the probe learned of sound cuts."""

    shapes: tuple[tuple[int, ...], ...]
    changed_in_place: tuple[str, ...]


@dataclass(frozen=True)
class Trace:
    """One forward pass, the graph severed at each cut."""

    shapes: list[tuple[int, ...]]
    depends_on: list[list[str]]  # cut t and, last, the output: which severed states reach it
    same_as_before: list[bool]
    changed_in_place: tuple[str, ...]


_START = "the network's input"


def probe(dynamics: Dynamics, x: Tensor, *, allow_bypass: bool = False) -> Findings:
    """Run x (two samples are enough) through the network and check every cut.

    x_{t+1} must depend on z_t and on no earlier z_s, or z_t would not be the whole state. Severing
    the graph at each cut lets autograd tell which earlier states still reach a later one.
    """
    dynamics.check_mode()
    cuts = dynamics.cuts
    trace = trace_dependence(dynamics, x)
    places = [*(f"cut {name!r}" for name in cuts), "the output"]
    for t in range(len(cuts)):
        reaching = trace.depends_on[t + 1]
        if cuts[t] not in reaching:
            raise CutError(
                f"cut {cuts[t]!r} has no influence on {places[t + 1]} that a gradient can follow "
                "(found none; expected a differentiable path). The two lie in parallel branches, "
                "or something between them detaches. Leave one of them out."
            )
        if not allow_bypass and (earlier := [name for name in reaching if name != cuts[t]]):
            raise CutError(_bypass_message(cuts[t], places[t + 1], earlier[0]))
    return Findings(tuple(trace.shapes), trace.changed_in_place)


def check_not_compiled(model: nn.Module) -> None:
    """Hooks added after torch.compile never fire."""
    for name, module in model.named_modules():
        compiled = getattr(module, "_compiled_call_impl", None) is not None
        if compiled or type(module).__name__ in {"OptimizedModule", "RecursiveScriptModule"}:
            where = f"submodule {name!r}" if name else "the model"
            raise CutError(
                f"{where} is already compiled ({type(module).__name__}), and hooks added now would "
                "never fire. Expected the plain nn.Module: control it first, or pass the module "
                "that was compiled (`compiled._orig_mod`)."
            )


def _bypass_message(bypassed: str, later: str, earlier: str) -> str:
    source = earlier if earlier == _START else repr(earlier)
    return (
        f"cut {bypassed!r} is bypassed: {later} still depends on {source} past it (a skip "
        "connection around the cut). Cut at a block boundary, or pass allow_bypass=True."
    )


def trace_dependence(dynamics: Dynamics, x: Tensor) -> Trace:
    """Sever the graph at each cut and ask which severed states reach the next cut."""
    leaves: list[tuple[str, Tensor]] = []
    states: list[tuple[str, Tensor, int]] = []
    shapes: list[tuple[int, ...]] = []
    depends_on: list[list[str]] = []
    same: list[bool] = []

    def reaching(value: Tensor) -> list[str]:
        if not value.requires_grad:
            return []
        grads = torch.autograd.grad(
            value.sum(), [leaf for _, leaf in leaves], allow_unused=True, retain_graph=True
        )
        return [name for (name, _), grad in zip(leaves, grads, strict=True) if grad is not None]

    def sever(t: int, state: Tensor) -> Tensor:
        name = dynamics.cuts[t]
        if not state.is_floating_point() or state.dim() < 2:
            raise CutError(
                f"the state at cut {name!r} is {state.dtype} of shape {tuple(state.shape)}; "
                "expected floating point of shape (batch, ...). "
                + ("Convert images to float: x.float() / 255." if name == INPUT else "Cut later.")
            )
        shapes.append(tuple(state.shape[1:]))
        depends_on.append(reaching(state))
        _, before, version = states[-1] if states else (name, None, 0)
        same.append(state is before and state._version == version)
        leaf = state.detach().requires_grad_()
        leaves.append((name, leaf))
        severed = leaf.clone()
        states.append((name, severed, severed._version))
        return severed

    with torch.inference_mode(False), torch.enable_grad():
        start = x.detach().clone()
        if start.is_floating_point() and dynamics.cuts[0] != INPUT:
            start.requires_grad_()
            leaves.append((_START, start))
            start = start.clone()
        logits = dynamics.rollout(start, sever)
        depends_on.append(reaching(logits))
    changed = tuple(name for name, state, version in states if state._version != version)
    return Trace(shapes, depends_on, same, changed)
