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


def _divided(editor: Editor, tensor: TensorId, step: Array, *, added: bool = False) -> TensorId | None:
    """Return the quotient of scaled integer sums, if the tensor is one, or of two added numbers, which may be bytes."""
    op = editor.maker(tensor)
    if op is None or len(op.inputs) != 2 or op.kind not in ("mul", "add"):
        return None
    if op.kind == "add" and not editor.constants.keys() & set(op.inputs):
        parts = [part for t in op.inputs if (part := _divided(editor, t, step, added=True)) is not None]
        return editor.define(op.name, "add", *parts) if len(parts) == 2 else None
    for at, other in (op.inputs, op.inputs[::-1]):
        constant, below = editor.constants.get(other), editor.maker(at)
        if constant is None or constant.dtype != np.float32 or below is None:
            continue
        if op.kind == "add":
            value = _divided(editor, at, step, added=added)
        elif _is_whole(editor, below, added):
            value = at
        else:
            inner = _divided(editor, at, step, added=added)
            if inner is not None:
                return editor.define(op.name, "mul", inner, other)
            continue
        if value is not None:
            return editor.define(op.name, op.kind, value, editor.constant(constant / step, op.name))
    return None


def _is_whole(editor: Editor, op: ROperator, added: bool) -> bool:
    """Check whether results are sums of products of bytes, or if `added` bytes, perhaps with integers added."""
    source = editor.source(op.outputs[0], "cast", "sub", "add")
    maker = editor.maker(source)
    summed = maker if maker and maker.kind in ("conv", "matmul") else None
    kind = summed.operation.inputs[0] if summed else editor.types[source]
    return (added or summed is not None) and kind.dtype in (DType.U8, DType.I8)
