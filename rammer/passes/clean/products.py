"""Products whose operands were scaled or turned before: scale the result, and read the operand as it lies."""

from __future__ import annotations

import numpy as np

from rammer.ir.graph import Graph
from rammer.ir.operator import ROperator
from rammer.ir.tensor import DType, TensorId
from rammer.passes.editor import Editor

_WIDE = frozenset({DType.F32, DType.F64})  # whose sums of products do not overflow for lack of a small factor


def simplify_products(graph: Graph, as_it_lies: bool) -> Graph:
    """(x·s) (y·t) = (x y)·(s t) for scalar constants: exporters scale both operands of an attention's product, and a
    cache is longer than what is multiplied by it.

    `as_it_lies`: a matrix is not transposed for a product with one row, which reads it once and no faster then.
    """
    editor = Editor(graph)
    for n in list(editor.operators):
        op = editor.operators[n]
        if op.kind == "matmul" and op.operation.outputs[0].dtype in _WIDE:
            _simplify(editor, n, op, as_it_lies)
    return editor.finish()


def _simplify(editor: Editor, n: int, op: ROperator, as_it_lies: bool) -> None:
    (left, left_scale), (right, right_scale) = (_unscaled(editor, n, t) for t in op.inputs)
    attrs = dict(op.operation.keywords)
    source = _turned(editor, right) if as_it_lies and _rows(editor, left, attrs) == 1 else None
    if source is not None:
        right, attrs["trans_b"] = source, not attrs.get("trans_b", False)
    if (left, right) == op.inputs:
        return
    scale = np.asarray(left_scale * right_scale, op.operation.outputs[0].dtype.numpy)
    editor.remove(n)
    if scale == 1:
        editor.define(op.name, "matmul", left, right, outputs=op.outputs, **attrs)
    else:
        product = editor.define(op.name, "matmul", left, right, **attrs)
        editor.define(op.name, "mul", product, editor.constant(scale, f"{op.name}: scale"), outputs=op.outputs)


def _unscaled(editor: Editor, reader: int, tensor: TensorId) -> tuple[TensorId, float]:
    """What a scalar constant multiplies or divides for this reader alone, and by how much."""
    maker = editor.maker(tensor)
    if maker is None or maker.kind not in ("mul", "div") or editor.only_reader(tensor) != reader:
        return tensor, 1.0
    for source, other in (maker.inputs, maker.inputs[::-1])[: 2 if maker.kind == "mul" else 1]:
        factor = editor.constants.get(other)
        same = editor.types[source] == editor.types[tensor]
        if factor is not None and factor.size == 1 and np.isfinite(factor).all() and factor.all() and same:
            scale = float(factor.reshape(()))
            return source, scale if maker.kind == "mul" else 1 / scale
    return tensor, 1.0


def _rows(editor: Editor, left: TensorId, attrs: dict[str, object]) -> int:
    shape = editor.types[left].shape
    return shape[-1 if attrs.get("trans_a") else -2] if len(shape) > 1 else 0


def _turned(editor: Editor, tensor: TensorId) -> TensorId | None:
    """What is transposed, in its last two dimensions, to give the tensor; also as a stack of matrices in between."""
    shape = editor.types[tensor].shape
    maker = editor.maker(tensor)
    if maker is not None and maker.kind == "reshape":
        maker = editor.maker(maker.inputs[0])
    if maker is None or maker.kind != "transpose":
        return None
    perm, source = maker.operation.attr("perm"), maker.inputs[0]
    if perm != (*range(len(perm) - 2), len(perm) - 1, len(perm) - 2):
        return None
    before = editor.maker(source, "reshape")
    for candidate in (source, *(before.inputs if before else ())):
        if editor.types[candidate].shape == (*shape[:-2], shape[-1], shape[-2]):
            return candidate
    return None
