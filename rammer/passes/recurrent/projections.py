"""Fuse input projections into cells, if the input comes from the step before: steps cannot share one large product."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import prod
from typing import NamedTuple

import numpy as np

from rammer.ir.expr import Call, Load, Scalar, Stage, TensorExpr, rewrite
from rammer.ir.graph import Graph
from rammer.ir.index import var
from rammer.ir.operator import Operation, ROperator
from rammer.ir.tensor import DType, TensorId, TensorType
from rammer.passes.editor import Editor
from rammer.passes.recurrent.split_products import product_with_constant


class _Projection(NamedTuple):
    """gx[b, q, j] = sum over k of x[b, k] w[q, j, k], plus bias[q, j]."""

    x: TensorId
    w: TensorId
    bias: TensorId | None


def join_projections(graph: Graph) -> Graph:
    """Compute x · W inside of the cell that is its only reader: one operator, whose units are spread over the vEUs."""
    editor = Editor(graph)
    made: dict[TensorId, TensorId] = {}
    for n in list(editor.operators):
        op = editor.operators[n]
        found = _projection(editor, op.inputs[0], made) if op.kind == "lstm_cell" else None
        if found is None:
            continue
        inputs = tuple(t for t in found if t is not None)
        types = tuple(editor.types[t] for t in inputs)
        key = op.operation, types
        operation = editor.interner.wrap("matmul+lstm_cell", key, partial(_joined, *key))
        editor.remove(n)
        editor.add(op.name, operation, (*inputs, *op.inputs[1:]), op.outputs)
    return editor.finish()


def _projection(editor: Editor, gx: TensorId, made: dict[TensorId, TensorId]) -> _Projection | None:
    """Return the product that computes the gates' tensor, if it has a small number of rows and only this reader."""
    kind = editor.types[gx]
    gates = kind.shape[1:]
    reshape = _maker(editor, gx, "reshape")
    if reshape is None or kind.dtype is not DType.F32:
        return None
    add = _maker(editor, reshape.inputs[0], "add")
    product = _maker(editor, (add or reshape).inputs[0], "matmul")
    if product is None or not product_with_constant(editor, product) or product.operation.inputs[0].rank != 2:
        return None
    bias = add.inputs[1] if add else None
    if bias is not None and (bias not in editor.constants or editor.types[bias].size != prod(gates)):
        return None

    def part(source: TensorId, shape: tuple[int, ...], turn: bool = False) -> TensorId:
        if source not in made:
            value = editor.constants[source]
            made[source] = editor.constant(np.ascontiguousarray(value.T if turn else value).reshape(shape), source)
        return made[source]

    x, w = product.inputs
    weights = part(w, (*gates, editor.types[x].shape[1]), not product.operation.keywords.get("trans_b", False))
    return _Projection(x, weights, None if bias is None else part(bias, gates))


def _maker(editor: Editor, tensor: TensorId, kind: str) -> ROperator | None:
    """Return the operator of this kind that computes a tensor with a single reader."""
    return editor.maker(tensor, kind) if editor.only_reader(tensor) is not None else None


def _joined(cell: Operation, types: tuple[TensorType, ...]) -> TensorExpr:
    """Return the cell's expression with the projection instead of its first input."""
    expr = cell.expr
    gx, kind = expr.inputs[0]
    batch, gates, width = kind.shape
    at = (var("b"), var("q"), var("j"))
    body = Load("px", (at[0], var("k"))) * Load("pw", (*at[1:], var("k")))
    axes = (("b", batch), ("q", gates), ("j", width))
    product = Stage("projected", axes, body, (("k", types[0].shape[1]),), dtype=kind.dtype)

    def leaf(load: Load) -> Scalar:
        if load.tensor != gx:
            return load
        value = Load("projected", load.index)
        return Call("add", (value, Load("pb", load.index[1:]))) if len(types) > 2 else value

    stages = tuple(replace(s, body=rewrite(s.body, leaf)) for s in expr.stages)
    names = ("px", "pw", "pb")[: len(types)]
    return replace(
        expr,
        name="matmul_lstm_cell",
        inputs=(*zip(names, types, strict=True), *expr.inputs[1:]),
        stages=(product, *stages),
    )
