"""Products with dequantised weights of a few bits, in blocks along the sum, read these bits: nothing is unpacked.

A step of a decoder takes as long as its weights take to come: an eighth of what there would be.
"""

from __future__ import annotations

from math import gcd
from typing import NamedTuple

import numpy as np

from rammer.ir.device import VDeviceSpec
from rammer.ir.graph import Graph
from rammer.ir.operator import ROperator
from rammer.ir.tensor import Array, DType, TensorId
from rammer.passes.clean.fold_constants import MOVES
from rammer.passes.editor import Editor
from rammer.passes.quantized.narrow_products import multiplies_bytes
from rammer.passes.structure import known_tensors

BYTES = 4  # of a word
BITS = (2, 4, 8)
SMALLEST, LARGEST = 16, 512  # terms of a block


class Dequantised(NamedTuple):
    """Weights (numbers - zero) * scale, all three of one shape, perhaps broadcast; they have a few `bits` each."""

    numbers: Array
    zero: Array
    scale: Array
    bits: int

    def moved(self, op: ROperator) -> Dequantised:
        """The same, with elements moved as an operator moves them."""
        numbers, zero, scale = (_moved(op, x) for x in self[:3])
        return self._replace(numbers=numbers, zero=zero, scale=scale)


def block_weights(graph: Graph, spec: VDeviceSpec) -> Graph:
    """Leave weights of products as words that hold several."""
    editor, known = Editor(graph), known_tensors(graph)
    for n in list(editor.operators):
        op = editor.operators[n]
        if op.kind != "matmul" or any(kind.dtype is not DType.F32 for kind in op.operation.inputs):
            continue
        x, w = op.inputs
        attrs = op.operation.keywords
        if w not in known or w in editor.constants or x in known or attrs.get("trans_a") or editor.types[w].rank != 2:
            continue
        weights = dequantised(editor, w)
        made = _product(editor, op, weights, multiplies_bytes(spec)) if weights else None
        if made is not None:
            editor.remove(n)
            editor.replace_result(op.outputs[0], made)
    return editor.finish()


def dequantised(editor: Editor, tensor: TensorId) -> Dequantised | None:
    """What a tensor was dequantised from, if it was, with what moves its elements since."""
    op = editor.maker(tensor)
    if op is None or editor.types[tensor].dtype is not DType.F32:
        return None
    if op.kind in _MOVED:
        found = dequantised(editor, op.inputs[0])
        return found.moved(op) if found else None
    scale = _known(editor, op.inputs[1]) if op.kind == "mul" else None
    widened = editor.maker(op.inputs[0], "cast") if scale is not None else None
    if scale is None or widened is None or widened.operation.inputs[0].dtype is not DType.I32:
        return None
    difference = editor.maker(widened.inputs[0], "sub")
    zero = _known(editor, difference.inputs[1]) if difference else np.zeros((), np.int32)
    cast = editor.maker(difference.inputs[0] if difference else widened.inputs[0], "cast")
    numbers = _known(editor, cast.inputs[0]) if cast else None
    if numbers is None or zero is None or cast is None or numbers.shape != editor.types[tensor].shape:
        return None
    kind = cast.operation.inputs[0].dtype
    if kind.bits not in BITS or kind.is_float or kind is DType.BOOL:
        return None
    first = int(kind.info.min)
    numbers = (numbers.astype(np.int16) - first).astype(np.uint8)
    shape = numbers.shape
    return Dequantised(numbers, np.broadcast_to(zero - first, shape), np.broadcast_to(scale, shape), kind.bits)


_MOVED = frozenset({*MOVES, "slice"})


def _moved(op: ROperator, value: Array) -> Array:
    attrs = op.operation.keywords
    if op.kind == "slice":
        where = zip(attrs["starts"], attrs["steps"], attrs["shape"], strict=True)
        return value[tuple(np.s_[s : s + n * step if s + n * step >= 0 else None : step] for s, step, n in where)]
    return MOVES[op.kind](value, **attrs)


