"""Which parts of an rTask may be handed over: whole iterations, which another vEU does that would wait for it.

A part is an iteration of a loop that stores results, or a statement that does. Whoever does some of them does all the
rest as well, which fills scratch and registers: each vEU has its own.
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
class Unit:
    """A statement, the loops and conditions that it stands in, and the arguments and scratch that it reads and writes.

    `around`: loops that all who do parts go around.
    """

    stmt: Stmt
    around: tuple[For, ...]
    where: tuple[Range, ...]
    read: set[str] = field(default_factory=set)
    written: set[str] = field(default_factory=set)
    hands_over: bool = False


def parts(program: TileProgram, opened: Callable[[For], bool]) -> tuple[Unit, ...]:
    """The statements of which others may do iterations, in order: those that store results. Nothing if they may not.

    They stand outside of loops, but for those that are `opened`: all who do parts go around these.

    R203 says that no element is stored twice, so iterations store apart; R205, that what an iteration reads of scratch
    and registers was written in it, or before its loop. What is left is that nothing of the latter changes meanwhile,
    and results are not read.
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


def has_parts(kernel: RKernel) -> bool:
    """Whether iterations of its loops store apart: a proof says so, and not of updates.

    Their data may send several elements to one place, where the last one stays.
    """
    return not kernel.unproven and not kernel.operation.expr.into


def _of_one(name: str, units: Sequence[Unit], digits: set[str]) -> bool:
    """Whether a buffer that is written in parts is touched by no other unit that an rTask comes to."""
    touching = [u for u in units if name in u.read | u.written]
    writing = [u for u in touching if u.hands_over and name in u.written]
    return all(u is w or _apart(u, w, digits) for w in writing for u in touching)


def _apart(first: Unit, second: Unit, digits: set[str]) -> bool:
    """Whether no rTask comes to both: something of its number lies in one range or in another one."""
    for a, b in product(first.where, second.where):
        step = b.index - a.index
        low, high = b.low - step.const, b.high - step.const  # of what is in a's range
        if not step.terms and variables(a.index) <= digits and (a.high <= low or high <= a.low):
            return True
    return False


def _fresh(program: TileProgram, units: Sequence[Unit], digits: set[str], names: set[str]) -> bool:
    """Whether what units read of these buffers was written in the same iteration or, just before, by everybody."""
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
            if name in before.written and not _apart(unit, before, digits):
                inside = unit.around[len(before.around) :]
                beside = [u for u in units if inside and any(loop is inside[0] for loop in u.around)]
                everybody = not before.hands_over and all(map(is_, before.around, unit.around))
                kept = not any(u.hands_over and name in u.written for u in beside)  # in the loop's next iteration
                return everybody and kept and written_before(read, [w for w in writes[m] if w.buffer == name])
        return False

    return all(fresh(n, read) for n, found in enumerate(reads) for read in found)


def _units(
    body: Body, around: tuple[For, ...], where: tuple[Range, ...], known: set[str], opened: Callable[[For], bool]
) -> Iterator[Unit]:
    """The units of a body; all other buffers than those that are `known` are registers inside of one."""
    for stmt in body:
        match stmt:
            case For(kind=Kind.TASK):
                yield from _units(stmt.body, around, where, known, opened)
            case For(kind=Kind.SERIAL) if opened(stmt):
                yield from _units(stmt.body, (*around, stmt), where, known, opened)
            case If(more, then):
                yield from _units(then, around, (*where, *more), known, opened)
            case _:
                yield _unit(Unit(stmt, around, where), known)


def _unit(unit: Unit, known: set[str]) -> Unit:
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
