"""Fuse layer normalisation into products: they multiply the rows as they are, and scale their sums."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rammer.ir.device import Execution, VDeviceSpec
from rammer.ir.expr import Call, Const, Load, Stage, TensorExpr, loads, nodes, rename_tensors
from rammer.ir.graph import Graph
from rammer.ir.index import var
from rammer.ir.operator import Operation, ROperator
from rammer.ir.tensor import DType, TensorType
from rammer.passes.editor import Editor
from rammer.passes.fusion.chains import is_product, takes_rows


def fuse_norms(graph: Graph, spec: VDeviceSpec) -> Graph:
    """Rewrite (g (x - m) / s + b) W as (x gW - m Σ gW) / s + bW. Each rTask computes m and s of its rows.

    Threads wait longer for a normalisation of its own than they compute it. All its readers must be such products, of
    float32 operands: x that is far from zero loses more by rounding than what is normal.
    """
    editor = Editor(graph)
    wanted = spec.execution is Execution.SIMT and (spec.numerics, spec.precision) == ("fast", "fp32")
    for norm in [op for op in editor.operators.values() if op.kind == "layer_norm" and wanted]:
        (made,) = norm.outputs
        readers = [n for n in editor.readers.get(made, ()) if _suits(editor, norm, editor.operators[n])]
        if readers == list(editor.readers.get(made, ())) and made not in editor.outputs:
            for n in readers:
                _fold(editor, norm, editor.remove(n))
    return editor.finish()


def _suits(editor: Editor, norm: ROperator, op: ROperator) -> bool:
    """Check whether an operator multiplies normal rows, its first operand, by a constant matrix, its second one."""
    (made,), (rows, *affine), product = norm.outputs, norm.inputs, op.operation.expr.stages[0]
    kind = editor.types[rows]
    if not is_product(op) or op.inputs[0] != made or not takes_rows(op, made) or len(affine) != 2:
        return False
    if not {op.inputs[1], *affine} <= editor.constants.keys() or product.combine != "sum" or not product.reduce:
        return False
    last = norm.operation.keywords.get("axis", -1) % kind.rank == kind.rank - 1
    whole = all(editor.types[t].shape == kind.shape[-1:] for t in affine)
    name = op.operation.expr.inputs[1][0]
    read = [ld.index for s in op.operation.expr.stages for ld, _ in loads(s.body) if ld.tensor == name]
    matrix = read == [(var(product.reduce[0][0]), var(product.axes[-1][0]))]
    return last and whole and matrix and {editor.types[t].dtype for t in (rows, op.inputs[1])} == {DType.F32}


def _fold(editor: Editor, norm: ROperator, op: ROperator) -> None:
    """Replace a removed product of normal rows."""
    weights, scale, bias = (editor.constants[t].astype(np.float64) for t in (op.inputs[1], *norm.inputs[1:]))
    scaled = (weights * scale[:, None]).astype(np.float32)
    parts = scaled, scaled.mean(0, np.float64), bias @ weights
    matrix, *columns = (editor.constant(p.astype(np.float32), f"{op.name}: normal") for p in parts)
    more = norm.inputs[0], *columns  # rows are read twice: those that are multiplied may be copied by chunks
    kinds = tuple(editor.types[t] for t in more)
    operation = editor.interner.wrap(
        f"layer_norm+{op.kind}",
        ("normal", norm.operation, op.operation),
        lambda: _normal(norm.operation, op.operation.expr, kinds),
    )
    editor.add(op.name, operation, (norm.inputs[0], matrix, *op.inputs[2:], *more), op.outputs)


def _normal(norm: Operation, expr: TensorExpr, kinds: tuple[TensorType, ...]) -> TensorExpr:
    """Return a product's expression with its sums scaled by the moments of rows."""
    product, *rest = expr.stages
    names = {norm.expr.inputs[0][0]: "rows", "sum": "row_sum", "square": "row_square"}
    moments = [replace(s, name=names[s.name], body=rename_tensors(s.body, names)) for s in norm.expr.stages[:-1]]
    root = next(v for v in nodes(norm.expr.root.body) if isinstance(v, Call) and v.fn == "sqrt")
    factor = Stage("row_factor", moments[0].axes, Call("div", (Const(1.0), rename_tensors(root, names))))
    *at, column = (var(a) for a, _ in product.axes)
    shifted = Load(product.name, (*at, column)) - Load("row_sum", tuple(at)) * Load("columns", (column,))
    body = shifted * Load("row_factor", tuple(at)) + Load("added", (column,))
    made = replace(product, name=f"{product.name}_normal", body=body, reduce=())
    later = {product.name: made.name}
    after = (replace(s, body=rename_tensors(s.body, later)) for s in rest)
    return replace(
        expr,
        name=f"layer_norm_{expr.name}",
        inputs=(*expr.inputs, *zip(("rows", "columns", "added"), kinds, strict=True)),
        stages=(*moments, factor, product, made, *after),
        outputs=tuple((later.get(name, name), kind) for name, kind in expr.outputs),
    )
