"""Express activations as scalar formulas that neither overflow nor lose the sign of a limit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import pi, sqrt
from types import MappingProxyType

from rammer.ir.expr import Const, Scalar
from rammer.ir.ops.operands import call

ONE = Const(1.0)


def relu(x: Scalar) -> Scalar:
    return call("max", x, 0.0)


def leaky_relu(x: Scalar, alpha: float = 0.01) -> Scalar:
    return call("where", call("less", x, 0.0), x * alpha, x)


def elu(x: Scalar, alpha: float = 1.0) -> Scalar:
    return call("where", call("less", x, 0.0), (call("exp", call("min", x, 0.0)) - 1.0) * alpha, x)


def selu(x: Scalar, alpha: float = 1.67326319217681884765625, gamma: float = 1.05070102214813232421875) -> Scalar:
    return elu(x, alpha) * gamma


def hard_sigmoid(x: Scalar, alpha: float = 0.2, beta: float = 0.5) -> Scalar:
    return call("min", call("max", x * alpha + beta, 0.0), 1.0)


def hard_swish(x: Scalar) -> Scalar:
    return x * hard_sigmoid(x, 1 / 6, 0.5)


def softplus(x: Scalar) -> Scalar:
    """Return max(x, 0) + log(1 + e) with e = exp(-|x|), corrected for the rounding of w = 1 + e by (e - (w - 1)) / w.

    So it stays exact where e is small. For a correction, 1 - e + e² / 2 is close enough to 1 / w.
    """
    e = call("exp", call("neg", call("abs", x)))
    w = ONE + e
    return call("max", x, 0.0) + (call("log", w) + (e - (w - 1.0)) * (ONE + e * (e * 0.5 - 1.0)))


def softsign(x: Scalar) -> Scalar:
    return x / (ONE + call("abs", x))


def mish(x: Scalar) -> Scalar:
    """Return x tanh(log(1 + eˣ)) = x n / (n + 2) with n = eˣ (eˣ + 2).

    Past 20 the quotient is 1 to double precision.
    """
    e = call("exp", call("min", x, 20.0))
    n = e * (e + 2.0)
    return x * (n / (n + 2.0))


def power(x: Scalar, exponent: float = 1.0) -> Scalar:
    """Raise to a constant power: products for integers up to 8, and quotients for -1 and -2; else the function `pow`.

    Products of up to 8 factors are within 4 units in the last place. Zeros and infinities are those of `pow`.
    """
    if exponent in (-1, -2):
        return ONE / power(x, -exponent)
    if exponent not in range(1, 9):
        return call("pow", x, exponent)
    half = power(x, exponent // 2) if exponent > 1 else x
    return x if exponent == 1 else half * half * x if exponent % 2 else half * half


def gelu(x: Scalar, approximate: str = "none") -> Scalar:
    if approximate == "tanh":
        inner = call("tanh", (x + x * x * x * 0.044715) * sqrt(2 / pi))
    else:
        inner = call("erf", x * sqrt(0.5))
    return x * 0.5 * (ONE + inner)


def sigmoid(x: Scalar) -> Scalar:
    return call("sigmoid", x)


def tanh(x: Scalar) -> Scalar:
    return call("tanh", x)


def affine(x: Scalar, alpha: float = 1.0, beta: float = 0.0) -> Scalar:
    return x * alpha + beta


def scaled_tanh(x: Scalar, alpha: float = 1.0, beta: float = 1.0) -> Scalar:
    return call("tanh", x * beta) * alpha


def thresholded_relu(x: Scalar, alpha: float = 1.0) -> Scalar:
    return call("where", call("greater_equal", x, alpha), x, 0.0)


FORMULAS = (leaky_relu, elu, selu, hard_sigmoid, hard_swish, softplus, softsign, mish, power)  # of operators
CELLS = (relu, leaky_relu, elu, hard_sigmoid, softplus, softsign, sigmoid, tanh, affine, scaled_tanh, thresholded_relu)
ACTIVATIONS: Mapping[str, Callable[..., Scalar]] = MappingProxyType({f.__name__: f for f in CELLS})
