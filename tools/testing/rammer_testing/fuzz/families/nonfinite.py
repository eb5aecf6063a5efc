"""Generate zeros, infinities and NaN in element-wise operators and in casts to integers and booleans."""

from __future__ import annotations

from rammer_testing.fuzz.families.elementwise import other, typical
from rammer_testing.fuzz.sketch import BFLOAT, BOOL, DOUBLE, FLOAT, HALF, I8, I16, I32, I64, U8, U16, Kind, Sketch

WHOLE = (I32, I32, I64, I64, I8, U8, I16, U16)


def start(s: Sketch) -> None:
    dtype = s.random.choice((FLOAT,) * 6 + (DOUBLE, HALF, BFLOAT))
    s.input(typical(s), dtype, -20, 20, special=s.random.choice((0.01, 0.2, 0.0)))


def floating(kind: Kind) -> bool:
    return kind.dtype in (FLOAT, DOUBLE, HALF, BFLOAT)


def singular(s: Sketch) -> None:
    """Add a function with poles or a limited domain."""
    x = s.pick(floating)
    op = s.random.choice(("Sqrt", "Log", "Reciprocal", "Exp", "Pow", "Div", "Abs", "Neg", "Relu"))
    if op == "Pow":
        by = s.random.choice((0.5, -1.0, 2.0, -0.5))  # a root of -inf is NaN in NumPy, and infinite in C
        s.node(op, s.node("Abs", x) if abs(by) == 0.5 else x, s.constant(by, s.dtype(x)))
    elif op == "Div":
        s.node(op, s.constant(1.0, s.dtype(x)) if s.chance(0.5) else other(s, x), x)
    else:
        s.node(op, x)


def binary(s: Sketch) -> None:
    x = s.pick(floating)
    s.node(s.random.choice(("Add", "Sub", "Mul", "Max", "Min")), x, other(s, x))


def cast_whole(s: Sketch) -> None:
    """Add a cast to integers: its result is defined only for values that fit."""
    x = s.pick(floating)
    y = s.node("Cast", x, to=s.random.choice(WHOLE))
    s.undefined[y] = x


def cast_bool(s: Sketch) -> None:
    """Add a cast to booleans: all but zero is true, even NaN and infinities."""
    y = s.node("Cast", s.pick(floating), to=BOOL)
    if s.chance(0.6):
        s.node("Cast", s.node("Not", y) if s.chance(0.5) else y, to=s.random.choice((FLOAT, I32, U8)))


def cast_float(s: Sketch) -> None:
    s.node("Cast", s.pick(floating), to=s.random.choice((FLOAT, HALF, BFLOAT, DOUBLE)))


def kept(s: Sketch) -> None:
    """Replace values that are not finite by zeros."""
    x = s.pick(lambda k: k.dtype in (FLOAT, DOUBLE))
    odd = s.node("Or", s.node("IsNaN", x), s.node("IsInf", x))
    s.node("Where", odd, s.constant(0.0, s.dtype(x)), x)


def compared(s: Sketch) -> None:
    x = s.pick(floating)
    s.node("Where", s.node(s.random.choice(("Less", "GreaterOrEqual")), x, s.constant(0.3, s.dtype(x))), x, other(s, x))


STEPS = ((5, singular), (2, binary), (5, cast_whole), (3, cast_bool), (1, cast_float), (1, kept), (1, compared))
SIZE = (2, 7)
