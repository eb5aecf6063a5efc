"""Import quantized com.microsoft operators: each dequantizes, computes, and quantizes again."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from rammer.frontend.onnx.handlers.contrib import contrib
from rammer.frontend.onnx.handlers.indexing import check_indices
from rammer.frontend.onnx.handlers.quantized import dequantize, quantize, scaled, shifted
from rammer.frontend.onnx.node import Node
from rammer.ir.tensor import DType, TensorId

BYTES_WILL_DO = 4  # accuracy level of MatMulNBits at which its operand may be rounded to bytes, as in other runtimes
_NARROW = {2: DType.U2, 4: DType.U4, 8: DType.U8}


def real(n: Node, position: int) -> TensorId:
    """Dequantize the operand at `position`; its scale and zero point follow it."""
    require_numbers(n, position + 1)
    return dequantize(n, n.tensor(position), n.tensor(position + 1), n.optional(position + 2), 0)


def require_numbers(n: Node, position: int) -> None:
    """Raise ModelError unless the scale at `position`, and the zero point after it, have one element each."""
    for tensor in (n.tensor(position), n.optional(position + 1)):
        if tensor is not None and n.type(tensor).size != 1:
            raise n.fail(f"scale or zero point {n.type(tensor)} is not one number")


def quantized(n: Node, value: TensorId, scale: int, dtype: DType) -> TensorId:
    """Quantize with the scale at operand `scale`, and the zero point after it."""
    require_numbers(n, scale)
    return quantize(n, value, n.tensor(scale), n.optional(scale + 1), 0, dtype)


@contrib("QLinearAdd", "QLinearMul", inputs=(7, 8))
def qlinear_binary(n: Node) -> TensorId:
    return quantized(n, n.add("add" if n.op == "QLinearAdd" else "mul", real(n, 0), real(n, 3)), 6, n.dtype())


@contrib("QLinearSigmoid", inputs=(4, 5))
def qlinear_sigmoid(n: Node) -> TensorId:
    return quantized(n, n.add("sigmoid", real(n, 0)), 3, n.dtype())


@contrib("QLinearLeakyRelu", inputs=(4, 5), alpha=0.01)
def qlinear_leaky_relu(n: Node) -> TensorId:
    return quantized(n, n.add("leaky_relu", real(n, 0), alpha=n.attrs["alpha"]), 3, n.dtype())


@contrib("QLinearGlobalAveragePool", inputs=(5, 5), channels_last=0)
def qlinear_global_average_pool(n: Node) -> TensorId:
    axes = tuple(range(2, len(n.shape())))
    return quantized(n, channels_first(n, real(n, 0), lambda x: n.reduce(x, "mean", axes)), 3, n.dtype())


def channels_first(n: Node, x: TensorId, compute: Callable[[TensorId], TensorId]) -> TensorId:
    """Compute on channels in dimension 1. With the attribute `channels_last`, they are last in x and in the result."""
    rank = n.type(x).rank
    if rank < 3:
        raise n.fail(f"{n.type(x)} has no batch, channels and spatial dimensions")
    if not n.attrs["channels_last"]:
        return compute(x)
    return n.transpose(compute(n.transpose(x, (0, rank - 1, *range(1, rank - 1)))), (0, *range(2, rank), 1))


@contrib("QLinearConcat", inputs=(5, 1 << 20), axis=int)
def qlinear_concat(n: Node) -> TensorId:
    if n.attrs["axis"] is None or (len(n.inputs) - 2) % 3:
        raise n.fail(f"axis {n.attrs['axis']} of {len(n.inputs)} inputs", hint="a scale, a zero point, and triples")
    parts = [real(n, position) for position in range(2, len(n.inputs), 3)]
    return quantized(n, n.concat(parts, n.axis(n.attrs["axis"], n.type(parts[0]).rank)), 0, n.dtype(2))


@contrib("QuantizeLinear", inputs=(2, 3), axis=1, block_size=0)
def quantize_linear(n: Node) -> TensorId:
    return quantize(n, n.tensor(0), n.tensor(1), n.optional(2), n.attrs["axis"], n.dtype(2) if n.has(2) else DType.U8)


@contrib("DequantizeLinear", inputs=(2, 3), axis=1, block_size=0)
def dequantize_linear(n: Node) -> TensorId:
    return dequantize(n, n.tensor(0), n.tensor(1), n.optional(2), n.attrs["axis"])


@contrib("MatMulIntegerToFloat", inputs=(4, 7))
def matmul_integer_to_float(n: Node) -> TensorId:
    total = n.product(shifted(n, n.tensor(0), n.optional(4), -2), shifted(n, n.tensor(1), n.optional(5), -1))
    found = scaled(n, total, (n.tensor(2), -2), (n.tensor(3), -1), dtype=n.dtype(2))
    return n.add("add", found, n.tensor(6)) if n.has(6) else found


@contrib("MatMulNBits", inputs=(3, 6), K=int, N=int, bits=4, block_size=int, accuracy_level=0)
def matmul_n_bits(n: Node) -> TensorId:
    """Multiply by weights of 2, 4 or 8 bits, in blocks along the reduction, each with a scale and zero point."""
    x, a = n.tensor(0), n.attrs
    depth, columns, bits, block = a["K"] or 0, a["N"] or 0, a["bits"], a["block_size"] or 0
    if bits not in (2, 4, 8) or min(depth, columns) < 1 or block < 16 or block & (block - 1) or n.has(4):
        hint = "2, 4 or 8 bits in blocks of a power of two, without g_idx, are supported"
        raise n.fail(f"{columns}×{depth} weights of {bits} bits in blocks of {block}", hint=hint)
    count = -(-depth // block)
    if n.shape(1) != (columns, count, block * bits // 8) or n.type(n.tensor(2)).size != columns * count:
        raise n.fail(f"weights {n.type(n.tensor(1))} and scales {n.type(n.tensor(2))} do not fit {count} blocks")
    dtype, numbers = n.dtype(), _numbers(n, n.tensor(1), bits)
    zero: TensorId = n.constant(1 << (bits - 1), DType.I32)
    if n.has(3):
        given = n.tensor(3)
        if n.dtype(3) is DType.U8:
            given = _unpacked(n, n.reshape(given, (columns, n.type(given).size // columns)), bits)
            given = n.cast(n.slice(given, (0, 0), (columns, count)), DType.I32)
        zero = n.reshape(given, (columns, count, 1))
    exact = n.type(zero).dtype
    weights = n.cast(n.add("sub", n.cast(n.reshape(numbers, (columns, count, block)), exact), zero), dtype)
    weights = n.add("mul", weights, n.reshape(n.tensor(2), (columns, count, 1)))
    weights = n.reshape(weights, (columns, count * block))
    if a["accuracy_level"] == BYTES_WILL_DO and dtype is DType.F32:
        lead = (0,) * (len(n.shape()) - 1)
        if depth % block:
            x = n.add("pad", x, pads=(*lead, 0, *lead, count * block - depth), value=0.0)
        x = n.add("round_blocks", x, block=block)
    else:
        weights = n.slice(weights, (0, 0), (columns, depth))
    found = n.product(x, weights, trans_b=True)
    return n.add("add", found, n.tensor(5)) if n.has(5) else found


@contrib("GatherBlockQuantized", inputs=(3, 4), gather_axis=0, quantize_axis=1, block_size=128, bits=4)
def gather_block_quantized(n: Node) -> TensorId:
    """Gather rows of a table of 2, 4 or 8 bits per number, in blocks along an axis with scales and zero points."""
    data, rank, a = n.tensor(0), len(n.shape()), n.attrs
    bytes_given, bits = n.dtype() is DType.U8, a["bits"] if n.dtype() is DType.U8 else n.dtype().bits
    axis, gathered = n.axis(a["quantize_axis"], rank), n.axis(a["gather_axis"], rank)
    if bits not in _NARROW or gathered or axis != rank - 1:
        hint = "rows of 2, 4 or 8 bits a number, quantised along the last axis, are supported"
        raise n.fail(f"{n.type(data)} gathered along axis {gathered}, quantised along {axis}", hint=hint)
    if bytes_given:
        data = _numbers(n, data, bits)
    else:
        n.builder.keep(data)
    zero = n.optional(3)
    if bytes_given and zero is not None:
        zero = n.slice(_numbers(n, zero, bits), (0,) * rank, n.shape(2))
    elif bytes_given:
        zero = n.constant(1 << (bits - 1), DType.I32)
    check_indices(n, n.tensor(1), n.shape()[0])
    return n.add("gather", dequantize(n, data, n.tensor(2), zero, axis), n.tensor(1), axis=0)


def _numbers(n: Node, packed: TensorId, bits: int) -> TensorId:
    """Unpack numbers of `bits` bits from the bytes of the last axis. A constant is marked `keep` for passes."""
    value = n.builder.value(packed)
    if value is None:
        return _unpacked(n, packed, bits)
    parts = value[..., None] >> np.arange(0, 8, bits, dtype=np.uint8) & np.uint8((1 << bits) - 1)
    kept = n.builder.constant(parts.reshape(*value.shape[:-1], -1).astype(_NARROW[bits].numpy))
    n.builder.keep(kept)
    return kept


def _unpacked(n: Node, packed: TensorId, bits: int) -> TensorId:
    """Unpack numbers of `bits` bits from the bytes of the last axis, low bits first."""
    if bits == 8:
        return packed
    *shape, count = n.type(packed).shape
    shifts = n.constant(np.arange(0, 8, bits), DType.U8)
    moved = n.add("shift_right", n.reshape(packed, (*shape, count, 1)), shifts)
    return n.reshape(n.add("bit_and", moved, n.constant((1 << bits) - 1, DType.U8)), (*shape, count * 8 // bits))
