"""A faster copy of the network for the solver's iterations; its answer never reaches a user."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval

from clcnn.dynamics.base import INPUT
from clcnn.errors import CutError
from clcnn.types import Steer

_LAYERS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)

_MOST_ROUNDED = 0.1
"""The largest share of a state's size by which bfloat16 may change it."""

Version: TypeAlias = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class Speedups:
    """What the iterations may do otherwise than the user's modules: states equal up to rounding.

    fold: batch norms become part of the convolution or linear layer before them.
    channels_last: 4-dimensional states are laid out with the channels last.
    compile: the parts between the cuts go through torch.compile (a backend's name, or True).
    bfloat16: weights and what passes between them in bfloat16; the states at the cuts, where
        controls are added and costs taken, in their own dtype.
    """

    fold: bool = True
    channels_last: bool = True
    compile: bool | str = False
    bfloat16: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.compile, str):
            known = torch.compiler.list_backends(exclude_tags=())
            if self.compile not in known:
                raise CutError(
                    f"found compile={self.compile!r}; expected True, False or a backend of "
                    f"torch.compile: {', '.join(known)}."
                )


class StandIn:
    """The network as the iterations run it: a copy that follows the original's weights.

    Writes that autograd does not count, through ``.data``, are not seen, nor is a norm's eps.
    """

    def __init__(
        self, model: nn.Module, cuts: tuple[str, ...], example: Tensor, speedups: Speedups
    ) -> None:
        self.original, self.cuts, self.example, self.speedups = model, cuts, example, speedups
        self._made, self.folded, self.dtypes = self._make()
        self._version = version_of(model)

    def module(self) -> nn.Module:
        """The copy; made anew if the original's weights have changed or moved since."""
        version = version_of(self.original)
        if version != self._version:
            self._made, self.folded, self.dtypes = self._make()
            self._version = version  # only now: a copy that could not be made is tried again
        return self._made

    def lay_out(self, x: Tensor) -> Tensor:
        """x in the memory layout that the copy works in."""
        if self.speedups.channels_last and x.dim() == 4:
            return x.contiguous(memory_format=torch.channels_last)
        return x

    def enter(self, x0: Tensor) -> Tensor:
        """x0 in the dtype that the copy works in."""
        return x0.to(torch.bfloat16) if self.speedups.bfloat16 and x0.is_floating_point() else x0

    def between(self, steer: Steer) -> Steer:
        """``steer`` in the states' own dtypes, whatever the copy works in."""
        if not self.speedups.bfloat16:
            return steer

        def cast(t: int, x: Tensor) -> Tensor:
            if self.cuts[t] == INPUT:  # not rounded yet
                return self.enter(steer(t, x))
            own = self.dtypes[t]
            return self.enter(steer(t, x if own is None else x.to(own)))

        return cast

    def _make(self) -> tuple[nn.Module, int, list[torch.dtype | None]]:
        try:
            made = copy.deepcopy(self.original)
        except (RuntimeError, TypeError) as error:
            raise CutError(
                f"the model cannot be copied ({error}), which a faster stand-in needs. Leave "
                "`accelerate` out."
            ) from error
        made.requires_grad_(False)
        parameter = next(chain(made.parameters(), made.buffers()), None)
        example = self.example if parameter is None else self.example.to(parameter.device)
        own = floating_dtype(made)
        if own is not None and example.is_floating_point():
            example = example.to(own)
        folded = 0
        dtypes: list[torch.dtype | None] = []
        exact = torch.autocast(example.device.type, enabled=False)
        with torch.inference_mode(False), torch.no_grad(), exact:
            if self.speedups.fold:
                expected = _states(made, self.cuts, example)
                folded = fold_batch_norms(made, example, self.cuts)
                _check_same(expected, _states(made, self.cuts, example))
            if self.speedups.bfloat16:
                dtypes = _round(made, self.cuts, example, self.enter(example))
            if self.speedups.channels_last:
                _channels_last(made)
        if self.speedups.compile:
            compile_between(made, self.cuts, self.speedups.compile)
        return made, folded, dtypes


