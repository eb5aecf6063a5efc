"""Compute what a vertex holds of each argument: exactly the elements that its rTask touches, in ascending order.

A tile has only its own memory, so the fields of a vertex are pieces of tensors. The pieces form a regular pattern
(a box of a row-major or blocked tensor). The tile program's flat indices are rewritten to positions in the field.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from math import prod
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rammer.errors import LoweringError
from rammer.ir.analysis.access import Access, Accesses
from rammer.ir.analysis.dependency import read_elements, written_elements
from rammer.ir.analysis.footprint import footprint
from rammer.ir.analysis.intervals import Intervals, union, within
from rammer.ir.analysis.simplify import simplify_index
from rammer.ir.expr import Dynamic, Load, Range, rewrite
from rammer.ir.index import Index, substitute, var, variables
from rammer.ir.kernel import RKernel
from rammer.ir.remembered import remembered
from rammer.ir.tensor import TensorType
from rammer.ir.tile import Body, For, If, Kind, Stmt, Store, TileProgram, rewrite_within, statements

Levels: TypeAlias = tuple[tuple[int, int], ...]  # (distance, count), outermost first; the last distance is 1
MOST_PIECES = 1 << 12


@dataclass(frozen=True, slots=True)
class Pattern:
    """The elements start + sum of digit * distance, for all digits below their counts.

    Elements outside of the tensor are padding: a vertex has memory for them and never accesses them.
    """

    start: int
    levels: Levels

    @property
    def size(self) -> int:
        return prod(count for _, count in self.levels)

    @property
    def num_pieces(self) -> int:
        return prod(count for _, count in self.levels[:-1])

    def pieces(self, size: int) -> Iterator[tuple[int, int]]:
        """Yield the runs [begin, end), ascending, clipped to a tensor of `size` elements."""
        starts = np.array([self.start])
        for distance, count in self.levels[:-1]:
            starts = (starts[:, None] + np.arange(count) * distance).reshape(-1)
        length = self.levels[-1][1]
        low, high = np.clip(starts, 0, size), np.clip(starts + length, 0, size)
        return zip(low[low < high].tolist(), high[low < high].tolist(), strict=True)


NOTHING = Pattern(0, ((1, 0),))


class Origin(NamedTuple):
    """The first element of the field of rTask 0, and the task digits that move it."""

    start: int
    moving: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Variant:
    """A codelet class of a kernel: its tile program with indices into fields.

    `at`: the arguments whose first element is a value of each vertex.
    """

    program: TileProgram
    at: tuple[bool, ...]
    levels: tuple[Levels, ...]


@dataclass(frozen=True, slots=True)
class Vertices:
    """The vertices of a kernel: per rTask its variant (-1: idle), and per argument the pattern it touches."""

    variants: tuple[Variant, ...]
    chosen: tuple[int, ...]
    patterns: tuple[tuple[Pattern, ...], ...]  # [rtask][argument], outputs first


@remembered(4096)
def accesses(kernel: RKernel) -> Vertices:
    """Return the vertices of a kernel's rTasks. Raises LoweringError."""
    program = kernel.body
    if not isinstance(program, TileProgram):
        raise LoweringError(f"{kernel.name} is written in {program.language!r}: an IPU needs its elements as well")
    tasks = _task_loops(program.body)
    program = _unpinned(program, tasks)
    touched, operation = _by_buffer(program), kernel.operation
    outputs = [written_elements(kernel, n) for n in range(len(operation.outputs))]
    inputs = [read_elements(kernel, n) for n in range(len(operation.inputs))]
    kinds = kernel.input_types()
    names = [b.name for b in program.arguments]
    columns: list[list[Pattern]] = []
    for name, elements in zip(names, outputs, strict=False):
        columns.append(_patterns(elements.sets, elements.chosen, lambda s, n=name: _written(kernel, n, s)))  # type: ignore[misc]
    for kind, elements, name in zip(kinds, inputs, names[len(outputs) :], strict=True):
        sets, which = elements.sets, elements.chosen
        if program.scratch:
            size = kind.span
            sets = tuple(union([elements[r], _loaded(touched[name], size, r)]) for r in range(kernel.num_rtasks))
            which = tuple(range(kernel.num_rtasks))
        columns.append(_patterns(sets, which, lambda s, k=kind: _read(k, s)))  # type: ignore[misc]
    idle = [all(c[r].size == 0 for c in columns[: len(outputs)]) for r in range(kernel.num_rtasks)]
    origins = []
    for n, name in enumerate(names):
        busy = [(r, p) for r, p in enumerate(columns[n]) if p.size and not idle[r]]
        size = program.arguments[n].size if n >= len(outputs) else 0
        origin, moved = _origin(busy, _factors(touched[name], tasks), tasks, kernel.num_rtasks, size)
        for r, pattern in moved.items():
            columns[n][r] = pattern
        origins.append(origin)
    patterns = tuple(zip(*columns, strict=True))
    variants: dict[tuple[Levels, ...], int] = {}
    chosen = []
    for row, skip in zip(patterns, idle, strict=True):
        key = tuple(p.levels for p in row)
        chosen.append(-1 if skip else variants.setdefault(key, len(variants)))
    made = tuple(
        Variant(_rewritten(program, dict(zip(names, zip(key, origins, strict=True), strict=True))),
                tuple(o is None for o in origins), key)
        for key in variants
    )  # fmt: skip
    return Vertices(made, tuple(chosen), patterns)


