"""Are these cuts states? A state is one tensor with the batch first, and nothing passes it by."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from clcnn.dynamics.base import INPUT, Dynamics
from clcnn.errors import CutError

_START = "the network's input"


@dataclass(frozen=True)
class Findings:
    """What the probe learned of sound cuts."""

    shapes: tuple[tuple[int, ...], ...]
    changed_in_place: tuple[str, ...]


@dataclass
class Trace:
    """One forward pass, the graph severed at each cut."""

    shapes: list[tuple[int, ...]] = field(default_factory=list)
    troubles: dict[int, str] = field(default_factory=dict)  # cut t, or T for the output
    reaching: list[list[str]] = field(default_factory=list)  # the same order: severed states
    repeats: list[bool] = field(default_factory=list)  # cut t sees the state of cut t - 1 again
    changed_in_place: tuple[str, ...] = ()


def probe(dynamics: Dynamics, x: Tensor, *, allow_bypass: bool = False) -> Findings:
    """Run x (two samples are enough) through the network and check every cut.

    x_{t+1} must depend on z_t and on no earlier z_s, or z_t would not be the whole state, and
    sample by sample. Severing the graph at each cut lets autograd tell what reaches what.
    """
    dynamics.check_mode()
    cuts = dynamics.cuts
    trace = trace_dependence(dynamics, x)
    places = [*(f"cut {name!r}" for name in cuts), "the output"]
    for t in range(len(cuts) + 1):
        if t in trace.troubles:
            raise CutError(trace.troubles[t])
        if t == len(cuts):
            break
        reaching = trace.reaching[t + 1]
        if cuts[t] not in reaching and t + 1 not in trace.troubles:
            raise CutError(
                f"cut {cuts[t]!r} has no influence on {places[t + 1]} that a gradient can follow "
                "(found none; expected a differentiable path). The two lie in parallel branches, "
                "or something between them detaches. Leave one of them out."
            )
        if not allow_bypass and (earlier := [name for name in reaching if name != cuts[t]]):
            source = earlier[0] if earlier[0] == _START else repr(earlier[0])
            raise CutError(
                f"cut {cuts[t]!r} is bypassed: {places[t + 1]} still depends on {source} past it "
                "(a skip connection around the cut). Cut at a block boundary, or pass "
                "allow_bypass=True."
            )
    return Findings(tuple(trace.shapes), trace.changed_in_place)


def trace_dependence(dynamics: Dynamics, x: Tensor) -> Trace:
    """Sever the graph at each cut and ask which severed states reach the next cut, and how."""
    trace = Trace()
    leaves: list[tuple[str, Tensor]] = []
    passed_on: list[tuple[str, Tensor, int]] = []

    def examine(value: Tensor) -> bool:
        """Note what reaches the value; whether its first sample depends on other samples."""
        if not leaves or not value.requires_grad:
            trace.reaching.append([])
            return False
        with torch.enable_grad():
            whole, first = value.sum(), value[0].sum()
        grads = torch.autograd.grad(
            whole, [leaf for _, leaf in leaves], allow_unused=True, retain_graph=True
        )
        trace.reaching.append(
            [name for (name, _), g in zip(leaves, grads, strict=True) if g is not None]
        )
        if not first.requires_grad:
            return False
        (g,) = torch.autograd.grad(first, leaves[-1][1], allow_unused=True, retain_graph=True)
        return g is not None and bool(g[1:].any())

    def keep(name: str, state: Tensor) -> Tensor:
        """Start a new piece of graph at the state."""
        leaf = state.detach().requires_grad_()
        leaves.append((name, leaf))
        severed = leaf.clone()
        passed_on.append((name, severed, severed._version))
        return severed

    def sever(t: int, state: Tensor) -> Tensor:
        name = dynamics.cuts[t]
        trace.shapes.append(tuple(state.shape[1:]))
        trouble = _not_a_batch(name, state, len(x)) or _nan(f"the state at cut {name!r}", state)
        mixed = examine(state)
        trouble = trouble or (_mixed(f"the state at cut {name!r}") if mixed else None)
        trace.repeats.append(bool(passed_on) and _is_same(state, *passed_on[-1][1:]))
        if trouble is not None:
            trace.troubles[t] = trouble
        return keep(name, state) if state.is_floating_point() else state

    with torch.inference_mode(False), torch.enable_grad():
        start = x.detach().clone()
        if dynamics.cuts[0] != INPUT:
            if start.is_floating_point():
                start = keep(_START, start)
            else:
                passed_on.append((_START, start, start._version))
        logits = dynamics.rollout(start, sever)
        mixed = examine(logits)
        trouble = _nan("the model's output", logits)
        trouble = trouble or (_mixed("the model's output") if mixed else None)
        if trouble is not None:
            trace.troubles[dynamics.T] = trouble
    trace.changed_in_place = tuple(
        INPUT if name == _START else name
        for name, state, version in passed_on
        if state._version != version
    )
    return trace


def _nan(place: str, value: Tensor) -> str | None:
    """Said first, as nothing can be told from the gradients of NaN."""
    found = int(value.isnan().sum())
    if not found:
        return None
    return (
        f"{place} is NaN in {found} of {value.numel()} places for clean data; expected numbers. "
        "Look at the network's weights, and at what the data are scaled to."
    )


def _not_a_batch(name: str, state: Tensor, n: int) -> str | None:
    if not state.is_floating_point() or state.dim() < 2:
        remedy = "Convert images to float: x.float() / 255." if name == INPUT else "Cut later."
        return (
            f"the state at cut {name!r} is {state.dtype} of shape {tuple(state.shape)}; expected "
            f"floating point of shape (batch, ...). {remedy}"
        )
    if len(state) != n:
        return (
            f"the state at cut {name!r} has shape {tuple(state.shape)} for a batch of {n}; "
            "expected the batch as first axis (found a sequence-first or merged one). Cut where "
            "the batch comes first, for instance by batch_first=True."
        )
    return None


def _mixed(what: str) -> str:
    return (
        f"{what} for one sample depends on the other samples of the batch; expected each sample by "
        "itself. The batch may not be the first axis there, or a normalisation uses batch "
        "statistics."
    )


def _is_same(state: Tensor, before: Tensor, version: int) -> bool:
    """The same numbers as the state passed on before, perhaps in another shape."""
    return (
        state.numel() == before.numel()
        and state.data_ptr() == before.data_ptr()
        and before._version == version
    )
