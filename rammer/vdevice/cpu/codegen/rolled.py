"""Roll unrolled loops of long functions: compilers take long for each copy of a polynomial. Known as: loop rerolling.

A block of sums lies in registers, which a loop cannot index. The sums are therefore copied to memory first. That costs
a store and a load of each, a small part of computing the functions. The loop becomes a function of its own: inside of
another one, compilers keep its constants in registers too long and spill the sums.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, replace

from rammer.ir.expr import Call, Load, loads, nodes, rewrite
from rammer.ir.index import Index, var, variables
from rammer.ir.tile import Apply, Body, Buffer, For, If, Kind, Scope, Stmt, Store, rewrite_body, statements, tally

LONG = ("exp", "log", "tanh", "sigmoid", "erf")  # functions of vectors: tens of instructions
MOST = 7  # of them that stay unrolled: copies and a call would make up to seven 5 % slower
LANE = "rammer_lane"


def in_registers(buffer: Buffer, body: Body) -> bool:
    """Return whether all of the body's indices of a buffer are constant once its unrolled loops are unrolled."""
    inside = list(statements(body))
    kinds = {(s.var, s.kind in (Kind.UNROLLED, Kind.VECTOR)) for s in inside if isinstance(s, For)}
    unrolled = {name for name, known in kinds if known} - {name for name, known in kinds if not known}
    touched = [s.index for s in inside if isinstance(s, Store) and s.buffer == buffer.name]
    touched += [index for s in inside if isinstance(s, Store) for name, index in _read(s) if name == buffer.name]
    applied = any(o.buffer == buffer.name for s in inside if isinstance(s, Apply) for o in s.operands)
    return buffer.scope is Scope.REGISTER and not applied and all(variables(index) <= unrolled for index in touched)


@dataclass(frozen=True, slots=True)
class Rolled:
    """A loop over copies of registers, in buffers of their own. `copying` makes the copies."""

    copies: tuple[Buffer, ...]
    copying: Body
    body: Body


def rolled(loop: For, memory: Container[str], scopes: Mapping[str, tuple[Buffer, Body]], lanes: int) -> Rolled | None:
    """Return an unrolled loop as a serial loop over copies of the registers that it reads; None if it stays unrolled.

    `memory`: buffers that any function can take as arguments. `scopes`: registers, with the body in which
    they are.
    """
    inside = list(statements((loop,)))
    if _functions((loop,)) <= MOST or not all(isinstance(s, For | If | Store) for s in inside):
        return None
    stores = [s for s in inside if isinstance(s, Store)]
    read = dict.fromkeys(name for s in stores for name, _ in _read(s) if name not in memory)
    if any(s.buffer not in memory for s in stores) or not all(n in scopes for n in read):
        return None
    sources = [scopes[name][0] for name in read]
    if any(b.size % lanes for b in sources) or not all(in_registers(*scopes[name]) for name in read):
        return None
    names = {name: f"rammer_{name}" for name in read}
    copies = tuple(replace(b, name=names[b.name]) for b in sources)
    repeated = rewrite_body((loop,), lambda s: _of_copies(s, names))
    return Rolled(copies, tuple(_copying(b, names[b.name], lanes) for b in sources), repeated)


def _copying(buffer: Buffer, copy: str, lanes: int) -> For:
    """Return copies of all vectors of a buffer, one by one: compilers would keep a loop's target in memory."""
    places = [var(LANE) + first for first in range(0, buffer.size, lanes)]
    stores = tuple(Store(copy, place, Load(buffer.name, (place,))) for place in places)
    return For(LANE, 0, lanes, Kind.VECTOR, stores)


def _functions(body: Body) -> int:
    """Return how many vectors of long functions unrolled loops compute."""

    def own(s: Stmt) -> int:
        parts = set(nodes(s.value)) if isinstance(s, Store) else ()  # compilers share equal ones
        return sum(isinstance(part, Call) and part.fn in LONG for part in parts)

    return tally(body, own, once=frozenset(Kind) - {Kind.UNROLLED})


def _of_copies(s: Stmt, names: Mapping[str, str]) -> Stmt:
    """Return a statement that reads the copies, or an unrolled loop as a serial one."""

    def leaf(load: Load) -> Load:
        return replace(load, tensor=names.get(load.tensor, load.tensor))

    if isinstance(s, Store):
        dynamic = tuple(replace(d, value=rewrite(d.value, leaf)) for d in s.dynamic)
        return replace(s, value=rewrite(s.value, leaf), dynamic=dynamic)
    return replace(s, kind=Kind.SERIAL) if isinstance(s, For) and s.kind is Kind.UNROLLED else s


def _read(s: Store) -> Iterator[tuple[str, Index]]:
    """Yield the buffers that a statement reads, with the indices."""
    for value in (s.value, *(d.value for d in s.dynamic)):
        for load, _ in loads(value):
            yield load.tensor, load.index[0]
