"""Import ATen operators of neural networks: convolutions, pools, norms, resizing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import fx

from rammer_torch.writer import DTYPE, Operand, Unsupported, Writer, handles, shape_of

_MODES = {"nearest": "nearest", "linear": "linear", "bilinear": "linear", "bicubic": "cubic", "trilinear": "linear"}


_INTERPOLATED = ("linear1d", "bilinear2d", "trilinear3d", "bicubic2d")


def _per_axis(given: Sequence[int] | int, n: int) -> list[int]:
    """Return one number for every dimension of the window."""
    listed = [given] if isinstance(given, int) else list(given)
    return listed * n if len(listed) == 1 else listed


@handles("convolution")
def convolution(
    w: Writer,
    x: fx.Node,
    weight: fx.Node,
    bias: fx.Node | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> str:
    n = len(shape_of(weight)) - 2
    pads = _per_axis(padding, n) * 2
    strides, dilations = _per_axis(stride, n), _per_axis(dilation, n)
    more = {"output_padding": _per_axis(output_padding, n)} if transposed else {}
    op, inputs = "ConvTranspose" if transposed else "Conv", (x, weight, bias)
    if any(p < 0 for p in pads):
        raise Unsupported(f"padding {pads[:n]}")
    batched = len(shape_of(x)) == n + 2
    if not batched:
        inputs = (w.reshape(x, [1, *shape_of(x)]), weight, bias)
    found = w(op, *inputs, strides=strides, pads=pads, dilations=dilations, group=groups, **more)
    return found if batched else w.reshape(found, list(w.out.shape))


@handles("max_pool2d_with_indices", "max_pool3d_with_indices")
def max_pool(
    w: Writer, x: fx.Node, kernel: Sequence[int], stride: Sequence[int], padding: Any, dilation: Any, ceil: bool
) -> tuple[str, ...]:
    """Pool. Indices are converted: torch counts them within a plane, ONNX within the tensor."""
    n = int(w.target[8])
    found = _pool(
        w, "MaxPool", 2 if w.used(1) else 1, x, kernel, stride, padding, ceil, dilations=_per_axis(dilation, n)
    )
    if len(found) == 1:
        return found
    return found[0], w("Mod", found[1], w.number(int(np.prod(shape_of(x)[-n:])), torch.int64))


@handles("avg_pool1d", "avg_pool2d", "avg_pool3d")
def avg_pool(
    w: Writer,
    x: fx.Node,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Any,
    ceil: bool,
    count_pads: bool,
    divisor: int | None = None,
) -> str:
    if divisor is not None:
        raise Unsupported("divisor_override")
    return _pool(w, "AveragePool", 1, x, kernel, stride, padding, ceil, count_include_pad=int(count_pads))[0]


def _pool(
    w: Writer,
    op: str,
    outputs: int,
    x: fx.Node,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Any,
    ceil: bool,
    **more: Any,
) -> tuple[str, ...]:
    """Pool along the last dimensions. There may be no batch; without a stride, windows lie side by side."""
    n = int(w.target[8])
    shape, window = shape_of(x), _per_axis(kernel, n)
    batched = x if len(shape) == n + 2 else w.reshape(x, [1, *shape])
    strides, pads = _per_axis(stride, n) if stride else window, _per_axis(padding, n) * 2
    found = w.many(op, outputs, batched, kernel_shape=window, strides=strides, pads=pads, ceil_mode=int(ceil), **more)
    return found if len(shape) == n + 2 else tuple(w.reshape(name, list(w.out.shape)) for name in found)


@handles("_native_batch_norm_legit_no_training")
def batch_norm(
    w: Writer, x: fx.Node, scale: Operand, bias: Operand, mean: fx.Node, var: fx.Node, _: float, epsilon: float
) -> tuple[str, ...]:
    w.only(0)
    dtype, channels = DTYPE[w.out.dtype].numpy, shape_of(mean)
    scale = np.ones(channels, dtype) if scale is None else scale
    bias = np.zeros(channels, dtype) if bias is None else bias
    return (w("BatchNormalization", x, scale, bias, mean, var, epsilon=epsilon),)


@handles("native_layer_norm")
def layer_norm(
    w: Writer, x: fx.Node, shape: Sequence[int], scale: Operand, bias: Operand, epsilon: float
) -> tuple[str, ...]:
    w.only(0)
    scale = np.ones(list(shape), DTYPE[w.out.dtype].numpy) if scale is None else scale
    return (w("LayerNormalization", x, scale, bias, axis=-len(shape), epsilon=epsilon),)


@handles("native_group_norm")
def group_norm(
    w: Writer, x: fx.Node, scale: Operand, bias: Operand, _: int, c: int, __: int, groups: int, epsilon: float
) -> tuple[str, ...]:
    w.only(0)
    dtype = DTYPE[w.out.dtype].numpy
    scale = np.ones(c, dtype) if scale is None else scale
    bias = np.zeros(c, dtype) if bias is None else bias
    return (w("GroupNormalization", x, scale, bias, num_groups=groups, epsilon=epsilon),)


@handles(*(f"upsample_nearest{n}d.{form}" for n in (1, 2, 3) for form in ("default", "vec")))
def nearest(w: Writer, x: fx.Node, _: Any, *factors: Any) -> str:
    return _resize(w, x, factors, coordinate_transformation_mode="asymmetric", nearest_mode="floor")


@handles(*(f"upsample_{kind}.{form}" for kind in _INTERPOLATED for form in ("default", "vec")))
def interpolated(w: Writer, x: fx.Node, _: Any, align_corners: bool, *factors: Any) -> str:
    mode = "align_corners" if align_corners else "half_pixel"
    coefficient = -0.75 if "cubic" in w.target else None
    return _resize(w, x, factors, coordinate_transformation_mode=mode, cubic_coeff_a=coefficient)


@handles(*(f"_upsample_{kind}2d_aa.{form}" for kind in ("bilinear", "bicubic") for form in ("default", "vec")))
def antialiased(w: Writer, x: fx.Node, _: Any, align_corners: bool, *factors: Any) -> str:
    """Resize with antialiasing. PyTorch's cubic then has another coefficient, and excludes the edges."""
    if align_corners:
        raise Unsupported("antialias with align_corners")  # torch mixes half-pixel positions with the scale of corners
    return _resize(w, x, factors, antialias=1, exclude_outside=1, cubic_coeff_a=-0.5)


def _resize(w: Writer, x: fx.Node, factors: Sequence[Any], **attributes: Any) -> str:
    """Resize by scales (a list, or one for each axis) if the caller gave them, else to the output's shape."""
    mode = w.target.removesuffix("_aa").lstrip("_").removeprefix("upsample_")[:-2]
    listed = factors[0] if isinstance(factors[0], list | tuple) else factors
    scales = None if None in listed else np.asarray([1, 1, *listed], np.float32)
    sizes = list(w.out.shape) if scales is None else None
    return w("Resize", x, None, scales, sizes, mode=_MODES[mode], **attributes)


@handles("grid_sampler_2d", "grid_sampler_3d")
def grid_sampler(w: Writer, x: fx.Node, grid: fx.Node, mode: int, padding: int, align_corners: bool) -> str:
    modes, paddings = ("linear", "nearest", "cubic"), ("zeros", "border", "reflection")
    return w("GridSample", x, grid, mode=modes[mode], padding_mode=paddings[padding], align_corners=int(align_corners))
