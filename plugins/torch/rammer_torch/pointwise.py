"""Import ATen's element-wise operators, casts and comparisons."""

from __future__ import annotations

from math import log, pi
from typing import Any

import torch
from torch import fx

from rammer_torch.writer import Handler, Operand, Unsupported, Writer, handles

_UNARY = {
    **{op: op.capitalize() for op in ("abs", "neg", "sign", "sqrt", "reciprocal", "exp", "log", "erf", "tanh")},
    **{op: op.capitalize() for op in ("sin", "cos", "tan", "asin", "acos", "atan", "relu", "sigmoid")},
    **{op: op.capitalize() for op in ("sinh", "cosh", "asinh", "acosh", "atanh")},
    "sgn": "Sign",
}
_BINARY = {"mul": "Mul", "maximum": "Max", "minimum": "Min", "pow": "Pow"}
_COMPARISONS = {"eq": "Equal", "lt": "Less", "le": "LessOrEqual", "gt": "Greater", "ge": "GreaterOrEqual"}
_LOGIC = {"not": "Not", "and": "And", "or": "Or", "xor": "Xor"}


def _of(op: str, dtype: torch.dtype | None = None, **attributes: int) -> Handler:
    """Apply an operator to operands of a type; of the result's without `dtype`."""
    return lambda w, *operands: w(op, *(w.cast(x, dtype or w.out.dtype) for x in operands), **attributes)


def _comparison(op: str) -> Handler:
    return lambda w, a, b: w(op, *_common(w, a, b))


def _bitwise(op: str) -> Handler:
    return lambda w, *operands: _of(op if w.out.dtype is torch.bool else f"Bitwise{op}")(w, *operands)


for _name, _op in (_UNARY | _BINARY).items():
    handles(_name)(_of(_op))
for _name, _op in _COMPARISONS.items():
    handles(_name)(_comparison(_op))
for _name, _op in _LOGIC.items():
    handles(f"logical_{_name}")(_of(_op, torch.bool))
    handles(f"bitwise_{_name}")(_bitwise(_op))
handles("fmod")(_of("Mod", fmod=1))


def _common(w: Writer, a: Operand, b: Operand) -> tuple[str, str]:
    """Return both operands in the type in which torch compares them."""
    dtype = torch.result_type(*(x.meta["val"] if isinstance(x, fx.Node) else x for x in (a, b)))
    return w.cast(a, dtype), w.cast(b, dtype)


@handles("add", "sub")
def add(w: Writer, a: Operand, b: Operand, alpha: float) -> str:
    dtype = w.out.dtype
    scaled = w.cast(b, dtype) if alpha == 1 else w("Mul", w.cast(b, dtype), w.number(alpha, dtype))
    assert w.target in ("add", "sub")
    if dtype is torch.bool:
        return w("Or", w.cast(a, dtype), scaled)
    return w(w.target.capitalize(), w.cast(a, dtype), scaled)


@handles("div")
def div(w: Writer, a: Operand, b: Operand, rounding: str | None = None) -> str:
    dtype = w.out.dtype
    first, second = w.cast(a, dtype), w.cast(b, dtype)
    if dtype.is_floating_point or rounding != "floor":
        quotient = w("Div", first, second)
        return quotient if rounding is None or not dtype.is_floating_point else _rounded(w, quotient, rounding)
    return w("Div", w("Sub", first, w("Mod", first, second)), second)


def _rounded(w: Writer, x: Operand, how: str) -> str:
    return w("Floor", x) if how == "floor" else w("Mul", w("Sign", x), w("Floor", w("Abs", x)))


@handles("floor", "ceil", "round.default", "trunc")
def rounded(w: Writer, x: Operand) -> str:
    if not w.out.dtype.is_floating_point:
        return w("Identity", x)
    return _rounded(w, x, "trunc") if w.target == "trunc" else w(w.target.capitalize(), x)


@handles("ne")
def not_equal(w: Writer, a: Operand, b: Operand) -> str:
    return w("Not", w("Equal", *_common(w, a, b)))


@handles("isnan", "isinf")
def is_special(w: Writer, x: fx.Node) -> str:
    if not x.meta["val"].dtype.is_floating_point:
        return w("Expand", w.number(False, torch.bool), list(w.out.shape))
    return w({"isnan": "IsNaN", "isinf": "IsInf"}[w.target], x)


@handles("rsqrt")
def rsqrt(w: Writer, x: Operand) -> str:
    return w("Reciprocal", w("Sqrt", w.cast(x, w.out.dtype)))


@handles("log2", "log10")
def log_of_base(w: Writer, x: Operand) -> str:
    dtype = w.out.dtype
    return w("Mul", w("Log", w.cast(x, dtype)), w.number(1 / log({"log2": 2, "log10": 10}[w.target]), dtype))


