"""Generate element-wise operators and casts over all element types, with broadcasting."""

from __future__ import annotations

from typing import Any

import numpy as np

from rammer_testing.fuzz import sizes
from rammer_testing.fuzz.sketch import (
    BFLOAT,
    BOOL,
    DOUBLE,
    FLOAT,
    FLOATS,
    HALF,
    I8,
    I32,
    I64,
    INTS,
    UNSIGNED,
    Sketch,
    Unfit,
)

SMOOTH = (
    *("Tanh", "Sigmoid", "Relu", "Softplus", "Softsign", "Elu", "Selu", "Celu", "Gelu", "Mish", "HardSwish", "Erf"),
    *("HardSigmoid", "LeakyRelu", "Sin", "Cos", "Abs", "Neg", "Identity", "Asinh", "ThresholdedRelu", "Shrink"),
)
NARROW: dict[int, tuple[str, ...]] = {BFLOAT: ("Tanh", "Sigmoid", "Relu", "Abs", "Neg", "Identity", "Erf", "Softsign")}
COARSE = (HALF, BFLOAT)  # a sum's last digit decides whether it is 0: one sum in a thousand cancels
COMPARISONS = ("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual")


def start(s: Sketch) -> None:
    """Add an input of a shape that models have: rows, tokens or images, mostly float32."""
    dtype = s.random.choice((FLOAT, FLOAT, FLOAT, FLOAT, DOUBLE, HALF, BFLOAT, *INTS, BOOL))
    s.input(typical(s), dtype, *bounds(dtype))


def typical(s: Sketch) -> tuple[int, ...]:
    r = s.random
    return r.choice(
        (
            lambda: (sizes.rows(r), sizes.channels(r)),
            lambda: (sizes.batch(r), sizes.sequence(r), sizes.channels(r)),
            lambda: (sizes.batch(r), sizes.channels(r), *sizes.image(r)),
            lambda: sizes.any_shape(r),
        )
    )()


def bounds(dtype: int) -> tuple[float, float]:
    """Return a range in which an element type does not overflow at once and has several values."""
    if dtype in INTS:
        return (0, 9) if dtype in UNSIGNED else (-9, 9)
    return -2.0, 2.0


def other(s: Sketch, value: str) -> str:
    """Return an operand that broadcasts with a value, of its type: another value, a constant or a new input."""
    shape, dtype = s.shape(value), s.dtype(value)
    if s.chance(0.4):
        try:
            return s.pick(lambda k: k.dtype == dtype and k.shape == shape)
        except Unfit:
            pass
    cut = s.random.randint(0, len(shape)) if s.chance(0.3) else 0
    narrowed = tuple(1 if s.chance(0.25) else e for e in shape[cut:])
    if s.chance(0.15) and len(shape) < 5:
        narrowed = (s.random.choice((1, 2, 3)), *shape)
    if s.chance(0.3):
        return s.input(narrowed, dtype, *bounds(dtype))
    return constant(s, narrowed, dtype)


def constant(s: Sketch, shape: tuple[int, ...], dtype: int) -> str:
    low, high = bounds(dtype)
    if dtype == BOOL:
        return s.constant(s.numpy.integers(0, 2, shape), BOOL)
    if dtype in INTS:
        return s.constant(s.numpy.integers(int(low), int(high) + 1, shape), dtype)
    return s.constant(s.numpy.uniform(low, high, shape), dtype)


def unary(s: Sketch) -> None:
    x = s.floats()
    op = s.random.choice(NARROW.get(s.dtype(x), SMOOTH))
    attrs: dict[str, Any] = {"Celu": {"alpha": 0.7}, "LeakyRelu": {"alpha": 0.2}, "Elu": {"alpha": 1.3}}.get(op, {})
    s.node(op, x, **attrs)


def positive(s: Sketch) -> None:
    """Add a function of positive numbers."""
    x = s.floats()
    safe = s.node("Add", s.node("Abs", x), s.constant(0.5, s.dtype(x)))
    s.node(s.random.choice(("Sqrt", "Log", "Reciprocal")), safe)


def steep(s: Sketch) -> None:
    """Add a function of small numbers; Tanh keeps it in range."""
    x = s.node("Tanh", s.floats())
    s.node(s.random.choice(("Exp", "Sinh", "Cosh", "Tan", "Exp")), x)


def binary(s: Sketch) -> None:
    x = s.pick(lambda k: k.dtype in (*FLOATS, I32, I64, I8, *UNSIGNED))
    operands = [x, other(s, x)]
    s.random.shuffle(operands)
    s.node(s.random.choice(("Add", "Add", "Sub", "Mul", "Mul", "Max", "Min")), *operands)


def several(s: Sketch) -> None:
    x = s.floats()
    s.node(s.random.choice(("Sum", "Max", "Min", "Mean")), x, *(other(s, x) for _ in range(s.random.randint(0, 3))))


