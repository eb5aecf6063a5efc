"""Estimate the cycles of tile programs: instructions of one worker, which issues one every six cycles."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice, product
from math import prod
from typing import assert_never

from rammer.ir.expr import Call, Cast, Iota, Load, Range, Scalar, Select
from rammer.ir.index import Index, variables
from rammer.ir.semantics.evaluate import holds
from rammer.ir.tile import Alloc, Apply, Body, For, If, Kind, Prefetch, Store, Sync, statements

VERTEX_CYCLES = 25  # entry and exit of a vertex
MOST_UNROLLED = 64  # instructions of a loop that a compiler unrolls
MOST_RTASKS = 64  # of a kernel whose instructions are counted
LOOP_CYCLES = 2  # counter and branch of one round
# Instructions beyond loads; the rest are one. Transcendental ones have hardware help in single precision.
CALL_CYCLES = {"div": 4, "sqrt": 4, "exp": 4, "log": 6, "tanh": 3, "sigmoid": 3, "erf": 25, "sin": 25, "cos": 25,
               "asin": 25, "acos": 25, "atan": 25, "pow": 12, "mod": 20, "fmod": 20, "max": 2, "min": 2, "where": 2,
               "reciprocal": 4}  # fmt: skip


def vertex_cycles(body: Body) -> float:
    """Return the instructions of one worker that runs the whole body, for the rTask with the most."""
    extents: dict[str, int] = {}
    cuts: dict[str, set[int]] = {}
    for stmt in statements(body):
        if isinstance(stmt, For) and stmt.kind is Kind.TASK:
            extents[stmt.var] = stmt.stop
        elif isinstance(stmt, If):
            for r in stmt.where:
                for v in variables(r.index):
                    cuts.setdefault(v, set()).update((r.low, r.high))
    values = [sorted({min(max(c, 0), n - 1) for c in (0, n // 2, n - 1, *cuts.get(v, ()))}) for v, n in extents.items()]
    if prod(map(len, values)) > MOST_RTASKS:
        values = [[n // 2] if len(found) > 3 else found for found, n in zip(values, extents.values(), strict=True)]
    rtasks = islice(product(*values), MOST_RTASKS)
    return max(_cycles(body, frozenset(), dict(zip(extents, digits, strict=True)), {}) for digits in rtasks)


def _cycles(body: Body, registers: frozenset[str], digits: Mapping[str, int], loops: Mapping[str, range]) -> float:
    total = 0.0
    for stmt in body:
        match stmt:
            case For(v, start, stop, kind, inner):
                rounds = 1 if kind is Kind.TASK else stop - start
                control = 0 if kind in (Kind.TASK, Kind.UNROLLED, Kind.VECTOR) else LOOP_CYCLES
                around = loops if kind is Kind.TASK else {**loops, v: range(start, stop)}
                total += rounds * (_cycles(inner, registers, digits, around) + control)
            case If(where, then):
                part = prod(_part(r, digits, loops) for r in where)
                total += 2 * len(where) + (part * _cycles(then, registers, digits, loops) if part else 0)
            case Alloc(buffer, inner):
                total += _cycles(inner, registers | {buffer.name}, digits, loops)
            case Store(buffer, index, value):
                total += _value(value, registers) + (0 if buffer in registers else 1 + _index(index))
            case Sync() | Apply() | Prefetch():
                pass  # a single worker's kernel lacks the first two, and a tile has no caches
            case _:
                assert_never(stmt)
    return total


def _part(condition: Range, digits: Mapping[str, int], loops: Mapping[str, range]) -> float:
    """Return the fraction of rounds in which a condition holds; 1 if it depends on more than digits and one loop."""
    used = variables(condition.index)
    free = used - digits.keys()
    if len(free) > 1 or not free <= loops.keys():
        return 1.0
    values = {v: digits[v] for v in used & digits.keys()}
    rounds = [{**values, v: n} for v in free for n in loops[v]] if free else [values]
    return sum(holds(condition, at) for at in rounds) / len(rounds) if rounds else 0.0


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
    """Return the cost of address arithmetic that pointer increments cannot replace: divisions."""
    return sum(6 + _index(atom.arg) for atom, _ in index.terms if not isinstance(atom, str))


def code_bytes(body: Body) -> int:
    """Return the bytes of code: four per instruction, with short loops unrolled."""
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
            case Store() | Sync() | Apply() | Prefetch():
                total += _cycles((stmt,), frozenset(), {}, {})
            case _:
                assert_never(stmt)
    return total
