"""Decompose operators that have no handler: torch's own decompositions, and some more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from math import prod
from typing import Any

import torch
from torch._decomp import core_aten_decompositions, decomposition_table

from rammer_torch.writer import handler_for

aten = torch.ops.aten

# Training decomposes norms: the backward graph needs their statistics. Random numbers stay torch's own operators.
_STATISTICS = ("native_layer_norm", "native_group_norm")
_RANDOM = ("bernoulli", "rand", "normal", "uniform", "exponential", "geometric", "cauchy", "multinomial")

# Decompositions beyond core ATen. Many of the others would lead to torch's prims.
_MORE = (
    *_STATISTICS,
    "native_batch_norm",
    "_native_batch_norm_legit",
    "_native_batch_norm_legit_functional",
    "adaptive_max_pool2d",
)


def _name(op: Any) -> str:
    """Return an operator's name without namespace and overload."""
    return str(op).partition(".")[2].partition(".")[0]


def decompositions(training: bool) -> dict[Any, Callable[..., Any]]:
    """Return the table of decompositions for AOTAutograd and torch.export."""

    def stays(op: Any) -> bool:
        name = _name(op)
        if name.startswith(_RANDOM):
            return True
        return handler_for(op) is not None and not (training and name in _STATISTICS)

    more = {op: function for op, function in decomposition_table.items() if _name(op) in _MORE}
    core = dict(core_aten_decompositions().items())  # copied: its own class loses entries in `|`
    return {op: function for op, function in (core | more).items() if not stays(op)} | _OWN


def _convolution_backward(
    grad: Any,
    x: Any,
    weight: Any,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    mask: Sequence[bool],
) -> Any:
    """Return the gradients of input, weight and bias, each as a convolution or a sum."""
    n = weight.dim() - 2
    by_input = by_weight = by_bias = None
    if mask[0]:
        more = [0] * n if transposed else _missing(x, grad, weight.shape[2:], stride, padding, dilation)
        by_input = aten.convolution(grad, weight, None, stride, padding, dilation, not transposed, more, groups)
    if mask[1]:
        image, window = (grad, x) if transposed else (x, grad)
        by_weight = _weight_gradient(image, window, weight.shape[2:], stride, padding, dilation, groups)
    if mask[2]:
        by_bias = grad.sum([0, *range(2, 2 + n)])
    return by_input, by_weight, by_bias


def _missing(x: Any, grad: Any, kernel: Any, stride: Any, padding: Any, dilation: Any) -> list[int]:
    """Return by how much an input is longer than what a transposed convolution of the result's gradient has."""
    sides = zip(x.shape[2:], grad.shape[2:], kernel, stride, padding, dilation, strict=True)
    return [extent - ((out - 1) * s - 2 * p + d * (k - 1) + 1) for extent, out, k, s, p, d in sides]


def _weight_gradient(
    image: Any,
    window: Any,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Any:
    """Return the weight's gradient [out, in / groups, *kernel]: one matrix product for each position of the kernel.

    Each product is of the image, shifted and strided by that position, and the window.
    """
    n = len(kernel)
    batch, channels = image.shape[:2]
    places = prod(window.shape[2:])
    padded = aten.constant_pad_nd(image, [p for pad in reversed(padding) for p in (pad, pad)], 0.0)
    right = window.view(batch, groups, window.shape[1] // groups, places).permute(1, 2, 0, 3)
    right = right.reshape(groups, window.shape[1] // groups, batch * places)
    products = []
    for at in product(*map(range, kernel)):
        seen = padded
        for axis in range(n):
            start = at[axis] * dilation[axis]
            end = start + (window.shape[2 + axis] - 1) * stride[axis] + 1
            seen = aten.slice(seen, 2 + axis, start, end, stride[axis])
        left = seen.reshape(batch, groups, channels // groups, places).permute(1, 0, 3, 2)
        products.append(aten.bmm(right, left.reshape(groups, batch * places, channels // groups)))
    stacked = torch.stack(products, -1)
    return stacked.reshape(groups * stacked.shape[1], stacked.shape[2], *kernel)


def _max_pool2d_backward(
    grad: Any, x: Any, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool, places: Any
) -> Any:
    plane = x.shape[-2] * x.shape[-1]
    zeros = grad.new_zeros((*x.shape[:-2], plane))
    return zeros.scatter_add(-1, places.flatten(-2), grad.flatten(-2)).view(x.shape)


def _avg_pool2d_backward(
    grad: Any, x: Any, kernel: Any, stride: Any, padding: Any, ceil: bool, count_pads: bool, divisor: int | None
) -> Any:
    """Return the input's gradient, as a transposed convolution of each channel with ones."""
    if ceil or x.dim() != 4 or not (count_pads or not any(padding)):
        return NotImplemented
    steps, channels = list(stride or kernel), x.shape[1]
    ones = grad.new_ones((channels, 1, *kernel)) / (divisor or prod(kernel))
    missing = _missing(x, grad, kernel, steps, padding, [1] * len(kernel))
    return aten.convolution(grad, ones, None, steps, padding, [1, 1], True, missing, channels)


def _native_dropout(x: Any, p: float, train: bool | None) -> Any:
    """Draw the mask as a separate operator, so that one Program computes the rest."""
    if not (train and p):
        return x, aten.full(x.shape, True, dtype=torch.bool)
    mask = aten.bernoulli.p(aten.full(x.shape, 0, dtype=x.dtype), 1 - p)
    return x * mask * (1 / (1 - p) if p < 1 else 0), mask.to(torch.bool)


def _adaptive_avg_pool2d(x: Any, size: Sequence[int]) -> Any:
    """Pool by windows of one size, if the extents divide; otherwise use torch's decomposition."""
    window = [extent // out for extent, out in zip(x.shape[-2:], size, strict=True)]
    if [w * out for w, out in zip(window, size, strict=True)] != list(x.shape[-2:]):
        return decomposition_table[aten._adaptive_avg_pool2d.default](x, size)
    return aten.avg_pool2d(x, window, window)


def _attention(*arguments: Any, **named: Any) -> Any:
    """Use torch's decomposition, with a result in the operator's own memory order: traced views depend on it."""
    out, sums = decomposition_table[aten._scaled_dot_product_flash_attention_for_cpu.default](*arguments, **named)
    return out.transpose(1, 2).contiguous().transpose(1, 2), sums


_OWN: dict[Any, Callable[..., Any]] = {
    aten.convolution_backward.default: _convolution_backward,
    aten.max_pool2d_with_indices_backward.default: _max_pool2d_backward,
    aten.avg_pool2d_backward.default: _avg_pool2d_backward,
    aten.native_dropout.default: _native_dropout,
    aten._adaptive_avg_pool2d.default: _adaptive_avg_pool2d,
    aten._scaled_dot_product_flash_attention_for_cpu.default: _attention,
}
