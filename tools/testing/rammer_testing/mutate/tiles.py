"""Change one number of a tile program: an index, a bound, a stride, a guard, a size, a box, or a packing."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from functools import partial
from typing import Any

from rammer.ir.expr import Const, ConstantTable, Dynamic, Iota, Range, Select
from rammer.ir.index import Index
from rammer.ir.instruction import Instruction
from rammer.ir.kernel import RKernel
from rammer.ir.tensor import Digit, Encoding
from rammer.ir.tile import Apply, Buffer, For, Kind, Operand, TaskDigit, TileProgram

Change = Callable[[Any], Any]


def mutants(kernel: RKernel, count: int, seed: int) -> Iterator[tuple[str, RKernel]]:
    """Yield up to `count` kernels that differ from one in a single number, each with a description of the change."""
    sites = list(_sites(_parts(kernel)))
    for path, what, change in random.Random(seed).sample(sites, min(count, len(sites))):
        yield f"{what} at {path}", _at(kernel, path, change)


def mutant(kernel: RKernel, what: str, seed: int = 0) -> RKernel | None:
    """Return a kernel with one number changed, at a site whose description matches a pattern; None if there is none."""
    if not isinstance(kernel.body, TileProgram):
        return None
    pattern = re.compile(what)
    sites = [(path, change) for path, text, change in _sites(_parts(kernel)) if pattern.search(text)]
    return _at(kernel, *random.Random(seed).choice(sites)) if sites else None


def _parts(kernel: RKernel) -> tuple[Any, ...]:
    program = kernel.body
    assert isinstance(program, TileProgram)
    return program.body, program.digits, program.scratch, kernel.packing


def _at(kernel: RKernel, path: tuple[Any, ...], change: Change) -> RKernel:
    assert isinstance(kernel.body, TileProgram)
    body, digits, scratch, packing = _changed(_parts(kernel), path, change)
    return replace(kernel, body=replace(kernel.body, body=body, digits=digits, scratch=scratch), packing=packing)


def _sites(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], str, Change]]:
    """Yield every site in a tree of tuples and dataclasses where a number can be changed: path, description, change."""
    yield from ((path, what, change) for what, change in _changes(node))
    if isinstance(node, tuple):
        for n, part in enumerate(node):
            yield from _sites(part, (*path, n))
    elif is_dataclass(node) and not isinstance(node, (Index, Instruction, Encoding, ConstantTable, Iota)):
        for field in fields(node):
            yield from _sites(getattr(node, field.name), (*path, field.name))


def _changes(node: Any) -> Iterator[tuple[str, Change]]:
    match node:
        case Index():
            for by in (1, -1):
                yield f"{node} + {by}", partial(_shift, by=by)
                for n, _ in enumerate(node.terms):
                    yield f"term {n} of {node} + {by}", partial(_step, term=n, by=by)
        case Range():
            for name, by in (("low", 1), ("low", -1), ("high", 1), ("high", -1)):
                yield f"{name} of {node} + {by}", partial(_add, name=name, by=by)
        case For():
            yield f"{node.var} ends earlier", partial(_add, name="stop", by=-1)
            yield f"{node.var} ends later", partial(_add, name="stop")
            yield f"{node.var} starts later", partial(_add, name="start")
            if node.kind in (Kind.TASK, Kind.THREAD) and node.stop > 1:
                yield f"{node.var} has a larger stride", partial(_add, name="stride")
        case Dynamic():
            yield f"{node} steps farther", partial(_add, name="stride")
            yield f"{node} may go farther", partial(_add, name="extent")
        case Select(_, _, Const(0)):
            yield "padding is one", lambda s: replace(s, other=replace(s.other, value=1))
        case Buffer():
            yield f"{node.name} is smaller", partial(_add, name="size", by=-1)
        case TaskDigit():
            for name in ("step", "extent", "stride"):
                yield f"{name} of the box + 1", partial(_add, name=name)
        case Digit():
            yield f"div of {node} doubled", lambda d: replace(d, div=2 * d.div)
            yield f"mod of {node} changed", lambda d: replace(d, mod=d.mod * 2 or 4)
            yield f"dim of {node} + 1", partial(_add, name="dim")
        case Apply(instruction) if instruction.threads == 1:  # a subgroup's instruction has a fixed size
            for n, (axis, size) in enumerate(instruction.axes):
                yield f"{axis} of {instruction.name} + {size}", partial(_wider, axis=n, by=size)
        case Operand():
            for n, _ in enumerate(node.steps):
                steps = tuple(s + (m == n) for m, s in enumerate(node.steps))
                yield f"step {n} of {node.buffer} + 1", partial(replace, steps=steps)


def _add(node: Any, name: str, by: int = 1) -> Any:
    """Add to a field."""
    return replace(node, **{name: getattr(node, name) + by})


def _shift(index: Index, by: int) -> Index:
    return index + by


def _wider(apply: Apply, axis: int, by: int) -> Apply:
    return replace(apply, extents=tuple(e + by * (n == axis) for n, e in enumerate(apply.extents)))


def _step(index: Index, term: int, by: int) -> Index:
    terms = list(index.terms)
    atom, coef = terms[term]
    terms[term] = (atom, coef + by)
    return Index(index.const, tuple(t for t in terms if t[1]))


def _changed(node: Any, path: tuple[Any, ...], change: Change) -> Any:
    if not path:
        return change(node)
    first, rest = path[0], path[1:]
    if isinstance(node, tuple):
        return (*node[:first], _changed(node[first], rest, change), *node[first + 1 :])
    return replace(node, **{first: _changed(getattr(node, first), rest, change)})
