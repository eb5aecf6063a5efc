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


def _divide(a: Any, b: Any) -> Any:
    """Integers divide toward zero, as C and ONNX do; a division by zero gives 0."""
    a, b = np.asarray(a), np.asarray(b)
    if not (np.issubdtype(a.dtype, np.integer) and np.issubdtype(b.dtype, np.integer)):
        return np.divide(a, b)
    safe = np.where(b == 0, 1, b)
    quotient = np.abs(a) // np.abs(safe)
    return np.where(b == 0, 0, np.where((a < 0) != (b < 0), -quotient, quotient)).astype(np.result_type(a, b))


def _mod(a: Any, b: Any) -> Any:
    """Integer remainder with the sign of the divisor (Python's %); a zero divisor gives 0."""
    safe = np.where(np.asarray(b) == 0, 1, b)
    return np.where(np.asarray(b) == 0, 0, np.mod(a, safe))


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
        Function("pow", 2, np.power),
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
        Function("where", 3, np.where),
    )
}
