"""Import quantized operators: integer products in int32, scales in floating point."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rammer.frontend.onnx.handlers.casts import narrow_float
from rammer.frontend.onnx.handlers.neural import windows
from rammer.frontend.onnx.node import Node, handles
from rammer.frontend.onnx.tensors import element_type
from rammer.ir.tensor import DType, TensorId

_INTEGERS = frozenset(d for d in DType if not d.is_float and d is not DType.BOOL and d.bits <= 16)
_NARROW = frozenset(d for d in _INTEGERS if d.bits <= 8)
_FLOATS = frozenset((DType.F16, DType.BF16, DType.F32))  # types in which the standard computes quantization


def spread(n: Node, parameter: TensorId, x: TensorId, axis: int) -> TensorId:
    """Make a scale or zero point broadcast against x: one number, a vector along `axis`, or as many dimensions as x.

    Raises ModelError if it does not fit: its extents must be 1 or those of x.
    """
    kind, shape = n.type(parameter), n.type(x).shape
    if kind.size == 1 and kind.rank <= 1:
        return n.reshape(parameter, ())
    if kind.rank == 1:
        axis = n.axis(axis, len(shape))
        found = [kind.shape[0] if d == axis else 1 for d in range(len(shape))]
    else:
        found = [1] * (len(shape) - kind.rank) + list(kind.shape)
    if len(found) != len(shape) or any(e not in (1, whole) for e, whole in zip(found, shape, strict=True)):
        raise n.fail(f"scale or zero point {kind} does not fit {n.type(x)} along axis {axis}")
    return n.reshape(parameter, found)


def _along(n: Node, parameter: TensorId, x: TensorId, axis: int) -> TensorId:
    """Make a parameter broadcast against x; it may have one number for each block along `axis`, which is repeated."""
    kind, shape = n.type(parameter), n.type(x).shape
    block = n.attrs.get("block_size") or 0
    if not block or (kind.size == 1 and kind.rank <= 1):
        return spread(n, parameter, x, axis)
    axis = n.axis(axis, len(shape))
    if (
        kind.rank != len(shape)
        or kind.shape[axis] * block < shape[axis]
        or any(a not in (1, b) for d, (a, b) in enumerate(zip(kind.shape, shape, strict=True)) if d != axis)
    ):
        raise n.fail(f"{kind} does not fit {n.type(x)} along axis {axis} in blocks of {block}")
    blocks = n.reshape(parameter, (*kind.shape[: axis + 1], 1, *kind.shape[axis + 1 :]))
    blocks = n.expand(blocks, (*kind.shape[: axis + 1], block, *kind.shape[axis + 1 :]))
    blocks = n.reshape(blocks, (*kind.shape[:axis], kind.shape[axis] * block, *kind.shape[axis + 1 :]))
    return n.cut(blocks, axis, 0, shape[axis])


def dequantize(
    n: Node, x: TensorId, scale: TensorId, zero: TensorId | None, axis: int, dtype: DType | None = None
) -> TensorId:
    """Return (x - zero) * scale, by default in the type of the scale."""
    dtype = dtype or n.type(scale).dtype
    exact = DType.F32 if n.type(x).dtype.is_float else DType.I32
    shape, value = n.type(x).shape, x
    if split := _split_blocks(n, shape, n.type(scale).shape, axis):  # broadcasts, without repeating parameters
        ones = [1 if d == n.axis(axis, len(shape)) + 1 else e for d, e in enumerate(split)]
        if zero is not None and n.type(zero).size > 1:  # a pass may gather its rows
            n.builder.keep(zero)
        value, scale = n.reshape(x, split), n.reshape(scale, ones)
        zero = zero if zero is None or n.type(zero).size == 1 else n.reshape(zero, ones)
    else:
        scale, zero = _along(n, scale, x, axis), zero and _along(n, zero, x, axis)
    value = n.cast(value, exact)
    if zero is not None:
        value = n.add("sub", value, n.cast(zero, exact))
    return n.reshape(n.add("mul", n.cast(value, dtype), n.cast(scale, dtype)), shape)


def _split_blocks(n: Node, shape: Sequence[int], blocks: Sequence[int], axis: int) -> list[int] | None:
    """Return the shape with `axis` split into blocks, one per scale; None unless the blocks are whole."""
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
    """Return x / scale + zero, rounded and clipped to the type; divided in `precision`, by default the type of x."""
    precision = precision or n.type(x).dtype
    steps = n.add("div", n.cast(x, precision), n.cast(_along(n, scale, x, axis), precision))
    wide = n.cast(steps if dtype.is_float else n.add("round", steps), DType.F32)
    if zero is not None and not (dtype.is_float and _is_zero(n, zero)):
        wide = n.add("add", wide, n.cast(_along(n, zero, x, axis), DType.F32))
    if dtype.is_float:
        return narrow_float(n, wide, dtype, saturate=saturate)
    if dtype not in _INTEGERS:
        raise n.fail(f"quantization to {dtype.value} is not supported", hint="use an integer of at most 16 bits")
    return n.cast(n.add("clip", wide, low=float(dtype.info.min), high=float(dtype.info.max)), dtype)


def _is_zero(n: Node, tensor: TensorId) -> bool:
    """Check whether a zero point is known to be 0."""
    value = n.builder.value(tensor)
    return value is not None and not value.astype(np.float32).any()


@handles("DequantizeLinear")
def dequantize_linear(n: Node) -> TensorId:
    axis = n.attrs["axis"] if n.attrs.get("axis") is not None else 1
    if n.dtype() in _NARROW and n.type(n.tensor(0)).rank > 1:  # weights, which kernels may multiply as integers
        n.builder.keep(n.tensor(0))
    dtype = _named(n, "output_dtype") or n.dtype(1)
    if dtype not in _FLOATS:
        raise n.fail(f"dequantization to {dtype.value} is not supported", hint="set output_dtype to a float type")
    return dequantize(n, n.tensor(0), n.tensor(1), n.optional(2), axis, dtype)


@handles("QuantizeLinear")
def quantize_linear(n: Node) -> TensorId:
    axis = n.attrs["axis"] if n.attrs.get("axis") is not None else 1
    named = _named(n, "output_dtype")
    dtype = n.dtype(2) if n.has(2) else named or DType.U8
    if named not in (None, dtype):
        raise n.fail(f"output_dtype is {named}, the zero point {dtype}", hint="both must be the same")
    precision = _named(n, "precision") or (n.dtype(1) if n.dtype(1) in _FLOATS else DType.F32)
    if precision not in _FLOATS:
        raise n.fail(f"precision {precision.value} is not supported", hint="float, float16 or bfloat16")
    saturate = bool(n.attrs.get("saturate", 1))
    return quantize(n, n.tensor(0), n.tensor(1), n.optional(2), axis, dtype, precision=precision, saturate=saturate)


def _named(n: Node, attribute: str) -> DType | None:
    """Return the element type that an attribute names; None if it names none."""
    code = n.attrs.get(attribute)
    return element_type(code, f"attribute {attribute!r}", node=n.label, op=n.op) if code else None


def shifted(n: Node, tensor: TensorId, zero: TensorId | None, axis: int) -> TensorId:
    """Return tensor - zero as int32. A vector of zero points is along `axis`."""
    wide = n.cast(tensor, DType.I32)
    return wide if zero is None else n.add("sub", wide, n.cast(spread(n, zero, tensor, axis), DType.I32))


@handles("MatMulInteger")
def matmul_integer(n: Node) -> TensorId:
    return n.product(shifted(n, n.tensor(0), n.optional(2), -2), shifted(n, n.tensor(1), n.optional(3), -1))


def scaled(n: Node, total: TensorId, *scales: tuple[TensorId, int], dtype: DType = DType.F32) -> TensorId:
    """Multiply an int32 result by its operands' scales, each with the axis of the result for a vector."""
    value = n.cast(total, dtype)
    for scale, axis in scales:
        value = n.add("mul", value, n.cast(spread(n, scale, total, axis), dtype))
    return value


