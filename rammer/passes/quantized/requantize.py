"""Scale sums of quantised products once: fold a division into the constants that scale and shift them."""

from __future__ import annotations

import numpy as np

from rammer.ir.graph import Graph
from rammer.ir.operator import ROperator
from rammer.ir.tensor import Array, DType, TensorId
from rammer.passes.editor import Editor, apply_pattern


def requantize(graph: Graph) -> Graph:
    """Rewrite (sums * scale + shift) / step = sums * (scale / step) + shift / step, for constants and integer sums.

    Divisions take several times as long as products. There is one rounding less: results may differ where they lie
    between two numbers.
    """

    def pattern(editor: Editor, _: int, op: ROperator) -> TensorId | None:
        step = editor.constants.get(op.inputs[1])
        if step is None or step.size != 1 or step.dtype != np.float32 or not np.isfinite(step).all() or step <= 0:
            return None
        return _divided(editor, op.inputs[0], step.reshape(()))

    return apply_pattern(graph, pattern, "div")


def _divided(editor: Editor, tensor: TensorId, step: Array) -> TensorId | None:
    """Return the quotient of scaled integer sums, if the tensor is one; or None."""
    op = editor.maker(tensor)
    if op is None or len(op.inputs) != 2 or op.kind not in ("mul", "add"):
        return None
    for at, other in (op.inputs, op.inputs[::-1]):
        constant, below = editor.constants.get(other), editor.maker(at)
        if constant is None or constant.dtype != np.float32 or below is None:
            continue
        if op.kind == "add":
            value = _divided(editor, at, step)
        elif _is_whole(editor, below):
            value = at
        else:
            inner = _divided(editor, at, step)
            if inner is not None:
                return editor.define(op.name, "mul", inner, other)
            continue
        if value is not None:
            return editor.define(op.name, op.kind, value, editor.constant(constant / step, op.name))
    return None


def _is_whole(editor: Editor, op: ROperator) -> bool:
    """Check whether an operator's results are sums of products of bytes, perhaps with integers added."""
    maker = editor.maker(editor.source(op.outputs[0], "cast", "sub", "add"))
    return (
        maker is not None
        and maker.kind in ("conv", "matmul")
        and maker.operation.inputs[0].dtype in (DType.U8, DType.I8)
    )
