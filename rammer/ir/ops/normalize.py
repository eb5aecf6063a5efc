"""Define normalization along rows: softmax and layer normalization."""

from __future__ import annotations

from math import prod

from rammer.ir.expr import Load, Stage, TensorExpr
from rammer.ir.operator import OpDef
from rammer.ir.ops.operands import (
    broadcast,
    broadcast_index,
    call,
    expression,
    float_only,
    listed,
    narrowed,
    normal_axis,
    point_axes,
    require,
    variables_of,
    widened,
)
from rammer.ir.ops.reduce import reduced_axes
from rammer.ir.tensor import TensorType


def _softmax(kind: str) -> OpDef:
    def express(x: TensorType, *, axis: int = -1) -> TensorExpr:
        """Build eˣ / sum of eˣ along `axis`, or its logarithm; the row's maximum is subtracted first."""
        dtype = float_only(kind, [x])
        p = normal_axis(kind, axis, x.rank)
        wide = dtype.accumulator
        rows, reduce, at = reduced_axes(x, (p,), keepdims=False)
        axes = point_axes(x.shape)
        row, here = variables_of(rows), variables_of(axes)
        top = Load("top", row)
        stages = [Stage("top", rows, widened(Load("x", at), dtype), reduce, "max", wide)]
        if kind == "softmax":
            stages += [
                Stage("e", axes, call("exp", widened(Load("x", here), dtype) - top), dtype=wide),
                Stage("sum", rows, Load("e", at), reduce, dtype=wide),
                Stage("scale", rows, call("div", 1.0, Load("sum", row)), dtype=wide),  # quotients take as long as exp
            ]
            result = Load("e", here) * Load("scale", row)
        else:
            stages.append(Stage("sum", rows, call("exp", widened(Load("x", at), dtype) - top), reduce, dtype=wide))
            result = widened(Load("x", here), dtype) - top - call("log", Load("sum", row))
        return expression(kind, [("x", x)], [*stages, Stage("out", axes, narrowed(result, dtype), dtype=dtype)])

    return OpDef(kind, express)


def _layer_norm(
    x: TensorType,
    scale: TensorType,
    bias: TensorType | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stats: bool = False,
) -> TensorExpr:
    """Build (x - mean) / sqrt(variance + epsilon) * scale + bias, with the moments over dimensions axis … last."""
    inputs = [("x", x), ("scale", scale)] + ([("bias", bias)] if bias else [])
    types = [t for _, t in inputs]
    given = f"layer_norm: {listed(types)} at axis {axis}"
    require(not stats, f"{given}: mean and 1/deviation do not have the shape of x", "take them by reduce operators")
    dtype = float_only("layer_norm", types)
    first = normal_axis("layer_norm", axis, x.rank)
    require(broadcast("layer_norm", types) == x.shape, given, "scale and bias must broadcast to the shape of x")
    wide = dtype.accumulator
    over = tuple(range(first, x.rank))
    count = float(prod(x.shape[first:]))
    rows, reduce, at = reduced_axes(x, over, keepdims=False)
    axes = point_axes(x.shape)
    row, here = variables_of(rows), variables_of(axes)
    mean = Load("sum", row) / count
    inside = widened(Load("x", at), dtype) - mean
    result = (widened(Load("x", here), dtype) - mean) / call("sqrt", Load("square", row) / count + epsilon)
    result = result * widened(Load("scale", broadcast_index(scale.shape, axes)), dtype)
    if bias is not None:
        result = result + widened(Load("bias", broadcast_index(bias.shape, axes)), dtype)
    return expression(
        "layer_norm",
        inputs,
        [
            Stage("sum", rows, widened(Load("x", at), dtype), reduce, dtype=wide),
            Stage("square", rows, inside * inside, reduce, dtype=wide),
            Stage("out", axes, narrowed(result, dtype), dtype=dtype),
        ],
    )


DEFINITIONS = (_softmax("softmax"), _softmax("log_softmax"), OpDef("layer_norm", _layer_norm))
