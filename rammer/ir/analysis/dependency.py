"""Compute exact dependencies between rTasks from the affine loads of expressions.

Known as: dependence analysis. Elements are physical, numbered from the start of the tensor that owns the memory. So
views, reshapes, concatenations in place and blocked layouts need no rules of their own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from math import prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rammer.errors import RammerError
from rammer.ir.analysis.access import Accesses
from rammer.ir.analysis.footprint import footprint, line
from rammer.ir.analysis.intervals import NOTHING, Intervals, expand, merged, sumset, union, within
from rammer.ir.expr import Path, Range, Role, TensorExpr, independent_groups, loads, loads_in_role
from rammer.ir.graph import Graph
from rammer.ir.index import Index, Mod, bounds, evaluate, simplify, substitute, var, variables
from rammer.ir.kernel import RKernel
from rammer.ir.operator import Operation
from rammer.ir.program import TaskUid
from rammer.ir.remembered import remembered
from rammer.ir.semantics.evaluate import happens
from rammer.ir.tensor import Digit, TensorId, TensorType
from rammer.ir.tile import TileProgram

Pairs: TypeAlias = NDArray[np.int64]  # [n, 2]: (rTask of the consumer, rTask of the producer), sorted
Spans: TypeAlias = Mapping[str, tuple[int, int]]  # axis -> [low, high)
Strides: TypeAlias = tuple[tuple[int, int, int], ...]  # (stride, div, mod): elements that a dimension's index adds

MAX_POINTS = 1 << 20  # points of one group of axes that are enumerated; beyond it, bounds of the indices are used


@dataclass(frozen=True, slots=True)
class AxisGroup:
    """Dimensions and conditions of a load that share no axis with the rest, so that they are enumerated separately."""

    axes: tuple[str, ...]
    dims: tuple[int, ...]
    index: tuple[Index, ...]  # of each dimension
    where: Path


@dataclass(frozen=True, slots=True, eq=False)
class Elements:
    """Elements of one argument that each rTask accesses. rTasks with equal elements share one entry of `sets`."""

    sets: tuple[Intervals, ...]
    chosen: tuple[int, ...]  # rTask -> entry of `sets`
    exact: bool  # False: some set is only an upper bound

    def __getitem__(self, rtask: int) -> Intervals:
        return self.sets[self.chosen[rtask]]


def reads(kernel: RKernel, position: int, rtask: int) -> Intervals:
    """Return the physical elements of input number `position` that an rTask reads."""
    return read_elements(kernel, position)[rtask]


def writes(kernel: RKernel, position: int, rtask: int) -> Intervals:
    """Return the physical elements of output number `position` that an rTask writes, padding included."""
    return written_elements(kernel, position)[rtask]


@remembered(1 << 13)
def read_elements(kernel: RKernel, position: int) -> Elements:
    """Return what every rTask reads of an input, in the layout in which the kernel reads it."""
    reader = BoxReader(kernel, position)
    sets, chosen = _per_box(kernel, reader.axes, reader.of_box)
    if kernel.overreads and isinstance(kernel.body, TileProgram):
        name = kernel.body.arguments[len(kernel.operation.outputs) + position].name
        reads = [a for a in Accesses(kernel.body).found if a.buffer == name and not a.write]
        touched = [union([footprint(a, a.of_rtask(r)).elements for a in reads]) for r in range(kernel.num_rtasks)]
        sets = tuple(union([sets[n], more]) for n, more in zip(chosen, touched, strict=True))
        chosen = tuple(range(kernel.num_rtasks))
    return Elements(sets, chosen, reader.exact)


class BoxReader:
    """Reader of an input: the elements that a box of all outputs, or of one `output`, needs.

    `exact` becomes False once a set is only an upper bound. Loads are distinguished by index. With `most_roles`, they
    are distinguished by role too, unless a stage has more roles than that.
    """

    def __init__(self, kernel: RKernel, position: int, output: str | None = None, most_roles: int = 0) -> None:
        name, _ = kernel.operation.expr.inputs[position]
        self.exact = True
        self._kind = kernel.input_types()[position]
        self._strides = _strides(self._kind)
        accesses, extents = _accesses(kernel.operation, output, most_roles)
        self.loads: dict[tuple[tuple[Index, ...], Role], list[tuple[AxisGroup, ...]]] = defaultdict(list)
        for index, groups, role in accesses.get(name, []):
            self.loads[index, role].append(groups)
        self._loops = {axis: (0, extent) for axis, extent in extents.items()}
        # By identity: to hash what loads and groups consist of is slow.
        self._axes = {id(found): list(dict.fromkeys(_axes(found))) for found in self.loads.values()}
        self._known: dict[tuple[Any, ...], Intervals] = {}
        self._found: dict[tuple[Any, ...], tuple[Intervals, bool]] = {}

    @property
    def axes(self) -> set[str]:
        return {a for found in self.loads.values() for a in _axes(found)}

    def of_box(self, box: Spans) -> Intervals:
        """Return the physical elements that a box reads; `box` has [low, high) by root axis."""
        spans = {**self._loops, **box}
        return union([self._read(found, spans) for found in self.loads.values()])

    def by_load(self, box: Spans) -> dict[tuple[tuple[Index, ...], Role], Intervals]:
        """Return `of_box` of each load, by index and role."""
        spans = {**self._loops, **box}
        return {load: self._read(found, spans) for load, found in self.loads.items()}

    def of_each(self, places: Mapping[str, NDArray[np.int64]]) -> dict[Role, NDArray[np.int64]] | None:
        """Return what many places read, by role: rows (number of the place, element), [n, 2], sorted.

        `places` has an array per root axis. None if there are more than `MAX_POINTS` points.
        """
        parts: dict[Role, list[NDArray[np.int64]]] = defaultdict(list)
        count = len(next(iter(places.values()), (0,)))
        for (_, role), found in self.loads.items():
            for groups in found:
                total = np.zeros((1, 1), np.int64)
                for group in groups:
                    more = prod(self._loops[a][1] for a in group.axes if a not in places)
                    if count * total.shape[1] * more > MAX_POINTS:
                        return None
                    offsets = self._of_each(group, places)
                    sums = total[:, :, None] + offsets[:, None, :]
                    nothing = (total < 0)[:, :, None] | (offsets < 0)[:, None, :]
                    total = np.where(nothing, -1, sums).reshape(len(sums), total.shape[1] * offsets.shape[1])
                parts[role].append(np.broadcast_to(total, (count, total.shape[1])))
        rows = {}
        for role, several in parts.items():
            read = np.sort(np.concatenate(several, axis=1), axis=1)
            kept = read >= 0
            kept[:, 1:] &= read[:, 1:] != read[:, :-1]
            rows[role] = np.stack([np.nonzero(kept)[0], read[kept]], 1)
        return rows

    def _of_each(self, group: AxisGroup, places: Mapping[str, NDArray[np.int64]]) -> NDArray[np.int64]:
        """Return the offset that a group adds at each place; -1 where it reads nothing. One row if all places agree."""
        inner = [a for a in group.axes if a not in places]
        sizes = [self._loops[a][1] for a in inner]
        steps = [n.reshape(1, prod(sizes)) for n in np.indices(sizes)] if inner else []
        grid = {a: places[a][:, None] for a in group.axes if a in places} | dict(zip(inner, steps, strict=True))
        shape = (len(next(iter(places.values()))) if len(inner) < len(group.axes) else 1, prod(sizes))
        inside, total = _positions(group, grid, shape, self._kind.shape, self._strides)
        return np.where(inside, total, -1)

    def _read(self, found: list[tuple[AxisGroup, ...]], spans: Spans) -> Intervals:
        key = (id(found), *(spans[a] for a in self._axes[id(found)]))
        if key not in self._known:  # neighbours are computed from the same weights, channels from the same window
            self._known[key] = union([sumset([self._offsets(g, spans) for g in groups]) for groups in found])
        return self._known[key]

    def _offsets(self, group: AxisGroup, spans: Spans) -> Intervals:
        key = (id(group), *(spans[a] for a in group.axes))
        if key not in self._found:
            self._found[key] = _offsets(group, spans, self._kind.shape, self._strides)
        intervals, sharp = self._found[key]
        self.exact = self.exact and sharp
        return intervals


def _axes(found: list[tuple[AxisGroup, ...]]) -> Iterator[str]:
    """Yield the axes that decide what a load reads."""
    return (a for groups in found for g in groups for a in g.axes)


@remembered(1 << 13)
def written_elements(kernel: RKernel, position: int) -> Elements:
    """Return what every rTask writes of an output. Padding of blocks at an edge belongs to the rTask at the edge.

    For an update, return all that data may select: an upper bound, unless it copies the rest.
    """
    kind, expr = kernel.operation.outputs[position], kernel.operation.expr
    strides = _strides(kind)
    axes = [a for a, _ in expr.root.axes]
    places = expr.into.index if expr.into else tuple(map(var, axes))
    anywhere = {d.dim for d in expr.into.dynamic} if expr.into else set()

    @cache
    def along(dim: int, low: int, high: int) -> Intervals:
        if high == kind.shape[dim]:
            block = max((div for _, div, _ in strides[dim]), default=1)
            high = -(-high // block) * block
        return _addresses(np.array([[low, high]]), strides[dim])

    def of_box(box: Spans) -> Intervals:
        parts = []
        for dim, place in enumerate(places):
            low, high = bounds(place, {a: (begin, end - 1) for a, (begin, end) in box.items()})
            parts.append(along(dim, 0, kind.shape[dim]) if dim in anywhere else along(dim, low, high + 1))
        return sumset(parts)

    moving = set().union(*(variables(place) for dim, place in enumerate(places) if dim not in anywhere))
    sets, chosen = _per_box(kernel, moving if anywhere else set(axes), of_box)
    return Elements(sets, chosen, not anywhere or expr.copied)


@lru_cache(maxsize=1 << 10)
def logical_elements(kind: TensorType) -> Intervals:
    """Return the physical elements that hold a logical one: all but padding."""
    return sumset([_addresses(np.array([[0, e]]), s) for e, s in zip(kind.shape, _strides(kind), strict=True)])


def place_of(kind: TensorType, element: int) -> tuple[int, ...] | None:
    """Return the logical place of a physical element; None for padding and for gaps of a pitch."""
    places, held = places_of(kind, np.array([element]))
    return tuple(places[0].tolist()) if held[0] else None


def places_of(kind: TensorType, elements: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the logical places of physical elements, [n, rank], and a mask of those that hold one."""
    digits = kind.layout.digits if kind.layout else tuple(Digit(d) for d in range(kind.rank))
    places, held = np.zeros((len(elements), kind.rank), np.int64), np.ones(len(elements), bool)
    for digit, stride, extent in zip(digits, kind.strides, kind.physical_shape, strict=True):
        value, elements = np.divmod(elements, stride)
        held &= value < extent
        places[:, digit.dim] += value * digit.div
    return places, held & (places < np.array(kind.shape, np.int64)).all(axis=1)


