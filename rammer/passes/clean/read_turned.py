"""Products of few rows read an operand as it lies, where a copy of it, turned or scaled, would be made for them.

An attention's query of one token meets all keys of its cache: to turn these costs several times the product itself.
"""

from __future__ import annotations

import numpy as np

from rammer.ir.graph import Graph
from rammer.ir.operator import ROperator
from rammer.ir.tensor import DType, TensorId
from rammer.passes.editor import Editor

MOST_ROWS = 16  # of the other operand: from some tens of rows on a turned copy pays, as vectors then lie along columns
FACTORS = 2.0**-16, 2.0**16  # that may go from one operand to the other: neither over- nor underflows for that


def read_turned(graph: Graph) -> Graph:
    """Let products of few rows read what is transposed for them, and scale the smaller operand instead."""
    editor = Editor(graph)
    for n in [n for n, op in editor.operators.items() if op.kind == "matmul"]:
        op = editor.operators[n]
        left, right = op.inputs
        kind = editor.types[left]
        attrs = op.operation.keywords
        if attrs.get("trans_a") or attrs.get("dtype") or (kind.rank > 1 and kind.shape[-2] > MOST_ROWS):
            continue
        turned, factor = bool(attrs.get("trans_b")), None
        source = right
        while (maker := _own(editor, source)) is not None:
            if (scaled := _scaled(editor, maker, left)) is not None and factor is None:
                source, factor = scaled
            elif _turns(maker) and maker.inputs[0] not in editor.constants:
                source, turned = maker.inputs[0], not turned
            else:
                break
        if source == right:
            continue
        editor.remove(n)
        if factor is not None:
            left = editor.define(op.name, "mul", left, factor)
        editor.define(op.name, "matmul", left, source, outputs=op.outputs, **{**attrs, "trans_b": turned})
    return editor.finish()


def _own(editor: Editor, tensor: TensorId) -> ROperator | None:
    """What makes a tensor for one reader alone."""
    return None if editor.only_reader(tensor) is None else editor.maker(tensor)


def _turns(op: ROperator) -> bool:
    """Whether an operator swaps the last two dimensions."""
    if op.kind != "transpose":
        return False
    perm = op.operation.attr("perm")
    rank = len(perm)
    return rank > 1 and tuple(perm) == (*range(rank - 2), rank - 1, rank - 2)


def _scaled(editor: Editor, op: ROperator, other: TensorId) -> tuple[TensorId, TensorId] | None:
    """What an operator multiplies with a number, and this number, if another, smaller tensor may take it."""
    if op.kind != "mul":
        return None
    for here, there in ((0, 1), (1, 0)):
        number = editor.constants.get(op.inputs[there])
        source = op.inputs[here]
        if number is None or number.size != 1 or editor.types[source] != op.operation.outputs[0]:
            continue
        kind = editor.types[other]
        fits = kind.dtype in (DType.F32, DType.F64) and kind.dtype is editor.types[source].dtype
        value = abs(float(np.asarray(number).item()))
        fits = fits and number.ndim <= kind.rank
        if fits and kind.size < editor.types[source].size and FACTORS[0] <= value <= FACTORS[1]:
            return source, op.inputs[there]
    return None
