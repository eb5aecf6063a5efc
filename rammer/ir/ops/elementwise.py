"""Define element-wise operators: one point-wise stage over the broadcast axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from math import ceil, floor, inf
from typing import Any, TypeAlias

import numpy as np

from rammer.ir.expr import Cast, Load, Scalar, Stage, TensorExpr
from rammer.ir.index import Index, var
from rammer.ir.operator import OpDef
from rammer.ir.ops import scalars
from rammer.ir.ops.operands import (
    broadcast,
    broadcast_index,
    call,
    computed,
    expression,
    float_only,
    listed,
    number,
    numbers_only,
    point_axes,
    require,
    same_dtype,
    variables_of,
)
from rammer.ir.tensor import DType, TensorType

Check: TypeAlias = Callable[[str, Sequence[TensorType]], DType]


def _bools_only(kind: str, types: Sequence[TensorType]) -> DType:
    fits = all(t.dtype is DType.BOOL for t in types)
    require(fits, f"{kind}: needs bool operands, not {listed(types)}", "add a cast")
    return DType.BOOL


def _integers_only(kind: str, types: Sequence[TensorType]) -> DType:
    dtype = numbers_only(kind, types)
    require(not dtype.is_float, f"{kind}: needs integers, not {listed(types)}", "add a cast")
    return dtype


def pointwise(
    kind: str, inputs: Sequence[tuple[str, TensorType]], compute: Callable[..., Scalar], dtype: DType
) -> TensorExpr:
    """Build out = compute(*inputs) at every point of the broadcast shape."""
    axes = point_axes(broadcast(kind, [t for _, t in inputs]))
    loads = [Load(name, broadcast_index(t.shape, axes)) for name, t in inputs]
    return expression(kind, inputs, [Stage("out", axes, compute(*loads), dtype=dtype)])


def _unary(kind: str, check: Check, compute: Callable[..., Scalar] | None = None, result: DType | None = None) -> OpDef:
    """Define a unary operator; `compute` takes operand and attributes; None: the scalar function of the same name."""

    def express(x: TensorType, **attrs: Any) -> TensorExpr:
        dtype = check(kind, [x])
        formula = compute or (lambda value: call(kind, value))
        return pointwise(kind, [("x", x)], lambda value: formula(value, **attrs), result or dtype)

    return OpDef(kind, express, broadcasts=True)


def _binary(kind: str, check: Check, result: DType | None = None, *, many: bool = False) -> OpDef:
    """Define an operator by the scalar function of its name; with `many`, folded from the left over its operands."""

    def express(*xs: TensorType) -> TensorExpr:
        hint = f"it takes {'one or more' if many else 'two'}"
        require(len(xs) == 2 or (many and len(xs) > 0), f"{kind}: {len(xs)} operands", hint)
        dtype = check(kind, xs)
        names = ("a", "b") if len(xs) == 2 else [f"x{p}" for p in range(len(xs))]
        inputs = list(zip(names, xs, strict=True))
        return pointwise(kind, inputs, lambda *values: reduce(lambda a, b: call(kind, a, b), values), result or dtype)

    return OpDef(kind, express, broadcasts=True)


def _gelu(x: TensorType, *, approximate: str = "none") -> TensorExpr:
    dtype = float_only("gelu", [x])
    require(approximate in ("none", "tanh"), f"gelu: approximate={approximate!r} of {x}", "it must be 'none' or 'tanh'")
    return pointwise("gelu", [("x", x)], lambda value: scalars.gelu(value, approximate), dtype)


def _relu(x: TensorType) -> TensorExpr:
    dtype = numbers_only("relu", [x])
    return pointwise("relu", [("x", x)], lambda value: call("max", value, number(0, dtype)), dtype)


def _prelu(x: TensorType, slope: TensorType) -> TensorExpr:
    dtype = numbers_only("prelu", [x, slope])
    fits = broadcast("prelu", [x, slope]) == x.shape
    require(fits, f"prelu: slope {slope} is larger than x {x}", "slope must broadcast to the shape of x")

    def formula(value: Scalar, by: Scalar) -> Scalar:
        return call("where", call("less", value, number(0, dtype)), value * by, value)

    return pointwise("prelu", [("x", x), ("slope", slope)], formula, dtype)


def _bound(value: float, dtype: DType, rounding: Callable[[float], int]) -> float | int:
    """Return a clipping bound in the operand's type: for integers rounded inwards, and at most the type's limits."""
    if dtype.is_float:
        return float(value)
    info = np.iinfo(dtype.value)
    if value in (inf, -inf):
        return int(info.max if value > 0 else info.min)
    return min(max(rounding(value), int(info.min)), int(info.max))


def _clip(x: TensorType, *, low: float | None = None, high: float | None = None) -> TensorExpr:
    """Build min(max(x, low), high); a bound of None does not limit."""
    dtype = numbers_only("clip", [x])

    def formula(value: Scalar) -> Scalar:
        if low is not None:
            value = call("max", value, _bound(low, dtype, ceil))
        return value if high is None else call("min", value, _bound(high, dtype, floor))

    return pointwise("clip", [("x", x)], formula, dtype)


def _cast(x: TensorType, *, dtype: DType) -> TensorExpr:
    plain = x.dtype is dtype or not (x.dtype.is_complex or dtype.is_complex)
    require(plain, f"cast: {x} to {dtype.value}", "take complex numbers apart before the model")
    return pointwise("cast", [("x", x)], lambda value: value if x.dtype is dtype else Cast(value, dtype), dtype)


def _bit_cast(x: TensorType, *, dtype: DType) -> TensorExpr:
    """Build the bits of x, read as another type of their width."""
    require(x.dtype.bits == dtype.bits, f"bit_cast: {x} to {dtype.value}", "both need the same width")
    require(DType.BOOL not in (x.dtype, dtype), f"bit_cast: {x} to {dtype.value}", "a bool is no number; add a cast")
    same = x.dtype is dtype
    return pointwise("bit_cast", [("x", x)], lambda value: value if same else Cast(value, dtype, bits=True), dtype)


def _where(cond: TensorType, a: TensorType, b: TensorType) -> TensorExpr:
    _bools_only("where", [cond])
    dtype = same_dtype("where", [a, b])
    return pointwise("where", [("cond", cond), ("a", a), ("b", b)], lambda *values: call("where", *values), dtype)


def _batch_norm(
    x: TensorType, scale: TensorType, bias: TensorType, mean: TensorType, var_: TensorType, *, epsilon: float = 1e-5
) -> TensorExpr:
    """Build (x - mean) / sqrt(var + epsilon) * scale + bias along dimension 1 (a vector has one channel)."""
    inputs = list(zip(("x", "scale", "bias", "mean", "var"), (x, scale, bias, mean, var_), strict=True))
    dtype = float_only("batch_norm", [t for _, t in inputs])
    channels = x.shape[1] if x.rank > 1 else 1
    fits = x.rank > 0 and all(t.shape == (channels,) for _, t in inputs[1:])
    hint = f"x needs a rank of at least 1, and the others the shape ({channels},)"
    require(fits, f"batch_norm: {listed(t for _, t in inputs)}", hint)
    axes = point_axes(x.shape)
    s, b, m, v = (Load(name, (var("a1") if x.rank > 1 else Index(),)) for name, _ in inputs[1:])
    body = (Load("x", variables_of(axes)) - m) / call("sqrt", v + epsilon) * s + b
    return expression("batch_norm", inputs, [Stage("out", axes, body, dtype=dtype)])


DEFINITIONS = (
    *(_binary(kind, numbers_only, many=True) for kind in ("add", "mul", "max", "min")),
    *(_binary(kind, numbers_only) for kind in ("sub", "div", "fmod", "pow")),
    *(_binary(k, _integers_only) for k in ("mod", "bit_and", "bit_or", "bit_xor", "shift_left", "shift_right")),
    _unary("bit_not", _integers_only),
    *(_binary(kind, _bools_only, many=True) for kind in ("and", "or", "xor")),
    *(_binary(k, computed, DType.BOOL) for k in ("equal", "less", "less_equal", "greater", "greater_equal")),
    *(_unary(kind, numbers_only) for kind in ("neg", "abs", "sign")),
    *(
        _unary(kind, float_only)
        for kind in (
            *("floor", "ceil", "round", "sqrt", "exp", "log", "sin", "cos", "asin", "acos", "atan", "erf", "tanh"),
            "sigmoid",
        )
    ),
    *(_unary(kind, float_only, result=DType.BOOL) for kind in ("is_nan", "is_inf")),
    _unary("not", _bools_only),
    _unary("reciprocal", float_only, lambda x: scalars.ONE / x),
    *(_unary(formula.__name__, float_only, formula) for formula in scalars.FORMULAS),
    OpDef("gelu", _gelu, broadcasts=True),
    OpDef("relu", _relu, broadcasts=True),
    OpDef("prelu", _prelu, broadcasts=True),
    OpDef("clip", _clip, broadcasts=True),
    OpDef("cast", _cast, broadcasts=True),
    OpDef("bit_cast", _bit_cast, broadcasts=True),
    OpDef("where", _where, broadcasts=True),
    OpDef("batch_norm", _batch_norm),
)
