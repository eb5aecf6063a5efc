"""Define the tile program: the loop IR in which an rKernel's body is written.

It uses the scalar nodes of `ir.expr`; every load has one flat index into a buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from math import prod
from typing import TypeAlias, assert_never

from rammer.ir.expr import REDUCERS, Call, Dynamic, Load, Range, Scalar, indices_of, substitute_axes
from rammer.ir.index import Index, substitute, var, variables
from rammer.ir.instruction import Instruction
from rammer.ir.tensor import DType, Encoding, aligned_bytes

FOLDS = frozenset(fn for fn, _ in REDUCERS.values())


class Kind(Enum):
    """Kinds of loops: how a backend runs their iterations."""

    SERIAL = "serial"
    UNROLLED = "unrolled"
    VECTOR = "vector"  # lanes of one vector register; at most one, innermost
    THREAD = "thread"  # parallel inside an rTask; all threads run every other loop in step
    TASK = "task"  # a digit of rtask_id


class Scope(Enum):
    """Memories in which a buffer may live."""

    ARGUMENT = "argument"  # a whole tensor, in the device's main memory
    LOCAL = "local"  # scratch of the rTask: core cache, shared memory, tile SRAM
    REGISTER = "register"  # private to a thread; size and indices known after unrolling


@dataclass(frozen=True, slots=True)
class Buffer:
    """A piece of memory; `size` in elements. The layout of an argument says how its elements are encoded."""

    name: str
    size: int
    scope: Scope
    dtype: DType = DType.F32
    encoding: Encoding | None = None

    @property
    def nbytes(self) -> int:
        return self.size * (self.encoding.nbytes if self.encoding else self.dtype.itemsize)


@dataclass(frozen=True, slots=True)
class Store:
    """A store buffer[index] = value; `dynamic` adds data-dependent parts to the index, as in a Load.

    `combine`: a function of two numbers, of what is there and the value; their result is stored instead.
    `later`: an asynchronous copy, which need not be complete before a Sync that awaits it. Until then, nothing else may
    access the place.
    """

    buffer: str
    index: Index
    value: Scalar
    dynamic: tuple[Dynamic, ...] = ()
    later: bool = False
    combine: str = ""

    def at(self, values: Mapping[str, Index]) -> Store:
        """Return the store with other values of variables."""
        return replace(self, index=substitute(self.index, values), value=substitute_axes(self.value, values))


@dataclass(frozen=True, slots=True)
class Alloc:
    """A register buffer that lives for `body`."""

    buffer: Buffer
    body: Body


@dataclass(frozen=True, slots=True)
class Sync:
    """A block sync: all threads of the rTask meet, and memory written before is visible after.

    With `pending`, a thread's asynchronous copies end a group here, and all but its last `pending` groups are complete.
    """

    pending: int | None = None


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor of an instruction: its buffer, and the position of its first element there, or its first register.

    `steps`: strides of physical dimensions, if they are not those of the instruction's layout. `where`: conditions in
    the instruction's axes; elements for which they do not hold are not read.
    """

    buffer: str
    at: Index
    steps: tuple[int, ...] = ()
    where: tuple[Range, ...] = ()


@dataclass(frozen=True, slots=True)
class Apply:
    """Execution of an instruction on its output and its inputs, over `extents` of its axes.

    If it takes many threads, all those of a subgroup meet here. `meanwhile`: a loop over its steps along the last axis,
    in each of which something is prefetched.
    """

    instruction: Instruction
    operands: tuple[Operand, ...]
    extents: tuple[int, ...]
    meanwhile: For | None = None

    @property
    def sizes(self) -> dict[str, int]:
        """Extents by axis."""
        return {axis: n for (axis, _), n in zip(self.instruction.axes, self.extents, strict=True)}


NEXT = "rammer_next"  # what the vEU reads after this rTask, in cache lines that are counted back from the last one, -1


@dataclass(frozen=True, slots=True)
class Prefetch:
    """A prefetch of `size` elements of a buffer, from `index` on, into the vEU's cache of a `level`; 1 is the first.

    A hint: it has no effect on results, may pass the ends of the buffer, and a device may leave it out. For a buffer in
    an `encoding` it counts the numbers that elements consist of, and for NEXT lines. `once`: data are read once in a
    run, so caches may evict them first.
    """

    buffer: str
    index: Index
    size: int = 1
    level: int = 1
    encoding: Encoding | None = None
    once: bool = False


@dataclass(frozen=True, slots=True)
class If:
    where: tuple[Range, ...]
    then: Body


@dataclass(frozen=True, slots=True)
class For:
    var: str
    start: int
    stop: int
    kind: Kind
    body: Body
    stride: int = 1  # THREAD, TASK: var = id // stride % stop


Stmt: TypeAlias = "Store | Alloc | Sync | Apply | Prefetch | If | For"
Body: TypeAlias = "tuple[Stmt, ...]"


