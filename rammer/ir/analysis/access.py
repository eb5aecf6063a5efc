"""Collect every access of a tile program's statements, with its loops and conditions, in program order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, assert_never

from rammer.ir.analysis.simplify import simplify_index
from rammer.ir.expr import REDUCERS, Axes, Call, Dynamic, Load, Path, Role, loads, loads_in_role
from rammer.ir.index import Index, var
from rammer.ir.instruction import Instruction, padded, place
from rammer.ir.tile import Alloc, Apply, Body, For, If, Kind, Prefetch, Stmt, Store, Sync, TileProgram, children

_REDUCING = frozenset(fn for fn, _ in REDUCERS.values())


@dataclass(frozen=True, eq=False)
class Access:
    """Elements of a buffer that one statement reads or writes over its loops, where its conditions hold.

    `more`: variables (name, extent) of the statement itself, which range within one execution of it. `loops` and
    `buffer` name instances: several loops may share a variable, and several register buffers a name. `role`: the
    functions that a read value passes through until it is written; accumulation adds nothing to it. `threads`: if a
    register of another thread is read, the values that this thread's variables have.
    """

    buffer: str
    index: Index
    write: bool
    statement: int  # in program order
    loops: tuple[tuple[int, For], ...]  # outermost first, numbered
    path: Path
    register: bool = False  # of a buffer that each thread has to itself
    more: tuple[tuple[str, int], ...] = ()
    role: Role = ()
    threads: tuple[tuple[str, Index], ...] = ()

    @cached_property
    def ranges(self) -> Mapping[str, tuple[int, int]]:
        """First and last value of every variable."""
        spans = {loop.var: (loop.start, loop.stop - 1) for _, loop in self.loops}
        return spans | {name: (0, extent - 1) for name, extent in self.more}

    def of_rtask(self, rtask: int) -> dict[str, int]:
        """Return the values that variables of TASK loops have in an rTask."""
        return {lp.var: rtask // lp.stride % lp.stop for _, lp in self.loops if lp.kind is Kind.TASK}


def common_loops(first: Access, second: Access) -> list[str]:
    """Return the variables of loops around both accesses within whose iterations a write and its read pair up.

    THREAD loops count for registers alone: threads share other buffers, and may read what another thread wrote.
    """
    names = []
    for (a, loop), (b, _) in zip(first.loops, second.loops, strict=False):
        if a != b:
            break
        if first.register or loop.kind is not Kind.THREAD:
            names.append(loop.var)
    return names


class Accesses:
    """All accesses of a tile program (`found`), its prefetches (`hints`), and elements of every buffer (`sizes`)."""

    def __init__(self, program: TileProgram) -> None:
        self.sizes = {b.name: b.size for b in (*program.arguments, *program.scratch)}
        self.registers: set[str] = set()
        self._arguments = {b.name for b in program.arguments}
        self.found: list[Access] = []
        self.hints: list[tuple[Prefetch, Access]] = []
        self._statements = self._loops = 0
        self._names: dict[str, str] = {}
        self._walk(program.body, (), ())

    def shared(self, read: Access) -> tuple[int, ...]:
        """Return the numbers of loops around a read that also contain an earlier write to its buffer.

        Other loops do not decide which write the read sees.
        """
        never = read.statement
        return tuple(n for n, _ in read.loops if self._first_writes.get((read.buffer, n), never) < read.statement)

    @cached_property
    def _first_writes(self) -> Mapping[tuple[str, int], int]:
        """Map (buffer, loop) to the first statement in the loop that writes the buffer."""
        found: dict[tuple[str, int], int] = {}
        for access in self.found:
            for number, _ in access.loops if access.write else ():
                found.setdefault((access.buffer, number), access.statement)
        return found

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
                    pass
                case Store() | Apply():
                    self._statements += 1
                    for access in self._of(stmt, loops, path):
                        self.found.append(access)
                    self._walk(children(stmt), loops, path)
                case Prefetch(buffer, index, size):
                    name = self._names.get(buffer, buffer)
                    more = (("ahead", size),)
                    asked = Access(name, index + var("ahead"), False, self._statements, loops, path, more=more)
                    self.hints.append((stmt, asked))
                case _:
                    assert_never(stmt)

    def _folds(self, call: Call, target: str) -> bool:
        """Return whether a call accumulates: adds a term to `target`, or combines partial sums of one buffer."""
        if call.fn not in _REDUCING:
            return False
        read = {a.tensor for a in call.args if isinstance(a, Load)}
        inner = [a for a in call.args if not isinstance(a, Load)]
        if target in read:
            return True
        partial = all(isinstance(a, Call) and a.fn == call.fn and self._folds(a, target) for a in inner)
        tensors = read | {ld.tensor for a in inner for ld, _ in loads(a)}
        return partial and len(tensors) == 1 and not read & self._arguments

    def _of(self, stmt: Stmt, loops: tuple[tuple[int, For], ...], path: Path) -> Iterator[Access]:
        """Yield the accesses of a statement: reads, then writes."""

        def touch(
            buffer: str,
            index: Index,
            write: bool,
            more: tuple[tuple[str, int], ...] = (),
            where: Path = (),
            role: Role = (),
            threads: tuple[tuple[str, Index], ...] = (),
        ) -> Access:
            name = self._names.get(buffer, buffer)
            path_there, register = (*path, *where), name in self.registers
            return Access(name, index, write, self._statements, loops, path_there, register, more, role, threads)

        match stmt:
            case Store(buffer, index, value, dynamic):
                read = list(loads_in_role(value, folds=lambda call: self._folds(call, buffer)))
                read += [found for d in dynamic for found in loads_in_role(d.value, role=("at",))]
                for load, where, role in read:
                    at, more = _anywhere(load.index[0], load.dynamic)
                    yield touch(load.tensor, at, False, more, where, role)
                at, more = _anywhere(index, dynamic)
                yield touch(buffer, at, True, more)
            case Apply():
                together = stmt.instruction.threads > 1
                for touched in _applied_by_wave(stmt, loops) if together else _applied(stmt):
                    yield touch(*touched)


def _anywhere(index: Index, dynamic: Iterable[Dynamic]) -> tuple[Index, Axes]:
    """Return an index with a free variable for each data-dependent part, and these variables with their extents."""
    more = []
    for n, d in enumerate(dynamic):
        more.append((f"any{n}", d.extent))
        index = index + var(f"any{n}") * d.stride
    return index, tuple(more)


class _Touched(NamedTuple):
    """Access of an instruction to one of its tensors: the fields of `Access` that the instruction decides."""

    buffer: str
    at: Index
    write: bool
    more: tuple[tuple[str, int], ...]
    where: Path = ()
    role: Role = ()
    threads: tuple[tuple[str, Index], ...] = ()


def _applied(stmt: Apply) -> Iterator[_Touched]:
    """Yield the elements that an instruction of one thread reads along its axes, then those that it writes."""
    instruction, sizes = stmt.instruction, stmt.sizes
    roles = _roles(instruction)
    written = []
    for operand, (name, kind) in zip(stmt.operands, instruction.types(sizes), strict=True):
        axes = instruction.axes_of(name)
        index = operand.at + place(kind.layout, kind.shape, [var(a) for a in axes], operand.steps)
        walk = tuple((a, sizes[a]) for a in axes)
        where = ((operand.where, True),) if operand.where else ()
        if name in roles or instruction.accumulates:
            yield _Touched(operand.buffer, index, False, walk, where, roles.get(name, ()))
        if name not in roles:
            whole = zip(axes, padded(kind.layout, kind.shape), strict=True)
            written.append(_Touched(operand.buffer, index, True, tuple(whole)))
    yield from written


def _applied_by_wave(stmt: Apply, loops: tuple[tuple[int, For], ...]) -> Iterator[_Touched]:
    """Yield what one thread of a subgroup instruction accesses: it reads operands, then writes its result registers.

    Operands lie in registers of any thread of the subgroup, or in scratch if they are staged.
    """
    instruction = stmt.instruction
    terms = tuple((axis, stmt.sizes[axis]) for axis, _ in instruction.meaning.root.reduce)
    roles, (result, _) = _roles(instruction), instruction.tensors[0]
    digits = [lp for _, lp in loops if lp.kind is Kind.THREAD and lp.stride < instruction.threads]
    env = {lp.var: (lp.start, lp.stop - 1) for lp in digits}
    env |= {axis: (0, extent - 1) for axis, extent in (*instruction.axes, ("own", instruction.registers(result)))}
    thread = sum((var(lp.var) * lp.stride for lp in digits), Index()) % instruction.threads
    element = instruction.held(result, thread, var("own"))
    at = dict(zip(instruction.axes_of(result), element, strict=True)) | {a: var(a) for a, _ in terms}
    registers = ("own", instruction.registers(result))
    for operand, (name, kind) in zip(stmt.operands, instruction.types(stmt.sizes), strict=True):
        index = operand.at + var("own")
        if name in roles and instruction.staged:
            spot = place(kind.layout, kind.shape, [at[a] for a in instruction.axes_of(name)], operand.steps)
            yield _Touched(operand.buffer, operand.at + spot, False, (registers, *terms), (), roles[name])
        elif name in roles:
            holder, register = instruction.holder(name, [at[a] for a in instruction.axes_of(name)])
            index = operand.at + simplify_index(register, env)
            threads = tuple((lp.var, simplify_index(_moved(lp, holder, instruction.threads), env)) for lp in digits)
            yield _Touched(operand.buffer, index, False, (registers, *terms), (), roles[name], threads)
        elif instruction.accumulates:  # once for each term, which it adds
            yield _Touched(operand.buffer, index, False, (registers, *terms))
    yield _Touched(stmt.operands[0].buffer, stmt.operands[0].at + var("own"), True, (registers,))


def _moved(loop: For, thread: Index, subgroup_size: int) -> Index:
    """Return the value of a THREAD loop's variable in another thread of the same subgroup."""
    inside = min(subgroup_size // loop.stride, loop.stop)
    return var(loop.var) // inside * inside + thread // loop.stride % inside


def _roles(instruction: Instruction) -> dict[str, Role]:
    return {ld.tensor: role for ld, _, role in loads_in_role(instruction.meaning.root.body)}
