"""Rewrite products of dequantised numbers as integer products with scaled sums, on devices that multiply bytes.

Σ sx (x - zx) · sw (w - zw) = sx sw Σ (x - zx) (w - zw). The integer sum is exact, so less is rounded.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from rammer.ir.device import VDeviceSpec
from rammer.ir.graph import Graph
from rammer.ir.operator import ROperator
from rammer.ir.tensor import DType, Shape, TensorId
from rammer.passes.editor import Editor, apply_pattern
from rammer.passes.quantized.narrow_products import multiplies_bytes
from rammer.passes.structure import known_tensors

MOST_TERMS = 2**31 // 255**2  # products of byte differences whose sum fits int32


def integer_products(graph: Graph, spec: VDeviceSpec) -> Graph:
    """Sum products of dequantised bytes and constants in int32, if all terms of a sum share one scale."""
    if not multiplies_bytes(spec):
        return graph
    known = known_tensors(graph)
    return apply_pattern(graph, lambda editor, _, op: _product(editor, op, known), "matmul", "conv")


class _Scaled(NamedTuple):
    """The integers and the scale of a dequantised tensor: it is numbers * scale."""

    numbers: TensorId  # int32
    scale: TensorId


def _product(editor: Editor, op: ROperator, known: set[TensorId]) -> TensorId | None:
    if any(kind.dtype is not DType.F32 for kind in op.operation.inputs):
        return None
    x, w = (_scaled(editor, t) for t in op.inputs[:2])
    if x is None or w is None or editor.types[x.scale].size > 1 or w.numbers not in known:
        return None
    shape = _scales_of(editor, op, w)
    if shape is None or _terms(op) > MOST_TERMS:
        return None
    sums = editor.define(op.name, op.kind, x.numbers, w.numbers, **op.operation.keywords)
    pairs = ((x.scale, ()), (w.scale, shape))
    scales = (editor.define(op.name, "reshape", scale, shape=extents) for scale, extents in pairs)
    result = editor.define(op.name, "cast", sums, dtype=DType.F32)
    result = editor.define(op.name, "mul", result, editor.define(op.name, "mul", *scales))
    return editor.biased(op, result, op.inputs[2:])


def _terms(op: ROperator) -> int:
    """Return how many products a sum has."""
    weights, attrs = op.operation.inputs[1].shape, op.operation.keywords
    return prod(weights[1:]) if op.kind == "conv" else weights[int(bool(attrs.get("trans_b")))]


def _scales_of(editor: Editor, op: ROperator, w: _Scaled) -> Shape | None:
    """Return the shape in which the weights' scales apply to the result; None if they vary inside of a sum."""
    weights, kind = editor.types[w.numbers].shape, editor.types[w.scale]
    attrs = op.operation.keywords
    if op.kind == "conv":
        shape = (weights[0], *(1 for _ in weights[2:]))
        own = (weights[0], *(1 for _ in weights[1:]))
    elif len(weights) == 2 and not attrs.get("trans_a"):
        transposed = bool(attrs.get("trans_b"))
        count = weights[int(not transposed)]
        shape, own = (count,), (count, 1) if transposed else (1, count)
    else:
        return None
    if kind.size == 1:
        return ()
    return shape if kind.shape == own else None


def _scaled(editor: Editor, tensor: TensorId) -> _Scaled | None:
    """Return the bytes less zero, and their scale, if a tensor was dequantised; or None."""
    scaling = editor.maker(tensor, "mul")
    widening = editor.maker(scaling.inputs[0], "cast") if scaling and len(scaling.inputs) == 2 else None
    if scaling is None or widening is None or widening.operation.inputs[0].dtype is not DType.I32:
        return None
    numbers = widening.inputs[0]
    difference = editor.maker(numbers, "sub")
    cast = editor.maker(difference.inputs[0] if difference else numbers, "cast")
    bytes_only = cast is not None and cast.operation.inputs[0].dtype in (DType.U8, DType.I8)
    return _Scaled(numbers, scaling.inputs[1]) if bytes_only else None
