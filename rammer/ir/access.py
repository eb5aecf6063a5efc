"""What a tile program touches: every access of every statement, with its loops and conditions, in program order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import assert_never

from rammer.ir.expr import REDUCERS, Call, Load, Path, Role, loads, loads_in_role
from rammer.ir.index import Index, var
from rammer.ir.instruction import padded, place
from rammer.ir.tile import Alloc, Apply, Body, For, If, Kind, Stmt, Store, Sync, TileProgram

_REDUCING = frozenset(fn for fn, _ in REDUCERS.values())


@dataclass(frozen=True, slots=True, eq=False)
class Access:
    """Elements of a buffer that one statement reads or writes, while its loops run and its conditions hold.

    `more`: variables of the statement itself, (name, extent), that walk inside of one execution of it.
    `loops` and `buffer` name instances: loops of one variable, and register buffers of one name, may follow each other.
    `role`: of what is read, what becomes of it on the way to what is written; a sum's terms stay what they are.
    """

    buffer: str
    index: Index
    write: bool
    statement: int  # in program order
    loops: tuple[tuple[int, For], ...]  # outermost first, numbered
    path: Path
    register: bool = False  # of a buffer that each thread has to itself
    phase: int = 0  # how many Syncs stand before it
    more: tuple[tuple[str, int], ...] = ()
    role: Role = ()

    @property
    def ranges(self) -> dict[str, tuple[int, int]]:
        """First and last value of every variable."""
        spans = {loop.var: (loop.start, loop.stop - 1) for _, loop in self.loops}
        return spans | {name: (0, extent - 1) for name, extent in self.more}

    def of_rtask(self, rtask: int) -> dict[str, int]:
        """The variables that count the digits of an rTask's number."""
        return {lp.var: rtask // lp.stride % lp.stop for _, lp in self.loops if lp.kind is Kind.TASK}


def common_loops(first: Access, second: Access) -> list[str]:
    """Variables of loops around both, in whose same iteration what one writes the other reads.

    Threads meet in buffers that they share: there each may read what another one wrote.
    """
    names = []
    for (a, loop), (b, _) in zip(first.loops, second.loops, strict=False):
        if a != b:
            break
        if first.register or loop.kind is not Kind.THREAD:
            names.append(loop.var)
    return names


class Accesses:
    """All accesses of a tile program; `sizes` has the elements of every buffer."""

    def __init__(self, program: TileProgram) -> None:
        self.sizes = {b.name: b.size for b in (*program.arguments, *program.scratch)}
        self.registers: set[str] = set()
        self._arguments = {b.name for b in program.arguments}
        self.found: list[Access] = []
        self._statements = self._loops = self._syncs = 0
        self._names: dict[str, str] = {}
        self._walk(program.body, (), ())

    def _walk(self, body: Body, loops: tuple[tuple[int, For], ...], path: Path) -> None:
        for stmt in body:
            match stmt:
                case For():
                    self._loops += 1
                    self._walk(stmt.body, (*loops, (self._loops, stmt)), path)
                case If(where, then):
                    self._walk(then, loops, (*path, (where, True)))
                case Alloc(buffer, inner):
                    shadowed = self._names.get(buffer.name)
                    name = self._names[buffer.name] = f"{buffer.name}@{self._statements}"
                    self.sizes[name] = buffer.size
                    self.registers.add(name)
                    self._walk(inner, loops, path)
                    self._names[buffer.name] = shadowed or buffer.name
                case Sync():
                    self._syncs += 1
                case Store() | Apply():
                    self._statements += 1
                    for access in self._of(stmt, loops, path):
                        self.found.append(access)
                case _:
                    assert_never(stmt)

    def _folds(self, call: Call, target: str) -> bool:
        """Whether a call adds a term to what is written, or partial sums of one buffer to one another."""
        if call.fn not in _REDUCING:
            return False
        read = {a.tensor for a in call.args if isinstance(a, Load)}
        inner = [a for a in call.args if not isinstance(a, Load)]
        if target in read:
            return True
        partial = all(isinstance(a, Call) and a.fn == call.fn and self._folds(a, target) for a in inner)
        return (
            partial and len(read | {ld.tensor for a in inner for ld, _ in loads(a)}) == 1 and not read & self._arguments
        )

    def _of(self, stmt: Stmt, loops: tuple[tuple[int, For], ...], path: Path) -> Iterator[Access]:
        """The accesses of a statement, what it reads first."""

        def touch(
            buffer: str,
            index: Index,
            write: bool,
            more: tuple[tuple[str, int], ...] = (),
            where: Path = (),
            role: Role = (),
        ) -> Access:
            name = self._names.get(buffer, buffer)
            around = (loops, (*path, *where), name in self.registers, self._syncs)
            return Access(name, index, write, self._statements, *around, more, role)

        match stmt:
            case Store(buffer, index, value):
                for load, where, role in loads_in_role(value, folds=lambda call: self._folds(call, buffer)):
                    moved, more = load.index[0], []
                    for n, d in enumerate(load.dynamic):
                        more.append((f"any{n}", d.extent))
                        moved = moved + var(f"any{n}") * d.stride
                    yield touch(load.tensor, moved, False, tuple(more), where, role)
                yield touch(buffer, index, True)
            case Apply():
                for buffer, index, write, walk, where, role in _applied(stmt):
                    yield touch(buffer, index, write, walk, where, role)


def _applied(stmt: Apply) -> Iterator[tuple[str, Index, bool, tuple[tuple[str, int], ...], Path, Role]]:
    """What an instruction reads and then writes: elements along its axes, or the registers of one thread of many."""
    instruction, sizes = stmt.instruction, stmt.sizes
    stage = instruction.meaning.root
    roles = {ld.tensor: role for ld, _, role in loads_in_role(stage.body)}
    written = []
    for operand, (name, kind) in zip(stmt.operands, instruction.types(sizes), strict=True):
        if instruction.threads > 1:
            index = var("own")
            walk = whole = [("own", instruction.registers(name))]
        else:
            axes = instruction.axes_of(name)
            index = place(kind.layout, kind.shape, [var(a) for a in axes], operand.steps)
            walk = [(a, sizes[a]) for a in axes]
            whole = list(zip(axes, padded(kind.layout, kind.shape), strict=True))
        where = ((operand.where, True),) if operand.where else ()
        if name == stage.name:
            written.append((operand.buffer, operand.at + index, True, tuple(whole), (), ()))
        if name != stage.name or instruction.accumulates:
            yield operand.buffer, operand.at + index, False, tuple(walk), where, roles.get(name, ())
    yield from written
