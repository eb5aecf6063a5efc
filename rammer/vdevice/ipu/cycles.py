"""A cycle estimate of tile programs: instructions of one worker, which issues one of them every six cycles."""

from __future__ import annotations

from rammer.ir.expr import Call, Cast, Iota, Load, Scalar, Select
from rammer.ir.index import Index
from rammer.ir.tile import Alloc, Body, For, If, Kind, Store

VERTEX_CYCLES = 25  # entry and exit of a vertex
MOST_UNROLLED = 64  # instructions of a loop that a compiler unrolls
LOOP_CYCLES = 2  # counter and branch of one round
# Instructions beyond loads; the rest are one. Transcendental ones have hardware help in single precision.
CALL_CYCLES = {"div": 4, "sqrt": 4, "exp": 4, "log": 6, "tanh": 3, "sigmoid": 3, "erf": 25, "sin": 25, "cos": 25,
               "pow": 12, "mod": 20, "fmod": 20, "max": 2, "min": 2, "where": 2, "reciprocal": 4}  # fmt: skip


def body_cycles(body: Body, registers: frozenset[str] = frozenset()) -> float:
    """Instructions of one worker that runs all of it; conditions are taken to hold."""
    total = 0.0
    for stmt in body:
        match stmt:
            case For(_, start, stop, kind, inner):
                rounds = 1 if kind is Kind.TASK else stop - start
                control = 0 if kind in (Kind.TASK, Kind.UNROLLED, Kind.VECTOR) else LOOP_CYCLES
                total += rounds * (body_cycles(inner, registers) + control)
            case If(where, then):
                total += 2 * len(where) + body_cycles(then, registers)
            case Alloc(buffer, inner):
                total += body_cycles(inner, registers | {buffer.name})
            case Store(buffer, index, value):
                total += _value(value, registers) + (0 if buffer in registers else 1 + _index(index))
    return total


def _value(value: Scalar, registers: frozenset[str]) -> float:
    match value:
        case Load(tensor, index, dynamic):
            moved = sum(4 + _value(d.value, registers) for d in dynamic)
            return moved + (0 if tensor in registers else 1 + sum(map(_index, index)))
        case Call(fn, args):
            return CALL_CYCLES.get(fn, 1) + sum(_value(a, registers) for a in args)
        case Cast(arg, _):
            return 1 + _value(arg, registers)
        case Select(where, then, other):
            return 2 * len(where) + max(_value(then, registers), _value(other, registers))
        case Iota(index):
            return 1 + _index(index)
    return 0


def _index(index: Index) -> float:
    """Address arithmetic that pointers cannot walk: divisions only."""
    return sum(6 + _index(atom.arg) for atom, _ in index.terms if not isinstance(atom, str))


def code_bytes(body: Body) -> int:
    """Four bytes an instruction; the compiler unrolls loops that stay small."""
    return 64 + 4 * round(_instructions(body))


def _instructions(body: Body) -> float:
    total = 0.0
    for stmt in body:
        match stmt:
            case For(_, start, stop, kind, inner):
                once = _instructions(inner)
                small = kind in (Kind.UNROLLED, Kind.VECTOR) and once * (stop - start) <= MOST_UNROLLED
                total += once * (stop - start) if small else once + 3
            case If(where, then):
                total += 2 * len(where) + _instructions(then)
            case Alloc(_, inner):
                total += _instructions(inner)
            case Store():
                total += body_cycles((stmt,))
    return total
