"""The work of an rTask of one thread, counted from its tile program: what it issues, and how much it touches per loop.

Register blocks count as the compiler makes them: a load is issued once for all unrolled neighbours that it does not
depend on, and once for a vector. Guards are taken as true, but for those that the first rTask never meets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import TypeAlias, assert_never

from rammer.cost.functions import slots_of
from rammer.ir.expr import Range, loads
from rammer.ir.index import Bounds, Index, bounds, variables
from rammer.ir.tile import Alloc, Apply, Body, For, If, Kind, Prefetch, Scope, Store, Sync, TileProgram

Footprint: TypeAlias = Mapping[str, float]  # bytes by buffer

# Fitted to measured rTasks: python -m benchmarks.work (docs/measurements.md).
APART = 0.5  # loads or stores for each lane of a vector whose elements lie apart: a part of them are shuffled together
PICKED = 2.0  # loads for a vector whose elements are all in one of memory


@dataclass(frozen=True, slots=True)
class Issued:
    """Vector instructions by where they begin; and elements that other instructions make, over their `gain`."""

    arithmetic: float = 0.0
    loads: float = 0.0
    stores: float = 0.0
    made: float = 0.0

    def __add__(self, other: Issued) -> Issued:
        return Issued(
            self.arithmetic + other.arithmetic,
            self.loads + other.loads,
            self.stores + other.stores,
            self.made + other.made,
        )


@dataclass(frozen=True, slots=True)
class Work:
    """A loop, or a whole rTask: `own` is issued in each of `trips` passes, and `inside` are the loops within.

    `sums` tells whether a pass waits for the one before. `once` is touched by a pass, `whole` by all of them.
    """

    trips: int
    own: Issued
    inside: tuple[Work, ...]
    sums: bool
    once: Footprint
    whole: Footprint


def work(program: TileProgram) -> Work:
    """Count the first rTask of a tile program of one thread."""
    return _Counter(program).rtask()


@dataclass(frozen=True, slots=True)
class _Access:
    """As many elements from a place in a buffer on, while the variables of `spans` move."""

    buffer: str
    index: Index
    spans: Bounds
    elements: int = 1


@dataclass
class _Pass:
    """What one pass of a loop's body does, loops inside apart."""

    issued: Issued = Issued()
    inside: list[Work] = field(default_factory=list)
    accesses: list[_Access] = field(default_factory=list)
    sums: bool = False


