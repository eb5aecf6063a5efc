"""Reduce windows by columns first, where rows are contiguous: neighbouring windows then share columns.

A 3x3 mean with stride 2 loads nine strided vectors. Its columns load three contiguous ones, and three strided vectors
of columns remain.
"""

from __future__ import annotations

from dataclasses import replace

from rammer.ir.expr import Cast, Load, Stage, TensorExpr
from rammer.ir.graph import Graph
from rammer.ir.index import bounds, var, variables


def columns_first(graph: Graph) -> Graph:
    """Split reductions of windows into columns and rows, in operators without blocked layouts."""
    operators = []
    for op in graph.operators:
        expr = op.operation.expr
        stages = tuple(part for stage in expr.stages for part in _split(expr, stage))
        if len(stages) > len(expr.stages):
            made = replace(expr, stages=stages)
            op = replace(op, operation=graph.interner.wrap(op.kind, made, lambda made=made: made))  # type: ignore[misc]
        operators.append(op)
    return replace(graph, operators=tuple(operators))


def _split(expr: TensorExpr, stage: Stage) -> tuple[Stage, ...]:
    """Return the reductions of columns and of rows that make a stage; the stage itself if it has no such window."""
    load = stage.body.arg if isinstance(stage.body, Cast) else stage.body
    blocked = any(kind.layout for _, kind in (*expr.inputs, *expr.outputs))
    if len(stage.reduce) < 2 or blocked or not isinstance(load, Load) or load.dynamic:
        return (stage,)
    *lead, last = load.index
    along = tuple(axis for axis in (*stage.axes, *stage.reduce) if axis[0] in variables(last))
    across = tuple(axis for axis in stage.reduce if axis not in along)
    shared = variables(last) & set().union(*map(variables, lead))
    if len(along) != 2 or along[0] != stage.axes[-1] or not across or shared:
        return (stage,)
    (row, width), (_, size) = along
    low, high = bounds(last, {a: (0, e - 1) for a, e in along})
    if low or high + 1 >= width * size:
        return (stage,)
    column = replace(load, index=(*lead, var(row)))
    body = replace(stage.body, arg=column) if isinstance(stage.body, Cast) else column
    axes, name = (*stage.axes[:-1], (row, high + 1)), f"{stage.name}_columns"
    rows = Load(name, (*(var(a) for a, _ in axes[:-1]), last))
    columns = replace(stage, name=name, axes=axes, body=body, reduce=across)
    return columns, replace(stage, body=rows, reduce=along[1:])