@remembered(4096)
def working_sets(kernel: RKernel) -> NDArray[np.int64]:
    """Return the bytes that every rTask touches, its scratch included."""
    sizes = [t.dtype.itemsize for t in (*kernel.operation.outputs, *kernel.operation.inputs)]
    known: dict[tuple[Pattern, ...], int] = {}
    found = []
    for row in accesses(kernel).patterns:
        if row not in known:
            known[row] = sum(p.size * s for p, s in zip(row, sizes, strict=True)) + kernel.scratch_bytes
        found.append(known[row])
    return np.array(found, np.int64)


def _patterns(sets: tuple[Intervals, ...], picks: tuple[int, ...], of: Callable[[Intervals], Pattern]) -> list[Pattern]:
    known = [of(s) if len(s) else NOTHING for s in sets]
    return [known[c] for c in picks]


def find_pattern(intervals: Intervals) -> Pattern | None:
    """Return the pattern of a set of elements, or None if it is irregular."""
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
    """Return the pattern of elements read; the whole range from first to last if irregular or if padding is read."""
    low, high = int(intervals[0, 0]), int(intervals[-1, 1])
    if kind.layout is not None and kind.layout.pads(kind.shape):
        block = min(stride for stride, d in zip(kind.strides, kind.layout.digits, strict=True) if d.div > 1)
        low, high = low // block * block, min(-(-high // block) * block, kind.span)
        return Pattern(low, ((1, high - low),))
    found = find_pattern(intervals)
    if found is None:
        return Pattern(low, ((1, high - low),))
    levels = found.levels
    while prod(count for _, count in levels[:-1]) > MOST_PIECES:  # merge the innermost pieces, gaps included
        *outer, (distance, count), (_, length) = levels
        levels = (*outer, (1, (count - 1) * distance + length))
    return Pattern(found.start, levels)


def _task_loops(body: Body) -> dict[str, tuple[int, int]]:
    """Return the task loops: variable -> (stride, extent) of its digit of the rTask's number."""
    loops = (s for s in statements(body) if isinstance(s, For) and s.kind is Kind.TASK)
    return {loop.var: (loop.stride, loop.stop) for loop in loops}


def _by_buffer(program: TileProgram) -> dict[str, list[Access]]:
    """Return all accesses of each argument."""
    found: dict[str, list[Access]] = {b.name: [] for b in program.arguments}
    for access in Accesses(program).found:
        found.setdefault(access.buffer, []).append(access)
    return found


