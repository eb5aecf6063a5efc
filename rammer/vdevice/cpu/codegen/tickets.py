"""Tickets: what a vEU that waits may do of another one's rTask, one iteration or a few at a time.

A core that others slow down would let all of them wait for its half of each operator.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from rammer.ir.expr import Range
from rammer.ir.index import variables
from rammer.ir.semantics.evaluate import holds
from rammer.ir.tile import Apply, Body, For, If, Kind, Stmt, Store, TileProgram, children, statements
from rammer.planner.handover import parts

FEWEST = 3  # of an rTask: of two, its owner has begun one and comes to the other one as soon as any helper
ENOUGH = 16  # of a loop: whoever waits for the last one waits no longer than a sixteenth of it
# Statements of a ticket, of which a core does about two in a cycle. To take one drains the core's stores: with tickets
# of 4096 a vocoder took 1.02 of its time.
LEAST_STEPS = 16384
UNIT_TERMS = 64  # multiply-adds of a matrix unit in the time of a statement
# Of all statements, as many must be handed over: whoever helps does the others again.
OPENED, WORTH = 0.9, 0.75  # of a loop, and of an rTask


@dataclass(frozen=True, slots=True)
class Tickets:
    """How many tickets a statement has, and how many of its iterations each one is."""

    count: int
    iterations: int


def tickets(program: TileProgram) -> tuple[Mapping[int, Tickets], tuple[int, ...]]:
    """The tickets of statements, by their ids, and how many each rTask has, at most: conditions inside of it may hold.

    None where too little could be handed over.
    """
    results = frozenset(b.name for b in program.arguments[: program.num_outputs])
    found: dict[int, Tickets] = {}
    totals: list[tuple[int, tuple[Range, ...]]] = []
    steps, handed = _steps(program.body), 0
    if steps < FEWEST * LEAST_STEPS:
        return {}, ()
    for unit in parts(program, lambda loop: _opened(loop, results)):
        stmt, count, iterations = unit.stmt, 1, 1
        if isinstance(stmt, For) and stmt.kind is Kind.SERIAL:
            iterations = -(-LEAST_STEPS // max(_steps(stmt.body), 1))
            count = -(-(stmt.stop - stmt.start) // iterations)
        times = prod(loop.stop - loop.start for loop in unit.around)
        found[id(stmt)] = Tickets(count, iterations)
        totals.append((count * times, unit.where))
        handed += _steps((stmt,)) * times
    if handed < WORTH * steps:
        return {}, ()
    numbers = _of_rtasks(program, totals)
    return (found, numbers) if max(numbers) >= FEWEST else ({}, ())


def _of_rtasks(program: TileProgram, totals: Sequence[tuple[int, tuple[Range, ...]]]) -> tuple[int, ...]:
    """The sum of numbers for each rTask, of those whose conditions on the rTask's number hold."""
    digits = {s.var: s for s in statements(program.body) if isinstance(s, For) and s.kind is Kind.TASK}
    fixed = [(total, [r for r in where if variables(r.index) <= digits.keys()]) for total, where in totals]
    sums = []
    for rtask in range(program.num_rtasks):
        at = {name: rtask // loop.stride % loop.stop for name, loop in digits.items()}
        sums.append(sum(total for total, where in fixed if all(holds(r, at) for r in where)))
    return tuple(sums)


def _opened(loop: For, results: frozenset[str]) -> bool:
    """Whether a loop has so few iterations that those of the loops inside of it are handed over instead."""
    storing = tuple(s for s in loop.body if any(isinstance(t, Store) and t.buffer in results for t in statements((s,))))
    around = any(isinstance(s, For) and s.kind is Kind.SERIAL for s in _unconditional(storing))
    few = loop.stop - loop.start < ENOUGH
    return few and around and _steps(storing) >= max(OPENED * _steps(loop.body), 2 * LEAST_STEPS)


def _unconditional(body: Body) -> Iterator[Stmt]:
    """The statements of a body, those under a condition in place of it."""
    for s in body:
        yield from _unconditional(s.then) if isinstance(s, If) else (s,)


def _steps(body: Body) -> int:
    """Statements that an rTask executes: of a vector's lanes one, of an instruction's multiply-adds some together."""
    total = 0
    for s in body:
        match s:
            case For(_, start, stop, kind, inner):
                total += (1 if kind in (Kind.VECTOR, Kind.TASK) else stop - start) * _steps(inner)
            case Apply():
                total += -(-prod(s.extents) // UNIT_TERMS)
            case Store():
                total += 1
            case _:
                total += _steps(children(s))
    return total
