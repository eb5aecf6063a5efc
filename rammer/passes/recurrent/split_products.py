"""Split products of concatenated rows, if the same weights serve many steps of a recurrent network."""

from __future__ import annotations

from math import prod

import numpy as np

from rammer.ir.graph import Graph
from rammer.ir.operator import ROperator
from rammer.ir.tensor import DType, TensorId
from rammer.passes.editor import Editor

MAX_ROWS = 64  # rows up to which a product counts as a step of a recurrent network, not as a layer of its own


def product_with_constant(editor: Editor, op: ROperator) -> bool:
    """Check whether the operator multiplies at most MAX_ROWS rows by a constant matrix."""
    if op.kind != "matmul" or op.inputs[1] not in editor.constants:
        return False
    rows, matrix = op.operation.inputs
    suits = rows.rank >= 2 and prod(rows.shape[:-1]) <= MAX_ROWS
    plain = matrix.rank == 2 and rows.dtype is matrix.dtype and not _attr(op, "trans_a")
    return suits and plain and rows.dtype in (DType.F32, DType.F64)


def right_operand(editor: Editor, op: ROperator) -> TensorId:
    """Return the constant matrix [K, N] of a product. A transposed one is stored again, once."""
    tensor = op.inputs[1]
    if not _attr(op, "trans_b"):
        return tensor
    name = f"{tensor}:transposed"
    if name not in editor.types:
        made = editor.constant(np.ascontiguousarray(editor.constants[tensor].T), tensor)
        editor.types[name], editor.constants[name] = editor.types.pop(made), editor.constants.pop(made)
    return name


def _attr(op: ROperator, name: str) -> bool:
    return bool(op.operation.keywords.get(name, False))


def split_products(graph: Graph) -> Graph:
    """Rewrite concat(a, b) · W = a · W[:k] + b · W[k:], if W is used several times, as in BasicLSTMCell.

    That is a cell of TensorFlow.
    """
    editor = Editor(graph)
    groups: dict[TensorId, list[int]] = {}
    for n, op in editor.operators.items():
        source = editor.producer.get(op.inputs[0]) if op.inputs else None
        if source is not None and editor.operators[source].kind == "concat" and product_with_constant(editor, op):
            groups.setdefault(op.inputs[1], []).append(n)
    pieces: dict[tuple[TensorId, int, int], TensorId] = {}
    for numbers in groups.values():
        for n in numbers if len(numbers) > 1 else ():
            _split(editor, n, pieces)
    return editor.finish()


def _split(editor: Editor, n: int, pieces: dict[tuple[TensorId, int, int], TensorId]) -> None:
    op = editor.operators[n]
    concat = editor.operators[editor.producer[op.inputs[0]]]
    rank = concat.operation.outputs[0].rank
    if concat.operation.attr("axis") not in (-1, rank - 1):
        return
    matrix = right_operand(editor, op)
    start, total = 0, ""
    editor.remove(n)
    for position, part in enumerate(concat.inputs):
        depth = editor.types[part].shape[-1]
        key = (matrix, start, depth)
        if key not in pieces:
            pieces[key] = editor.constant(editor.constants[matrix][start : start + depth], matrix)
        start += depth
        product = editor.define(op.name, "matmul", part, pieces[key])
        if position == 0:
            total = product
        else:
            last = op.outputs if position == len(concat.inputs) - 1 else ()
            total = editor.define(op.name, "add", total, product, outputs=last)