@handles("log1p")
def log1p(w: Writer, x: Operand) -> str:
    """Compute log(1 + x) as 2 atanh(x / (2 + x)), which is accurate for small x."""
    dtype = w.out.dtype
    x, one, two = w.cast(x, dtype), w.number(1, dtype), w.number(2, dtype)
    around_zero = w("Mul", two, w("Atanh", w("Div", x, w("Add", two, x))))
    return w("Where", w("Less", w("Abs", x), one), around_zero, w("Log", w("Add", one, x)))


@handles("expm1")
def expm1(w: Writer, x: Operand) -> str:
    """Compute exp(x) - 1 as 2 t / (1 - t) with t = tanh(x / 2), which is accurate for small x."""
    dtype = w.out.dtype
    x, one, two = w.cast(x, dtype), w.number(1, dtype), w.number(2, dtype)
    t = w("Tanh", w("Div", x, two))
    around_zero = w("Div", w("Mul", two, t), w("Sub", one, t))
    return w("Where", w("Less", w("Abs", x), one), around_zero, w("Sub", w("Exp", x), one))


@handles("atan2")
def atan2(w: Writer, y: Operand, x: Operand) -> str:
    dtype = w.out.dtype
    y, x, zero = w.cast(y, dtype), w.cast(x, dtype), w.number(0, dtype)
    turn = w("Where", w("Less", y, zero), w.number(-pi, dtype), w.number(pi, dtype))
    angle = w("Atan", w("Div", y, x))
    moved = w("Where", w("Less", x, zero), w("Add", angle, turn), angle)
    upright = w("Mul", w("Sign", y), w.number(pi / 2, dtype))
    return w("Where", w("Equal", x, zero), upright, moved)


@handles("remainder")
def remainder(w: Writer, a: Operand, b: Operand) -> str:
    """Compute the remainder with the divisor's sign."""
    dtype = w.out.dtype
    a, b = w.cast(a, dtype), w.cast(b, dtype)
    if not dtype.is_floating_point:
        return w("Mod", a, b)
    left, zero = w("Mod", a, b, fmod=1), w.number(0, dtype)
    other = w("Less", w("Mul", w("Sign", left), w("Sign", b)), zero)
    return w("Where", other, w("Add", left, b), left)


@handles("where.self")
def where(w: Writer, condition: Operand, a: Operand, b: Operand) -> str:
    return w("Where", w.cast(condition, torch.bool), w.cast(a, w.out.dtype), w.cast(b, w.out.dtype))


@handles("clamp", "hardtanh")
def clamp(w: Writer, x: Operand, low: Operand, high: Operand) -> str:
    dtype, found = w.out.dtype, w.cast(x, w.out.dtype)
    if not any(isinstance(bound, fx.Node) for bound in (low, high)):
        return w("Clip", found, *(None if b is None else w.number(b, dtype) for b in (low, high)))
    for op, bound in (("Max", low), ("Min", high)):
        found = found if bound is None else w(op, found, w.cast(bound, dtype))
    return found


@handles("leaky_relu")
def leaky_relu(w: Writer, x: Operand, slope: float) -> str:
    return w("LeakyRelu", x, alpha=float(slope))


@handles("elu")
def elu(w: Writer, x: Operand, alpha: float, scale: float, input_scale: float) -> str:
    if input_scale != 1:
        raise Unsupported(f"input_scale {input_scale}")
    found = w("Elu", x, alpha=float(alpha))
    return found if scale == 1 else w("Mul", found, w.number(scale, w.out.dtype))


@handles("gelu")
def gelu(w: Writer, x: Operand, approximate: str) -> str:
    return w("Gelu", x, approximate=approximate)


@handles("_softmax", "_log_softmax")
def softmax(w: Writer, x: fx.Node, axis: int, _: bool) -> str:
    found = w.cast(x, w.out.dtype)
    if not w.out.dim():
        found, axis = w.reshape(found, [1]), 0
    found = w("Softmax" if w.target == "_softmax" else "LogSoftmax", found, axis=axis)
    return found if w.out.dim() else w.reshape(found, [])


@handles("convert_element_type", namespace="prims")
@handles("_to_copy")
def to_copy(w: Writer, x: fx.Node, *_: Any) -> str:
    return w.cast(x, w.out.dtype)


@handles("clone", "alias", "detach", "lift_fresh_copy")
def same(w: Writer, x: fx.Node, *_: Any) -> str:
    return w.name(x)


@handles("copy")
def copy(w: Writer, _: fx.Node, source: fx.Node, __: bool) -> str:
    return w("Expand", w.cast(source, w.out.dtype), list(w.out.shape))


@handles("full", "full_like", "scalar_tensor", "empty", "zeros", "ones")
def full(w: Writer, first: Any, *rest: Any) -> str:
    value = {"scalar_tensor": first, "empty": 0, "zeros": 0, "ones": 1}.get(w.target, rest[0] if rest else 0)
    if isinstance(value, fx.Node):
        raise Unsupported("a value that is computed")
    return w("Expand", w.number(value, w.out.dtype), list(w.out.shape))


@handles("arange.start_step")
def arange(w: Writer, start: float, end: float, step: float, *_: Any) -> str:
    return w.constant(torch.arange(start, end, step, dtype=w.out.dtype).numpy())
