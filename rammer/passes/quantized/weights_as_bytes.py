"""Products of float32 with dequantised weights read the bytes: x · (w s) is (x · w) s where a sum has one scale.

A step of a decoder takes as long as its weights take to come: a quarter of what there would be.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

import numpy as np

from rammer.ir.device import VDeviceSpec
from rammer.ir.graph import Graph
from rammer.ir.operator import ROperator
from rammer.ir.tensor import Array, DType, TensorId
from rammer.passes.editor import Editor
from rammer.passes.quantized.dequantised import dequantised
from rammer.passes.structure import known_tensors

FEW_ROWS = 32  # where instructions multiply float32, they take float32
FEWEST = 1 << 12  # weights
BYTE = 8  # bits; matrices of fewer stay so, in blocks


def weights_as_bytes(graph: Graph, spec: VDeviceSpec) -> Graph:
    """Leave weights of products as whole numbers of 8 or 16 bits, except where threads load what they multiply."""
    if spec.massively_parallel:
        return graph
    editor, known = Editor(graph), known_tensors(graph)
    floats = any(i.operands == (DType.F32, DType.F32) for i in spec.multipliers)
    for n in list(editor.operators):
        op = editor.operators[n]
        if op.kind not in ("matmul", "conv") or any(kind.dtype is not DType.F32 for kind in op.operation.inputs):
            continue
        x, w = op.inputs[:2]
        few = op.kind == "conv" or prod(editor.types[x].shape[:-1]) <= FEW_ROWS or not floats
        if few and w in known and x not in known and editor.types[w].size >= FEWEST:
            made = _product(editor, op)
            if made is not None:
                editor.remove(n)
                editor.replace_result(op.outputs[0], made)
    return editor.finish()


class Whole(NamedTuple):
    """Weights as whole numbers of 8 or 16 bits, and what sums of products with them are multiplied by."""

    numbers: Array
    scale: Array  # with an extent of 1 in dimensions that are summed


def whole_weights(editor: Editor, tensor: TensorId, summed: tuple[int, ...], least_bits: int = 0) -> Whole | None:
    """A dequantised constant with one scale for each sum over the dimensions `summed`, if it is one."""
    found = dequantised(editor, tensor)
    if found is None or found.bits < least_bits:
        return None
    scale = found.scale[tuple(np.s_[:1] if d in summed else np.s_[:] for d in range(found.scale.ndim))]
    if (found.scale != scale).any():
        return None
    numbers = found.numbers.astype(np.int16) - found.zero.astype(np.int16)
    fits = bool(((numbers >= -128) & (numbers < 128)).all())
    return Whole(np.ascontiguousarray(numbers.astype(np.int8)) if fits else numbers, scale)


def _product(editor: Editor, op: ROperator) -> TensorId | None:
    x, w, *biases = op.inputs
    attrs, rank = op.operation.keywords, editor.types[w].rank
    turned = bool(attrs.get("trans_b"))
    if op.kind == "conv":
        found = whole_weights(editor, w, tuple(range(1, rank)))
    elif rank < 2 or editor.types[x].rank < 2:
        return None
    else:
        found = whole_weights(editor, w, (rank - (1 if turned else 2),), BYTE)
    if found is None:
        return None
    scale = found.scale[:, 0] if op.kind == "conv" else found.scale.swapaxes(-1, -2) if turned else found.scale
    numbers = editor.constant(found.numbers, w)
    total = editor.define(op.name, op.kind, x, numbers, **attrs | {"dtype": DType.F32})
    total = editor.define(op.name, "mul", total, editor.constant(np.ascontiguousarray(scale), w))
    for bias in biases:
        along = (editor.types[bias].size, *(1 for _ in range(rank - 2)))
        total = editor.define(op.name, "add", total, editor.define(op.name, "reshape", bias, shape=along))
    return total
