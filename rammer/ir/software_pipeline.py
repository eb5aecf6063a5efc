"""Pipeline loops whose passes copy what they need into scratch: copies of later passes overlap with computing.

    for n: sync; copy(n); sync; use(n)    becomes    copy(0), copy(1); sync all; for n: sync; copy(n + 2); use(n)

Known as: software pipelining, multi-buffering. Scratch has as many places as passes are in flight, and a pass has one
block sync instead of two.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

from rammer.ir.expr import Const, Load, Range, Scalar, Select, rewrite
from rammer.ir.index import Index, substitute, var
from rammer.ir.tensor import DType
from rammer.ir.tile import (
    Apply,
    Body,
    Buffer,
    For,
    If,
    Kind,
    Operand,
    Stmt,
    Store,
    Sync,
    TileProgram,
    block_syncs,
    children,
    contains,
    rewrite_body,
    statements,
    with_children,
)

BLOCK = 32  # places begin at multiples of so many elements: of a vector, and of a cache line


class _PipelinedLoop(NamedTuple):
    """A loop, its copies in each pass, and its computation from these."""

    loop: For
    copies: Body
    rest: Body


def pipelined(program: TileProgram, depth: int) -> TileProgram | None:
    """Return the program with copies of `depth` passes at once in scratch; None if it has no loop for that.

    All that the passes copy must be plain elements of arguments, or zeros instead of them.
    """
    found = list(_candidates(program.body, program))
    if len(found) != 1:
        return None
    one = found[0]
    count = min(depth, one.loop.stop)
    staged = {s.buffer for s in statements(one.copies) if isinstance(s, Store)}
    sizes = {b.name: -(-b.size // BLOCK) * BLOCK for b in program.scratch}
    slots = {name: var(one.loop.var) % count * sizes[name] for name in staged}
    scratch = tuple(replace(b, size=count * sizes[b.name]) if b.name in staged else b for b in program.scratch)
    body = _replaced(program.body, one.loop, _pipeline(one, count, slots))
    return replace(program, body=body, scratch=scratch, num_block_syncs=block_syncs(body))


def _candidates(body: Body, program: TileProgram) -> Iterator[_PipelinedLoop]:
    for stmt in body:
        if isinstance(stmt, For) and stmt.kind is Kind.SERIAL and (one := _loop(stmt, program)) is not None:
            yield one
        else:
            yield from _candidates(children(stmt), program)


def _loop(stmt: For, program: TileProgram) -> _PipelinedLoop | None:
    """Split the loop at its two syncs; None if it cannot be pipelined, or if other statements write what it copies."""
    syncs = [n for n, s in enumerate(stmt.body) if isinstance(s, Sync)]
    if len(syncs) != 2 or syncs[0] != 0 or stmt.start or stmt.stop < 2:
        return None
    copies, rest = stmt.body[1 : syncs[1]], stmt.body[syncs[1] + 1 :]
    arguments, scratch = ({b.name: b for b in some} for some in (program.arguments, program.scratch))
    stores = [s for s in statements(copies) if isinstance(s, Store)]
    plain = all(
        _is_plain(s.value, arguments) and s.buffer in scratch and not scratch[s.buffer].encoding and not s.dynamic
        for s in stores
    )
    nests = all(isinstance(s, Store | For | If) for s in statements(copies))
    if not stores or not plain or not nests or contains(rest, Sync):
        return None
    staged = {s.buffer for s in stores}
    return _PipelinedLoop(stmt, copies, rest) if not any(_writes(s, staged) for s in statements(rest)) else None


def _is_plain(value: Scalar, arguments: dict[str, Buffer]) -> bool:
    match value:
        case Load(tensor, _, ()):
            return tensor in arguments and arguments[tensor].dtype is DType.F32 and not arguments[tensor].encoding
        case Select(_, Load() as load, Const(0)):
            return _is_plain(load, arguments)
    return False


def _writes(stmt: Stmt, staged: set[str]) -> bool:
    match stmt:
        case Store(buffer):
            return buffer in staged
        case Apply(_, operands):
            return operands[0].buffer in staged
    return False


def _pipeline(one: _PipelinedLoop, count: int, slots: dict[str, Index]) -> Body:
    loop, name, ahead = one.loop, one.loop.var, count - 1
    # Copies are those of a later pass: the loop's variable in them is that of the pass they are for.
    copied = rewrite_body(one.copies, lambda s: _moved(s, slots, written=True))
    first = For(name, 0, ahead, Kind.SERIAL, copied)
    later = var(name) + ahead
    under_way: Body = (If((Range(later, 0, loop.stop),), rewrite_body(copied, lambda s: _shifted(s, {name: later}))),)
    used = rewrite_body(one.rest, lambda s: _moved(s, slots, written=False))
    body = (Sync(pending=max(count - 2, 0)), *under_way, *used)
    # Earlier statements are done with scratch: the loop is the first to write it, or lies in a loop of its own kind.
    return (Sync(), first, Sync(pending=0), replace(loop, body=body))


def _moved(stmt: Stmt, slots: dict[str, Index], *, written: bool) -> Stmt:
    """Return the statement with its staged buffers at the pass's own place; its copies become asynchronous."""

    def leaf(load: Load) -> Scalar:
        (index,) = load.index
        return replace(load, index=(index + slots[load.tensor],)) if load.tensor in slots else load

    match stmt:
        case Store(buffer, index, value):
            if written:
                return replace(stmt, index=index + slots[buffer], later=True)
            return replace(stmt, value=rewrite(value, leaf))
        case Apply():
            return replace(stmt, operands=tuple(_operand(o, slots) for o in stmt.operands))
    return stmt


def _operand(operand: Operand, slots: dict[str, Index]) -> Operand:
    return replace(operand, at=operand.at + slots[operand.buffer]) if operand.buffer in slots else operand


def _shifted(stmt: Stmt, values: dict[str, Index]) -> Stmt:
    """Return the statement with other values of variables."""
    match stmt:
        case Store():
            return stmt.at(values)
        case If():
            return replace(stmt, where=tuple(Range(substitute(r.index, values), r.low, r.high) for r in stmt.where))
    return stmt


def _replaced(body: Body, old: For, new: Body) -> Body:
    inner = (new if s is old else (with_children(s, _replaced(children(s), old, new)),) for s in body)
    return tuple(chain.from_iterable(inner))