def children(stmt: Stmt) -> Body:
    """Return the statements directly inside one."""
    match stmt:
        case For() | Alloc():
            return stmt.body
        case If():
            return stmt.then
        case Apply():
            return (stmt.meanwhile,) if stmt.meanwhile else ()
        case Store() | Sync() | Prefetch():
            return ()
        case _:
            assert_never(stmt)


def statements(body: Body) -> Iterator[Stmt]:
    """Yield every statement of a body, each before those inside it."""
    left = [*reversed(body)]  # called very often: nested generators take longer
    while left:
        stmt = left.pop()
        yield stmt
        if inside := children(stmt):
            left += reversed(inside)


def contains(body: Body, kind: type[Stmt]) -> bool:
    """Return whether a body has a statement of a kind, at any depth."""
    return any(isinstance(s, kind) for s in statements(body))


def folded(loop: For, lanes: int) -> tuple[str, Index, str] | None:
    """Return buffer, index and function of a loop that combines `lanes` neighbours in a buffer into the first one."""
    match loop:
        case For(v, 1, stop, Kind.UNROLLED, (Store(buffer, index, Call(fn, (Load(b1, (i1,)), Load(b2, (i2,))))),)):
            same = buffer == b1 == b2 and index == i1 and i2 == index + var(v)
            if stop == lanes and same and fn in FOLDS and index.const % lanes == 0:
                return buffer, index, fn
    return None


def indices(stmt: Stmt) -> Iterator[Index]:
    """Yield every index of a statement itself: of its accesses, its conditions, and numbers that it computes."""
    match stmt:
        case Store():
            yield stmt.index
            for value in (stmt.value, *(d.value for d in stmt.dynamic)):
                yield from indices_of(value)
        case Apply():
            for operand in stmt.operands:
                yield operand.at
                yield from (r.index for r in operand.where)
        case If():
            yield from (r.index for r in stmt.where)
        case Prefetch():
            yield stmt.index
        case For() | Alloc() | Sync():
            pass
        case _:
            assert_never(stmt)


def uses(body: Body, name: str) -> bool:
    """Return whether a body depends on a variable."""
    return any(name in variables(index) for stmt in statements(body) for index in indices(stmt))


def meets(stmt: Stmt) -> bool:
    """Return whether threads execute a statement together, so that all must reach it."""
    return isinstance(stmt, Sync) or (isinstance(stmt, Apply) and stmt.instruction.threads > 1)


def block_syncs(body: Body) -> int:
    """Count the block syncs that each thread meets: S in §4.2.1 of the paper."""
    return tally(body, lambda s: int(isinstance(s, Sync)), once=frozenset({Kind.THREAD, Kind.TASK}))


def tally(body: Body, own: Callable[[Stmt], int], once: frozenset[Kind]) -> int:
    """Return the sum of what each statement counts, times the iterations of loops around it but for kinds in `once`."""
    total = 0
    for s in body:
        times = s.stop - s.start if isinstance(s, For) and s.kind not in once else 1
        total += own(s) + times * tally(children(s), own, once)
    return total


def rewrite_body(body: Body, change: Callable[[Stmt], Stmt]) -> Body:
    """Change every statement of a body, those inside of one first."""
    return tuple(change(with_children(s, rewrite_body(children(s), change))) for s in body)


def rewrite_within(body: Body, change: Callable[[Stmt, Body], Stmt], around: Body = ()) -> Body:
    """Change every statement as `rewrite_body`; `change` also gets the statements around each one, outermost first."""
    inner = (with_children(s, rewrite_within(children(s), change, (*around, s))) for s in body)
    return tuple(change(s, around) for s in inner)


def with_children(stmt: Stmt, body: Body) -> Stmt:
    """Return a statement with other statements directly inside it."""
    match stmt:
        case For() | Alloc():
            return replace(stmt, body=body)
        case If():
            return replace(stmt, then=body)
        case Apply():
            loops = [s for s in body if isinstance(s, For)]
            return replace(stmt, meanwhile=loops[0] if loops else None)
        case Store() | Sync() | Prefetch():
            return stmt
        case _:
            assert_never(stmt)


@dataclass(frozen=True, slots=True)
class TaskDigit:
    """A digit of rtask_id: digit = rtask_id // stride % extent; the rTask's box on `axis` starts at digit * step."""

    axis: str
    step: int
    extent: int
    stride: int


@dataclass(frozen=True, slots=True)
class TileProgram:
    """The body of an rKernel for one rTask: plain data that any C-family printer turns into text."""

    name: str
    arguments: tuple[Buffer, ...]  # outputs first, then inputs, in the expression's order
    num_outputs: int
    body: Body
    digits: tuple[TaskDigit, ...]
    num_threads: int
    scratch: tuple[Buffer, ...]
    num_block_syncs: int = 0

    @property
    def num_rtasks(self) -> int:
        return prod(d.extent for d in self.digits)

    @property
    def scratch_bytes(self) -> int:
        """Bytes of local memory, each buffer aligned."""
        return sum(aligned_bytes(b.nbytes) for b in self.scratch)