def _known(editor: Editor, tensor: TensorId) -> Array | None:
    """A constant, with its elements moved and widened."""
    op = editor.maker(tensor)
    if op is None or op.kind not in (*_MOVED, "cast"):
        return editor.constants.get(tensor)
    found = _known(editor, op.inputs[0])
    if found is None:
        return None
    return found.astype(op.operation.outputs[0].dtype.numpy) if op.kind == "cast" else _moved(op, found)


def _product(editor: Editor, op: ROperator, weights: Dequantised, narrow: bool) -> TensorId | None:
    numbers, zero, scale = (x.T if op.operation.keywords.get("trans_b") else x for x in weights[:3])
    bits, (depth, columns) = weights.bits, numbers.shape
    rounded = editor.maker(op.inputs[0], "round_blocks") if narrow else None
    whole = rounded.operation.attr("block") if rounded else 0
    block = _block(bits, zero, scale, whole)
    if block is None or (zero < 0).any() or (zero >= 1 << bits).any():
        return None
    count = -(-depth // block)
    x, missing = rounded.inputs[0] if rounded else op.inputs[0], count * block - depth
    if missing:
        lead = (0,) * (editor.types[x].rank - 1)
        x = editor.define(op.name, "pad", x, pads=(*lead, 0, *lead, missing), value=0.0)
    padded = np.zeros((count * block, columns), np.uint8)
    padded[:depth] = numbers
    operands = [
        editor.constant(words(padded, bits), op.inputs[1]),
        editor.constant(np.ascontiguousarray(scale[::block]), op.inputs[1]),
    ]
    zeros = zero[::block].astype(np.uint8)
    if (zeros != 1 << (bits - 1)).any():
        operands.append(editor.constant(bytes_of(zeros, bits), op.inputs[1]))
    return editor.define(op.name, "block_matmul", x, *operands, bits=bits, block=block, narrow=rounded is not None)


def _block(bits: int, zero: Array, scale: Array, wanted: int) -> int | None:
    """Terms that share zero and scale, in whole words, no more than LARGEST of them, and `wanted` if that is not 0.

    None if these are too few.
    """
    depth = len(scale)
    changes = np.flatnonzero((np.diff(scale, axis=0) != 0).any(1) | (np.diff(zero, axis=0) != 0).any(1)) + 1
    size = gcd(*map(int, changes)) if len(changes) else -(-depth // SMALLEST) * SMALLEST
    per = 8 * BYTES // bits
    fitting = [b for b in range(per, min(size, LARGEST) + 1, per) if size % b == 0 and b in (wanted, wanted or b)]
    several = [b for b in fitting if b < depth or b == wanted]  # else the one sum is none of parts
    return several[-1] if several and several[-1] >= SMALLEST else None


def words(numbers: Array, bits: int) -> Array:
    """Numbers of `bits` bits as `block_matmul` has them: int32[terms·bits/32, columns]."""
    ranks = 8 // bits
    apart = numbers.reshape(-1, ranks, BYTES, numbers.shape[1]).astype(np.uint32)
    shifts = 8 * np.arange(BYTES)[None, :, None] + bits * np.arange(ranks)[:, None, None]
    joined = np.bitwise_or.reduce(apart << shifts.astype(np.uint32), axis=(1, 2))
    return np.ascontiguousarray(joined).view(np.int32)


def bytes_of(zeros: Array, bits: int) -> Array:
    """Zero points as `block_matmul` has them: uint8[blocks·bits/8, columns]."""
    per = 8 // bits
    padded = np.zeros((-(-len(zeros) // per) * per, zeros.shape[1]), np.uint8)
    padded[: len(zeros)] = zeros
    shifts = (bits * np.arange(per, dtype=np.uint8))[:, None]
    joined: Array = np.bitwise_or.reduce(padded.reshape(-1, per, zeros.shape[1]) << shifts, axis=1)
    return joined
