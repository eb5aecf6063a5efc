"""Define reductions over axes.

Axis a{p} is dimension p of the input where it is kept, k{p} where it is reduced.
"""

from __future__ import annotations

from math import prod

from rammer.ir.expr import REDUCERS, Axes, Cast, Const, Iota, Load, Range, Scalar, Select, Stage, TensorExpr
from rammer.ir.index import Index, var
from rammer.ir.operator import OpDef
from rammer.ir.ops.operands import (
    call,
    computed,
    expression,
    narrowed,
    normal_axis,
    number,
    numbers_only,
    point_axes,
    require,
    summed,
    variables_of,
    widened,
)
from rammer.ir.tensor import DType, TensorType

_PLAIN = {"sum": "sum", "max": "max", "min": "min", "prod": "prod", "sum_square": "sum", "l1": "sum"}
_FINISHED = ("mean", "l2", "log_sum", "log_sum_exp")


def reduced_axes(x: TensorType, over: tuple[int, ...], keepdims: bool) -> tuple[Axes, Axes, tuple[Index, ...]]:
    """Return the output's axes, the reduction's axes, and the index of x at a point of both."""
    axes = tuple((f"a{p}", 1 if p in over else e) for p, e in enumerate(x.shape) if keepdims or p not in over)
    reduce = tuple((f"k{p}", x.shape[p]) for p in over)
    return axes, reduce, tuple(var(f"{'k' if p in over else 'a'}{p}") for p in range(x.rank))


def _reduce(x: TensorType, *, fn: str, axes: tuple[int, ...], keepdims: bool = True) -> TensorExpr:
    """Build x combined over `axes`; without axes, every element by itself."""
    require(fn in _PLAIN or fn in _FINISHED, f"reduce: fn={fn!r} of {x}", f"one of {', '.join((*_PLAIN, *_FINISHED))}")
    dtype = (computed if fn in ("max", "min") else numbers_only)(f"reduce {fn}", [x])
    fits = dtype.is_float or fn not in ("l2", "log_sum", "log_sum_exp")
    require(fits, f"reduce {fn}: {x} is not floating", "add a cast")
    over = tuple(sorted({normal_axis(f"reduce {fn}", a, x.rank) for a in axes}))
    require(len(over) == len(axes), f"reduce {fn}: axes {axes} of {x}", "name every axis once")
    points, reduce, at = reduced_axes(x, over, keepdims)
    inputs = [("x", x)]
    if fn in ("max", "min"):
        return expression("reduce", inputs, [Stage("out", points, Load("x", at), reduce, fn, dtype)])
    value = widened(Load("x", at), dtype)
    if fn in _PLAIN:
        body = value * value if fn == "sum_square" else call("abs", value) if fn == "l1" else value
        return expression("reduce", inputs, summed(points, body, reduce, dtype, _PLAIN[fn]))
    wide, here = dtype.accumulator, variables_of(points)
    total: Scalar = Load("sum", here)
    stages: list[Stage] = []
    if fn == "log_sum_exp":
        top = Load("top", here)
        finite = call("where", call("is_inf", top), 0.0, top)  # inf - inf would be NaN
        stages.append(Stage("top", points, value, reduce, "max", wide))
        stages.append(Stage("shift", points, finite, dtype=wide))
        value = call("exp", value - Load("shift", here))
        done = call("log", total) + Load("shift", here)
    elif fn == "l2":
        value, done = value * value, call("sqrt", total)
    elif fn == "log_sum":
        done = call("log", total)
    else:
        done = total / number(prod(x.shape[p] for p in over), dtype)
    stages.append(Stage("sum", points, value, reduce, dtype=wide))
    return expression("reduce", inputs, [*stages, Stage("out", points, narrowed(done, dtype), dtype=dtype)])


def _scan(x: TensorType, *, fn: str, axis: int, skipped: int = 0, reverse: bool = False) -> TensorExpr:
    """Build out[…, i, …] = x[…, k, …] combined over k <= i - skipped, from the first on. Known as: prefix sum, scan.

    `reverse` combines k >= i + skipped, from the last on. So sums of neighbours begin alike, and registers share them.
    """
    require(fn in ("sum", "prod"), f"accumulate: fn={fn!r} of {x}", "sum or prod")
    dtype = numbers_only("accumulate", [x])
    p = normal_axis("accumulate", axis, x.rank)
    require(skipped >= 0, f"accumulate: {skipped} of {x} skipped", "skipped is not negative")
    points, extent = point_axes(x.shape), x.shape[p]
    here = var(points[p][0])
    place, distance = (var("k") * -1 + (extent - 1), here * -1) if reverse else (var("k"), here)
    distance += place * (1 if reverse else -1)
    at = tuple(place if d == p else var(a) for d, (a, _) in enumerate(points))
    load = Select((Range(distance, skipped, skipped + extent),), Load("x", at), number(REDUCERS[fn][1], dtype))
    return expression("accumulate", [("x", x)], summed(points, widened(load, dtype), (("k", extent),), dtype, fn))


def _arg(kind: str, combine: str) -> OpDef:
    def express(x: TensorType, *, axis: int = 0, keepdims: bool = True, select_last_index: bool = False) -> TensorExpr:
        """Build the place of the extreme element along `axis`, the first or the last one; NaN counts as extreme."""
        dtype = numbers_only(kind, [x])
        p = normal_axis(kind, axis, x.rank)
        extent = x.shape[p]
        require(extent > 0, f"{kind}: {x} is empty along axis {p}", "there is no element to choose")
        points, reduce, at = reduced_axes(x, (p,), keepdims)
        value = Load("x", at)
        hit: Scalar = call("equal", value, Load("top", variables_of(points)))
        if dtype.is_float:
            hit = call("or", hit, call("is_nan", value))
        short = DType.I32 if extent < 1 << 31 else DType.I64  # vectors of it have as many lanes as those of float32
        none = Const(-1 if select_last_index else extent, short)
        place = call("where", hit, Cast(Iota(var(f"k{p}")), short), none)
        return expression(
            kind,
            [("x", x)],
            [
                Stage("top", points, value, reduce, combine, dtype),
                Stage("found", points, place, reduce, "max" if select_last_index else "min", short),
                Stage("out", points, Cast(Load("found", variables_of(points)), DType.I64), dtype=DType.I64),
            ],
        )

    return OpDef(kind, express)


DEFINITIONS = (OpDef("reduce", _reduce), OpDef("accumulate", _scan), _arg("arg_max", "max"), _arg("arg_min", "min"))
