"""What scalar operations take, in the time of multiply-adds."""

from __future__ import annotations

from collections.abc import Iterator
from math import log2

from rammer.ir.expr import Call, Cast, Load, Scalar, Select, Stage, loads

COSTLY = {
    "exp": 12,
    "log": 12,
    "tanh": 20,
    "sigmoid": 20,
    "erf": 20,
    "sin": 34,
    "cos": 38,
    "asin": 15,
    "acos": 18,
    "atan": 22,
    "pow": 95,
    "div": 8,
    "sqrt": 8,
}


CARRIED_NAN = 3  # compares, and picks: the larger of two elements, neither of which need be a number


def slots_of(value: Scalar) -> float:
    """Slots of the arithmetic of a value."""
    return sum(slots for _, slots in parts_of(value))


def slots_of_term(stage: Stage) -> float:
    """Slots of one term of a stage, added to its sum if it has one."""
    return slots_of(Call("add", (Load(stage.name, ()), stage.body)) if stage.reduce else stage.body)


def slots_of_fold(fn: str, lanes: int) -> float:
    """Slots until the lanes of a vector are one: by halves, each of which is brought to the other and combined."""
    return log2(lanes) * (1 + slots_of(Call(fn, (Load("upper", ()), Load("lower", ())))))


def parts_of(value: Scalar) -> Iterator[tuple[Scalar, float]]:
    """Parts with slots of their own: free are products that are added, and what depends on no element."""
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