def _loaded(found: Sequence[Access], size: int, rtask: int) -> Intervals:
    """Return the elements that an rTask's code loads of an input of `size` elements.

    A stage in scratch is computed over a box around the elements it needs, so this may exceed what the expression
    reads. Data-dependent loads are left out: the expression covers them.
    """
    loads = (a for a in found if not a.write and not a.more)
    return within(union([footprint(a, a.of_rtask(rtask)).elements for a in loads]), 0, size)


def _unpinned(program: TileProgram, tasks: Mapping[str, tuple[int, int]]) -> TileProgram:
    """Return the program with task digits restored in branches for a single digit, where its value replaced it.

    Equal branches of all rTasks must look equal. In a branch for v = 3, i + f * (v - 3) equals i for any f. The right f
    is found where v is free, or by comparing branches.
    """
    factors = {name: {v: _step(found, v) for v in tasks} for name, found in _by_buffer(program).items()}

    def place(name: str, index: Index, pins: Mapping[str, int]) -> Index:
        for v, pin in pins.items():
            index += (var(v) - pin) * factors.get(name, {}).get(v, 0)
        return index

    def moved(stmt: Stmt, around: Body) -> Stmt:
        if not isinstance(stmt, Store):
            return stmt
        pins = {v: at for s in around if isinstance(s, If) for v, at in _pins(s.where, tasks).items()}
        value = rewrite(stmt.value, lambda ld: replace(ld, index=(place(ld.tensor, ld.index[0], pins),)))
        return Store(stmt.buffer, place(stmt.buffer, stmt.index, pins), value)

    return replace(program, body=rewrite_within(program.body, moved))


def _pins(where: tuple[Range, ...], tasks: Mapping[str, tuple[int, int]]) -> dict[str, int]:
    """Return the task digits that have one value under a condition."""
    return {v: r.low for r in where for v in tasks if r.index == var(v) and r.high - r.low == 1}


