"""The tile program: the loop IR in which an rKernel's body is written.

It uses the scalar nodes of `ir.expr`; in it every load has one flat index into a buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from math import prod
from typing import TypeAlias, assert_never

from rammer.ir.expr import REDUCERS, Call, Dynamic, Iota, Load, Range, Scalar, Select, Table, nodes, substitute_axes
from rammer.ir.index import Index, substitute, var, variables
from rammer.ir.instruction import Instruction
from rammer.ir.tensor import DType, Encoding, aligned_bytes

FOLDS = frozenset(fn for fn, _ in REDUCERS.values())


class Kind(Enum):
    """What a loop becomes."""

    SERIAL = "serial"
    UNROLLED = "unrolled"
    VECTOR = "vector"  # lanes of one vector register; at most one, innermost
    THREAD = "thread"  # parallel inside an rTask; all threads run every other loop in step
    TASK = "task"  # a digit of rtask_id


class Scope(Enum):
    """Which memory a buffer lives in."""

    ARGUMENT = "argument"  # a whole tensor, in the device's main memory
    LOCAL = "local"  # scratch of the rTask: core cache, shared memory, tile SRAM
    REGISTER = "register"  # private to a thread; size and indices known after unrolling


@dataclass(frozen=True, slots=True)
class Buffer:
    """A piece of memory; `size` in elements. How those of an argument are encoded is said by its layout."""

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
    """buffer[index] = value; `dynamic` adds to the index what data say, as it does to a Load's.

    `later`: a copy that need not be there before a Sync that awaits it; nobody touches the place meanwhile.
    """

    buffer: str
    index: Index
    value: Scalar
    dynamic: tuple[Dynamic, ...] = ()
    later: bool = False

    def at(self, values: Mapping[str, Index]) -> Store:
        """The same of other values of variables."""
        return replace(self, index=substitute(self.index, values), value=substitute_axes(self.value, values))


@dataclass(frozen=True, slots=True)
class Alloc:
    """A register buffer that lives for `body`."""

    buffer: Buffer
    body: Body


@dataclass(frozen=True, slots=True)
class Sync:
    """All threads of the rTask meet; memory written before is visible after.

    With `pending`, copies that a thread makes later end a group here, and all but its last `pending` groups are there.
    With `waits`, the rTask waits here for what other vEUs compute, and not before its first statement; it is no sync of
    its own.
    """

    pending: int | None = None
    waits: bool = False


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor of an instruction: its buffer, and where in it the first element lies, or the first register.

    `steps`: how far apart elements of each physical dimension are, if not as close as the instruction's layout has
    them. `where`: conditions in the instruction's axes; elements for which they do not hold are not read.
    """

    buffer: str
    at: Index
    steps: tuple[int, ...] = ()
    where: tuple[Range, ...] = ()


@dataclass(frozen=True, slots=True)
class Apply:
    """Execute an instruction on its output and its inputs, for as far along each of its axes as `extents` says.

    If it takes many threads, all those of a wave meet here. `meanwhile`: a loop over its steps along the last axis, in
    each of which something is prefetched.
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
    """Bring `size` elements of a buffer, from `index` on, into the vEU's cache of a `level`, 1 being the nearest.

    A hint: it reads nothing, may ask for what lies past the ends of the buffer, and a device may leave it out. Of a
    buffer in an `encoding` it counts the numbers that elements consist of, and of NEXT lines. What is read but `once`
    in a run leaves caches first.
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
    """The statements directly inside of one."""
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
    """Every statement of a body, each before those inside of it."""
    left = [*reversed(body)]  # asked for very often: nested generators take longer
    while left:
        stmt = left.pop()
        yield stmt
        if inside := children(stmt):
            left += reversed(inside)


def contains(body: Body, kind: type[Stmt]) -> bool:
    """Whether a body has a statement of a kind, anywhere."""
    return any(isinstance(s, kind) for s in statements(body))


def folded(loop: For, lanes: int) -> tuple[str, Index, str] | None:
    """The buffer, index and function of a loop that combines `lanes` neighbours in a buffer into the first of them."""
    match loop:
        case For(v, 1, stop, Kind.UNROLLED, (Store(buffer, index, Call(fn, (Load(b1, (i1,)), Load(b2, (i2,))))),)):
            same = buffer == b1 == b2 and index == i1 and i2 == index + var(v)
            if stop == lanes and same and fn in FOLDS and index.const % lanes == 0:
                return buffer, index, fn
    return None


def indices(stmt: Stmt) -> Iterator[Index]:
    """Every index of a statement itself: of what it touches, of its conditions and of numbers that it computes."""
    match stmt:
        case Store():
            yield stmt.index
            for part in (p for value in (stmt.value, *(d.value for d in stmt.dynamic)) for p in nodes(value)):
                match part:
                    case Load(_, places):
                        yield from places
                    case Iota(index) | Table(_, index):
                        yield index
                    case Select(where):
                        yield from (r.index for r in where)
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
    """Whether a body depends on a variable."""
    return any(name in variables(index) for stmt in statements(body) for index in indices(stmt))


def meets(stmt: Stmt) -> bool:
    """Whether threads execute a statement together, so that none may miss it."""
    return isinstance(stmt, Sync) or (isinstance(stmt, Apply) and stmt.instruction.threads > 1)


def block_syncs(body: Body) -> int:
    """How many Syncs each thread meets, S in §4.2.1 of the paper."""
    total = 0
    for s in body:
        times = s.stop - s.start if isinstance(s, For) and s.kind not in (Kind.THREAD, Kind.TASK) else 1
        total += (isinstance(s, Sync) and not s.waits) + times * block_syncs(children(s))
    return total


def rewrite_body(body: Body, change: Callable[[Stmt], Stmt]) -> Body:
    """The body with every statement changed, those inside of one first."""
    return tuple(change(with_children(s, rewrite_body(children(s), change))) for s in body)


def rewrite_within(body: Body, change: Callable[[Stmt, Body], Stmt], around: Body = ()) -> Body:
    """As `rewrite_body`; `change` is told the statements around each one as well, outermost first."""
    inner = (with_children(s, rewrite_within(children(s), change, (*around, s))) for s in body)
    return tuple(change(s, around) for s in inner)


def with_children(stmt: Stmt, body: Body) -> Stmt:
    """A statement with others directly inside of it."""
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
    """The body of an rKernel for one rTask; plain data that any C-family printer turns into text."""

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
