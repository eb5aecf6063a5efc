"""The scalar functions of expressions: name, arity, NumPy meaning."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import erf
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Function:
    """A scalar function; operands and result share one type unless its name is in expr.COMPARISONS."""

    name: str
    arity: int
    numpy: Callable[..., Any]


_erf = np.vectorize(erf, otypes=[np.float64])


def _integers(*values: Any) -> bool:
    return all(np.issubdtype(np.asarray(v).dtype, np.integer) for v in values)


def _divide(a: Any, b: Any) -> Any:
    """Integers divide toward zero, as C and ONNX do; a division by zero gives 0."""
    if not _integers(a, b):
        return np.divide(a, b)
    dtype = np.result_type(a, b)
    a, b = np.asarray(a, dtype), np.asarray(b, dtype)
    safe = np.where(b == 0, dtype.type(1), b)
    floor = np.floor_divide(a, safe)
    inexact = (a != floor * safe) & ((a < 0) != (b < 0))
    return np.where(b == 0, dtype.type(0), floor + inexact.astype(dtype))


def _mod(a: Any, b: Any) -> Any:
    """Integer remainder with the sign of the divisor (Python's %); a zero divisor gives 0."""
    dtype = np.result_type(a, b)
    a, b = np.asarray(a, dtype), np.asarray(b, dtype)
    return np.where(b == 0, dtype.type(0), np.mod(a, np.where(b == 0, dtype.type(1), b)))


def _power(a: Any, b: Any) -> Any:
    """Integer powers wrap; a negative exponent gives 1 / aⁿ rounded toward zero, and 0 for a = 0."""
    if not _integers(a, b):
        return np.power(a, b)
    dtype = np.result_type(a, b)
    a, b = np.asarray(a, dtype), np.asarray(b, dtype)
    inverse = np.where(np.abs(a) == 1, np.where(b & 1 == 1, a, dtype.type(1)), dtype.type(0))
    return np.where(b < 0, inverse, np.power(a, np.maximum(b, 0)))


def _shift_left(a: Any, b: Any) -> Any:
    """Bits that leave the type are lost; by a negative amount, or by all bits and more, none is left."""
    dtype = np.result_type(a, b)
    a, b = np.asarray(a, dtype), np.asarray(b, dtype)
    inside = (b >= 0) & (b < 8 * dtype.itemsize)
    return np.where(inside, np.left_shift(a, np.where(inside, b, dtype.type(0))), dtype.type(0))


def _shift_right(a: Any, b: Any) -> Any:
    """The sign fills up; by a negative amount, or by all bits and more, only the sign is left."""
    dtype = np.result_type(a, b)
    a, b = np.asarray(a, dtype), np.asarray(b, dtype)
    inside = (b >= 0) & (b < 8 * dtype.itemsize)
    gone = np.where(a < 0, np.bitwise_not(dtype.type(0)), dtype.type(0))
    return np.where(inside, np.right_shift(a, np.where(inside, b, dtype.type(0))), gone)


def _join_bytes(*parts: Any) -> Any:
    """An int32 of the low bytes of four numbers, the first one lowest."""
    return sum((np.asarray(p, np.int32) & 255) << np.int32(8 * n) for n, p in enumerate(parts))


def _dot_bytes(a: Any, b: Any) -> Any:
    """Of int32: the sum of the products of their four bytes, those of the first unsigned, of the second signed."""
    a, b = np.broadcast_arrays(np.asarray(a, np.int32), np.asarray(b, np.int32))
    pairs = ((a >> n & 255) * (b >> n).astype(np.int8).astype(np.int32) for n in (0, 8, 16, 24))
    return sum(pairs, np.zeros(a.shape, np.int32))


def _sigmoid(x: Any) -> Any:
    x = np.asarray(x)
    return np.where(x >= 0, 1 / (1 + np.exp(-np.abs(x))), np.exp(-np.abs(x)) / (1 + np.exp(-np.abs(x))))


FUNCTIONS: dict[str, Function] = {
    f.name: f
    for f in (
        Function("add", 2, np.add),
        Function("sub", 2, np.subtract),
        Function("mul", 2, np.multiply),
        Function("div", 2, _divide),
        Function("mod", 2, _mod),
        Function("fmod", 2, np.fmod),
        Function("pow", 2, _power),
        Function("max", 2, np.maximum),
        Function("min", 2, np.minimum),
        Function("neg", 1, np.negative),
        Function("abs", 1, np.abs),
        Function("sign", 1, np.sign),
        Function("floor", 1, np.floor),
        Function("ceil", 1, np.ceil),
        Function("round", 1, np.rint),
        Function("sqrt", 1, np.sqrt),
        Function("exp", 1, np.exp),
        Function("log", 1, np.log),
        Function("sin", 1, np.sin),
        Function("cos", 1, np.cos),
        Function("atan", 1, np.arctan),
        Function("erf", 1, _erf),
        Function("tanh", 1, np.tanh),
        Function("sigmoid", 1, _sigmoid),
        Function("equal", 2, np.equal),
        Function("less", 2, np.less),
        Function("less_equal", 2, np.less_equal),
        Function("greater", 2, np.greater),
        Function("greater_equal", 2, np.greater_equal),
        Function("is_nan", 1, np.isnan),
        Function("is_inf", 1, np.isinf),
        Function("and", 2, np.logical_and),
        Function("or", 2, np.logical_or),
        Function("xor", 2, np.logical_xor),
        Function("not", 1, np.logical_not),
        Function("bit_and", 2, np.bitwise_and),
        Function("bit_or", 2, np.bitwise_or),
        Function("bit_xor", 2, np.bitwise_xor),
        Function("bit_not", 1, np.bitwise_not),
        Function("shift_left", 2, _shift_left),
        Function("shift_right", 2, _shift_right),
        Function("dot_bytes", 2, _dot_bytes),
        Function("join_bytes", 4, _join_bytes),
        Function("where", 3, np.where),
    )
}