class _Counter:
    def __init__(self, program: TileProgram) -> None:
        self.program = program
        self.buffers = {b.name: b for b in (*program.arguments, *program.scratch)}
        self._in_memory = {b.name for b in self.buffers.values() if b.scope is not Scope.REGISTER}
        self._spans: dict[str, tuple[int, int]] = {}  # of variables around a statement, in the first rTask

    def rtask(self) -> Work:
        return self.loop(self.program.body, (), 1)[0]

    def loop(self, body: Body, block: tuple[For, ...], trips: int, var: str = "") -> tuple[Work, list[_Access]]:
        """A loop's work, and what it accesses in all its passes."""
        found = _Pass()
        self.body(body, block, found)
        spans = {var: (0, trips - 1)} if var else {}
        moved = [replace(access, spans={**access.spans, **spans}) for access in found.accesses]
        once, whole = self.footprint(found.accesses), self.footprint(moved)
        return Work(trips, found.issued, tuple(found.inside), found.sums, once, whole), moved

    def body(self, body: Body, block: tuple[For, ...], found: _Pass) -> None:
        """Add a body's statements; `block` are the unrolled and vector loops around."""
        for stmt in body:
            match stmt:
                case Store():
                    self.store(stmt, block, found)
                case If():
                    if all(self._meets(where) for where in stmt.where):
                        self.body(stmt.then, block, found)
                case Alloc():
                    self.body(stmt.body, block, found)
                case For(kind=Kind.SERIAL):
                    self._spans[stmt.var] = stmt.start, stmt.stop - 1
                    inner, accesses = self.loop(stmt.body, block, stmt.stop - stmt.start, stmt.var)
                    found.inside.append(inner)
                    found.accesses += accesses
                case For(kind=Kind.TASK | Kind.THREAD):
                    self._spans[stmt.var] = 0, 0
                    self.body(stmt.body, block, found)
                case For():
                    self._spans[stmt.var] = stmt.start, stmt.stop - 1
                    self.body(stmt.body, (*block, stmt), found)
                case Apply():
                    self.apply(stmt, block, found)
                case Prefetch():
                    found.issued += Issued(loads=_times(block, None))
                case Sync():
                    pass
                case _:
                    assert_never(stmt)

    def _meets(self, where: Range) -> bool:
        low, high = bounds(where.index, self._spans)
        return low < where.high and high >= where.low

    def store(self, stmt: Store, block: tuple[For, ...], found: _Pass) -> None:
        vector = next((lp for lp in block if lp.kind is Kind.VECTOR), None)
        every = _times(block, vector)
        issued = Issued(slots_of(stmt.value) * every)
        for load, _ in loads(stmt.value):
            if load.tensor in self._in_memory:
                issued += Issued(loads=self.issue(load.index[0], block, vector, bool(load.dynamic)))
                self.note(load.tensor, load.index[0], block, found)
        if stmt.buffer in self._in_memory:
            issued += Issued(stores=self.issue(stmt.index, block, vector, False))
            self.note(stmt.buffer, stmt.index, block, found)
        found.issued += issued
        found.sums |= any(ld.tensor == stmt.buffer and ld.index[0] == stmt.index for ld, _ in loads(stmt.value))

    def apply(self, stmt: Apply, block: tuple[For, ...], found: _Pass) -> None:
        found.issued += Issued(made=prod(stmt.extents) / stmt.instruction.gain * _times(block, None))
        for operand, (_, kind) in zip(stmt.operands, stmt.instruction.types(stmt.sizes), strict=True):
            if operand.buffer in self._in_memory:
                self.note(operand.buffer, operand.at, block, found, kind.size)

    def issue(self, index: Index, block: tuple[For, ...], vector: For | None, dynamic: bool) -> float:
        """Instructions of an access in a register block."""
        used = variables(index)
        count = float(prod(lp.stop - lp.start for lp in block if lp is not vector and lp.var in used))
        if vector is None or not (dynamic or vector.var in used):
            return count
        lanes = vector.stop - vector.start
        if dynamic:
            return count * APART * lanes
        if index.coef(vector.var) == 1:
            return count
        low, high = bounds(index, {**dict.fromkeys(used, (0, 0)), vector.var: (0, lanes - 1)})
        return count * (PICKED if high - low < lanes else max(APART * lanes, 1.0))

    def note(self, buffer: str, index: Index, block: tuple[For, ...], found: _Pass, elements: int = 1) -> None:
        spans = {lp.var: (lp.start, lp.stop - 1) for lp in block}
        found.accesses.append(_Access(buffer, index, spans, elements))

    def footprint(self, accesses: Iterable[_Access]) -> Footprint:
        """Bytes of each buffer, of accesses at different places together."""
        places: dict[str, dict[tuple[object, ...], float]] = {}
        for access in accesses:
            known = places.setdefault(access.buffer, {})
            size = access.elements * _distinct(access.index, access.spans)
            key = access.index.terms
            known[key] = max(known.get(key, 0.0), size)
        found = {}
        for name, sizes in places.items():
            buffer = self.buffers[name]
            found[name] = min(sum(sizes.values()), buffer.size) * buffer.nbytes / max(buffer.size, 1)
        return found


def _times(block: tuple[For, ...], vector: For | None) -> float:
    return float(prod(lp.stop - lp.start for lp in block if lp is not vector))


def _distinct(index: Index, env: Bounds) -> float:
    """Elements that an index takes while some variables move, the others fixed: no more than their combinations."""
    used = variables(index)
    moving = {n: span for n, span in env.items() if n in used}
    if not moving:
        return 1.0
    combinations = prod(high - low + 1 for low, high in moving.values())
    fixed = dict.fromkeys(used - moving.keys(), (0, 0))
    low, high = bounds(index, {**fixed, **moving})
    return float(min(combinations, high - low + 1))
