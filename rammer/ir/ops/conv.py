"""Convolution."""

from __future__ import annotations

from rammer.ir.expr import Load, Stage, TensorExpr
from rammer.ir.index import Index, var
from rammer.ir.operator import OpDef
from rammer.ir.ops.operands import (
    expression,
    listed,
    narrowed,
    number,
    numbers_only,
    require,
    summed,
    variables_of,
    widened,
)
from rammer.ir.ops.window import padded, window
from rammer.ir.tensor import Shape, TensorType


def _conv(
    x: TensorType,
    w: TensorType,
    bias: TensorType | None = None,
    *,
    strides: Shape = (),
    pads: Shape = (),
    dilations: Shape = (),
    group: int = 1,
) -> TensorExpr:
    """out[n, o, …] = bias[o] + sum over the window and the group of x[n, c, …] w[o, c, …], as ONNX's Conv."""
    inputs = [("x", x), ("w", w)] + ([("bias", bias)] if bias else [])
    types = [t for _, t in inputs]
    dtype = numbers_only("conv", types)
    given = f"conv: {listed(types)} in {group} groups"
    require(x.rank == w.rank and x.rank > 2, given, "x and w need the same rank, at least 3")
    require(group > 0, given, "group must be positive")
    outs, depth = w.shape[:2]
    require(x.shape[1] == depth * group, given, f"x must have {depth} channels per group")
    require(outs % group == 0, given, f"the {outs} output channels must divide into the groups")
    require(bias is None or bias.shape == (outs,), given, f"bias must have the shape ({outs},)")
    view = window("conv", x, w.shape[2:], strides, pads, dilations, rank=x.rank - 2)
    source, stages = padded(x, view.begin, view.end, number(0, dtype))
    o, within = var("o"), var("c") if depth != 1 else Index()
    channel = o // (outs // group) * depth + within if group > 1 else within
    body = widened(Load(source, (var("n"), channel, *view.index)), dtype) * widened(
        Load("w", (o, within, *view.steps)), dtype
    )
    axes = (("n", x.shape[0]), ("o", outs), *view.spatial)
    reduce = (*view.reduce, *((("c", depth),) if depth != 1 else ()))
    if bias is None:
        return expression("conv", inputs, [*stages, *summed(axes, body, reduce, dtype)])
    total = Stage("sum", axes, body, reduce, dtype=dtype.accumulator)
    biased = Load("sum", variables_of(axes)) + widened(Load("bias", (o,)), dtype)
    return expression("conv", inputs, [*stages, total, Stage("out", axes, narrowed(biased, dtype), dtype=dtype)])


DEFINITIONS = (OpDef("conv", _conv),)
