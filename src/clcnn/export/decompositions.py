"""Backward operations in terms of forward ones, as inference formats know no others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil
from typing import Any

import torch
from torch import Tensor
from torch._decomp import core_aten_decompositions

_aten = torch.ops.aten

Decomposition = Callable[..., Any]


def table() -> dict[Any, Decomposition]:
    """Torch's own decompositions to core operations, and ours for what these leave."""
    return {
        **core_aten_decompositions(),
        _aten.convolution_backward.default: convolution_backward,
        _aten.native_batch_norm.default: batch_norm,
        _aten.native_batch_norm_backward.default: batch_norm_backward,
        _aten.max_pool2d_with_indices_backward.default: max_pool2d_backward,
        _aten.avg_pool2d_backward.default: avg_pool2d_backward,
        _aten._adaptive_avg_pool2d.default: adaptive_avg_pool2d,
        _aten._adaptive_avg_pool2d_backward.default: adaptive_avg_pool2d_backward,
    }


def convolution_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    wanted: Sequence[bool],
) -> Any:
    """dJ/dx = the transposed convolution of dJ/dy; a gradient of a weight is never asked for."""
    if wanted[1] or wanted[2]:
        return NotImplemented
    n = weight.dim() - 2
    if transposed:
        spare = [0] * n
    else:
        # Rows of x that the strides never reached get a zero gradient.
        smallest = [
            (grad.shape[2 + i] - 1) * stride[i]
            - 2 * padding[i]
            + dilation[i] * (weight.shape[2 + i] - 1)
            + 1
            for i in range(n)
        ]
        spare = [x.shape[2 + i] - smallest[i] for i in range(n)]
    arguments = (stride, padding, dilation, not transposed, spare, groups)
    return _aten.convolution.default(grad, weight, None, *arguments), None, None


def batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    variance: Tensor,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    """y = a x + b with a = weight / sqrt(variance + eps), b = bias - a mean, in eval mode."""
    if training:
        return NotImplemented
    a = _slope(weight, variance, eps)
    b = -a * mean if bias is None else bias - a * mean
    nothing = x.new_empty(0)
    return x * _channels(a, x) + _channels(b, x), nothing, nothing


def batch_norm_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor | None,
    mean: Tensor,
    variance: Tensor,
    saved_mean: Tensor | None,
    saved_deviation: Tensor | None,
    training: bool,
    eps: float,
    wanted: Sequence[bool],
) -> Any:
    """dJ/dx = a dJ/dy, in eval mode."""
    if training or wanted[1] or wanted[2]:
        return NotImplemented
    return grad * _channels(_slope(weight, variance, eps), grad), None, None


def _slope(weight: Tensor | None, variance: Tensor, eps: float) -> Tensor:
    a = 1 / torch.sqrt(variance + eps)
    return a if weight is None else a * weight


def _channels(values: Tensor, like: Tensor) -> Tensor:
    """One value a channel, the second axis, to be spread over all others."""
    return values.view(-1, *[1] * (like.dim() - 2))


def max_pool2d_backward(
    grad: Tensor,
    x: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
    indices: Tensor,
) -> Tensor:
    """dJ/dx: each window's gradient goes to the place of its maximum, windows add up."""
    places = torch.zeros_like(x).flatten(-2)
    return places.scatter_add(-1, indices.flatten(-2), grad.flatten(-2)).view(x.shape)


def avg_pool2d_backward(
    grad: Tensor,
    x: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Tensor:
    """dJ/dx = A_rows' dJ/dy A_columns, as y = A_rows x A_columns'."""
    sides = []
    for i in (0, 1):
        inside, outside = x.shape[-2 + i], grad.shape[-2 + i]
        k, p = _at(kernel_size, i), _at(padding, i)
        s = _at(stride, i) if stride else k
        rows = []
        for start in range(-p, outside * s - p, s):
            end = min(start + k, inside + p)
            covered = range(max(start, 0), min(end, inside))
            divisor = end - start if count_include_pad else len(covered)
            rows.append((covered, 1.0 if divisor_override else 1.0 / divisor))
        sides.append(_matrix(rows, inside, grad))
    pulled = sides[0].T @ grad @ sides[1]
    return pulled / divisor_override if divisor_override else pulled


def adaptive_avg_pool2d(x: Tensor, output_size: Sequence[int]) -> Tensor:
    """y = A_rows x A_columns', with the windows that the output size gives."""
    rows, columns = (_adaptive(x.shape[a], output_size[a], x) for a in (-2, -1))
    return rows @ x @ columns.T


def adaptive_avg_pool2d_backward(grad: Tensor, x: Tensor) -> Tensor:
    """dJ/dx = A_rows' dJ/dy A_columns."""
    rows, columns = (_adaptive(x.shape[a], grad.shape[a], grad) for a in (-2, -1))
    return rows.T @ grad @ columns


def _adaptive(inside: int, outside: int, like: Tensor) -> Tensor:
    ends = [(i * inside // outside, ceil((i + 1) * inside / outside)) for i in range(outside)]
    windows = [range(*pair) for pair in ends]
    return _matrix([(w, 1.0 / len(w)) for w in windows], inside, like)


def _matrix(rows: Sequence[tuple[range, float]], width: int, like: Tensor) -> Tensor:
    """One row a window: the same value at every place that the window covers."""
    listed = [[value if i in covered else 0.0 for i in range(width)] for covered, value in rows]
    return torch.tensor(listed, dtype=like.dtype, device=like.device)


def _at(values: Sequence[int], i: int) -> int:
    """Torch lets one number stand for both axes."""
    return values[i] if len(values) > 1 else values[0]
