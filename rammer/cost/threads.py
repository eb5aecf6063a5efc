"""The time of an rTask of many threads, from its tile program: what its threads issue, load and wait for.

A model, to compare tilings of one operation where nothing was measured. Registers are counted as the compiler would use
them: a load in a register block is made once for all unrolled neighbours that it does not depend on.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil, gcd, prod, sqrt
from typing import assert_never

from rammer.cost.functions import slots_of
from rammer.ir.device import VDeviceSpec
from rammer.ir.expr import loads
from rammer.ir.index import Index, evaluate, variables
from rammer.ir.tile import (
    Alloc,
    Apply,
    Body,
    For,
    If,
    Kind,
    Prefetch,
    Scope,
    Store,
    Sync,
    TileProgram,
    children,
    contains,
)

SCRATCH_SLOTS = 4  # a load from scratch or a near cache takes as long as so many multiply-adds
VECTOR = 4  # elements that a thread loads at once, if they are neighbours
BANKS = 32  # elements of scratch that threads can access at once, and neighbours in one transfer from a cache
PENDING = 8  # loads that a thread has under way
DIVISION_SLOTS = 4  # of an address


@dataclass(frozen=True, slots=True)
class Work:
    """Of one thread: issue slots, loads from main memory, syncs, and times that it waits for main memory."""

    slots: float = 0.0
    far: float = 0.0
    syncs: int = 0
    rounds: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(
            self.slots + other.slots, self.far + other.far, self.syncs + other.syncs, self.rounds + other.rounds
        )

    def times(self, n: int) -> Work:
        return Work(self.slots * n, self.far * n, self.syncs * n, self.rounds * n)

    def waited(self) -> Work:
        """The same with its loads from main memory awaited: those between two syncs are under way together."""
        return Work(self.slots, 0.0, self.syncs, self.rounds + ceil(self.far / PENDING))


def thread_us(program: TileProgram, spec: VDeviceSpec, gbps: float) -> float:
    """Microseconds of one rTask on one vEU that gets `gbps` from main memory; guards are taken as true."""
    model = _Model(program)
    work = model.body(program.body, ())
    rate = max(spec.peak_gflops, 1e-9) / 2 * 1e3  # slots per microsecond, of all threads
    idle = sqrt(max(spec.max_threads / max(program.num_threads, 1), 1.0))  # few threads hide little
    sizes = {b.name: b.nbytes for b in program.arguments}
    moved = 0.0
    for name, elements in model.touched.items():
        moved += min(elements * program.num_threads * model.itemsize[name], sizes[name])
    return (
        work.slots * program.num_threads * idle / rate
        + (moved / (gbps * 1e3) if gbps else 0.0)
        + work.syncs * spec.sync_us
        + (work.rounds + ceil(work.far / PENDING)) * spec.load_us
    )


class _Model:
    def __init__(self, program: TileProgram) -> None:
        self.on_matrix_units = contains(program.body, Apply)
        self.digits: list[For] = []  # of the thread's number, around a statement
        self.scope = {b.name: b.scope for b in (*program.arguments, *program.scratch)}
        self.itemsize = {b.name: b.dtype.itemsize for b in program.arguments}
        self.neighbour = ""  # the variable that differs between neighbouring threads
        self.touched: dict[str, float] = {}  # elements of arguments that one thread reads or writes

    def body(self, body: Body, loops: tuple[For, ...]) -> Work:
        """Work of some statements inside `loops`, one pass of the serial ones."""
        total, phase = Work(), Work()
        for stmt in body:
            match stmt:
                case Sync():
                    done = Work(syncs=1)
                case Apply(instruction) if instruction.threads > 1:
                    every = 1.0
                    for lp in loops:
                        every *= lp.stop - lp.start if lp.kind is Kind.UNROLLED else 1
                    done = Work(slots=prod(stmt.extents) / instruction.threads / instruction.gain * every)
                case Store():
                    done = self.store(stmt, loops)
                case If() | Alloc():
                    done = self.body(children(stmt), loops)
                case For(kind=Kind.THREAD | Kind.TASK):
                    outside = self.neighbour
                    if stmt.kind is Kind.THREAD and stmt.stride == 1:
                        self.neighbour = stmt.var
                    self.digits.append(stmt)
                    done = self.body(stmt.body, loops)
                    self.digits.pop()
                    self.neighbour = outside
                case For(kind=Kind.SERIAL):
                    done = self.body(stmt.body, (*loops, stmt)).times(stmt.stop - stmt.start)
                case For():
                    done = self.body(stmt.body, (*loops, stmt))
                case Apply(instruction):
                    raise ValueError(f"{instruction.name} is no instruction of many threads")
                case Prefetch():
                    done = Work()
                case _:
                    assert_never(stmt)
            if done.syncs:
                total += phase.waited()
                total, phase = total + done, Work()
            else:
                phase += done
        return total + phase.waited() if total.syncs else phase

    def store(self, stmt: Store, loops: tuple[For, ...]) -> Work:
        """One statement in all iterations of the unrolled loops around it, one of the serial ones."""
        block = [lp for lp in loops if lp.kind in (Kind.UNROLLED, Kind.VECTOR)]
        serial = 1.0
        for lp in loops:
            serial *= 1 if lp in block else lp.stop - lp.start
        every = 1.0
        for lp in block:
            every *= lp.stop - lp.start
        work = Work(slots=slots_of(stmt.value) * every)
        for load, _ in loads(stmt.value):
            work += self.access(load.tensor, load.index, block, serial)
        return work + self.access(stmt.buffer, (stmt.index,), block, serial, waits=False)

    def access(self, buffer: str, index: Iterable[Index], block: list[For], serial: float, waits: bool = True) -> Work:
        scope = self.scope.get(buffer, Scope.REGISTER)
        if scope is Scope.REGISTER:
            return Work()
        flat = next(iter(index))
        used = variables(flat)
        apart = self.apart(flat)
        count, joined = 1.0, 1
        for lp in block:
            if lp.var in used:
                count *= lp.stop - lp.start
                if flat.coef(lp.var) == 1:
                    joined = min(lp.stop - lp.start, VECTOR)
        transfers = 1  # that a wave needs
        if apart > joined:
            transfers = gcd(apart, BANKS) if scope is not Scope.ARGUMENT else min(apart, BANKS // 2)
        if self.on_matrix_units and scope is not Scope.ARGUMENT:
            transfers = self.conflicts(flat)
        divisions = sum(not isinstance(atom, str) for atom, _ in flat.terms)
        slots = count * (SCRATCH_SLOTS * transfers / joined + DIVISION_SLOTS * divisions / (2 if block else 1))
        if scope is not Scope.ARGUMENT:
            return Work(slots=slots)
        self.touched[buffer] = self.touched.get(buffer, 0.0) + count * serial
        return Work(slots=slots, far=count / joined if waits else 0.0)

    def conflicts(self, index: Index) -> int:
        """Most elements of one bank that a wave's threads access together."""
        names = dict.fromkeys(variables(index), 0)
        places = set()
        for thread in range(BANKS):
            own = {lp.var: thread // lp.stride % lp.stop for lp in self.digits if lp.var in names}
            places.add(int(evaluate(index, {**names, **own})))
        banks = [place % BANKS for place in places]
        return max(map(banks.count, banks))

    def apart(self, index: Index) -> int:
        """How many elements lie between what neighbouring threads access."""
        names = variables(index)
        if self.neighbour not in names:
            return 0
        zero = dict.fromkeys(names, 0)
        return abs(int(evaluate(index, {**zero, self.neighbour: 1}) - evaluate(index, zero)))
