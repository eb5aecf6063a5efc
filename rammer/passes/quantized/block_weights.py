"""Keep block-quantised weights packed, and unpack them in registers. Known as: weight-only quantisation.

Decoding is bound by weight bandwidth: 4-bit weights read 1/8 of the bytes of float32.
"""

from __future__ import annotations

from math import gcd

import numpy as np

from rammer.ir.device import VDeviceSpec
from rammer.ir.graph import Graph
from rammer.ir.operator import ROperator
from rammer.ir.tensor import Array, DType, TensorId
from rammer.passes.editor import Editor, apply_pattern
from rammer.passes.quantized.dequantised import Dequantised, dequantised
from rammer.passes.quantized.narrow_products import multiplies_bytes
from rammer.passes.quantized.packed_tables import pack_bits
from rammer.passes.structure import known_tensors

BYTES = 4  # bytes of a word
SMALLEST, LARGEST = 16, 512  # terms of a block
MANY_ROWS, MOST_UNPACKED, LINE = 48, 1 << 25, 16  # rows for which weights are unpacked first: so many, in whole lines


def block_weights(graph: Graph, spec: VDeviceSpec) -> Graph:
    """Let products read constant dequantised weights as int32 words, each of which holds several weights."""
    known = known_tensors(graph)

    def pattern(editor: Editor, _: int, op: ROperator) -> TensorId | None:
        (x, w), attrs = op.inputs, op.operation.keywords
        if any(kind.dtype is not DType.F32 for kind in op.operation.inputs):
            return None
        if w not in known or w in editor.constants or x in known or attrs.get("trans_a") or editor.types[w].rank != 2:
            return None
        weights = dequantised(editor, w)
        return weights and _product(editor, op, weights, multiplies_bytes(spec), spec.numerics == "strict")

    return apply_pattern(graph, pattern, "matmul")


def _product(editor: Editor, op: ROperator, weights: Dequantised, narrow: bool, strict: bool) -> TensorId | None:
    """Return the product by blocks. `strict`: refuse zero points subtracted after sums, as inf - inf would be NaN."""
    numbers, zero, scale = (x.T if op.operation.keywords.get("trans_b") else x for x in weights[:3])
    bits, (depth, columns) = weights.bits, numbers.shape
    rounded = editor.maker(op.inputs[0], "round_blocks") if narrow else None
    whole = rounded.operation.attr("block") if rounded else 0
    block = _block(bits, zero, scale, whole)
    middle = 1 << (bits - 1)
    if strict and not rounded and (zero != middle).any():
        return None
    if block is None or (zero < 0).any() or (zero >= 1 << bits).any():
        return None
    count = -(-depth // block)
    x, missing = rounded.inputs[0] if rounded else op.inputs[0], count * block - depth
    if missing:
        lead = (0,) * (editor.types[x].rank - 1)
        x = editor.define(op.name, "pad", x, pads=(*lead, 0, *lead, missing), value=0.0)
    padded = np.zeros((count * block, columns), np.uint8)
    padded[:depth] = numbers
    arrays = (words(padded, bits), np.ascontiguousarray(scale[::block]))
    operands = [editor.constant(array, op.inputs[1]) for array in arrays]
    zeros = zero[::block].astype(np.uint8)
    if (zeros != middle).any():
        packed = pack_bits(zeros.T, bits).T  # uint8[blocks·bits/8, columns]
        operands.append(editor.constant(np.ascontiguousarray(packed), op.inputs[1]))
    many = editor.types[x].size // depth >= MANY_ROWS and columns % LINE == 0
    if many and not rounded and padded.size <= MOST_UNPACKED:
        whole = editor.define(op.name, "unpack_blocks", *operands, bits=bits, block=block)
        return editor.define(op.name, "matmul", x, editor.reshaped(op.name, whole, padded.shape))
    return editor.define(op.name, "block_matmul", x, *operands, bits=bits, block=block, narrow=rounded is not None)


def _block(bits: int, zero: Array, scale: Array, wanted: int) -> int | None:
    """Return how many terms share zero and scale, in whole words and at most LARGEST; `wanted` if that is not 0.

    None if that is below SMALLEST.
    """
    depth = len(scale)
    changes = np.flatnonzero((np.diff(scale, axis=0) != 0).any(1) | (np.diff(zero, axis=0) != 0).any(1)) + 1
    size = gcd(*map(int, changes)) if len(changes) else -(-depth // SMALLEST) * SMALLEST
    per = 8 * BYTES // bits
    fitting = [b for b in range(per, min(size, LARGEST) + 1, per) if size % b == 0 and b in (wanted, wanted or b)]
    several = [b for b in fitting if b < depth or b == wanted]  # else there is only one part
    return several[-1] if several and several[-1] >= SMALLEST else None


def words(numbers: Array, bits: int) -> Array:
    """Pack numbers of `bits` bits for `block_matmul`: int32[terms·bits/32, columns]."""
    split = numbers.reshape(-1, 8 // bits, BYTES, numbers.shape[1])
    return pack_bits(split.transpose(0, 3, 2, 1), bits)[..., 0].view(np.int32)[..., 0]
