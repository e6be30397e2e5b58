"""What a backward pass through a controlled network gives."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal, TypeAlias, cast, get_args

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from clcnn.errors import GradientError

GradMode: TypeAlias = Literal["none", "straight_through", "unroll"]
GRAD_MODES: tuple[str, ...] = get_args(GradMode)


def check_grad_mode(grad: str) -> None:
    """Refuse an unknown mode."""
    if grad not in GRAD_MODES:
        raise GradientError(f"found grad={grad!r}; expected one of {', '.join(GRAD_MODES)}.")


def has_tangent(x: Tensor) -> bool:
    """Whether x carries a forward-mode derivative."""
    dual = torch.autograd.forward_ad.unpack_dual(x)  # type: ignore[no-untyped-call]
    return dual.tangent is not None


def refuse_gradient(logits: Tensor, sources: Iterable[Tensor], grad: str) -> Tensor:
    """The same logits, whose backward pass raises instead of giving a silent zero.

    ``sources`` are the tensors a caller might ask gradients of; when none requires one, or when
    gradients are off, there is nothing to refuse.
    """
    if not torch.is_grad_enabled():
        return logits
    source = next((tensor for tensor in sources if tensor.requires_grad), None)
    if source is None:
        return logits
    refused: Tensor = _RefuseGradient.apply(logits, source, grad)  # type: ignore[no-untyped-call]
    return refused


def for_input_only(x: Tensor, compute: Callable[[Tensor], Tensor]) -> Tensor:
    """compute(x), differentiable once and with respect to x alone.

    Unrolling follows x through all iterations, but weights only through some of the passes: they
    get no gradient rather than a part of one.
    """
    result: Tensor = _ForInputOnly.apply(x, compute)  # type: ignore[no-untyped-call]
    return result


class _ForInputOnly(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, compute: Callable[[Tensor], Tensor]) -> Tensor:
        with torch.enable_grad():
            ctx.leaf = x.detach().requires_grad_()
            ctx.result = compute(ctx.leaf)
        return cast(Tensor, ctx.result.detach())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:
        if len(ctx.leaf) == 0:
            return torch.zeros_like(ctx.leaf), None
        with torch.autocast(ctx.leaf.device.type, enabled=False):
            (g,) = torch.autograd.grad(ctx.result, ctx.leaf, grads[0], retain_graph=True)
        return g, None


class _RefuseGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, source: Tensor, grad: str) -> Tensor:
        ctx.grad = grad
        return logits.view_as(logits)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        if ctx.grad != "none":
            raise GradientError(
                f"grad={ctx.grad!r} gives gradients with respect to the input, but x did not "
                "require one when it was passed in. Call x.requires_grad_() first."
            )
        raise GradientError(
            "a gradient through the controlled network was asked for, but it was made with "
            "grad='none', where there is none (a silent zero would look like robustness). Choose "
            "what an attacker may know: robust.configure(grad='straight_through') holds the "
            "controls constant, grad='unroll' differentiates through the solver."
        )
