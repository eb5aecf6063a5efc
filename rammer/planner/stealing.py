"""Find which iterations of an rTask another vEU may run instead of waiting for it. Known as: work stealing.

A stealable unit is a loop whose iterations store results, or a statement that does. A vEU that steals iterations also
runs everything else that fills scratch and registers, as each vEU has its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from operator import is_

from rammer.ir.analysis.access import Access, Accesses
from rammer.ir.expr import Range, loads
from rammer.ir.index import variables
from rammer.ir.kernel import RKernel
from rammer.ir.tile import Apply, Body, For, If, Kind, Stmt, Store, Sync, TileProgram, contains, statements
from rammer.ir.verify.kernel import written_before


@dataclass(slots=True)
class StealableStatement:
    """A statement with its loops and conditions, and the arguments and scratch that it reads and writes.

    `around`: loops that every participating vEU runs.
    """

    stmt: Stmt
    around: tuple[For, ...]
    where: tuple[Range, ...]
    read: set[str] = field(default_factory=set)
    written: set[str] = field(default_factory=set)
    hands_over: bool = False


def stealable(program: TileProgram, opened: Callable[[For], bool]) -> tuple[StealableStatement, ...]:
    """Return the units whose iterations other vEUs may run, in order. Empty if that is unsafe.

    These units store results. They lie outside of loops, except for loops that are `opened`, which every participating
    vEU runs.

    R203 proves that no element is stored twice, so iterations store to disjoint places. R205 proves that what an
    iteration reads of scratch and registers was written in it, or before its loop. This function checks the rest: the
    latter does not change meanwhile, and results are not read.
    """
    results = {b.name for b in program.arguments[: program.num_outputs]}
    known = {b.name for b in (*program.arguments, *program.scratch)}
    units = list(_units(program.body, (), (), known, opened))
    if program.num_threads > 1 or contains(program.body, Sync) or any(u.read & results for u in units):
        return ()
    for unit in units:
        unit.hands_over = bool(unit.written & results)
    digits = {s.var for s in statements(program.body) if isinstance(s, For) and s.kind is Kind.TASK}
    several = {b.name for b in program.scratch if not _of_one(b.name, units, digits)}
    if several and not _fresh(program, units, digits, several):
        return ()
    return tuple(u for u in units if u.hands_over)


def is_stealable(kernel: RKernel) -> bool:
    """Return whether iterations of a kernel's loops store to disjoint places: it is proven, and not an update.

    An update's data may send several elements to one place, where the last one must win.
    """
    return not kernel.unproven and not kernel.operation.expr.into


def _of_one(name: str, units: Sequence[StealableStatement], digits: set[str]) -> bool:
    """Return whether an rTask that writes a buffer in a stealable unit touches it in no other unit."""
    touching = [u for u in units if name in u.read | u.written]
    writing = [u for u in touching if u.hands_over and name in u.written]
    return all(u is w or _disjoint(u, w, digits) for w in writing for u in touching)


def _disjoint(first: StealableStatement, second: StealableStatement, digits: set[str]) -> bool:
    """Return whether no rTask runs both units, because their conditions restrict its number to disjoint ranges."""
    for a, b in product(first.where, second.where):
        step = b.index - a.index
        low, high = b.low - step.const, b.high - step.const  # b's range as bounds of a.index
        if not step.terms and variables(a.index) <= digits and (a.high <= low or high <= a.low):
            return True
    return False


def _fresh(program: TileProgram, units: Sequence[StealableStatement], digits: set[str], names: set[str]) -> bool:
    """Return whether units read of these buffers only what their iteration wrote, or every vEU just before."""
    reads: list[list[Access]] = [[] for _ in units]
    writes: list[list[Access]] = [[] for _ in units]
    numbers = [n for n, u in enumerate(units) for s in statements((u.stmt,)) if isinstance(s, Store | Apply)]
    for access in Accesses(program).found:
        if access.buffer in names:
            (writes if access.write else reads)[numbers[access.statement - 1]].append(access)

    def fresh(n: int, read: Access) -> bool:
        unit, name = units[n], read.buffer
        own = [w for w in writes[n] if w.buffer == name and w.statement < read.statement]
        if own and written_before(read, own):
            return True
        if unit.hands_over and name in unit.written:
            return False  # by other iterations
        for m in range(n - 1, -1, -1):
            before = units[m]
            if name in before.written and not _disjoint(unit, before, digits):
                inside = unit.around[len(before.around) :]
                beside = [u for u in units if inside and any(loop is inside[0] for loop in u.around)]
                everybody = not before.hands_over and all(map(is_, before.around, unit.around))
                kept = not any(u.hands_over and name in u.written for u in beside)  # in the loop's next iteration
                return everybody and kept and written_before(read, [w for w in writes[m] if w.buffer == name])
        return False

    return all(fresh(n, read) for n, found in enumerate(reads) for read in found)


def _units(
    body: Body, around: tuple[For, ...], where: tuple[Range, ...], known: set[str], opened: Callable[[For], bool]
) -> Iterator[StealableStatement]:
    """Yield the units of a body. Buffers that are not `known` are registers within one unit."""
    for stmt in body:
        match stmt:
            case For(kind=Kind.TASK):
                yield from _units(stmt.body, around, where, known, opened)
            case For(kind=Kind.SERIAL) if opened(stmt):
                yield from _units(stmt.body, (*around, stmt), where, known, opened)
            case If(more, then):
                yield from _units(then, around, (*where, *more), known, opened)
            case _:
                yield _unit(StealableStatement(stmt, around, where), known)


def _unit(unit: StealableStatement, known: set[str]) -> StealableStatement:
    for s in statements((unit.stmt,)):
        match s:
            case Store(buffer, _, value, dynamic):
                unit.written.add(buffer)
                unit.read |= {ld.tensor for v in (value, *(d.value for d in dynamic)) for ld, _ in loads(v)}
            case Apply():
                unit.written.add(s.operands[0].buffer)
                unit.read |= {o.buffer for o in s.operands[0 if s.instruction.accumulates else 1 :]}
    unit.read &= known
    unit.written &= known
    return unit