@remembered(1 << 13)
def writers(kernel: RKernel, position: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return starts, ends and rTasks of all ranges written to an output, by address. Raises if two rTasks overlap."""
    elements = written_elements(kernel, position)
    sets = [elements[r] for r in range(kernel.num_rtasks)]
    flat = np.concatenate(sets) if sets else NOTHING
    owner = np.repeat(np.arange(len(sets), dtype=np.int64), [len(s) for s in sets])
    order = np.argsort(flat[:, 0], kind="stable")
    starts, ends, owner = flat[order, 0], flat[order, 1], owner[order]
    if (clash := np.flatnonzero(starts[1:] < ends[:-1])).size:
        first, second = int(owner[clash[0]]), int(owner[clash[0] + 1])
        raise RammerError(
            f"kernel {kernel.name}: rTasks {first} and {second} both write element {starts[clash[0] + 1]}",
            hint="the digits of a kernel must cut the root's axes into boxes that do not overlap",
        )
    return starts, ends, owner


@remembered(1 << 13)
def num_written(kernel: RKernel, position: int) -> int:
    """Count the physical elements of an output that all rTasks together write; for an update, an upper bound."""
    expr = kernel.operation.expr
    if expr.in_place:
        return prod(expr.root.shape)
    starts, ends, _ = writers(kernel, position)
    return int((ends - starts).sum())


@remembered(1 << 15)
def overlaps(consumer: RKernel, position: int, producer: RKernel, output: int, shift: int) -> Pairs:
    """Return the sorted pairs (rTask of `consumer`, rTask of `producer`) where one reads what the other writes.

    Element e of the consumer's input is element e + shift of the producer's output.
    """
    starts, ends, owner = writers(producer, output)
    elements = read_elements(consumer, position)
    found = []
    for intervals in elements.sets:
        first = np.searchsorted(ends, intervals[:, 0] + shift, "right")
        last = np.searchsorted(starts, intervals[:, 1] + shift, "left")
        hit = first < last
        change = np.bincount(first[hit], minlength=len(owner) + 1) - np.bincount(last[hit], minlength=len(owner) + 1)
        found.append(np.unique(owner[np.cumsum(change[:-1]) > 0]))
    counts = [len(found[c]) for c in elements.chosen]
    left = np.repeat(np.arange(len(counts), dtype=np.int64), counts)
    right = np.concatenate([found[c] for c in elements.chosen]) if counts else np.zeros(0, np.int64)
    return np.stack([left, right], 1)


class Needed(NamedTuple):
    """rTasks of a producer on which given rTasks of a consumer depend."""

    rtasks: list[int]  # of the producer, ascending
    readers: NDArray[np.int64]  # of each pair, the place of the consumer's rTask
    which: NDArray[np.int64]  # of each pair, the place in `rtasks`
    by_all: bool  # each rTask of the consumer needs all of them


def needed(pairs: Pairs, num_readers: int) -> Needed:
    """Collect what `num_readers` rTasks of a consumer need of a producer; `pairs` number them from 0 on."""
    rtasks, which = np.unique(pairs[:, 1], return_inverse=True)
    return Needed(rtasks.tolist(), pairs[:, 0], which, len(pairs) == num_readers * len(rtasks))


@remembered(1 << 15)
def needed_by_all(consumer: RKernel, position: int, producer: RKernel, output: int, shift: int) -> Needed:
    """Return what all rTasks of `consumer` need, by `overlaps`."""
    return needed(overlaps(consumer, position, producer, output, shift), consumer.num_rtasks)


@remembered(1 << 15)
def surely_follows(consumer: RKernel, position: int, producer: RKernel, output: int, shift: int) -> bool:
    """Return whether the first rTask of `consumer` surely reads what `producer` writes, without looking at the others.

    False is inconclusive: then `overlaps` decides.
    """
    kind = producer.operation.outputs[output]
    if producer.operation.expr.into or not consumer.num_rtasks or (kind.layout and kind.layout.pitched):
        return False
    reader = BoxReader(consumer, position)
    box = consumer.box(0)
    read = reader.of_box(box) if all(low < high for low, high in box.values()) else NOTHING
    return reader.exact and bool(len(within(read, -shift, kind.span - shift)))  # all is written, padding included


@remembered(1 << 12)
def followed_axes(operation: Operation) -> tuple[tuple[int | None, ...], ...]:
    """Return, for each dimension of each input, the number of the root axis that indexes it.

    Strided indices, windows and parts count. None if no axis or several index it, or one by remainders (to and fro).
    Example: the input of y[i, j] = x[j] has ((1,),).
    """
    accesses, _ = _accesses(operation, None)
    numbers = {axis: n for n, (axis, _) in enumerate(operation.expr.root.axes)}
    answer = []
    for name, kind in operation.expr.inputs:
        loads = [tuple(_followed(i, numbers) for i in index) for index, _, _ in accesses.get(name, [])]
        answer.append(tuple(found[0] if len(set(found)) == 1 else None for found in zip(*loads, strict=True)))
        answer[-1] = answer[-1] or (None,) * kind.rank
    return tuple(answer)


def _followed(index: Index, numbers: Mapping[str, int]) -> int | None:
    axes = variables(index) & numbers.keys()
    return numbers[axes.pop()] if len(axes) == 1 and not _wraps(index, axes) else None


def _wraps(index: Index, axes: set[str]) -> bool:
    """Return whether an index takes remainders of one of the axes."""
    inner = [atom for atom, _ in index.terms if not isinstance(atom, str)]
    return any((isinstance(a, Mod) and variables(a.arg) & axes) or _wraps(a.arg, axes) for a in inner)


class Dependencies:
    """The rTasks for which every rTask must wait.

    `kernels` may grow while a policy chooses: the kernels of an operator and its producers are looked up when needed.
    """

    def __init__(self, graph: Graph, kernels: Sequence[RKernel] | Mapping[int, RKernel]) -> None:
        self.graph, self.kernels = graph, kernels

    def edges(self, operator_id: int) -> list[tuple[int, Pairs]]:
        """Return (producer's number, pairs of rTasks) for every input that an operator computes."""
        return [(producer, pairs) for _, producer, pairs in self.by_input(operator_id)]

    def by_input(self, operator_id: int) -> Iterator[tuple[TensorId, int, Pairs]]:
        """Yield (input, producer's number, pairs of rTasks) for every input that an operator computes."""
        kernel, inputs = self.kernels[operator_id], self.graph.operators[operator_id].inputs
        for position, producer, output, shift in self.graph.sources[operator_id]:
            pairs = overlaps(kernel, position, self.kernels[producer], output, shift)
            if len(pairs):
                yield inputs[position], producer, pairs

    def needed(self, operator_id: int, rtasks: NDArray[np.int64]) -> Iterator[tuple[int, Needed]]:
        """Yield (producer's number, what `rtasks`, ascending, need of it) for every input that an operator computes."""
        kernel = self.kernels[operator_id]
        for position, producer, output, shift in self.graph.sources[operator_id]:
            edge = kernel, position, self.kernels[producer], output, shift
            if len(rtasks) == kernel.num_rtasks:
                found = needed_by_all(*edge)
            else:
                pairs = overlaps(*edge)
                pairs = pairs[np.isin(pairs[:, 0], rtasks)]
                found = needed(np.column_stack((np.searchsorted(rtasks, pairs[:, 0]), pairs[:, 1])), len(rtasks))
            if found.rtasks:
                yield producer, found

    def producers(self, operator_id: int) -> dict[int, bool]:
        """Map operators that may write what an operator reads to whether its first rTask surely reads from them.

        `edges` has the exact pairs of rTasks, but takes long if there are many.
        """
        kernel, found = self.kernels[operator_id], dict[int, bool]()
        for position, producer, output, shift in self.graph.sources[operator_id]:
            sure = surely_follows(kernel, position, self.kernels[producer], output, shift)
            found[producer] = found.get(producer, False) or sure
        return found

    def of(self, operator_id: int) -> Sequence[tuple[TaskUid, ...]]:
        """Return, for each rTask of an operator, the rTasks for which it must wait, ascending."""
        needed: list[dict[TaskUid, None]] = [{} for _ in range(self.kernels[operator_id].num_rtasks)]
        for producer, pairs in self.edges(operator_id):
            for rtask, other in pairs.tolist():
                needed[rtask][TaskUid(producer, other)] = None
        return [tuple(sorted(tasks)) if len(tasks) > 1 else tuple(tasks) for tasks in needed]

    def bounded(self) -> list[str]:
        """List inputs whose elements are only bounded: an index that is not affine has too many points."""
        return [
            f"{op.name}: input {position} of {kernel.name} is taken as a box"
            for n, op in enumerate(self.graph.operators)
            for kernel in [self.kernels[n]]
            for position, tensor in enumerate(op.inputs)
            if self.graph.writers(tensor) and not read_elements(kernel, position).exact
        ]


def _per_box(
    kernel: RKernel, axes: set[str], of_box: Callable[[Spans], Intervals]
) -> tuple[tuple[Intervals, ...], tuple[int, ...]]:
    """Compute of_box(box) for every rTask; boxes that agree on `axes` share one result."""
    known: dict[tuple[Any, ...], int] = {}
    sets: list[Intervals] = []
    chosen = []
    for rtask in range(kernel.num_rtasks):
        box = kernel.box(rtask)
        empty = any(low >= high for low, high in box.values())
        key = ("empty",) if empty else tuple(s for a, s in box.items() if a in axes)
        if key not in known:
            known[key] = len(sets)
            sets.append(NOTHING if empty else of_box(box))
        chosen.append(known[key])
    return tuple(sets), tuple(chosen)


@remembered(1 << 12)
def _accesses(
    operation: Operation, output: str | None, most_roles: int = 0
) -> tuple[dict[str, list[tuple[tuple[Index, ...], tuple[AxisGroup, ...], Role]]], dict[str, int]]:
    """Return the loads of each input that an operation (or one output) needs, and the extents of all their axes.

    Stages are visited from the root down. Each is requested at index expressions and under conditions, and requests its
    own loads in turn, once per distinct expression. So chains of stages cost no more than their distinct loads. Roles
    are kept while no stage is requested in more than `most_roles`.
    """
    expr: TensorExpr = operation.expr
    extents = dict(expr.root.axes)
    asked: dict[str, dict[tuple[tuple[Index, ...], Path, Role], None]] = defaultdict(dict)
    for name in [n for n, _ in expr.outputs if output in (None, n)]:
        asked[name][tuple(var(a) for a, _ in expr.root.axes), (), ()] = None
    if expr.into and expr.copied:
        free = {d.dim: f"{expr.into.tensor}.{d.dim}" for d in expr.into.dynamic}
        extents |= {axis: expr.type_of(expr.into.tensor).shape[dim] for dim, axis in free.items()}
        whole = tuple(var(free[dim]) if dim in free else place for dim, place in enumerate(expr.into.index))
        asked[expr.into.tensor][whole, (), ()] = None
    for d in expr.into.dynamic if expr.into else ():  # places of elements are read with them
        for load, _ in loads(d.value):
            asked[load.tensor][load.index, (), ("at",) if most_roles else ()] = None
    for stage in reversed(expr.stages):
        wanted = asked.pop(stage.name, {})
        if most_roles and len(wanted) > most_roles:
            return _accesses(operation, output)
        for n, (places, path, outer) in enumerate(wanted):
            fresh = {axis: f"{stage.name}.{n}.{axis}" for axis, _ in stage.reduce}
            extents.update({fresh[axis]: extent for axis, extent in stage.reduce})
            values = dict(zip((a for a, _ in stage.axes), places, strict=True))
            values.update({axis: var(name) for axis, name in fresh.items()})
            for load, inner, role in loads_in_role(stage.body):
                index, chosen = list(load.index), dict(values)
                for d in load.dynamic:
                    anywhere = f"{stage.name}.{n}.{len(extents)}"
                    extents[anywhere] = expr.type_of(load.tensor).shape[d.dim]
                    index[d.dim] = chosen[anywhere] = var(anywhere)
                limits = {a: (0, max(e - 1, 0)) for a, e in extents.items()}
                where = _path((*path, *_moved(inner, values)), limits)
                if where is not None:
                    at = tuple(simplify(substitute(i, chosen), limits) for i in index)
                    asked[load.tensor][at, where, (*outer, *role) if most_roles else ()] = None
    return {n: [(at, _groups(at, path), role) for at, path, role in found] for n, found in asked.items()}, extents


def _moved(path: Path, values: Mapping[str, Index]) -> Path:
    return tuple((tuple(Range(substitute(r.index, values), r.low, r.high) for r in at), wanted) for at, wanted in path)


def _path(path: Path, limits: Mapping[str, tuple[int, int]]) -> Path | None:
    """Return the conditions that the bounds of the axes leave open; None if they can never hold together."""
    kept: dict[tuple[tuple[Range, ...], bool], None] = {}
    for where, wanted in path:
        if not wanted:
            kept[where, False] = None
            continue
        for r in where:
            low, high = bounds(r.index, limits)
            if high < r.low or low >= r.high:
                return None
            if low < r.low or high >= r.high:
                kept[(Range(simplify(r.index, limits), r.low, r.high),), True] = None
    return tuple(kept)


def _groups(index: tuple[Index, ...], path: Path) -> tuple[AxisGroup, ...]:
    groups = []
    for axes, dims, where in independent_groups(((variables(ix), d) for d, ix in enumerate(index)), path):
        dims.sort()
        groups.append(AxisGroup(tuple(sorted(axes)), tuple(dims), tuple(index[d] for d in dims), where))
    return tuple(groups)


def _strides(kind: TensorType) -> list[Strides]:
    """Return, per logical dimension, the strides by which its index moves the position in memory."""
    if kind.layout is None:
        return [((s, 1, 0),) for s in kind.strides]
    found: list[list[tuple[int, int, int]]] = [[] for _ in kind.shape]
    for digit, stride in zip(kind.layout.digits, kind.strides, strict=True):
        found[digit.dim].append((stride, digit.div, digit.mod))
    return [tuple(digits) for digits in found]


def _offsets(
    group: AxisGroup, spans: Spans, shape: tuple[int, ...], strides: Sequence[Strides]
) -> tuple[Intervals, bool]:
    """Return the positions in memory that a group contributes over `spans`, and whether they are exact."""
    sizes = [spans[a][1] - spans[a][0] for a in group.axes]
    if any(n <= 0 for n in sizes):
        return NOTHING, True
    if len(group.dims) == 1 and (values := _affine(group, spans, shape[group.dims[0]])) is not None:
        return _addresses(values, strides[group.dims[0]]), True
    if prod(sizes) > MAX_POINTS:
        limits = {a: (low, high - 1) for a, (low, high) in spans.items()}
        parts = []
        for dim, index in zip(group.dims, group.index, strict=True):
            low, high = bounds(index, limits)
            parts.append(_addresses(np.array([[max(low, 0), min(high + 1, shape[dim])]]), strides[dim]))
        return sumset(parts), False
    grid = dict(zip(group.axes, np.ogrid[tuple(slice(*spans[a]) for a in group.axes)], strict=True))
    inside, total = _positions(group, grid, sizes, shape, strides)
    points = np.unique(total[inside])
    return merged(points, points + 1), True


def _positions(
    group: AxisGroup,
    grid: Mapping[str, NDArray[np.int64]],
    sizes: Sequence[int],
    shape: tuple[int, ...],
    strides: Sequence[Strides],
) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Return a mask of the grid points at which a group reads, and the position that it adds there."""
    inside = happens(group.where, grid, sizes)
    total: Any = np.zeros(sizes, np.int64)
    for dim, index in zip(group.dims, group.index, strict=True):
        value = np.asarray(evaluate(index, grid))
        inside &= (value >= 0) & (value < shape[dim])
        total = total + sum((value // div % mod if mod else value // div) * s for s, div, mod in strides[dim])
    return inside, total


def _affine(group: AxisGroup, spans: Spans, extent: int) -> Intervals | None:
    """Return the values of one affine index without enumerating points; None if the group is not that simple."""
    (index,) = group.index
    if not all(isinstance(atom, str) for atom, _ in index.terms):
        return None
    first, last = 0, extent
    for where, wanted in group.where:
        gap = where[0].index - index
        if not wanted or len(where) != 1 or gap.terms:
            return None
        first, last = max(first, where[0].low - gap.const), min(last, where[0].high - gap.const)
    return within(line(index, {axis: (spans[axis][0], spans[axis][1] - 1) for axis in group.axes}), first, last)


def _addresses(values: Intervals, strides: Strides) -> Intervals:
    """Return the positions in memory of a set of index values of one dimension."""
    if len(strides) == 1 and strides[0][1:] == (1, 0):
        stride = strides[0][0]
        if stride == 1 or not len(values):
            return values
        points = expand(values) * stride
    else:
        index = expand(values)
        total: Any = np.zeros(len(index), np.int64)
        for stride, div, mod in strides:
            total = total + (index // div % mod if mod else index // div) * stride
        points = np.unique(total)
    return np.stack([points, points + 1], 1) if len(strides) == 1 and strides[0][0] > 1 else merged(points, points + 1)
