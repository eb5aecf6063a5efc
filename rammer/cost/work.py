"""Count the work of an rTask from its tile program: instructions issued, and bytes touched per loop.

Register blocks count as the compiler makes them. What unrolled neighbours share is loaded and computed once, and once
per vector. Guards count as true, except those that the first rTask never meets. So a draft counts about as its finished
program does. On SIMT devices the count is that of one subgroup: arithmetic, transfers of scratch, stores to memory, and
waits for loads from memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import product
from math import ceil, gcd, prod
from typing import TypeAlias, assert_never

import numpy as np

from rammer.cost.functions import parts_of, slots_of, slots_of_fold
from rammer.ir.device import Execution, VDeviceSpec
from rammer.ir.expr import ConstantTable, Iota, Load, Range, Scalar, Select, loads, nodes
from rammer.ir.index import Bounds, Index, bounds, evaluate, variables
from rammer.ir.instruction import Instruction
from rammer.ir.tile import Alloc, Apply, Body, For, If, Kind, Prefetch, Scope, Store, Sync, TileProgram, folded

Footprint: TypeAlias = Mapping[str, float]  # bytes by buffer

# Fitted to measured rTasks: python -m benchmarks.on_paper.work (docs/measurements.md).
GATHERED = 0.5  # loads or stores for each lane of a strided vector: a part of them are shuffled together
PERMUTED = 2.0  # loads for a vector whose elements all lie in one vector of memory
DIVISION = 4.0  # instructions of an address's division: multiply high, shift, multiply and subtract
PARTS = 3.0  # instructions that split one float32 for a unit that multiplies parts
ROUNDED = {2: 0.5, 4: 2.0}  # instructions that round one float32, by the bytes of the result
BANK_BYTES = 4
WRITTEN = 2.0  # transfers of scratch that take as long as storing a line to memory
SECTORS, SECTOR = 4, 3.0  # of a line; a store of at most one of them counts as so many whole lines
STAGED = 3.0  # transfers of scratch for each that an operand's bytes need which are encoded while they are copied
SINGLY = 2.0  # loads in flight together where each has a condition of its own, or stands between stores


@dataclass(frozen=True, slots=True)
class Issued:
    """Vector instructions by kind. `made`: elements that multiplying instructions make, over their `gain`."""

    arithmetic: float = 0.0
    loads: float = 0.0
    stores: float = 0.0
    made: float = 0.0

    def __add__(self, b: Issued) -> Issued:
        return Issued(self.arithmetic + b.arithmetic, self.loads + b.loads, self.stores + b.stores, self.made + b.made)


@dataclass(frozen=True, slots=True)
class Work:
    """The work of a loop or of a whole rTask: `issued` in each of `trips` passes, and in inner `loops`.

    `sums`: whether a pass waits for the one before. `per_trip`: bytes that one pass touches of each buffer. `total`:
    those of all passes together, at most trips x `per_trip`. `stored`: buffers written. On SIMT devices all passes
    together have `syncs`, and wait `load_rounds` times for arguments; a thread has loads of `pending_words` left, for
    which a later sync waits.
    """

    trips: int
    issued: Issued
    loops: tuple[Work, ...]
    sums: bool
    per_trip: Footprint
    total: Footprint
    syncs: int = 0
    load_rounds: float = 0.0
    pending_words: float = 0.0
    stored: frozenset[str] = frozenset()


def work(program: TileProgram, spec: VDeviceSpec) -> Work:
    """Count the first rTask of a tile program: of its thread, or on SIMT devices of one of its subgroups."""
    return (_SubgroupCounter if spec.execution is Execution.SIMT else _Counter)(program, spec).rtask()


def gather_slots(lanes: int) -> float:
    """Return the loads, or stores, of a vector whose elements are strided."""
    return max(GATHERED * lanes, 1.0)


def line_words(spec: VDeviceSpec) -> int:
    """Return how many words a cache delivers at once to the threads of a subgroup, if the words are adjacent."""
    return max(spec.issue.banks, spec.line_bytes // BANK_BYTES)


@dataclass(frozen=True, slots=True)
class _Access:
    """An access of `elements` adjacent elements from a place on, while the variables of `spans` move that place."""

    buffer: str
    index: Index
    spans: Bounds
    elements: int
    size: float  # elements in all of these places

    @staticmethod
    def of(buffer: str, index: Index, spans: Bounds, elements: int = 1) -> _Access:
        used = variables(index)
        own = {name: span for name, span in spans.items() if name in used}
        return _Access(buffer, index, own, elements, elements * _distinct(index, own))

    def moved(self, var: str, trips: int) -> _Access:
        """Return the access while another variable moves, too."""
        if var not in variables(self.index):
            return self
        return _Access.of(self.buffer, self.index, {**self.spans, var: (0, trips - 1)}, self.elements)


@dataclass
class _Pass:
    """The work of one pass of a loop's body, without the loops inside."""

    issued: Issued = Issued()
    loops: list[Work] = field(default_factory=list)
    accesses: list[_Access] = field(default_factory=list)
    stored: set[str] = field(default_factory=set)
    sums: bool = False
    syncs: int = 0
    load_rounds: float = 0.0
    pending_words: float = 0.0


