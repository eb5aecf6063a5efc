"""Load operands into registers before an rTask waits: constants, and results that are already complete.

Known as: load hoisting across a barrier. A cell waits for its neighbours' state, but its weights, bias and old state
do not depend on that. After the wait only the awaited operands are loaded. Beyond the paper.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import prod

from rammer.ir.expr import Load, Select, loads, nodes, rewrite
from rammer.ir.index import Index, var, variables
from rammer.ir.remembered import remembered
from rammer.ir.tensor import DType
from rammer.ir.tile import (
    Alloc,
    Body,
    Buffer,
    For,
    If,
    Kind,
    Scope,
    Stmt,
    Store,
    Sync,
    TileProgram,
    children,
    contains,
    statements,
    with_children,
)

LEAST = 4  # words per thread; fewer do not pay
SHARE = 2 / 3  # of the registers for data: the rest holds sums and awaited operands


@dataclass(slots=True)
class _Found:
    """State of the rewrite: loads moved before the wait, and per loop the pass at which they end."""

    room: int
    before: list[Stmt] = field(default_factory=list)
    buffers: dict[tuple[object, ...], Buffer] = field(default_factory=dict)
    copies: list[Stmt] = field(default_factory=list)
    passes: dict[str, int] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)


def early_words(registers: int, lanes: int) -> int:
    """Return the words of one thread that early loads may use, out of `registers` vector registers of `lanes` words."""
    return int(registers * lanes * SHARE)


@remembered(1 << 12)
def loads_early(program: TileProgram, ready: frozenset[str], room: int) -> tuple[TileProgram, frozenset[str]] | None:
    """Return the program with its loads of the arguments `ready` moved before its own wait, and the arguments moved.

    At most `room` words per thread are used. Returns None if fewer than `LEAST` words move, or if threads exchange data
    through scratch or block syncs.
    """
    if program.num_block_syncs or program.scratch or contains(program.body, Sync):
        return None
    spine, trunk = _trunk(program.body)
    found, rest = _Found(room), list[Stmt]()
    for stmt in trunk:
        if read := _only_copies(stmt, spine, trunk, ready):
            found.before.append(stmt)
            found.used |= read
        else:
            rest += _hoisted(stmt, (), ready, found)
    if sum(b.size for b in found.buffers.values()) < LEAST:
        return None
    body: Body = (*found.before, *found.copies, Sync(waits=True), *rest)
    for buffer in found.buffers.values():
        body = (Alloc(buffer, body),)
    for around in reversed(spine):
        body = (with_children(around, body),)
    return replace(program, body=body), frozenset(found.used)


def _trunk(body: Body) -> tuple[list[Stmt], Body]:
    """Return the single-child statements around the body, outermost first; and the body inside of them."""
    spine: list[Stmt] = []
    while len(body) == 1:
        (stmt,) = body
        if not isinstance(stmt, Alloc) and not (isinstance(stmt, For) and stmt.kind in (Kind.TASK, Kind.THREAD)):
            break
        spine.append(stmt)
        body = children(stmt)
    return spine, body


def copied(program: TileProgram) -> set[str]:
    """Return the arguments that a program copies into registers before anything else."""
    spine, trunk = _trunk(program.body)
    every = frozenset(b.name for b in program.arguments[program.num_outputs :])
    return {name for stmt in trunk for name in _only_copies(stmt, spine, trunk, every)}


def _only_copies(stmt: Stmt, spine: list[Stmt], trunk: Body, ready: frozenset[str]) -> set[str]:
    """Return the tensors that a statement reads if it only copies ready arguments into registers set by no other."""
    stores = [s for s in statements((stmt,)) if isinstance(s, Store)]
    targets, read = {s.buffer for s in stores}, {ld.tensor for s in stores for ld, _ in loads(s.value)}
    registers = {s.buffer.name for s in spine if isinstance(s, Alloc)}
    plain = all(isinstance(s, For | If | Store) for s in statements((stmt,)))
    moved = any(s.dynamic or any(ld.dynamic for ld, _ in loads(s.value)) for s in stores)
    others = statements(tuple(s for s in trunk if s is not stmt))
    again = any(isinstance(s, Store) and s.buffer in targets for s in others)
    return read if plain and not moved and not again and targets <= registers and read <= ready else set()


def _hoisted(stmt: Stmt, around: tuple[Stmt, ...], ready: frozenset[str], found: _Found) -> Body:
    """Return the statement with loads of ready arguments replaced by registers, as far as `room` allows.

    Only the first passes of a loop may fit. These are split off and unrolled, as registers have no addresses.
    """
    match stmt:
        case For() | If() | Alloc():
            inner = around if isinstance(stmt, Alloc) else (*around, stmt)
            changed = with_children(stmt, tuple(n for s in children(stmt) for n in _hoisted(s, inner, ready, found)))
            if not (isinstance(stmt, For) and isinstance(changed, For) and stmt.var in found.passes):
                return (changed,)
            stop = found.passes[stmt.var]
            rest = (replace(stmt, start=stop),) if stop < stmt.stop else ()
            return replace(changed, stop=stop, kind=Kind.UNROLLED), *rest
        case Store() if not stmt.dynamic and not any(isinstance(n, Select) for n in nodes(stmt.value)):
            return (replace(stmt, value=rewrite(stmt.value, lambda load: _register(load, around, ready, found))),)
    return (stmt,)


def _register(load: Load, around: tuple[Stmt, ...], ready: frozenset[str], found: _Found) -> Load:
    if load.tensor not in ready or load.dynamic:
        return load
    loops = [s for s in around if isinstance(s, For) and s.kind is not Kind.THREAD]
    used = variables(load.index[0])
    trips = [lp for lp in loops if lp.var in used]
    guards = {name for s in around if isinstance(s, If) for r in s.where for name in variables(r.index)}
    vectors = [lp for lp in trips if lp.kind is Kind.VECTOR]
    if not vectors or vectors != trips[-1:] or guards & ({lp.var for lp in loops} - used):
        return load  # scalar loads would cost more instructions than they save
    key = (load, *loops)
    if key not in found.buffers:
        serial = [lp for lp in loops if lp.kind is Kind.SERIAL]
        if any(lp.var in found.passes or lp not in trips for lp in serial[:1]) or len(serial) > 1:
            return load  # the loop is split already, or it is not innermost
        each = prod(lp.stop - lp.start for lp in trips if lp.kind is not Kind.SERIAL)
        passes = min((lp.stop - lp.start for lp in serial), default=1)
        passes = min(passes, (found.room - sum(b.size for b in found.buffers.values())) // each)
        if passes < 1:
            return load
        cut = {lp.var: replace(lp, stop=lp.start + passes, kind=Kind.UNROLLED) for lp in serial}
        found.passes |= {name: lp.stop for name, lp in cut.items()}
        found.buffers[key] = Buffer(f"early{len(found.buffers)}", each * passes, Scope.REGISTER, DType.F32)
        copy: Stmt = Store(found.buffers[key].name, _place([cut.get(lp.var, lp) for lp in trips]), load)
        for stmt in reversed(around):
            if isinstance(stmt, For) and (stmt.kind is Kind.THREAD or stmt in trips):
                copy = replace(cut.get(stmt.var, stmt), body=(copy,))
            elif isinstance(stmt, If):
                copy = replace(stmt, then=(copy,))
        found.copies.append(copy)
        found.used.add(load.tensor)
    cuts = [replace(lp, stop=found.passes.get(lp.var, lp.stop)) for lp in trips]
    return Load(found.buffers[key].name, (_place(cuts),))


def _place(trips: list[For]) -> Index:
    index, stride = Index(), 1
    for loop in reversed(trips):
        index, stride = index + (var(loop.var) - loop.start) * stride, stride * (loop.stop - loop.start)
    return index
