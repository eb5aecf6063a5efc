"""Split an rTask's loops into tickets, each one or several iterations that a waiting vEU may run for another.

Known as: work stealing. Without it, a core that other processes slow down delays all others in each operator.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from rammer.ir.expr import Range
from rammer.ir.index import variables
from rammer.ir.semantics.evaluate import holds
from rammer.ir.tile import Apply, Body, For, If, Kind, Stmt, Store, TileProgram, statements, tally
from rammer.planner.stealing import stealable

FEWEST = 3  # tickets of an rTask: of two, its owner runs one and reaches the other as early as a helper
ENOUGH = 16  # tickets of a loop: waiting for the last one takes at most a sixteenth of it
# Statements of a ticket; a core runs about two per cycle. Taking a ticket drains the core's store buffer: with tickets
# of 4096 a vocoder took 1.02 of its time.
LEAST_STEPS = 16384
UNIT_TERMS = 64  # multiply-adds of a matrix unit in the time of a statement
# Least part of the statements that tickets cover: helpers repeat the others.
OPENED, WORTH = 0.9, 0.75  # of a loop, and of an rTask


@dataclass(frozen=True, slots=True)
class Tickets:
    """The number of a statement's tickets, and the iterations that each covers."""

    count: int
    iterations: int


def tickets(program: TileProgram) -> tuple[Mapping[int, Tickets], tuple[int, ...]]:
    """Return tickets of statements, by their ids, and how many each rTask has at most: inner conditions may skip some.

    Both are empty if tickets would cover too little.
    """
    results = frozenset(b.name for b in program.arguments[: program.num_outputs])
    found: dict[int, Tickets] = {}
    totals: list[tuple[int, tuple[Range, ...]]] = []
    steps, handed = _steps(program.body), 0
    if steps < FEWEST * LEAST_STEPS:
        return {}, ()
    for unit in stealable(program, lambda loop: _opened(loop, results)):
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
    """Return for each rTask the sum of the numbers whose conditions on the rTask's digits hold."""
    digits = {s.var: s for s in statements(program.body) if isinstance(s, For) and s.kind is Kind.TASK}
    fixed = [(total, [r for r in where if variables(r.index) <= digits.keys()]) for total, where in totals]
    sums = []
    for rtask in range(program.num_rtasks):
        at = {name: rtask // loop.stride % loop.stop for name, loop in digits.items()}
        sums.append(sum(total for total, where in fixed if all(holds(r, at) for r in where)))
    return tuple(sums)


def _opened(loop: For, results: frozenset[str]) -> bool:
    """Return whether a loop has fewer than ENOUGH iterations, and most of its work in inner loops.

    These get the tickets instead.
    """
    storing = tuple(s for s in loop.body if any(isinstance(t, Store) and t.buffer in results for t in statements((s,))))
    around = any(isinstance(s, For) and s.kind is Kind.SERIAL for s in _unconditional(storing))
    short = loop.stop - loop.start < ENOUGH
    return short and around and _steps(storing) >= max(OPENED * _steps(loop.body), 2 * LEAST_STEPS)


def _unconditional(body: Body) -> Iterator[Stmt]:
    """Yield the statements of a body, with each condition replaced by its statements."""
    for s in body:
        yield from _unconditional(s.then) if isinstance(s, If) else (s,)


def _steps(body: Body) -> int:
    """Return the statements that an rTask executes: one for all lanes of a vector, one for UNIT_TERMS of a unit."""

    def own(s: Stmt) -> int:
        return -(-prod(s.extents) // UNIT_TERMS) if isinstance(s, Apply) else int(isinstance(s, Store))

    return tally(body, own, once=frozenset({Kind.VECTOR, Kind.TASK}))
