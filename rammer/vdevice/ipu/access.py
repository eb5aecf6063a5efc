"""What a vertex holds of each argument: exactly the elements that its rTask touches, in ascending order.

A tile has no memory but its own, so the fields of a vertex are pieces of tensors. The pieces form a regular pattern
(a box of a row-major or blocked tensor), and the tile program's flat indices are rewritten to positions in the field.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import TypeAlias

import numpy as np

from rammer.errors import LoweringError
from rammer.ir.dependency import Intervals, read_elements, written_elements
from rammer.ir.expr import Dynamic, Load, loads, rewrite
from rammer.ir.index import Index, substitute, var, variables
from rammer.ir.kernel import RKernel
from rammer.ir.simplify import simplify_index
from rammer.ir.tensor import TensorType
from rammer.ir.tile import Alloc, Body, For, If, Kind, Store, TileProgram

Levels: TypeAlias = tuple[tuple[int, int], ...]  # (distance, count), outermost first; the last distance is 1
MOST_PIECES = 1 << 12


@dataclass(frozen=True, slots=True)
class Pattern:
    """Elements start + sum of digit * distance, for all digits below their counts."""

    start: int
    levels: Levels

    @property
    def size(self) -> int:
        return prod(count for _, count in self.levels)

    @property
    def num_pieces(self) -> int:
        return prod(count for _, count in self.levels[:-1])

    def pieces(self) -> Iterator[tuple[int, int]]:
        """Runs [begin, end), ascending."""
        starts = np.array([self.start])
        for distance, count in self.levels[:-1]:
            starts = (starts[:, None] + np.arange(count) * distance).reshape(-1)
        length = self.levels[-1][1]
        return ((int(s), int(s) + length) for s in starts)


NOTHING = Pattern(0, ((1, 0),))


@dataclass(frozen=True, slots=True)
class Variant:
    """A codelet class of a kernel: its tile program with indices into fields. `at` names arguments whose first element
    each vertex is told."""

    program: TileProgram
    at: tuple[bool, ...]
    levels: tuple[Levels, ...]


@dataclass(frozen=True, slots=True)
class Accesses:
    """Vertices of a kernel: per rTask its variant (-1: nothing to do), and per argument the pattern it touches."""

    variants: tuple[Variant, ...]
    chosen: tuple[int, ...]
    patterns: tuple[tuple[Pattern, ...], ...]  # [rtask][argument], outputs first


@lru_cache(maxsize=4096)
def accesses(kernel: RKernel) -> Accesses:
    """How every rTask of a kernel becomes a vertex. Raises LoweringError."""
    program = kernel.body
    if not isinstance(program, TileProgram):
        raise LoweringError(f"{kernel.name} is written in {program.language!r}: an IPU needs its elements as well")
    operation = kernel.operation
    outputs = [written_elements(kernel, n) for n in range(len(operation.outputs))]
    inputs = [read_elements(kernel, n) for n in range(len(operation.inputs))]
    kinds = kernel.input_types()
    names = [b.name for b in program.arguments]
    columns: list[list[Pattern]] = []
    for name, elements in zip(names, outputs, strict=False):
        columns.append(_patterns(elements.sets, elements.chosen, lambda s, n=name: _written(kernel, n, s)))  # type: ignore[misc]
    for kind, elements in zip(kinds, inputs, strict=True):
        columns.append(_patterns(elements.sets, elements.chosen, lambda s, k=kind: _read(k, s)))  # type: ignore[misc]
    patterns = tuple(zip(*columns, strict=True))
    idle = [all(p.size == 0 for p in row[: len(outputs)]) for row in patterns]
    tasks = _task_loops(program.body)
    offsets = [
        _offset(program, name, tasks, [(r, p.start) for r, p in enumerate(column) if p.size and not idle[r]])
        for name, column in zip(names, columns, strict=True)
    ]
    variants: dict[tuple[Levels, ...], int] = {}
    chosen = []
    for row, skip in zip(patterns, idle, strict=True):
        key = tuple(p.levels for p in row)
        chosen.append(-1 if skip else variants.setdefault(key, len(variants)))
    made = tuple(
        Variant(_rewritten(program, dict(zip(names, zip(key, offsets, strict=True), strict=True)), tasks),
                tuple(o is None for o in offsets), key)
        for key in variants
    )  # fmt: skip
    return Accesses(made, tuple(chosen), patterns)


def _patterns(
    sets: tuple[Intervals, ...], chosen: tuple[int, ...], of: Callable[[Intervals], Pattern]
) -> list[Pattern]:
    known = [of(s) if len(s) else NOTHING for s in sets]
    return [known[c] for c in chosen]


def find_pattern(intervals: Intervals) -> Pattern | None:
    """The pattern of a set of elements, if it has one."""
    lengths = intervals[:, 1] - intervals[:, 0]
    starts = intervals[:, 0]
    if (lengths != lengths[0]).any():
        return None
    levels: list[tuple[int, int]] = [(1, int(lengths[0]))]
    while len(starts) > 1:
        steps = np.diff(starts)
        change = np.flatnonzero(steps != steps[0])
        count = int(change[0]) + 1 if change.size else len(starts)
        if len(starts) % count or count == 1:
            return None
        grid = starts.reshape(-1, count)
        if (grid - grid[:, :1] != np.arange(count) * steps[0]).any():
            return None
        levels.append((int(steps[0]), count))
        starts = grid[:, 0]
    return Pattern(int(starts[0]), tuple(reversed(levels)))


def _written(kernel: RKernel, name: str, intervals: Intervals) -> Pattern:
    found = find_pattern(intervals)
    if found is None:
        raise LoweringError(
            f"{kernel.name}: what an rTask writes of {name} is no regular pattern",
            hint="the digits of a kernel must cut blocked dimensions at whole blocks",
        )
    return found


def _read(kind: TensorType, intervals: Intervals) -> Pattern:
    """The elements, or all between the first and the last where there is no pattern or padding may be read."""
    low, high = int(intervals[0, 0]), int(intervals[-1, 1])
    if kind.layout is not None and kind.layout.pads(kind.shape):
        physical = kind.physical_shape
        block = min(prod(physical[p + 1 :]) for p, d in enumerate(kind.layout.digits) if d.div > 1)
        low, high = low // block * block, min(-(-high // block) * block, prod(physical))
        return Pattern(low, ((1, high - low),))
    found = find_pattern(intervals)
    if found is None or found.num_pieces > MOST_PIECES:
        return Pattern(low, ((1, high - low),))
    return found


def _task_loops(body: Body) -> dict[str, tuple[int, int]]:
    """Task loops: variable -> (stride, extent) of its digit of the rTask's number."""
    found: dict[str, tuple[int, int]] = {}
    for stmt in body:
        match stmt:
            case For(v, _, stop, kind, inner, stride):
                if kind is Kind.TASK:
                    found[v] = stride, stop
                found |= _task_loops(inner)
            case Alloc(_, inner) | If(_, inner):
                found |= _task_loops(inner)
    return found