class _Counter:
    """A counter of the work of one thread and its vectors."""

    def __init__(self, program: TileProgram, spec: VDeviceSpec) -> None:
        self.program, self.spec = program, spec
        self.buffers = {b.name: b for b in (*program.arguments, *program.scratch)}
        self._in_memory = {b.name for b in self.buffers.values() if b.scope is not Scope.REGISTER}
        self._spans: dict[str, tuple[int, int]] = {}  # of variables around a statement, in the first rTask
        self._walking = ""  # the variable of the innermost serial loop
        self._conditions: list[Range] = []  # around a statement
        self._blocks: dict[str, int] = {}  # loops of a register block around a buffer's allocation
        self.digits: list[For] = []  # thread loops around a statement: digits of the thread's number

    def rtask(self) -> Work:
        return self.loop(self.program.body, (), 1)[0]

    def awaited(self, found: _Pass) -> None:
        """Account for a sync that waits for pending loads. Without effect on a single thread."""

    def loop(self, body: Body, block: tuple[For, ...], trips: int, var: str = "") -> tuple[Work, list[_Access]]:
        """Return a loop's work, and its accesses in all passes."""
        found, outside = _Pass(), self._walking
        self._walking = var
        self.body(body, block, found)
        self._walking = outside
        moved = [access.moved(var, trips) for access in found.accesses]
        once, whole = self.footprint(found.accesses), self.footprint(moved)
        if found.syncs:
            self.awaited(found)
        waits = trips * found.syncs, trips * found.load_rounds, trips * found.pending_words
        stored = frozenset(found.stored)
        return Work(trips, found.issued, tuple(found.loops), found.sums, once, whole, *waits, stored), moved

    def body(self, body: Body, block: tuple[For, ...], found: _Pass) -> None:
        """Add a body's statements. `block` are the unrolled and vector loops around it."""
        for stmt in body:
            match stmt:
                case Store():
                    self.store(stmt, block, found)
                case If():
                    if all(self._meets(where) for where in stmt.where):
                        self._conditions += stmt.where
                        self.body(stmt.then, block, found)
                        del self._conditions[-len(stmt.where) :]
                case Alloc():
                    self._blocks[stmt.buffer.name] = len(block)
                    self.body(stmt.body, block, found)
                case For(kind=Kind.SERIAL):
                    self._spans[stmt.var] = stmt.start, stmt.stop - 1
                    inner, accesses = self.loop(stmt.body, block, stmt.stop - stmt.start, stmt.var)
                    if inner.syncs:
                        self.awaited(found)
                    found.loops.append(inner)
                    found.accesses += accesses
                    found.stored |= inner.stored
                    found.syncs, found.load_rounds = found.syncs + inner.syncs, found.load_rounds + inner.load_rounds
                    found.pending_words += inner.pending_words
                case For(kind=Kind.TASK):
                    self._spans[stmt.var] = 0, 0
                    self.body(stmt.body, block, found)
                case For(kind=Kind.THREAD):
                    self._spans[stmt.var] = stmt.start, stmt.stop - 1
                    self.digits.append(stmt)
                    self.body(stmt.body, block, found)
                    self.digits.pop()
                case For() if fold := self.fold(stmt):
                    found.issued += Issued(_times(block) * slots_of_fold(fold, self.spec.lanes))
                    found.sums = True
                case For():
                    self._spans[stmt.var] = stmt.start, stmt.stop - 1
                    self.body(stmt.body, (*block, stmt), found)
                case Apply():
                    self.apply(stmt, block, found)
                case Prefetch():
                    found.issued += Issued(loads=_times(block))
                case Sync(pending):
                    self.awaited(found)
                    found.syncs += 1
                    found.load_rounds += pending == 0  # later ones find their data there
                case _:
                    assert_never(stmt)

    def fold(self, loop: For) -> str:
        """Return the function by which a loop combines the lanes of a vector in registers; "" if it does not."""
        found = folded(loop, self.spec.lanes) if self.spec.execution is Execution.SIMD else None
        return found[2] if found and found[0] not in self._in_memory else ""

    def _meets(self, where: Range) -> bool:
        low, high = bounds(where.index, self._spans)
        return low < where.high and high >= where.low

    def store(self, stmt: Store, block: tuple[For, ...], found: _Pass) -> None:
        vector, pending = self.vector(block), found.pending_words
        issued = Issued(self.arithmetic(stmt, block))
        for load in dict.fromkeys(load for load, _ in loads(stmt.value)):
            if load.tensor in self._in_memory:
                issued += self.load(load, stmt, block, found)
                self.note(load.tensor, load.index[0], block, found)
        if stmt.buffer in self._in_memory:
            issued += self.stored(stmt, block, vector)
            found.stored.add(stmt.buffer)
            self.note(stmt.buffer, stmt.index, block, found)
        found.pending_words = pending if stmt.later else found.pending_words
        found.issued += issued
        found.sums |= any(ld.tensor == stmt.buffer and ld.index[0] == stmt.index for ld, _ in loads(stmt.value))

    def vector(self, block: tuple[For, ...]) -> For | None:
        """Return the vector loop of a register block; None if there is none."""
        return next((lp for lp in block if lp.kind is Kind.VECTOR), None)

    def arithmetic(self, stmt: Store, block: tuple[For, ...]) -> float:
        """Return the slots of a store in a register block. Equal parts are computed once."""
        parts = dict(parts_of(stmt.value))
        return sum(slots * _evaluations(part, stmt, block, self.vector(block)) for part, slots in parts.items())

    def load(self, load: Load, stmt: Store, block: tuple[For, ...], found: _Pass) -> Issued:
        """Return the instructions of a store's load in a register block."""
        return Issued(loads=self.issue(load.index[0], block, self.vector(block), bool(load.dynamic)))

    def stored(self, stmt: Store, block: tuple[For, ...], vector: For | None) -> Issued:
        """Return the instructions of a store in a register block, without those of its value."""
        return Issued(stores=self.issue(stmt.index, block, vector, False))

    def apply(self, stmt: Apply, block: tuple[For, ...], found: _Pass) -> None:
        unit = stmt.instruction
        sizes = zip(stmt.extents, (extent for _, extent in unit.axes), strict=True)
        made = prod(-(-n // whole) * whole if unit.multiplies else n for n, whole in sizes)  # blocks are computed whole
        found.issued += Issued(made=made / unit.gain * _times(block) * self.share(unit))
        for operand, (_, kind) in zip(stmt.operands, stmt.instruction.types(stmt.sizes), strict=True):
            if operand.buffer in self._in_memory:
                self.note(operand.buffer, operand.at, block, found, kind.size)
        if (made_in := stmt.operands[0].buffer) in self._in_memory:
            found.stored.add(made_in)

    def share(self, unit: Instruction) -> float:
        """Return the part of an instruction's results that this counter counts."""
        return 1.0

    def issue(self, index: Index, block: tuple[For, ...], vector: For | None, dynamic: bool) -> float:
        """Return the instructions of an access in a register block."""
        used = variables(index)
        count = _places({index}, _others(block, vector))
        if vector is None or not (dynamic or vector.var in used):
            return count
        lanes = vector.stop - vector.start
        if dynamic:
            return count * gather_slots(lanes)
        if index.coef(vector.var) == 1:
            return count
        low, high = bounds(index, {**dict.fromkeys(used, (0, 0)), vector.var: (0, lanes - 1)})
        return count * (PERMUTED if high - low < lanes else gather_slots(lanes))

    def note(self, buffer: str, index: Index, block: tuple[For, ...], found: _Pass, elements: int = 1) -> None:
        spans = {lp.var: (lp.start, lp.stop - 1) for lp in (*block, *self.digits)}
        found.accesses.append(_Access.of(buffer, index, spans, elements))

    def footprint(self, accesses: Iterable[_Access]) -> Footprint:
        """Return the bytes touched of each buffer. Accesses at different places add up."""
        places: dict[str, dict[tuple[object, ...], float]] = {}
        for access in accesses:
            known = places.setdefault(access.buffer, {})
            key = access.index.terms
            known[key] = max(known.get(key, 0.0), access.size)
        found = {}
        for name, sizes in places.items():
            buffer = self.buffers[name]
            found[name] = min(sum(sizes.values()), buffer.size) * buffer.nbytes / max(buffer.size, 1)
        return found


class _SubgroupCounter(_Counter):
    """A counter of the work of a subgroup of threads.

    One thread loads adjacent elements at once, and all lanes of a vector together.
    """

    def vector(self, block: tuple[For, ...]) -> For | None:
        return None

    def arithmetic(self, stmt: Store, block: tuple[For, ...]) -> float:
        return slots_of(stmt.value) * _times(block)

    def load(self, load: Load, stmt: Store, block: tuple[For, ...], found: _Pass) -> Issued:
        count, joined, divisions = self.moved(load.index[0], block)
        if self.buffers[load.tensor].scope is not Scope.ARGUMENT:
            return Issued(divisions, count * self.transfers(load.tensor, load.index[0], joined))
        if self._singly(stmt, block):
            found.load_rounds += count / SINGLY
        else:
            found.pending_words += count * joined * self.buffers[load.tensor].dtype.itemsize / BANK_BYTES
        return Issued(divisions)

    def _singly(self, stmt: Store, block: tuple[For, ...]) -> bool:
        """Check whether compilers leave a store's loads from memory where they are, so that not many are in flight.

        They do between stores to memory, which may alias, and where each copy to scratch has a condition of its own.
        """
        if stmt.later or stmt.buffer not in self._in_memory:
            return False
        if self.buffers[stmt.buffer].scope is Scope.ARGUMENT:
            return True
        conditions = [*self._conditions, *(r for n in nodes(stmt.value) if isinstance(n, Select) for r in n.where)]
        inside = {self._walking, *(lp.var for lp in block)}
        return any(variables(r.index) & inside for r in conditions)

    def stored(self, stmt: Store, block: tuple[For, ...], vector: For | None) -> Issued:
        count, joined, divisions = self.moved(stmt.index, block)
        if self.buffers[stmt.buffer].scope is Scope.ARGUMENT:
            return Issued(divisions, stores=WRITTEN * count * self.lines(stmt.buffer, stmt.index, joined))
        transfers = self.transfers(stmt.buffer, stmt.index, joined)
        if encoding := self.buffers[stmt.buffer].encoding:  # of scratch: whole vectors
            made = count * self.spec.lanes * (PARTS if encoding.parts > 1 else ROUNDED[encoding.nbytes])
            return Issued(divisions + made, stores=STAGED * count * transfers * encoding.nbytes / BANK_BYTES)
        return Issued(arithmetic=divisions, stores=count * transfers)

    def apply(self, stmt: Apply, block: tuple[For, ...], found: _Pass) -> None:
        if stmt.instruction.threads == 1:
            raise ValueError(f"{stmt.instruction.name} is no instruction of many threads")
        super().apply(stmt, block, found)
        for operand, (name, _) in zip(stmt.operands[1:], stmt.instruction.meaning.inputs, strict=True):
            if stmt.instruction.split_dtype:  # once for all products that share the registers
                outside = self._blocks.get(operand.buffer, 0)
                held = stmt.instruction.registers(name) * _places({operand.at}, block[outside:])
                found.issued += Issued(arithmetic=PARTS * held * _times(block[:outside]))

    def share(self, unit: Instruction) -> float:
        return self.spec.subgroup_size / unit.threads

    def awaited(self, found: _Pass) -> None:
        found.load_rounds += ceil(found.pending_words / self.spec.issue.pending)
        found.pending_words = 0.0

    def moved(self, index: Index, block: tuple[For, ...]) -> tuple[float, int, float]:
        """Return an access's instructions in a register block, the elements of each, and the instructions for
        addresses.
        """
        used = variables(index)
        spans = {lp.var: lp.stop - lp.start for lp in block if lp.var in used}
        joined = min((min(n, self.spec.lanes) for v, n in spans.items() if index.coef(v) == 1), default=1)
        return prod(spans.values()) / joined, joined, DIVISION * self.divisions(index, block)

    def divisions(self, index: Index, block: tuple[For, ...]) -> float:
        """Return the divisions in all addresses of a register block. Those that no loop changes are hoisted."""
        found = 0
        for atom in (atom for atom, _ in index.terms if not isinstance(atom, str)):
            used = variables(atom.arg)
            own = [lp.stop - lp.start for lp in block if lp.var in used]
            found += prod(own) if own or self._walking in ("", *used) else 0
        return float(found)

    def lines(self, buffer: str, index: Index, joined: int) -> float:
        """Return the lines of memory in which the threads of a subgroup have their `joined` adjacent elements.

        A line of which they have at most a sector counts as `SECTOR` lines; tensor cores' results lie so.
        """
        size = line_words(self.spec)
        words = Counter(word // size for word in self._words(buffer, index, joined))
        return sum(SECTOR if n * SECTORS <= size else 1.0 for n in words.values())

    def transfers(self, buffer: str, index: Index, joined: int) -> int:
        """Return the transfers of scratch, each a word of every bank, until every thread of a subgroup has its `joined`
        adjacent elements.
        """
        return max(Counter(word % self.spec.issue.banks for word in self._words(buffer, index, joined)).values())

    def _words(self, buffer: str, index: Index, joined: int) -> set[int]:
        size = self.buffers[buffer].dtype.itemsize
        names = dict.fromkeys(variables(index), 0)
        digits = [lp for lp in self.digits if lp.var in names]
        threads = np.arange(self.spec.subgroup_size)
        own = {lp.var: threads // lp.stride % (lp.stop - lp.start) for lp in digits}
        starts = set((evaluate(index, {**names, **own}) + 0 * threads).tolist())
        return {(start + n) * size // BANK_BYTES for start, n in product(starts, range(joined))}


def _others(block: tuple[For, ...], vector: For | None) -> tuple[For, ...]:
    return tuple(lp for lp in block if lp is not vector)


def _times(loops: tuple[For, ...]) -> float:
    return float(prod(lp.stop - lp.start for lp in loops))


def _evaluations(part: Scalar, stmt: Store, block: tuple[For, ...], vector: For | None) -> float:
    """Return how often a part of a stored value is computed in a register block, per slot. Equal operands count once.

    Conditions of a Select that all lanes share are free. Products that a table makes zero are not issued.
    """
    inside, loops = list(nodes(part)), _others(block, vector)
    if any(isinstance(n, Load) and (n.dynamic or n.tensor == stmt.buffer) for n in inside):
        times = _times(loops)
    else:
        indices = {
            n.index[0] if isinstance(n, Load) else n.index for n in inside if isinstance(n, Load | ConstantTable | Iota)
        }
        times = _places(indices | {r.index for n in inside if isinstance(n, Select) for r in n.where}, loops)
    for table in (n for n in inside if isinstance(n, ConstantTable)):
        times *= sum(v != 0 for v in table.values) / len(table.values)
    if isinstance(part, Select):
        lanes = sum(vector is not None and vector.var in variables(r.index) for r in part.where)
        times *= lanes / max(len(part.where), 1)
    return times


def _places(indices: Iterable[Index], loops: tuple[For, ...]) -> float:
    """Return how many different values some indices take together while loops run.

    Indices that move separately take all.
    """
    used = {lp.var: lp.stop - lp.start for lp in loops if any(lp.var in variables(ix) for ix in indices)}
    moving = [Index(0, tuple(t for t in ix.terms if variables(Index(0, (t,))) & used.keys())) for ix in indices]
    ways = {tuple(c // gcd(*dict(ix.terms).values()) for c in map(ix.coef, used)) for ix in moving if ix.terms}
    if len(used) < 2 or len(ways) > 1 or any(not isinstance(a, str) for ix in moving for a, _ in ix.terms):
        return float(prod(used.values()))
    values = {0}
    for step, times in zip(*ways, used.values(), strict=True):
        values = {v + step * n for v in values for n in range(times)}
    return float(len(values))


def _distinct(index: Index, moving: Bounds) -> float:
    """Return how many elements an index reaches while some variables move: at most their combinations."""
    if not moving:
        return 1.0
    combinations = prod(high - low + 1 for low, high in moving.values())
    fixed = dict.fromkeys(variables(index) - moving.keys(), (0, 0))
    low, high = bounds(index, {**fixed, **moving})
    return float(min(combinations, high - low + 1))
