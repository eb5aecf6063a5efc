"""Unrolled loops of long functions, repeated instead: compilers take their time for each of twenty polynomials.

A block of sums is in registers, which no loop can count through. So they are copied into memory first, for a store and
a load of each; what is computed of them takes many times that. The loop is a function of its own: inside of another one
compilers bring its constants into registers long before, and those of the sums into memory.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, replace

from rammer.ir.expr import Call, Load, loads, nodes, rewrite
from rammer.ir.index import Index, var, variables
from rammer.ir.tile import Apply, Body, Buffer, For, If, Kind, Scope, Stmt, Store, children, rewrite_body, statements

LONG = ("exp", "log", "tanh", "sigmoid", "erf")  # functions of vectors: tens of instructions
MOST = 7  # of them in an unrolled loop: of fewer, copies and a call take a twentieth longer
LANE = "rammer_lane"


def in_registers(buffer: Buffer, body: Body) -> bool:
    """Whether all that the body touches of a buffer is known once its unrolled loops are unrolled."""
    inside = list(statements(body))
    kinds = {(s.var, s.kind in (Kind.UNROLLED, Kind.VECTOR)) for s in inside if isinstance(s, For)}
    unrolled = {name for name, known in kinds if known} - {name for name, known in kinds if not known}
    touched = [s.index for s in inside if isinstance(s, Store) and s.buffer == buffer.name]
    touched += [index for s in inside if isinstance(s, Store) for name, index in _read(s) if name == buffer.name]
    applied = any(o.buffer == buffer.name for s in inside if isinstance(s, Apply) for o in s.operands)
    return buffer.scope is Scope.REGISTER and not applied and all(variables(index) <= unrolled for index in touched)


@dataclass(frozen=True, slots=True)
class Rolled:
    """A loop of copies, in buffers of their own; `copying` makes them."""

    copies: tuple[Buffer, ...]
    copying: Body
    body: Body


def rolled(
    loop: For, memory: Container[str], registers: Mapping[str, tuple[Buffer, Body]], lanes: int
) -> Rolled | None:
    """An unrolled loop, repeated, of copies of the registers that it reads; None if it stays as it is.

    `memory`: buffers that any function can be given; `registers`: those in scope, with what is in their scope.
    """
    inside = list(statements((loop,)))
    if _functions((loop,)) <= MOST or not all(isinstance(s, For | If | Store) for s in inside):
        return None
    stores = [s for s in inside if isinstance(s, Store)]
    read = dict.fromkeys(name for s in stores for name, _ in _read(s) if name not in memory)
    if any(s.buffer not in memory for s in stores) or not all(n in registers for n in read):
        return None
    sources = [registers[name][0] for name in read]
    if any(b.size % lanes for b in sources) or not all(in_registers(*registers[name]) for name in read):
        return None
    names = {name: f"rammer_{name}" for name in read}
    copies = tuple(replace(b, name=names[b.name]) for b in sources)
    repeated = rewrite_body((loop,), lambda s: _of_copies(s, names))
    return Rolled(copies, tuple(_copying(b, names[b.name], lanes) for b in sources), repeated)


def _copying(buffer: Buffer, copy: str, lanes: int) -> For:
    """Copies of all vectors of a buffer, one by one: of a loop that copies compilers make a block in memory."""
    places = [var(LANE) + first for first in range(0, buffer.size, lanes)]
    stores = tuple(Store(copy, place, Load(buffer.name, (place,))) for place in places)
    return For(LANE, 0, lanes, Kind.VECTOR, stores)


def _functions(body: Body) -> int:
    """How many vectors of long functions unrolled loops compute."""
    total = 0
    for s in body:
        match s:
            case For(kind=Kind.UNROLLED):
                total += (s.stop - s.start) * _functions(s.body)
            case Store():
                total += sum(1 for part in nodes(s.value) if isinstance(part, Call) and part.fn in LONG)
            case _:
                total += _functions(children(s))
    return total


def _of_copies(s: Stmt, names: Mapping[str, str]) -> Stmt:
    """A statement that reads what was copied, or a loop that is repeated."""

    def leaf(load: Load) -> Load:
        return replace(load, tensor=names.get(load.tensor, load.tensor))

    if isinstance(s, Store):
        dynamic = tuple(replace(d, value=rewrite(d.value, leaf)) for d in s.dynamic)
        return replace(s, value=rewrite(s.value, leaf), dynamic=dynamic)
    return replace(s, kind=Kind.SERIAL) if isinstance(s, For) and s.kind is Kind.UNROLLED else s


def _read(s: Store) -> Iterator[tuple[str, Index]]:
    """Buffers that a statement reads, and where."""
    for value in (s.value, *(d.value for d in s.dynamic)):
        for load, _ in loads(value):
            yield load.tensor, load.index[0]
