"""Count the slots of scalar operations. A slot is the time in which one multiply-add is issued."""

from __future__ import annotations

from collections.abc import Iterator
from math import log2

from rammer.ir.expr import Call, Cast, Load, Scalar, Select, Stage, loads

COSTLY = {"exp": 12, "log": 12, "tanh": 20, "sigmoid": 20, "erf": 20, "asin": 15, "acos": 18, "atan": 22}
COSTLY |= {"sin": 34, "cos": 38, "pow": 95, "mod": 54, "fmod": 56, "div": 8, "sqrt": 8}
CARRIED_NAN = 3  # compares and selects, to return NaN if either element is NaN


def slots_of(value: Scalar) -> float:
    """Return the slots of the arithmetic of a value."""
    return sum(slots for _, slots in parts_of(value))


def slots_of_term(stage: Stage) -> float:
    """Return the slots of one term of a stage, including its addition to the sum if the stage reduces."""
    return slots_of(Call("add", (Load(stage.name, ()), stage.body)) if stage.reduce else stage.body)


def slots_of_fold(fn: str, lanes: int) -> float:
    """Return the slots to combine the lanes of a vector into one. Each halving moves one half and combines both."""
    return log2(lanes) * (1 + slots_of(Call(fn, (Load("upper", ()), Load("lower", ())))))


def parts_of(value: Scalar) -> Iterator[tuple[Scalar, float]]:
    """Yield each part of a value that costs slots, with its own slots.

    A multiplication inside of an addition is free (a fused multiply-add). So are parts that depend on no element.
    """
    inside: tuple[Scalar, ...]
    match value:
        case Call("add", (a, Call("mul", (b, c)))) | Call("add", (Call("mul", (b, c)), a)):
            own, inside = 1.0, (a, b, c)
        case Call("div", (a, b)) if _fixed(b):
            own, inside = 1.0, (a,)
        case Call("max" | "min", (a, b) as inside) if not (_fixed(a) or _fixed(b)):
            own = CARRIED_NAN
        case Call(fn, inside) if not _fixed(value):
            own = COSTLY.get(fn, 1)
        case Cast(arg, _) if not _fixed(arg):
            own, inside = 1.0, (arg,)
        case Select(where, then, other) if not _fixed(value):
            own, inside = len(where), (max(then, other, key=slots_of),)
        case _:
            return
    yield value, own
    for part in inside:
        yield from parts_of(part)


def _fixed(value: Scalar) -> bool:
    return not any(True for _ in loads(value))
