"""Compute products of float16 or bfloat16 numbers with weights in float32. Known as: upcasting."""

from __future__ import annotations

from math import prod

from rammer.ir.graph import Graph
from rammer.ir.operator import ROperator
from rammer.ir.tensor import DType, TensorId
from rammer.passes.editor import Editor, apply_pattern
from rammer.passes.structure import known_tensors

HALVES = (DType.F16, DType.BF16)
LEAST_ROWS = 3  # with fewer, weights are read once, and half as many bytes take half as long


def widen_halves(graph: Graph) -> Graph:
    """Convert operands of such products before them, and results after them. The numbers stay the same.

    A core converts a half float in as many instructions as it multiplies one, and each operand is read often.
    """
    known = known_tensors(graph)

    def pattern(editor: Editor, _: int, op: ROperator) -> TensorId | None:
        half, (result,) = editor.types[op.inputs[0]].dtype, op.operation.outputs
        columns = result.shape[1] if op.kind == "conv" else result.shape[-1] if result.rank else 1
        rows = prod(result.shape) // max(columns, 1)
        if half not in HALVES or not known.issuperset(op.inputs[1:]) or rows < LEAST_ROWS:
            return None
        wide = [editor.define(op.name, "cast", t, dtype=DType.F32) for t in op.inputs]
        product = editor.define(op.name, op.kind, *wide, **dict(op.operation.keywords))
        return editor.define(op.name, "cast", product, dtype=half)

    return apply_pattern(graph, pattern, "matmul", "conv")