@handles("QLinearMatMul")
def qlinear_matmul(n: Node) -> TensorId:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = (n.tensor(p) for p in range(8))
    total = n.product(shifted(n, a, a_zero, -2), shifted(n, b, b_zero, -1))
    return quantize(n, scaled(n, total, (a_scale, -2), (b_scale, -1)), y_scale, y_zero, -2, n.type(y_zero).dtype)


@handles("ConvInteger")
def conv_integer(n: Node) -> TensorId:
    w = windows(n, n.attrs.get("kernel_shape") or n.shape(1)[2:])
    operands = shifted(n, n.tensor(0), n.optional(2), 1), shifted(n, n.tensor(1), n.optional(3), 0)
    return n.add("conv", *operands, group=n.attrs["group"], **w.attrs)


@handles("QLinearConv")
def qlinear_conv(n: Node) -> TensorId:
    x, x_scale, x_zero, weight, w_scale, w_zero, y_scale, y_zero = (n.tensor(p) for p in range(8))
    w = windows(n, n.attrs.get("kernel_shape") or n.type(weight).shape[2:])
    operands = [shifted(n, x, x_zero, 1), shifted(n, weight, w_zero, 0), *([n.tensor(8)] if n.has(8) else [])]
    total = n.add("conv", *operands, group=n.attrs["group"], **w.attrs)
    return quantize(n, scaled(n, total, (x_scale, 1), (w_scale, 1)), y_scale, y_zero, 1, n.type(y_zero).dtype)
