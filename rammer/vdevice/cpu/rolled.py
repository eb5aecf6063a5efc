"""Unrolled loops of long functions, repeated instead: compilers take their time for each of twenty polynomials.

A block of sums is in registers, which no loop can count through. So they are copied into memory first, for a store and
a load of each; what is computed of them takes many times that. The loop is a function of its own: inside of another one
compilers bring its constants into registers long before, and those of the sums into memory.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, replace

from rammer.ir.expr import Call, Load, loads, nodes, rewrite
from rammer.ir.index import var, variables
from rammer.ir.tile import Alloc, Apply, Body, Buffer, For, If, Kind, Scope, Stmt, Store, children, statements

LONG = ("exp", "log", "tanh", "sigmoid", "erf")  # functions of vectors: tens of instructions
MOST = 7  # of them in an unrolled loop: of fewer, copies and a call take a twentieth longer
LANE = "rammer_lane"


def in_registers(buffer: Buffer, body: Body) -> bool:
    """Whether all that the body touches of a buffer is known once its unrolled loops are unrolled."""
    return buffer.scope is Scope.REGISTER and _fixed(buffer.name, body, frozenset())


def _fixed(name: str, body: Body, unrolled: frozenset[str]) -> bool:
    for s in body:
        match s:
            case For(kind=Kind.UNROLLED | Kind.VECTOR):
                known = _fixed(name, s.body, unrolled | {s.var})
            case For() | Alloc():
                known = _fixed(name, s.body, unrolled)
            case If():
                known = _fixed(name, s.then, unrolled)
            case Store():
                own = [s.index] if s.buffer == name else []
                own += [ld.index[0] for ld, _ in loads(s.value) if ld.tensor == name]
                known = all(variables(index) <= unrolled for index in own)
            case Apply(_, operands):
                known = not any(o.buffer == name for o in operands)
            case _:
                known = True
        if not known:
            return False
    return True


@dataclass(frozen=True, slots=True)
class Rolled:
    """A loop of copies, in buffers of their own; `copying` makes them."""

    copies: tuple[Buffer, ...]
    copying: Body
    body: Body


def rolled(loop: For, memory: Container[str], registers: Mapping[str, Buffer], lanes: int) -> Rolled | None:
    """An unrolled loop, repeated, of copies of what it reads of `registers`; None if it stays as it is.

    `memory`: buffers that any function can be given.
    """
    inside = list(statements((loop,)))
    if _functions((loop,)) <= MOST or not all(isinstance(s, For | If | Store) for s in inside):
        return None
    stores = [s for s in inside if isinstance(s, Store)]
    read = dict.fromkeys(name for s in stores for name in _read(s) if name not in memory)
    if any(s.buffer not in memory for s in stores) or not all(n in registers for n in read):
        return None
    sources = [registers[name] for name in read]
    if any(b.size % lanes for b in sources):
        return None
    names = {name: f"rammer_{name}" for name in read}
    copies = tuple(replace(b, name=names[b.name]) for b in sources)
    return Rolled(copies, tuple(_copying(b, names[b.name], lanes) for b in sources), _of_copies((loop,), names))


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


def _of_copies(body: Body, names: Mapping[str, str]) -> Body:
    """The loops repeated, which read what was copied."""

    def leaf(load: Load) -> Load:
        return replace(load, tensor=names.get(load.tensor, load.tensor))

    found: list[Stmt] = []
    for s in body:
        match s:
            case Store():
                dynamic = tuple(replace(d, value=rewrite(d.value, leaf)) for d in s.dynamic)
                found.append(replace(s, value=rewrite(s.value, leaf), dynamic=dynamic))
            case For():
                kind = Kind.SERIAL if s.kind is Kind.UNROLLED else s.kind
                found.append(replace(s, kind=kind, body=_of_copies(s.body, names)))
            case If():
                found.append(replace(s, then=_of_copies(s.then, names)))
    return tuple(found)


def _read(s: Store) -> Iterator[str]:
    """Buffers that a statement reads."""
    for value in (s.value, *(d.value for d in s.dynamic)):
        for load, _ in loads(value):
            yield load.tensor
