"""Define convolution, and the unfolding of its windows."""

from __future__ import annotations

from math import prod

from rammer.ir.expr import Load, Stage, TensorExpr
from rammer.ir.index import Index, substitute, var
from rammer.ir.operator import OpDef
from rammer.ir.ops.operands import (
    expression,
    factor,
    listed,
    narrowed,
    number,
    require,
    summed,
    variables_of,
    wide_enough,
    widened,
    within,
)
from rammer.ir.ops.window import padded, window
from rammer.ir.tensor import DType, Shape, TensorType


def _conv(
    x: TensorType,
    w: TensorType,
    bias: TensorType | None = None,
    *,
    strides: Shape = (),
    pads: Shape = (),
    dilations: Shape = (),
    group: int = 1,
    shuffled: int = 1,
    dtype: DType | None = None,
) -> TensorExpr:
    """Build a convolution, as ONNX's Conv.

    out[n, o, …] = bias[o] + sum over the window and the group of x[n, c, …] w[o, c, …]. `shuffled`: x's channels lie in
    that many parts, from which the convolution takes one channel each in turn. `dtype`: the type of the result and the
    bias, to which other x and w are widened; without it all have one type.
    """
    inputs = [("x", x), ("w", w)] + ([("bias", bias)] if bias else [])
    types = [t for _, t in inputs]
    dtype = wide_enough("conv", types, dtype)
    given = f"conv: {listed(types)} in {group} groups"
    require(x.rank == w.rank and x.rank > 2, given, "x and w need the same rank, at least 3")
    require(group > 0, given, "group must be positive")
    require(shuffled > 0 and x.shape[1] % shuffled == 0, given, f"channels must divide into {shuffled} shuffled parts")
    outs, depth = w.shape[:2]
    require(x.shape[1] == depth * group, given, f"x must have {depth} channels per group")
    require(outs % group == 0, given, f"the {outs} output channels must divide into the groups")
    require(bias is None or bias.shape == (outs,), given, f"bias must have the shape ({outs},)")
    view = window("conv", x, w.shape[2:], strides, pads, dilations, rank=x.rank - 2)
    source, stages = padded(x, view.begin, view.end, number(0, x.dtype))
    o, within = var("o"), var("c") if depth != 1 else Index()
    channel = o // (outs // group) * depth + within if group > 1 else within
    if shuffled > 1:
        channel = channel % shuffled * (x.shape[1] // shuffled) + channel // shuffled
    at = (var("n"), channel, *view.index)
    body = factor(Load(source, at), x, dtype) * factor(Load("w", (o, within, *view.steps)), w, dtype)
    axes = (("n", x.shape[0]), ("o", outs), *view.spatial)
    reduce = (*view.reduce, *((("c", depth),) if depth != 1 else ()))
    if bias is None:
        return expression("conv", inputs, [*stages, *summed(axes, body, reduce, dtype)])
    total = Stage("sum", axes, body, reduce, dtype=dtype.accumulator)
    biased = Load("sum", variables_of(axes)) + widened(Load("bias", (o,)), dtype)
    return expression("conv", inputs, [*stages, total, Stage("out", axes, narrowed(biased, dtype), dtype=dtype)])


def _unfold(
    x: TensorType, *, kernel: Shape, strides: Shape = (), pads: Shape = (), dilations: Shape = (), value: float = 0
) -> TensorExpr:
    """Build windows as channels: out[n, p * C + c, …] = x[n, c, …] at place p of the window. Known as: im2col.

    Past the edge lies `value`.
    """
    view = window("unfold", x, kernel, strides, pads, dilations, rank=x.rank - 2)
    count = x.shape[1]
    places = [var("m") // (count * prod(kernel[n + 1 :])) % extent for n, extent in enumerate(kernel)]
    moved = [place for place, extent in zip(places, kernel, strict=True) if extent > 1]
    inside = dict(zip((a for a, _ in view.reduce), moved, strict=True))
    index = [substitute(ix, inside) - b for ix, b in zip(view.index, view.begin, strict=True)]
    load = Load("x", (var("n"), var("m") % count, *index))
    axes = (("n", x.shape[0]), ("m", count * prod(kernel)), *view.spatial)
    body = within(index, x.shape[2:], view.begin, view.end, load, number(value, x.dtype))
    return expression("unfold", [("x", x)], [Stage("out", axes, body, dtype=x.dtype)])


DEFINITIONS = (OpDef("conv", _conv), OpDef("unfold", _unfold))
