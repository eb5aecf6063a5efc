"""Quantization: integer products are taken in int32, scales are applied in floating point."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rammer.frontend.onnx.handlers.casts import narrow_float
from rammer.frontend.onnx.handlers.neural import windows
from rammer.frontend.onnx.node import Node, handles
from rammer.frontend.onnx.tensors import element_type
from rammer.ir.tensor import DType, TensorId

_INTEGERS = frozenset(d for d in DType if not d.is_float and d is not DType.BOOL and d.bits <= 16)
_FEW_BITS = frozenset(d for d in _INTEGERS if d.bits <= 8)
_FLOATS = frozenset((DType.F16, DType.BF16, DType.F32))  # what the standard computes quantisation in


def _along(n: Node, parameter: TensorId, x: TensorId, axis: int) -> TensorId:
    """A scale or zero point as something that broadcasts against x: one number, one per axis, or one per block."""
    kind, shape = n.type(parameter), n.type(x).shape
    if kind.size == 1 and kind.rank <= 1:
        return n.reshape(parameter, ())
    block = n.attrs.get("block_size") or 0
    if kind.rank == 1 and not block:
        axis = n.axis(axis, len(shape))
        return n.reshape(parameter, _at(shape, axis, kind.shape[0]))
    axis = n.axis(axis, len(shape))
    if kind.rank != len(shape) or not block or kind.shape[axis] * block < shape[axis]:
        raise n.fail(f"{kind} does not fit {n.type(x)} along axis {axis} in blocks of {block}")
    spread = n.reshape(parameter, (*kind.shape[: axis + 1], 1, *kind.shape[axis + 1 :]))
    spread = n.expand(spread, (*kind.shape[: axis + 1], block, *kind.shape[axis + 1 :]))
    spread = n.reshape(spread, (*kind.shape[:axis], kind.shape[axis] * block, *kind.shape[axis + 1 :]))
    return n.slice(spread, (0,) * len(shape), (*kind.shape[:axis], shape[axis], *kind.shape[axis + 1 :]))


def _at(shape: Sequence[int], axis: int, extent: int) -> list[int]:
    return [extent if d == axis else 1 for d in range(len(shape))]


def dequantize(
    n: Node, x: TensorId, scale: TensorId, zero: TensorId | None, axis: int, dtype: DType | None = None
) -> TensorId:
    """(x - zero) * scale, in the type of the scale if no other is given."""
    dtype = dtype or n.type(scale).dtype
    exact = DType.F32 if n.type(x).dtype.is_float else DType.I32
    shape, value = n.type(x).shape, x
    if apart := _apart(n, shape, n.type(scale).shape, axis):  # nothing is repeated
        ones = [1 if d == n.axis(axis, len(shape)) + 1 else e for d, e in enumerate(apart)]
        if zero is not None and n.type(zero).size > 1:  # rows of it may be found
            n.builder.keep(zero)
        value, scale = n.reshape(x, apart), n.reshape(scale, ones)
        zero = zero if zero is None or n.type(zero).size == 1 else n.reshape(zero, ones)
    else:
        scale, zero = _along(n, scale, x, axis), zero and _along(n, zero, x, axis)
    value = n.cast(value, exact)
    if zero is not None:
        value = n.add("sub", value, n.cast(zero, exact))
    return n.reshape(n.add("mul", n.cast(value, dtype), n.cast(scale, dtype)), shape)


def _apart(n: Node, shape: Sequence[int], blocks: Sequence[int], axis: int) -> list[int] | None:
    """The shape with an axis cut into blocks that have parameters each; None where it is not whole blocks."""
    size = n.attrs.get("block_size") or 0
    if not size or len(blocks) != len(shape):
        return None
    axis = n.axis(axis, len(shape))
    whole = [e * size if d == axis else e for d, e in enumerate(blocks)] == list(shape)
    return [*blocks[: axis + 1], size, *blocks[axis + 1 :]] if whole else None


def quantize(
    n: Node,
    x: TensorId,
    scale: TensorId,
    zero: TensorId | None,
    axis: int,
    dtype: DType,
    *,
    precision: DType | None = None,
    saturate: bool = True,
) -> TensorId:
    """x / scale + zero, rounded and kept inside the type; divided in `precision`, or else in the type of x."""
    precision = precision or n.type(x).dtype
    scaled = n.add("div", n.cast(x, precision), n.cast(_along(n, scale, x, axis), precision))
    wide = n.cast(scaled if dtype.is_float else n.add("round", scaled), DType.F32)
    if zero is not None and not (dtype.is_float and _is_zero(n, zero)):
        wide = n.add("add", wide, n.cast(_along(n, zero, x, axis), DType.F32))
    if dtype.is_float:
        return narrow_float(n, wide, dtype, saturate=saturate)
    if dtype not in _INTEGERS:
        raise n.fail(f"quantization to {dtype.value} is not supported", hint="use an integer of at most 16 bits")
    return n.cast(n.add("clip", wide, low=float(dtype.info.min), high=float(dtype.info.max)), dtype)


def _is_zero(n: Node, tensor: TensorId) -> bool:
    """Whether a zero point is known to be one."""
    value = n.builder.value(tensor)
    return value is not None and not value.astype(np.float32).any()


@handles("DequantizeLinear")
def dequantize_linear(n: Node) -> TensorId:
    axis = n.attrs["axis"] if n.attrs.get("axis") is not None else 1
    if n.dtype() in _FEW_BITS and n.type(n.tensor(0)).rank > 1:  # weights: they may be multiplied as they are
        n.builder.keep(n.tensor(0))
    dtype = _named(n, "output_dtype") or n.dtype(1)
    if dtype not in _FLOATS:
        raise n.fail(f"dequantization to {dtype.value} is not supported", hint="set output_dtype to a float type")
    return dequantize(n, n.tensor(0), n.tensor(1), n.optional(2), axis, dtype)


@handles("QuantizeLinear")
def quantize_linear(n: Node) -> TensorId:
    axis = n.attrs["axis"] if n.attrs.get("axis") is not None else 1
    told = _named(n, "output_dtype")
    dtype = n.dtype(2) if n.has(2) else told or DType.U8
    if told not in (None, dtype):
        raise n.fail(f"output_dtype is {told}, the zero point {dtype}", hint="both must be the same")
    precision = _named(n, "precision") or (n.dtype(1) if n.dtype(1) in _FLOATS else DType.F32)
    if precision not in _FLOATS:
        raise n.fail(f"precision {precision.value} is not supported", hint="float, float16 or bfloat16")
    saturate = bool(n.attrs.get("saturate", 1))
    return quantize(n, n.tensor(0), n.tensor(1), n.optional(2), axis, dtype, precision=precision, saturate=saturate)


def _named(n: Node, attribute: str) -> DType | None:
    """The element type that an attribute names; None if it names none."""
    code = n.attrs.get(attribute)
    return element_type(code, f"attribute {attribute!r}", node=n.label, op=n.op) if code else None


def shifted(n: Node, tensor: TensorId, zero: TensorId | None, axis: int) -> TensorId:
    """tensor - zero as int32; a vector of zero points lies along `axis`."""
    wide = n.cast(tensor, DType.I32)
    if zero is None:
        return wide
    kind, rank = n.type(zero), n.type(tensor).rank
    if kind.rank <= 1:
        zero = n.reshape(zero, () if kind.size == 1 else _at((0,) * rank, n.axis(axis, rank), kind.size))
    return n.add("sub", wide, n.cast(zero, DType.I32))


@handles("MatMulInteger")
def matmul_integer(n: Node) -> TensorId:
    return n.product(shifted(n, n.tensor(0), n.optional(2), -2), shifted(n, n.tensor(1), n.optional(3), -1))


def _requantized(n: Node, total: TensorId, scales: Sequence[TensorId], zero: TensorId, axis: int) -> TensorId:
    """An int32 result times the operands' scales, quantized with the result's own."""
    value = n.cast(total, DType.F32)
    for scale in scales[:2]:
        value = n.add("mul", value, n.cast(_along(n, scale, total, axis), DType.F32))
    return quantize(n, value, scales[2], zero, axis, n.type(zero).dtype)


@handles("QLinearMatMul")
def qlinear_matmul(n: Node) -> TensorId:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = (n.tensor(p) for p in range(8))
    total = n.product(shifted(n, a, a_zero, -2), shifted(n, b, b_zero, -1))
    return _requantized(n, total, (a_scale, b_scale, y_scale), y_zero, -1)


@handles("ConvInteger")
def conv_integer(n: Node) -> TensorId:
    w = windows(n, n.attrs.get("kernel_shape") or n.shape(1)[2:])
    operands = shifted(n, n.tensor(0), n.optional(2), 1), shifted(n, n.tensor(1), n.optional(3), 0)
    attrs = {"strides": w.strides, "pads": w.pads, "dilations": w.dilations}
    return n.add("conv", *operands, group=n.attrs["group"], **attrs)


@handles("QLinearConv")
def qlinear_conv(n: Node) -> TensorId:
    x, x_scale, x_zero, weight, w_scale, w_zero, y_scale, y_zero = (n.tensor(p) for p in range(8))
    w = windows(n, n.attrs.get("kernel_shape") or n.type(weight).shape[2:])
    operands = [shifted(n, x, x_zero, 1), shifted(n, weight, w_zero, 0), *([n.tensor(8)] if n.has(8) else [])]
    attrs = {"strides": w.strides, "pads": w.pads, "dilations": w.dilations}
    total = n.add("conv", *operands, group=n.attrs["group"], **attrs)
    return _requantized(n, total, (x_scale, w_scale, y_scale), y_zero, 1)
