"""Simplify products whose operands are scaled, transposed or repeated: scale the result, and read operands directly."""

from __future__ import annotations

from math import prod

import numpy as np

from rammer.ir.graph import Graph
from rammer.ir.operator import ROperator
from rammer.ir.tensor import TensorId
from rammer.passes.editor import Editor, apply_pattern
from rammer.passes.structure import WIDE

LEAST_COLUMNS = 64  # of a product where it lies: fewer do not fill vectors well


def simplify_products(graph: Graph, as_it_lies: bool) -> Graph:
    """Rewrite (x·s) (y·t) = (x y)·(s t) for scalar constants, and products with repeated matrices.

    Exporters scale both operands of attention's product, and a key-value cache is longer than the query. Heads that
    share a repeated matrix become rows of one product. `as_it_lies`: a product with one row reads a transposed matrix
    directly, because it reads it only once; and a product along a dimension that is transposed to be the last one, and
    back, is computed where it lies.
    """
    kinds = ("matmul", "transpose") if as_it_lies else ("matmul",)
    return apply_pattern(graph, lambda editor, n, op: _simplified(editor, n, op, as_it_lies), *kinds)


def _simplified(editor: Editor, n: int, op: ROperator, as_it_lies: bool) -> TensorId | None:
    if op.operation.outputs[0].dtype not in WIDE:
        return None
    if op.kind == "transpose":
        return _where_it_lies(editor, op)
    (left, left_scale), (right, right_scale) = (_unscaled(editor, n, t) for t in op.inputs)
    attrs = dict(op.operation.keywords)
    single = _rows(editor, left, attrs) == 1
    alone = as_it_lies and single
    source = _transpose_source(editor, right) if alone else None
    if source is not None:
        right, attrs["trans_b"] = source, not attrs.get("trans_b", False)
    weights = not as_it_lies and not single and editor.maker(left, "softmax") is not None  # of attention in one rTask
    once = None if attrs.get("trans_a") or weights else _shared(editor, left, right)
    if (left, right) == op.inputs and once is None:
        return None
    if once is not None:  # heads that share keys or values: rows of one product, or products with the same matrix
        *batch, heads, rows, depth = editor.types[left].shape
        groups = editor.types[once].shape[-4]
        split = (heads // groups, 1) if alone and attrs.get("trans_b") else (heads // groups * rows,)
        left = editor.reshaped(op.name, left, (*batch, groups, *split, depth))
        *outer, _, terms, columns = editor.types[once].shape
        right = once if len(split) > 1 else editor.reshaped(op.name, once, (*outer, terms, columns))
    scale = np.asarray(left_scale * right_scale, op.operation.outputs[0].dtype.numpy)
    product = editor.reshaped(
        op.name, editor.define(op.name, "matmul", left, right, **attrs), op.operation.outputs[0].shape
    )
    if scale == 1:
        return product
    return editor.define(op.name, "mul", product, editor.constant(scale, f"{op.name}: scale"))


def _where_it_lies(editor: Editor, op: ROperator) -> TensorId | None:
    """Return W·x + b for the transposition of (x transposed)·W + b: mixing of heads (CaiT), or of tokens (gMLP)."""
    total = editor.maker(op.inputs[0], "add")
    vectors = [t for t in total.inputs if t in editor.constants and editor.types[t].rank == 1] if total else []
    made = next((t for t in total.inputs if t not in vectors), "") if total and vectors else op.inputs[0]
    product = editor.maker(made, "matmul")
    first = editor.maker(product.inputs[0], "transpose") if product else None
    weights = editor.constants.get(product.inputs[1]) if product else None
    if product is None or first is None or weights is None or weights.ndim != 2:
        return None
    perm, attrs = first.operation.attr("perm"), product.operation.keywords
    x, axis, rank = first.inputs[0], perm[-1], len(perm)
    shape, between = editor.types[x].shape, {op.inputs[0], made, product.inputs[0]}
    back = tuple(perm[p] for p in op.operation.attr("perm")) == tuple(range(rank))
    alone = back and list(perm[:-1]) == sorted(perm[:-1]) and None not in map(editor.only_reader, between)
    if not alone or attrs.get("trans_a") or attrs.get("dtype") or prod(shape[axis + 1 :]) < LEAST_COLUMNS:
        return None
    matrix = editor.constant(np.ascontiguousarray(weights if attrs.get("trans_b") else weights.T), product.inputs[1])
    rows = editor.reshaped(op.name, x, (prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :])))
    result = editor.define(op.name, "matmul", matrix, rows)
    for bias in vectors:
        column = editor.reshaped(op.name, bias, (editor.types[bias].size, 1))
        result = editor.define(op.name, "add", result, column)
    return editor.reshaped(op.name, result, op.operation.outputs[0].shape)


def _unscaled(editor: Editor, reader: int, tensor: TensorId) -> tuple[TensorId, float]:
    """Return the tensor before a scaling by a scalar constant that only this reader reads, and the factor."""
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


def _transpose_source(editor: Editor, tensor: TensorId) -> TensorId | None:
    """Return the tensor whose last two dimensions are transposed to give this one, also through a reshape; or None."""
    shape, maker = editor.types[tensor].shape, editor.maker(tensor)
    if maker is not None and maker.kind == "reshape":
        maker = editor.maker(maker.inputs[0])
    if maker is None or maker.kind != "transpose":
        return None
    perm, source = maker.operation.attr("perm"), maker.inputs[0]
    wanted = (*shape[:-2], shape[-1], shape[-2])
    if perm != (*range(len(perm) - 2), len(perm) - 1, len(perm) - 2) or editor.types[source].shape[-2:] != wanted[-2:]:
        return None
    before = editor.maker(source, "reshape")
    if before and editor.types[before.inputs[0]].shape == wanted:
        return before.inputs[0]
    return editor.reshaped(maker.name, source, wanted)


def _shared(editor: Editor, left: TensorId, right: TensorId) -> TensorId | None:
    """Return matrices [.., groups, 1, i, j] that are expanded and reshaped to [.., heads, i, j]; or None."""
    repeated = editor.source(right, "reshape")
    maker = editor.maker(repeated, "expand") if repeated != right else None
    if maker is None:
        return None
    source, whole = maker.operation.inputs[0].shape, maker.operation.outputs[0].shape
    shape, rows = editor.types[right].shape, editor.types[left].shape
    if len(whole) < 4 or len(shape) != len(whole) - 1 or len(rows) != len(shape):
        return None
    *batch, groups, heads, i, j = whole
    if source != (*batch, groups, 1, i, j) or shape != (*batch, groups * heads, i, j) or rows[:-2] != shape[:-2]:
        return None
    return maker.inputs[0]
