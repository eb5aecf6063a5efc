"""Element-wise operators against NumPy and ONNX's reference."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import mutually_broadcastable_shapes
from op_cases import evaluate, express, onnx_reference

from rammer.errors import TypeMismatch
from rammer.ir.ops import OPS
from rammer.ir.tensor import DType, TensorType, convert

RNG = np.random.default_rng(7)
FLOATS = RNG.normal(size=(3, 4, 5)).astype("f") * 3
POSITIVE = np.abs(FLOATS) + np.float32(0.1)
SPECIAL = np.array([-np.inf, -100, -1, -0.0, 0.0, 1e-6, 1, 100, np.inf, np.nan], "f")
BOOLS = RNG.random((3, 4)) < 0.5


UNARY: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {  # kind -> ONNX name, our attributes, ONNX's
    "neg": ("Neg", {}, {}),
    "abs": ("Abs", {}, {}),
    "sign": ("Sign", {}, {}),
    "floor": ("Floor", {}, {}),
    "ceil": ("Ceil", {}, {}),
    "round": ("Round", {}, {}),
    "exp": ("Exp", {}, {}),
    "sin": ("Sin", {}, {}),
    "cos": ("Cos", {}, {}),
    "atan": ("Atan", {}, {}),
    "asin": ("Asin", {}, {}),
    "acos": ("Acos", {}, {}),
    "erf": ("Erf", {}, {}),
    "tanh": ("Tanh", {}, {}),
    "sigmoid": ("Sigmoid", {}, {}),
    "reciprocal": ("Reciprocal", {}, {}),
    "relu": ("Relu", {}, {}),
    "leaky_relu": ("LeakyRelu", {"alpha": 0.3}, {"alpha": 0.3}),
    "elu": ("Elu", {"alpha": 0.7}, {"alpha": 0.7}),
    "selu": ("Selu", {}, {}),
    "hard_sigmoid": ("HardSigmoid", {"alpha": 0.25, "beta": 0.4}, {"alpha": 0.25, "beta": 0.4}),
    "hard_swish": ("HardSwish", {}, {}),
    "softplus": ("Softplus", {}, {}),
    "softsign": ("Softsign", {}, {}),
    "mish": ("Mish", {}, {}),
    "gelu": ("Gelu", {}, {}),
    "is_nan": ("IsNaN", {}, {}),
    "is_inf": ("IsInf", {}, {}),
}
BINARY = {
    "add": "Add",
    "sub": "Sub",
    "mul": "Mul",
    "div": "Div",
    "max": "Max",
    "min": "Min",
    "equal": "Equal",
    "less": "Less",
    "less_equal": "LessOrEqual",
    "greater": "Greater",
    "greater_equal": "GreaterOrEqual",
}


@pytest.mark.parametrize("kind", UNARY)
def test_unary_operators_agree_with_onnx(kind: str) -> None:
    op, ours, theirs = UNARY[kind]
    with np.errstate(all="ignore"):
        expected = onnx_reference(op, FLOATS, **theirs)
    np.testing.assert_allclose(evaluate(kind, FLOATS, **ours), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("kind", "fn"), [("sqrt", np.sqrt), ("log", np.log)])
def test_functions_of_positive_numbers(kind: str, fn: Callable[..., Any]) -> None:
    np.testing.assert_allclose(evaluate(kind, POSITIVE), fn(POSITIVE), rtol=1e-6)


def test_tanh_gelu() -> None:
    np.testing.assert_allclose(
        evaluate("gelu", FLOATS, approximate="tanh"), onnx_reference("Gelu", FLOATS, approximate="tanh"), atol=1e-6
    )


LIMITS: dict[str, list[float]] = {  # at SPECIAL
    "relu": [0, 0, 0, 0, 0, 1e-6, 1, 100, np.inf, np.nan],
    "sigmoid": [0, 0, 0.26894143, 0.5, 0.5, 0.50000025, 0.7310586, 1, 1, np.nan],
    "softplus": [0, 0, 0.31326166, 0.6931472, 0.6931472, 0.6931477, 1.3132616, 100, np.inf, np.nan],
    "elu": [-1, -1, -0.63212055, 0, 0, 1e-6, 1, 100, np.inf, np.nan],
    "hard_sigmoid": [0, 0, 0.3, 0.5, 0.5, 0.5000002, 0.7, 1, 1, np.nan],
    "tanh": [-1, -1, -0.7615942, 0, 0, 1e-6, 0.7615942, 1, 1, np.nan],
}


@pytest.mark.parametrize("kind", LIMITS)
def test_activations_keep_their_limits_and_nan(kind: str) -> None:
    np.testing.assert_allclose(evaluate(kind, SPECIAL), LIMITS[kind], rtol=1e-6, atol=1e-9)


def test_mish_is_finite_where_the_naive_form_overflows() -> None:
    x = np.array([-200, -20, 0, 20, 200], "f")
    np.testing.assert_allclose(evaluate("mish", x), x * np.tanh(np.log1p(np.exp(x.astype("d")))), rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("dtype", ["f", "d", "e", "i1", "u1", "i4", "i8"])
@pytest.mark.parametrize("kind", BINARY)
def test_binary_operators_agree_with_onnx(kind: str, dtype: str) -> None:
    a = (RNG.normal(size=(2, 3, 4)) * 20).astype(np.int64).astype(dtype)
    b = (RNG.normal(size=(3, 1)) * 20).astype(np.int64).astype(dtype)
    if kind == "div":
        b = np.where(b == 0, np.ones((), dtype), b)
    if kind == "div" and dtype not in "fde":
        quotient = np.trunc(a.astype("d") / b.astype("d")).astype(dtype)
        np.testing.assert_array_equal(evaluate(kind, a, b), quotient)
        return
    with np.errstate(all="ignore"):
        expected = onnx_reference(BINARY[kind], a, b)
    np.testing.assert_array_equal(evaluate(kind, a, b), expected)


@given(mutually_broadcastable_shapes(num_shapes=3, max_dims=4, min_side=0, max_side=3), st.randoms())
@settings(max_examples=60)
def test_where_broadcasts_as_numpy(shapes: Any, random: Any) -> None:
    rng = np.random.default_rng(random.randrange(1 << 30))
    cond, a, b = (rng.normal(size=s).astype("f") for s in shapes.input_shapes)
    result = evaluate("where", cond > 0, a, b)
    np.testing.assert_array_equal(result, np.where(cond > 0, a, b))


def test_integer_arithmetic_wraps_and_divides_toward_zero() -> None:
    a = np.array([-128, 127, -7, 7, -7, 7, 5, -128], "i1")
    b = np.array([-1, 2, 2, -2, -2, 2, 0, 2], "i1")
    np.testing.assert_array_equal(evaluate("div", a, b), np.array([-128, 63, -3, -3, 3, 3, 0, -64], "i1"))
    np.testing.assert_array_equal(evaluate("mod", a, b), np.array([0, 1, 1, -1, -1, 1, 0, 0], "i1"))
    np.testing.assert_array_equal(evaluate("fmod", a, b), np.array([0, 1, -1, 1, -1, 1, 0, 0], "i1"))
    np.testing.assert_array_equal(evaluate("add", a, a), a + a)
    np.testing.assert_array_equal(evaluate("mul", a, b), a * b)
    np.testing.assert_array_equal(evaluate("neg", a), -a)
    np.testing.assert_array_equal(evaluate("abs", np.array([-128, -3], "i1")), np.array([-128, 3], "i1"))
    big = np.array([2**62 + 1, -(2**62) - 3], "i8")
    np.testing.assert_array_equal(evaluate("add", big, np.array(5, "i8")), big + 5)


def test_integer_powers() -> None:
    a, b = np.array([2, -3, 0, 1, -1, -1, 2, 0, 5], "i4"), np.array([10, 3, 0, -5, -5, -4, -1, -1, 0], "i4")
    np.testing.assert_array_equal(evaluate("pow", a, b), np.array([1024, -27, 1, 1, -1, 1, 0, 0, 1], "i4"))
    np.testing.assert_allclose(evaluate("pow", POSITIVE, FLOATS), POSITIVE**FLOATS, rtol=1e-5)


def test_float_fmod_has_the_sign_of_the_dividend() -> None:
    a, b = np.array([5.5, -5.5, 5.5], "f"), np.array([2, 2, -2], "f")
    np.testing.assert_array_equal(evaluate("fmod", a, b), np.fmod(a, b))


@pytest.mark.parametrize("kind", ["and", "or", "xor"])
def test_logic(kind: str) -> None:
    fn = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}[kind]
    np.testing.assert_array_equal(evaluate(kind, BOOLS, BOOLS[0]), fn(BOOLS, BOOLS[0]))
    np.testing.assert_array_equal(evaluate("not", BOOLS), ~BOOLS)


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_sums_and_extremes_take_many_operands(count: int) -> None:
    xs = [RNG.normal(size=s).astype("f") for s in ((2, 3), (3,), (1, 3), (), (2, 1))[:count]]
    shape = np.broadcast_shapes(*(x.shape for x in xs))
    np.testing.assert_allclose(evaluate("add", *xs), np.broadcast_to(sum(xs), shape), rtol=1e-6)
    np.testing.assert_array_equal(evaluate("max", *xs), onnx_reference("Max", *xs))


def test_extremes_propagate_nan() -> None:
    a, b = np.array([np.nan, 1, 2], "f"), np.array([0, np.nan, 1], "f")
    np.testing.assert_array_equal(evaluate("max", a, b), np.maximum(a, b))
    np.testing.assert_array_equal(evaluate("min", a, b), np.minimum(a, b))


@pytest.mark.parametrize("low, high", [(None, None), (-1.5, None), (None, 2), (-1, 1), (3, -3), (-np.inf, 300)])
def test_clip(low: float | None, high: float | None) -> None:
    def expected(x: np.ndarray) -> np.ndarray:
        wide = x.astype("d")
        wide = wide if low is None else np.maximum(wide, low if x.dtype.kind == "f" else np.ceil(low))
        return (wide if high is None else np.minimum(wide, high)).astype(x.dtype)

    np.testing.assert_array_equal(evaluate("clip", FLOATS, low=low, high=high), expected(FLOATS))
    integers = np.arange(-128, 128).astype("i1")
    np.testing.assert_array_equal(evaluate("clip", integers, low=low, high=high), expected(integers))


def test_prelu_slope_broadcasts_to_x_only() -> None:
    slope = RNG.normal(size=(4, 1)).astype("f")
    np.testing.assert_allclose(evaluate("prelu", FLOATS, slope), onnx_reference("PRelu", FLOATS, slope), rtol=1e-6)
    with pytest.raises(TypeMismatch, match="larger than x"):
        express("prelu", TensorType((3,)), TensorType((2, 3)))


CONVERTED = [d for d in DType if not d.is_complex]


@pytest.mark.parametrize("target", CONVERTED)
@pytest.mark.parametrize("source", CONVERTED)
def test_cast_is_astype(source: DType, target: DType) -> None:
    values = np.array([0, 1, 3, 17, 100, 1.75 if source.is_float else 2], "d").astype(source.numpy)
    values = values[values == values]  # one type has no 0
    seen, wanted = evaluate("cast", values, dtype=target), convert(values, target)
    np.testing.assert_array_equal(seen.astype("d"), wanted.astype("d"))  # NumPy sees no NaN in some types


def test_cast_rounds_to_even_and_wraps() -> None:
    x = np.array([1 + 2**-9, 1 + 3 * 2**-9, 3.1415927, 1e30], "f")
    np.testing.assert_array_equal(evaluate("cast", x, dtype=DType.BF16), x.astype(ml_dtypes.bfloat16))
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(evaluate("cast", x, dtype=DType.F16), x.astype("e"))
    wrapped = np.array([300, -1, 2**40 + 5], "i8")
    np.testing.assert_array_equal(evaluate("cast", wrapped, dtype=DType.U8), wrapped.astype("u1"))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_half_types_are_rounded_once_per_stage(dtype: Any) -> None:
    a, b = RNG.normal(size=(2, 64)).astype(dtype)
    exact = a.astype("d") * b.astype("d")
    np.testing.assert_array_equal(evaluate("mul", a, b), exact.astype("f").astype(dtype))
    close = evaluate("gelu", a).astype("f")
    np.testing.assert_allclose(close, onnx_reference("Gelu", a.astype("f")), rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 4), (1, 3, 4, 5), (3,)])
def test_batch_norm(shape: tuple[int, ...]) -> None:
    channels = shape[1] if len(shape) > 1 else 1
    x = RNG.normal(size=shape).astype("f")
    scale, bias, mean = RNG.normal(size=(3, channels)).astype("f")
    spread = (RNG.random(channels) + 0.5).astype("f")
    column = (-1,) + (1,) * (len(shape) - 2)
    s, b, m, v = (p.reshape(column) if len(shape) > 1 else p for p in (scale, bias, mean, spread))
    expected = (x - m) / np.sqrt(v + 1e-3) * s + b
    np.testing.assert_allclose(evaluate("batch_norm", x, scale, bias, mean, spread, epsilon=1e-3), expected, rtol=1e-4)


def test_scalars_and_empty_tensors() -> None:
    np.testing.assert_array_equal(evaluate("add", np.array(2, "f"), np.array(3, "f")), np.array(5, "f"))
    assert evaluate("exp", np.zeros((2, 0, 3), "f")).shape == (2, 0, 3)
    assert evaluate("add", np.zeros((0,), "f"), np.zeros((1,), "f")).shape == (0,)


def test_an_operand_with_its_own_position_is_read_there() -> None:
    expr = express("add", TensorType((1, 3)), TensorType((1, 1)))
    a, b = expr.root.body.args  # type: ignore[attr-defined]
    assert str(a.index[0]) == "a0" and str(b.index[0]) == "a0" and str(b.index[1]) == "0"


BAD: list[tuple[str, tuple[TensorType, ...], dict[str, Any]]] = [
    ("add", (TensorType((2,)), TensorType((3,))), {}),
    ("add", (TensorType((2,)), TensorType((2,), DType.I32)), {}),
    ("add", (TensorType((2,), DType.BOOL),) * 2, {}),
    ("sub", (TensorType((2,)),), {}),
    ("mod", (TensorType((2,)),) * 2, {}),
    ("and", (TensorType((2,)),) * 2, {}),
    ("exp", (TensorType((2,), DType.I32),), {}),
    ("is_nan", (TensorType((2,), DType.I64),), {}),
    ("relu", (TensorType((2,), DType.BOOL),), {}),
    ("where", (TensorType((2,)),) * 3, {}),
    ("gelu", (TensorType((2,)),), {"approximate": "fast"}),
    ("batch_norm", (TensorType((2, 3)), *(TensorType((2,)),) * 4), {}),
    ("add", (TensorType((2**16, 1)), TensorType((1, 2**15))), {}),
]


@pytest.mark.parametrize(("kind", "types", "attrs"), BAD)
def test_wrong_operands_are_refused_with_their_types(
    kind: str, types: tuple[TensorType, ...], attrs: dict[str, Any]
) -> None:
    with pytest.raises(TypeMismatch, match=kind) as caught:
        OPS[kind].express(*types, **attrs)
    assert "hint" in str(caught.value)


@pytest.mark.parametrize("exponent", [1.0, 2.0, 3.0, 7.0, 8.0, -1.0, -2.0, -3.0, 0.25, 1.5, -0.5, 9.0, 0.0])
def test_powers_by_constants_have_the_zeros_and_infinities_of_pow(exponent: float) -> None:
    x = np.concatenate([SPECIAL, FLOATS.ravel()])
    with np.errstate(all="ignore"):
        got = evaluate("power", x, exponent=exponent)
        wanted = np.array([pow_of(float(v), exponent) for v in x])
    np.testing.assert_allclose(got, wanted, rtol=4e-7, atol=2e-38)
    zeros = wanted == 0
    np.testing.assert_array_equal(np.signbit(got[zeros]), np.signbit(wanted[zeros]))


def pow_of(x: float, exponent: float) -> float:
    """As C's pow: Python raises where that has an infinity or NaN."""
    try:
        return math.pow(x, exponent)
    except (ValueError, OverflowError):
        if x == 0:  # a pole
            return math.copysign(math.inf, x) if exponent % 2 == 1 else math.inf
        return math.nan