def quotient(s: Sketch) -> None:
    x = s.pick(lambda k: k.dtype in (*FLOATS, I32, I64))
    dtype = s.dtype(x)
    shape = s.shape(x)[-1:]
    divisor = s.numpy.integers(1, 7, shape) * s.numpy.choice((-1, 1), shape)
    by = s.constant(divisor + (0.5 if dtype in FLOATS else 0), dtype)
    if s.chance(0.6):
        s.node("Div", x, by)
    else:
        s.node("Mod", x, by, fmod=1 if dtype in FLOATS else s.random.randint(0, 1))


def power(s: Sketch) -> None:
    x = s.floats()
    s.node("Pow", x, s.constant(s.random.choice((2.0, 3.0, 2.0, 1.0, 0.0)), s.dtype(x)))


def clip(s: Sketch) -> None:
    x = s.pick(lambda k: k.dtype in (*FLOATS, I32, I64, I8, *UNSIGNED))
    dtype = s.dtype(x)
    s.node("Clip", x, s.constant(0 if dtype in UNSIGNED else -1, dtype), s.constant(2, dtype) if s.chance(0.7) else "")


def rounding(s: Sketch) -> None:
    x = s.floats()
    ops = ("Floor", "Ceil", "Round", "Sign")
    s.node(s.random.choice(ops[:3] if s.dtype(x) in COARSE else ops), x)


def prelu(s: Sketch) -> None:
    x = s.floats()
    shape = s.shape(x)
    slope = (shape[1], *(1,) * (len(shape) - 2)) if len(shape) > 2 else shape[-1:]
    s.node("PRelu", x, s.constant(s.numpy.uniform(-1, 1, slope), s.dtype(x)))


def cast(s: Sketch) -> None:
    x = s.pick()
    if s.dtype(x) in FLOATS and s.chance(0.3):
        s.node(
            "Cast", s.node("Clip", x, s.constant(0, s.dtype(x)), s.constant(100, s.dtype(x))), to=s.random.choice(INTS)
        )
    elif s.dtype(x) in FLOATS:
        kinds = (FLOAT, DOUBLE, HALF, BFLOAT, FLOAT, BOOL)
        s.node("Cast", x, to=s.random.choice(kinds[:5] if s.dtype(x) in COARSE else kinds))
    else:
        s.node("Cast", x, to=s.random.choice((FLOAT, FLOAT, DOUBLE, HALF, I32, I64, BOOL)))


def compare(s: Sketch) -> None:
    x = s.pick(lambda k: k.dtype != BOOL)  # equality of floats depends on the last digit
    ops = [op for op in COMPARISONS if op != "Equal" or s.dtype(x) not in FLOATS]
    found = s.node(s.random.choice(ops), x, other(s, x))
    if s.chance(0.6) and s.shape(found) == s.shape(x):
        s.node("Where", found, x, other(s, x))


def logic(s: Sketch) -> None:
    x = s.pick(lambda k: k.dtype == BOOL)
    s.node("Not", x) if s.chance(0.3) else s.node(s.random.choice(("And", "Or", "Xor", "Equal")), x, other(s, x))


def where(s: Sketch) -> None:
    x = s.pick(lambda k: k.dtype in (*FLOATS, I32, I64))
    mask = s.input(s.shape(x)[s.random.randint(0, s.rank(x)) :], BOOL)
    s.node("Where", mask, x, other(s, x))


def kinds(s: Sketch) -> None:
    s.node(s.random.choice(("IsNaN", "IsInf")), s.pick(lambda k: k.dtype in (FLOAT, DOUBLE)))


def series(s: Sketch) -> None:
    """Add a constant made by nodes: Range, ConstantOfShape, Shape."""
    x = s.floats()
    count = s.shape(x)[-1] if s.rank(x) else 1
    made = s.random.choice(("Range", "ConstantOfShape", "Shape"))
    if made == "Range":
        y = s.node("Range", s.constant(np.int64(0)), s.constant(np.int64(count)), s.constant(np.int64(1)))
    elif made == "ConstantOfShape":
        y = s.node("ConstantOfShape", s.constant([count]))
    else:
        y = s.node("ReduceProd", s.node("Shape", x), keepdims=0)
    s.node("Add", x, s.node("Mul", s.node("Cast", y, to=s.dtype(x)), s.constant(0.01, s.dtype(x))))


STEPS = (
    *(
        (4, unary),
        (4, binary),
        (2, several),
        (2, cast),
        (2, compare),
        (2, where),
        (1, positive),
        (1, steep),
        (1, quotient),
    ),
    *((1, power), (1, clip), (1, rounding), (1, prelu), (1, logic), (1, kinds), (1, series)),
)