def fold_batch_norms(model: nn.Module, example: Tensor, cuts: tuple[str, ...] = ()) -> int:
    """W <- W g / sqrt(v + eps), b <- (b - m) g / sqrt(v + eps) + beta, in place; how many.

    Which norm follows which layer is seen by running the example, so that any forward method will
    do: a pair is folded if both ran once and the layer's output goes into the norm alone. One with
    a cut between them is not: the state there is the layer's output as it is.
    """
    pairs = _followed_by_norm(model, example, cuts)
    pairs = _used_once(model, example, pairs) if pairs else []
    for layer, norm in pairs:
        before, after = model.get_submodule(layer), model.get_submodule(norm)
        fuse: Any = fuse_linear_bn_eval if isinstance(before, nn.Linear) else fuse_conv_bn_eval
        model.set_submodule(layer, fuse(before, after))
        model.set_submodule(norm, nn.Identity())
    return len(pairs)


def _states(model: nn.Module, cuts: tuple[str, ...], example: Tensor) -> list[object]:
    """What arrives at every cut, and the model's output."""
    seen: list[object] = []

    def note(module: nn.Module, args: tuple[Any, ...]) -> None:
        seen.append(args[0].clone() if args and isinstance(args[0], Tensor) else None)

    with ExitStack() as hooks:
        for cut in cuts:
            if cut != INPUT:
                hooks.callback(model.get_submodule(cut).register_forward_pre_hook(note).remove)
        output = model(example)
    return [*seen, output]


def _writes(tensor: Tensor) -> int:
    """How often a tensor was written over, where that is counted."""
    return 0 if tensor.is_inference() else tensor._version


