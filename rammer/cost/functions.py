"""What scalar operations take, in the time of multiply-adds."""

from __future__ import annotations

from rammer.ir.expr import Call, Cast, Scalar, Select, loads

COSTLY = {
    "exp": 12,
    "log": 12,
    "tanh": 20,
    "sigmoid": 20,
    "erf": 20,
    "sin": 20,
    "cos": 20,
    "atan": 20,
    "pow": 30,
    "div": 8,
    "sqrt": 8,
}


def slots_of(value: Scalar) -> float:
    """Slots of the arithmetic of a value: free are products that are added, and what depends on no element."""
    match value:
        case Call("add", (a, Call("mul", (b, c)))) | Call("add", (Call("mul", (b, c)), a)):
            return 1 + slots_of(a) + slots_of(b) + slots_of(c)
        case Call("div", (a, b)) if _fixed(b):
            return 1 + slots_of(a)
        case Call(fn, args) if not _fixed(value):
            return COSTLY.get(fn, 1) + sum(map(slots_of, args))
        case Cast(arg, _) if not _fixed(arg):
            return 1 + slots_of(arg)
        case Select(where, then, other) if not _fixed(value):
            return len(where) + max(slots_of(then), slots_of(other))
    return 0


def _fixed(value: Scalar) -> bool:
    return not any(True for _ in loads(value))
