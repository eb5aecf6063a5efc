"""Products of float32 with dequantised weights read the bytes: x · (w s) is (x · w) s where a sum has one scale.

A step of a decoder takes as long as its weights take to come: a quarter of what there would be.
"""

from __future__ import annotations

from math import prod

import numpy as np

from rammer.ir.device import VDeviceSpec
from rammer.ir.graph import Graph
from rammer.ir.operator import ROperator
from rammer.ir.tensor import DType, TensorId
from rammer.passes.clean.fold_constants import known_value
from rammer.passes.editor import Editor
from rammer.passes.quantized.integer_products import dequantised, scales_of
from rammer.passes.structure import known_tensors

FEW_ROWS = 32  # where instructions multiply float32, they take float32
FEWEST = 1 << 12  # weights


def weights_as_bytes(graph: Graph, spec: VDeviceSpec) -> Graph:
    """Leave weights of products as whole numbers of 8 or 16 bits."""
    editor, known = Editor(graph), known_tensors(graph)
    floats = any(i.operands == (DType.F32, DType.F32) for i in spec.multipliers)
    for n in list(editor.operators):
        op = editor.operators[n]
        if op.kind != "matmul" or any(kind.dtype is not DType.F32 for kind in op.operation.inputs):
            continue
        x, w = op.inputs
        few = prod(editor.types[x].shape[:-1]) <= FEW_ROWS or not floats
        if few and w in known and x not in known and editor.types[w].size >= FEWEST:
            made = _product(editor, op)
            if made is not None:
                editor.remove(n)
                editor.replace_result(op.outputs[0], made)
    return editor.finish()


def _product(editor: Editor, op: ROperator) -> TensorId | None:
    x, w = op.inputs
    scaled = dequantised(editor, w)
    shape = scales_of(editor, op, scaled) if scaled else None
    numbers = known_value(editor, scaled.numbers) if scaled else None
    if scaled is None or shape is None or numbers is None:
        return None
    fits = bool(((numbers >= -128) & (numbers < 128)).all())
    weights = editor.constant(np.ascontiguousarray(numbers.astype(np.int8 if fits else np.int16)), w)
    sums = editor.define(op.name, "matmul", x, weights, **op.operation.keywords | {"dtype": DType.F32})
    return editor.define(op.name, "mul", sums, editor.define(op.name, "reshape", scaled.scale, shape=shape))