def _step(found: Sequence[Access], v: str) -> int:
    """Return what a step of a task digit adds to the indices of a buffer; 0 if that is ambiguous."""
    open_: set[int] = set()
    pinned: dict[int, int] = {}
    for a in found:
        pins = {k: c for where, wanted in a.path if wanted for k, c in _pins(where, {v: (0, 0)}).items()}
        if v not in pins:
            open_.add(a.index.coef(v))
        else:
            pinned[pins[v]] = min(pinned.get(pins[v], a.index.const), a.index.const)
    if open_:
        return open_.pop() if len(open_) == 1 else 0
    steps = {(b - a) // (n - m) for (m, a), (n, b) in pairwise(sorted(pinned.items()))}
    return steps.pop() if len(steps) == 1 else 0


def _factors(found: Sequence[Access], tasks: Mapping[str, tuple[int, int]]) -> dict[str, int]:
    """Return what one step of each task digit adds to all indices into a buffer.

    Digits that add no single number are left out.
    """
    factors: dict[str, set[int]] = {v: set() for v in tasks}
    for a in found:
        divided = variables(Index(0, tuple(t for t in a.index.terms if not isinstance(t[0], str))))
        for v, steps in factors.items():
            steps |= {a.index.coef(v)} if v not in divided else {0, 1}
    return {v: steps.pop() if steps else 0 for v, steps in factors.items() if len(steps) < 2}


def _origin(
    busy: list[tuple[int, Pattern]],
    factors: Mapping[str, int],
    tasks: Mapping[str, tuple[int, int]],
    count: int,
    size: int,
) -> tuple[Origin | None, dict[int, Pattern]]:
    """Return where fields begin, as a function of some task digits, and the patterns that change for that.

    Most digits move the field, some do not: for example if every rTask reads all rows. Returns None if no subset of the
    digits explains all fields. Fields may be larger than needed if `size`, that of the argument, is not 0.
    """
    for number in range(len(factors), -1, -1):
        for moving in combinations(factors, number):
            moves = _moves({v: factors[v] for v in moving}, tasks, count)
            if size and (whole := _unclipped(busy, moves, size)):
                patterns = {r: Pattern(int(moves[r]) + whole.start, whole.levels) for r, _ in busy}
                return Origin(whole.start, moving), patterns
            starts = {p.start - int(moves[r]) for r, p in busy} or {0}
            if len(starts) == 1:
                return Origin(starts.pop(), moving), {}
    return None, {}


def _moves(factors: Mapping[str, int], tasks: Mapping[str, tuple[int, int]], count: int) -> NDArray[np.int64]:
    """Return the distance of every rTask's indices from those of rTask 0."""
    rtask = np.arange(count)
    total = np.zeros(count, np.int64)
    for v, factor in factors.items():
        stride, extent = tasks[v]
        total += factor * (rtask // stride % extent)
    return total


def _unclipped(busy: list[tuple[int, Pattern]], moves: NDArray[np.int64], size: int) -> Pattern | None:
    """Return the pattern of an inner rTask, seen from rTask 0, if every rTask touches a part of it; else None.

    At an edge the pattern exceeds the tensor. In return all rTasks share one codelet with constant distances.
    """
    if not busy:
        return None
    inner, largest = max(busy, key=lambda item: item[1].size)
    whole = Pattern(largest.start - int(moves[inner]), largest.levels)
    if largest.levels[-1][1] > size:
        return None
    parts = dict.fromkeys(Pattern(int(p.start - moves[r]), p.levels) for r, p in busy)
    return whole if all(_inside(part, whole) for part in parts) else None


def _inside(part: Pattern, whole: Pattern) -> bool:
    """Return whether all elements of a pattern are in another one."""
    starts = np.array([part.start - whole.start])
    for distance, count in part.levels[:-1]:
        starts = (starts[:, None] + np.arange(count) * distance).reshape(-1)
    for distance, count in whole.levels[:-1]:
        if ((starts < 0) | (starts // distance >= count)).any():
            return False
        starts = starts % distance
    return bool((starts >= 0).all() and (starts + part.levels[-1][1] <= whole.levels[-1][1]).all())


def _rewritten(program: TileProgram, fields: Mapping[str, tuple[Levels, Origin | None]]) -> TileProgram:
    """Return the program with indices into the fields of its arguments."""

    def place(name: str, index: Index, env: dict[str, tuple[int, int]]) -> Index:
        if name not in fields:
            return index
        levels, origin = fields[name]
        if origin is None:
            rest = index - var(f"{name}_at")
        else:
            rest = substitute(index, dict.fromkeys(origin.moving, Index())) - origin.start
        weight, total = prod(count for _, count in levels), Index()
        for distance, count in levels:
            weight //= max(count, 1)
            total += (rest // distance if distance > 1 else rest) * weight
            rest = rest % distance
        return simplify_index(total, env) if origin is not None else total

    def moved(stmt: Stmt, around: Body) -> Stmt:
        if not isinstance(stmt, Store):
            return stmt
        env = {loop.var: (loop.start, max(loop.stop - 1, loop.start)) for loop in around if isinstance(loop, For)}

        def leaf(ld: Load) -> Load:
            dynamic = tuple(_in_field(d, fields.get(ld.tensor)) for d in ld.dynamic)
            return Load(ld.tensor, (place(ld.tensor, ld.index[0], env),), dynamic)

        return Store(stmt.buffer, place(stmt.buffer, stmt.index, env), rewrite(stmt.value, leaf))

    arguments = tuple(replace(b, size=prod(c for _, c in fields[b.name][0])) for b in program.arguments)
    return replace(program, arguments=arguments, body=rewrite_within(program.body, moved))


def _in_field(dynamic: Dynamic, field: tuple[Levels, Origin | None] | None) -> Dynamic:
    """Convert a data-dependent step to one in the field.

    All reachable positions are held, so its digit keeps its distance.
    """
    if field is None or len(field[0]) == 1:
        return dynamic
    levels, weight = field[0], 1
    for distance, count in reversed(levels):
        if dynamic.stride == distance:
            return replace(dynamic, stride=weight)
        weight *= count
    raise LoweringError(
        f"a gather steps by {dynamic.stride} elements through pieces {levels}", hint="keep gathered tensors row-major"
    )
