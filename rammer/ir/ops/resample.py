"""Define interpolation along an axis: each result is a weighted sum of elements at given places."""

from __future__ import annotations

from rammer.ir.expr import Const, Dynamic, Load, TensorExpr
from rammer.ir.index import Index, simplify, var
from rammer.ir.operator import OpDef
from rammer.ir.ops.operands import (
    expression,
    float_only,
    listed,
    normal_axis,
    numbers_only,
    point_axes,
    require,
    summed,
    variables_of,
    widened,
    within,
)
from rammer.ir.tensor import DType, Shape, TensorType


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


def _resample_evenly(
    x: TensorType, weights: TensorType, *, axis: int = 0, first: int = 0, step: int = 1, by: int = 1
) -> TensorExpr:
    """Build out[…, i, …] = sum over t of weights[i, t] x[…, (first + i step) // by + t, …], along `axis`."""
    given = f"resample_evenly: {listed([x, weights])} along axis {axis}, ({first} + i {step}) // {by}"
    dtype, p = float_only("resample_evenly", [x, weights]), normal_axis("resample_evenly", axis, x.rank)
    require(weights.rank == 2 and weights.size > 0, given, "weights are a matrix, and not empty")
    require(first >= 0 and step > 0 and by > 0, given, "places rise, and begin inside x")
    size, taps = weights.shape
    require((first + (size - 1) * step) // by + taps <= x.shape[p], given, "x has what is read: pad it")
    axes = point_axes((*x.shape[:p], size, *x.shape[p + 1 :]))
    here = variables_of(axes)
    place = simplify((here[p] * step + first) // by, {axes[p][0]: (0, size - 1)}) + var("t")
    read = Load("x", (*here[:p], place, *here[p + 1 :]))
    body = widened(Load("weights", (here[p], var("t"))), dtype) * widened(read, dtype)
    return expression("resample_evenly", [("x", x), ("weights", weights)], summed(axes, body, (("t", taps),), dtype))


def _fold(x: TensorType, *, dilations: Shape) -> TensorExpr:
    """Build images as sums of windows that begin at every place: x[n, c, *window, *places]. Known as: col2im."""
    given, rank = f"fold: {x} with dilations {dilations}", len(dilations)
    dtype = numbers_only("fold", [x])
    require(rank > 0 and x.rank == 2 + 2 * rank, given, "x has two dimensions, those of windows, and of places")
    require(min(dilations) > 0, given, "dilations must be positive")
    window, places = x.shape[2 : 2 + rank], x.shape[2 + rank :]
    reach = tuple((extent - 1) * by for extent, by in zip(window, dilations, strict=True))
    axes = point_axes((*x.shape[:2], *(e + r for e, r in zip(places, reach, strict=True))))
    steps = tuple((f"k{p}", extent) for p, extent in enumerate(window) if extent > 1)
    taps = tuple(var(f"k{p}") if extent > 1 else Index() for p, extent in enumerate(window))
    here = variables_of(axes)
    at = tuple(a - k * by for a, k, by in zip(here[2:], taps, dilations, strict=True))
    body = within(at, places, reach, reach, Load("x", (*here[:2], *taps, *at)), Const(0))
    return expression("fold", [("x", x)], summed(axes, widened(body, dtype), steps, dtype))


DEFINITIONS = (OpDef("resample", _resample), OpDef("resample_evenly", _resample_evenly), OpDef("fold", _fold))