def _indices(body: Body, name: str) -> Iterator[Index]:
    """Every flat index into a buffer."""
    for stmt in body:
        match stmt:
            case Store(buffer, index, value):
                if buffer == name:
                    yield index
                yield from (ld.index[0] for ld, _ in loads(value) if ld.tensor == name)
            case For(body=inner) | Alloc(body=inner) | If(then=inner):
                yield from _indices(inner, name)


def _offset(
    program: TileProgram, name: str, tasks: Mapping[str, tuple[int, int]], starts: list[tuple[int, int]]
) -> int | None:
    """A constant c with start = (the task digits' part of every index) + c for all rTasks; None if there is none."""
    coefs: set[tuple[int, ...]] = set()
    for index in _indices(program.body, name):
        plain = Index(0, tuple(t for t in index.terms if not isinstance(t[0], str)))
        if variables(plain) & tasks.keys():
            return None
        coefs.add(tuple(index.coef(v) for v in tasks))
    if len(coefs) > 1:
        return None
    factors = coefs.pop() if coefs else (0,) * len(tasks)
    found = {
        start - sum(c * (rtask // s % e) for c, (s, e) in zip(factors, tasks.values(), strict=True))
        for rtask, start in starts
    }
    return found.pop() if len(found) == 1 else None if found else 0


def _rewritten(
    program: TileProgram, fields: Mapping[str, tuple[Levels, int | None]], tasks: Mapping[str, tuple[int, int]]
) -> TileProgram:
    """The program with indices into the fields of its arguments."""
    nowhere = dict.fromkeys(tasks, Index())

    def place(name: str, index: Index, env: dict[str, tuple[int, int]]) -> Index:
        if name not in fields:
            return index
        levels, offset = fields[name]
        rest = index - var(f"{name}_at") if offset is None else substitute(index, nowhere) - offset
        weight, total = prod(count for _, count in levels), Index()
        for distance, count in levels:
            weight //= max(count, 1)
            total += (rest // distance if distance > 1 else rest) * weight
            rest = rest % distance
        return simplify_index(total, env) if offset is not None else total

    def walk(body: Body, env: dict[str, tuple[int, int]]) -> Body:
        moved = []
        for stmt in body:
            match stmt:
                case Store(buffer, index, value):

                    def leaf(ld: Load) -> Load:
                        dynamic = tuple(_in_field(d, fields.get(ld.tensor)) for d in ld.dynamic)
                        return Load(ld.tensor, (place(ld.tensor, ld.index[0], env),), dynamic)

                    moved.append(Store(buffer, place(buffer, index, env), rewrite(value, leaf)))
                case For():
                    inner = {**env, stmt.var: (stmt.start, max(stmt.stop - 1, stmt.start))}
                    moved.append(replace(stmt, body=walk(stmt.body, inner)))
                case Alloc(buffer, inner_body):
                    moved.append(Alloc(buffer, walk(inner_body, env)))
                case If(where, then):
                    moved.append(If(where, walk(then, env)))
                case _:
                    moved.append(stmt)
        return tuple(moved)

    arguments = tuple(replace(b, size=prod(c for _, c in fields[b.name][0])) for b in program.arguments)
    return replace(program, arguments=arguments, body=walk(program.body, {}))


def _in_field(dynamic: Dynamic, field: tuple[Levels, int | None] | None) -> Dynamic:
    """A data-dependent step in the field. All positions it can reach are held, so its digit keeps its distance."""
    if field is None or len(field[0]) == 1:
        return dynamic
    levels = field[0]
    weight = 1
    for distance, count in reversed(levels):
        if dynamic.stride == distance:
            return replace(dynamic, stride=weight)
        weight *= count
    raise LoweringError(
        f"a gather steps by {dynamic.stride} elements through pieces {levels}", hint="keep gathered tensors row-major"
    )
