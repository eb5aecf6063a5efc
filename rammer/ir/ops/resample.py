"""Define interpolation along an axis: each result is a weighted sum of elements at given places."""

from __future__ import annotations

from rammer.ir.expr import Dynamic, Load, TensorExpr
from rammer.ir.index import Index, var
from rammer.ir.operator import OpDef
from rammer.ir.ops.operands import (
    expression,
    float_only,
    listed,
    normal_axis,
    point_axes,
    require,
    summed,
    variables_of,
    widened,
)
from rammer.ir.tensor import DType, TensorType


def _resample(x: TensorType, weights: TensorType, places: TensorType, *, axis: int = 0) -> TensorExpr:
    """Build out[…, i, …] = sum over t of weights[i, t] x[…, places[i, t], …], along `axis`."""
    given = f"resample: {listed([x, weights, places])} along axis {axis}"
    dtype, p = float_only("resample", [x, weights]), normal_axis("resample", axis, x.rank)
    require(weights.rank == 2 and weights.shape == places.shape, given, "weights and places are matrices of one shape")
    require(places.dtype in (DType.I32, DType.I64), given, "places must be int32 or int64")
    require(x.shape[p] > 0 or places.size == 0, given, "there is nothing to read")
    size, taps = weights.shape
    axes = point_axes((*x.shape[:p], size, *x.shape[p + 1 :]))
    here = variables_of(axes)
    tap = (here[p], var("t"))
    read = Load("x", (*here[:p], Index(), *here[p + 1 :]), (Dynamic(p, Load("places", tap), x.shape[p]),))
    body = widened(Load("weights", tap), dtype) * widened(read, dtype)
    inputs = [("x", x), ("weights", weights), ("places", places)]
    return expression("resample", inputs, summed(axes, body, (("t", taps),), dtype))


DEFINITIONS = (OpDef("resample", _resample),)
