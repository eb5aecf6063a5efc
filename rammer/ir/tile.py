"""The tile program: the loop IR in which an rKernel's body is written.

It uses the scalar nodes of `ir.expr`; in it every load has one flat index into a buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from math import prod
from typing import TypeAlias, assert_never

from rammer.ir.expr import Range, Scalar
from rammer.ir.index import Index
from rammer.ir.tensor import DType


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
    EXCHANGE = "exchange"  # an argument that holds only this tile's box (IPU)
    LOCAL = "local"  # scratch of the rTask: core cache, shared memory, tile SRAM
    REGISTER = "register"  # private to a thread; size and indices known after unrolling


@dataclass(frozen=True, slots=True)
class Buffer:
    """A piece of memory; `size` in elements."""

    name: str
    size: int
    scope: Scope
    dtype: DType = DType.F32

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Store:
    buffer: str
    index: Index
    value: Scalar


@dataclass(frozen=True, slots=True)
class Alloc:
    """A register buffer that lives for `body`."""

    buffer: Buffer
    body: Body


@dataclass(frozen=True, slots=True)
class Sync:
    """All threads of the rTask meet; memory written before is visible after."""


@dataclass(frozen=True, slots=True)
class Mma:
    """A wave multiplies on its matrix unit: acc[16, 8] += a[16, depth] · b[depth, 8], operands rounded to `precision`.

    Every thread holds a fragment in registers; with g = thread // 4 and t = thread % 4 of its wave, and i < depth/4:
    acc[2h + c] is (8h + g, 2t + c), a[2i + h] is (8h + g, 4i + t) and b[i] is (4i + t, g), for h, c of 0 and 1.
    All threads of a wave meet here.
    """

    precision: str
    acc: str
    acc_at: Index
    a: str
    a_at: Index
    b: str
    b_at: Index


UNIT_ROWS, UNIT_DEPTH = 16, 32  # of a matrix of bf16 numbers that a PartProduct takes
MMA_DEPTH = {"tf32": 8, "bf16": 16}  # terms of one Mma, by precision


@dataclass(frozen=True, slots=True)
class Split:
    """Write rows of float32 as bf16 parts, for `PartProduct`: [row // 16][column // 32][part][row % 16][column % 32].

    Rows are `step` numbers apart, and 16 columns are `next` apart from the 16 after them. The first row is number
    `first` of those that end at `end`: beyond, none is read.
    """

    buffer: str
    source: str
    at: Index
    step: int
    next: int
    rows: int
    first: Index
    end: int
    depth: int  # columns


@dataclass(frozen=True, slots=True)
class PartProduct:
    """acc[rows, columns] = a[rows, depth] · b[depth, columns] on a matrix unit, both in three bf16 parts.

    Three parts are a float32 without loss. Of their nine products the three that a float32 cannot hold beside the
    largest are left out, and sums are float32: the result is as exact as one of float32. `a` is as `Split` writes it;
    of `b` each PARTS_BLOCK holds depth 32 and 16 columns, as [depth // 2 % 16][column % 16][depth % 2].
    """

    acc: str
    a: str
    a_at: Index
    b: str
    b_at: Index
    rows: int
    columns: int
    depth: int


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


Stmt: TypeAlias = "Store | Alloc | Sync | Mma | Split | PartProduct | If | For"
Body: TypeAlias = "tuple[Stmt, ...]"


def children(stmt: Stmt) -> Body:
    """The statements directly inside of one."""
    match stmt:
        case For() | Alloc():
            return stmt.body
        case If():
            return stmt.then
        case Store() | Sync() | Mma() | Split() | PartProduct():
            return ()
        case _:
            assert_never(stmt)


def statements(body: Body) -> Iterator[Stmt]:
    """Every statement of a body, each before those inside of it."""
    for stmt in body:
        yield stmt
        yield from statements(children(stmt))


def contains(body: Body, kind: type[Stmt]) -> bool:
    """Whether a body has a statement of a kind, anywhere."""
    return any(isinstance(s, kind) for s in statements(body))


def rewrite_body(body: Body, change: Callable[[Stmt], Stmt]) -> Body:
    """The body with every statement changed, those inside of one first."""
    return tuple(change(_with_children(s, rewrite_body(children(s), change))) for s in body)


def _with_children(stmt: Stmt, body: Body) -> Stmt:
    match stmt:
        case For() | Alloc():
            return replace(stmt, body=body)
        case If():
            return replace(stmt, then=body)
        case _:
            return stmt


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
        """Bytes of local memory, each buffer on a 64-byte boundary."""
        return sum(-(-b.nbytes // 64) * 64 for b in self.scratch)