def _followed_by_norm(
    model: nn.Module, example: Tensor, cuts: tuple[str, ...]
) -> list[tuple[str, str]]:
    """Pairs (layer, norm) that ran once each, the norm's input being the layer's output."""
    outputs: dict[int, tuple[str, Tensor, int]] = {}
    followers: dict[str, str] = {}
    controlled: set[str] = set()
    runs: Counter[str] = Counter()

    def at_cut(module: nn.Module, args: tuple[Any, ...]) -> None:
        if args and id(args[0]) in outputs:
            controlled.add(outputs[id(args[0])][0])

    def after(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            runs[name] += 1
            if isinstance(module, _LAYERS) and isinstance(output, Tensor):
                # Held, so that the id stays its own.
                outputs[id(output)] = (name, output, _writes(output))
            elif isinstance(module, _NORMS) and args and id(args[0]) in outputs:
                layer, held, writes = outputs[id(args[0])]
                if _writes(held) == writes:  # an activation in place keeps the tensor
                    followers[layer] = name

        return hook

    with ExitStack() as hooks:
        for name, module in model.named_modules():
            if isinstance(module, (*_LAYERS, *_NORMS)):
                handle = module.register_forward_hook(after(name))
                hooks.callback(handle.remove)
        for cut in cuts:
            if cut != INPUT:
                hooks.callback(model.get_submodule(cut).register_forward_pre_hook(at_cut).remove)
        model(example)
    return [
        (layer, norm)
        for layer, norm in followers.items()
        if layer not in controlled
        and runs[layer] == runs[norm] == 1
        and _foldable(model.get_submodule(norm))
    ]


def _used_once(
    model: nn.Module, example: Tensor, pairs: list[tuple[str, str]]
) -> list[tuple[str, str]]:
    """Pairs whose layer's output goes into the norm alone.

    Every output gets a zero of its own added, which the norm is not shown: where the model's
    answer still depends on that zero, as autograd tells, something else uses the output.
    """
    zeros: dict[str, Tensor] = {}
    plain: dict[str, Tensor] = {}

    def add_zero(name: str) -> Callable[..., Tensor]:
        def hook(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
            plain[name], zeros[name] = output, torch.zeros_like(output, requires_grad=True)
            return output + zeros[name]

        return hook

    def without_it(name: str) -> Callable[..., tuple[Tensor]]:
        return lambda module, args: (plain[name],)

    with torch.enable_grad(), ExitStack() as hooks:
        for layer, norm in pairs:
            added = model.get_submodule(layer).register_forward_hook(add_zero(layer))
            hooks.callback(added.remove)
            taken = model.get_submodule(norm).register_forward_pre_hook(without_it(layer))
            hooks.callback(taken.remove)
        output = model(example)
        if not (isinstance(output, Tensor) and output.requires_grad):
            return pairs  # nothing but norms used any of them
        uses = torch.autograd.grad(output.sum(), list(zeros.values()), allow_unused=True)
    elsewhere = {name for name, use in zip(zeros, uses, strict=True) if use is not None}
    return [(layer, norm) for layer, norm in pairs if layer not in elsewhere]


def _foldable(norm: nn.Module) -> bool:
    return getattr(norm, "running_mean", None) is not None and not norm.training


def _check_same(expected: list[object], found: list[object]) -> None:
    for a, b in zip(expected, found, strict=True):
        if not (isinstance(a, Tensor) and isinstance(b, Tensor)):
            continue
        if not torch.allclose(a, b, rtol=1e-3, atol=1e-4):
            raise CutError(
                "folding the batch norms changed a state or the output by "
                f"{float((a - b).abs().max()):.3g}: something other than a norm uses a layer's "
                "output or weights. Use accelerate(fold=False)."
            )


def _round(
    model: nn.Module, cuts: tuple[str, ...], example: Tensor, rounded: Tensor
) -> list[torch.dtype | None]:
    """Weights and buffers in bfloat16, in place; the dtype that each cut's state had before.

    Refused where a state that is steered changes by more than a tenth of its size.
    """
    remedy = "Use accelerate(bfloat16='embeddings'), which leaves the network as it is."
    expected = _states(model, cuts, example)
    model.to(torch.bfloat16)
    try:
        found = _states(model, cuts, rounded)
    except (RuntimeError, TypeError, ValueError, AssertionError) as error:
        raise CutError(f"the network does not run in bfloat16 ({error}). {remedy}") from error
    inner = [state.dtype if isinstance(state, Tensor) else None for state in expected[:-1]]
    dtypes = [None, *inner] if INPUT in cuts else inner
    for a, b in zip(expected[:-1], found[:-1], strict=True):  # beyond the last cut it never runs
        if not (isinstance(a, Tensor) and isinstance(b, Tensor) and a.is_floating_point()):
            continue
        gap = float((a - b.to(a.dtype)).norm() / a.norm().clamp_min(torch.finfo(a.dtype).tiny))
        if not gap <= _MOST_ROUNDED:
            raise CutError(
                f"in bfloat16 a state of the network changes by {gap:.0%}; expected at most "
                f"{_MOST_ROUNDED:.0%}. {remedy}"
            )
    return dtypes


def floating_dtype(model: nn.Module) -> torch.dtype | None:
    """The dtype of the model's first floating-point weight; None if it has none."""
    return next((p.dtype for p in model.parameters() if p.is_floating_point()), None)


def _channels_last(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            module.weight.data = module.weight.data.contiguous(memory_format=torch.channels_last)


def compile_between(model: nn.Module, cuts: tuple[str, ...], backend: bool | str) -> None:
    """Compile the largest modules with no cut inside; a cut's own hook fires before its forward."""

    def walk(name: str, module: nn.Module) -> None:
        inside = f"{name}." if name else ""
        if any(cut.startswith(inside) and cut != name for cut in cuts):
            for child, part in module.named_children():
                walk(inside + child, part)
        elif not isinstance(module, (nn.ModuleList, nn.ModuleDict)):
            how = "inductor" if backend is True else backend
            module.forward = torch.compile(module.forward, backend=how, dynamic=True)  # type: ignore[arg-type]

    walk("", model)


def version_of(model: nn.Module) -> Version:
    """Changes when a weight or buffer is replaced, moved, or written to as autograd counts it."""
    values = chain(model.parameters(), model.buffers())
    return tuple((id(value), value._version, value.data_ptr()) for value in values)
