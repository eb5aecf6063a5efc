"""Compute products of float16 numbers with weights in float32. Known as: upcasting."""

from __future__ import annotations

from math import prod

from rammer.ir.graph import Graph
from rammer.ir.operator import ROperator
from rammer.ir.tensor import DType, TensorId
from rammer.passes.editor import Editor, apply_pattern
from rammer.passes.structure import known_tensors

LEAST_ROWS = 3  # with fewer, weights are read once, and half as many bytes take half as long


def widen_halves(graph: Graph) -> Graph:
    """Convert operands of such products before them, and results after them. The numbers stay the same.

    A core converts a number of float16 in as many instructions as it multiplies one, and each operand is read often.
    """
    known = known_tensors(graph)

    def pattern(editor: Editor, _: int, op: ROperator) -> TensorId | None:
        kinds, (result,) = {editor.types[t].dtype for t in op.inputs}, op.operation.outputs
        columns = result.shape[1] if op.kind == "conv" else result.shape[-1] if result.rank else 1
        rows = prod(result.shape) // max(columns, 1)
        shared = op.kind == "matmul" or editor.types[op.inputs[1]].shape[1] > 1  # one filter a channel reads vectors
        if kinds != {DType.F16} or not known.issuperset(op.inputs[1:]) or rows < LEAST_ROWS or not shared:
            return None
        wide = [editor.define(op.name, "cast", t, dtype=DType.F32) for t in op.inputs]
        product = editor.define(op.name, op.kind, *wide, **dict(op.operation.keywords))
        return editor.define(op.name, "cast", product, dtype=DType.F16)

    return apply_pattern(graph, pattern, "matmul", "conv")
