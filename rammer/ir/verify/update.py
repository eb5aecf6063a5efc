"""Prove an update's rKernel: each element of the updates goes to its place, several for one place in order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any, NamedTuple

import numpy as np

from rammer.ir.analysis.access import Access, common_loops
from rammer.ir.expr import Call, Cast, Const, Iota, Load, Scalar, TensorExpr, free_axes
from rammer.ir.index import Index, evaluate
from rammer.ir.kernel import RKernel
from rammer.ir.semantics.evaluate import happens
from rammer.ir.tensor import Numbers, row_major
from rammer.ir.tile import Kind, Store, TileProgram, statements

MAX_POINTS = 1 << 22  # elements that an rTask moves, all of which are looked at


def findings(kernel: RKernel, program: TileProgram, writes: list[Access], ids: list[int]) -> Iterator[tuple[str, bool]]:
    """Yield what speaks against the rKernel, and whether that is certain."""
    expr = kernel.operation.expr
    stores = [s for s in statements(program.body) if isinstance(s, Store)]
    body = expr.root.body
    if not expr.into:
        if any(s.combine for s in stores):
            yield "combines what it stores with what is there, but is not an update", True
        return
    if expr.copied and len(stores) == len(writes):
        if what := _copied_late(expr, list(zip(stores, writes, strict=True))):
            yield what, True
            return
        pairs = [(s, a) for s, a in zip(stores, writes, strict=True) if s.dynamic]
        stores, writes = [s for s, _ in pairs], [a for _, a in pairs]
    if not stores or len(stores) != len(writes) or not isinstance(body, Load) or body.dynamic:
        yield f"{len(stores)} stores, of which {len(writes)} are an update's", True
        return
    if any(s.combine != expr.combine for s in stores):
        yield f"combines by {stores[0].combine or 'nothing'} instead of {expr.combine or 'nothing'}", True
        return
    if any(not isinstance(s.value, Load) or s.value.tensor != body.tensor or s.value.dynamic for s in stores):
        yield "what is stored is not an element of the updates", True
        return
    for rtask in ids:
        moves = [_Moves.of(kernel, *pair, rtask) for pair in zip(stores, writes, strict=True)]
        if None in moves:
            yield "an rTask moves too many elements for all of them to be looked at", False
            return
        if what := _wrong(kernel, [m for m in moves if m is not None], rtask):
            yield f"rTask {rtask} {what}", True
            return


def copies(program: TileProgram, writes: list[Access]) -> list[Access]:
    """Return the writes that copy what an update does not change: they do not depend on data. R203 is about these."""
    stores = [s for s in statements(program.body) if isinstance(s, Store)]
    return [a for s, a in zip(stores, writes, strict=True) if not s.dynamic]


def _copied_late(expr: TensorExpr, stores: list[tuple[Store, Access]]) -> str:
    """Return what is wrong with the copies before an update; empty if nothing is."""
    assert expr.into is not None
    moves = [access for store, access in stores if store.dynamic]
    for store, access in stores:
        if store.dynamic:
            continue
        if store.value != Load(expr.into.tensor, (store.index,)) or store.combine:
            return f"stores something else than {expr.into.tensor} in its place"
        for move in moves:
            shared = set(common_loops(access, move)) - {lp.var for _, lp in access.loops if lp.kind is Kind.TASK}
            if access.statement > move.statement or shared:
                return "copies elements after some were updated"
    return ""


class _Moves(NamedTuple):
    """Moves of one store in an rTask: the values of its loops, whether it happens, and numbers of the elements."""

    store: Store
    access: Access
    loops: Mapping[str, Numbers]
    inside: Any
    elements: Numbers

    @classmethod
    def of(cls, kernel: RKernel, store: Store, access: Access, rtask: int) -> _Moves | None:
        """Return the moves of an rTask; None where there are too many."""
        ranges = {**access.ranges, **{name: (at, at) for name, at in access.of_rtask(rtask).items()}}
        ranges = {lp.var: ranges[lp.var] for _, lp in access.loops}
        shape = [high - low + 1 for low, high in ranges.values()]
        if prod(shape) > MAX_POINTS:
            return None
        grid = {
            name: np.arange(low, high + 1).reshape([-1 if n == d else 1 for n in range(len(shape))])
            for d, (name, (low, high)) in enumerate(ranges.items())
        }
        inside = happens(access.path, grid, shape)
        loops = {name: np.broadcast_to(values, shape)[inside] for name, values in grid.items()}
        assert isinstance(store.value, Load)
        return cls(store, access, loops, inside, _values(store.value.index[0], loops, inside))


def _wrong(kernel: RKernel, moves: list[_Moves], rtask: int) -> str:
    """Return what is wrong with the moves of one rTask; empty if nothing is."""
    expr = kernel.operation.expr
    assert isinstance(expr.root.body, Load)
    box, source = kernel.box(rtask), expr.type_of(expr.root.body.tensor)
    moved = np.concatenate([m.elements for m in moves])
    due = np.arange(source.size).reshape(source.shape)[tuple(slice(*box[a]) for a, _ in expr.root.axes)].ravel()
    if not np.array_equal(np.sort(moved), due):
        return f"moves {len(moved)} elements, which are not just the {len(due)} of its box"
    free = dict(free_axes(expr))
    known = np.empty(0, np.int64)
    for m in moves:
        places = np.unravel_index(m.elements, source.shape) if source.shape else ()
        axes = dict(zip((a for a, _ in expr.root.axes), places, strict=True))
        if what := _misplaced(expr, m, axes, box):
            return what
        own = np.unique(_number(axes, free, len(m.elements)))
        if len(np.intersect1d(known, own)):
            return "stores elements that may have one place by several statements"
        known = np.union1d(known, own)
    return ""


def _misplaced(expr: TensorExpr, moves: _Moves, axes: Mapping[str, Numbers], box: Mapping[str, tuple[int, int]]) -> str:
    """Return what is wrong with where one store's elements go, and when."""
    store, access, loops, inside, _ = moves
    assert expr.into is not None
    if not np.array_equal(_values(store.index, loops, inside), _flat(expr, expr.into, axes, inside)):
        return "stores an element at another place than its own"
    strides = row_major(expr.type_of(expr.into.tensor).shape)
    if len(store.dynamic) != len(expr.into.dynamic):
        return f"lets {len(store.dynamic)} numbers say where elements go, instead of {len(expr.into.dynamic)}"
    for given, wanted in zip(store.dynamic, expr.into.dynamic, strict=True):
        if (given.extent, given.stride, given.strict) != (wanted.extent, strides[wanted.dim], wanted.strict):
            return f"moves by {given.stride} in steps below {given.extent} along dimension {wanted.dim}"
        if not _same(expr, given.value, wanted.value, loops, axes, inside):
            return f"asks for another place along dimension {wanted.dim}"
    return _disorder(expr, access, axes, box, inside)


def _disorder(
    expr: TensorExpr, access: Access, axes: Mapping[str, Numbers], box: Mapping[str, tuple[int, int]], inside: Any
) -> str:
    """Return what is wrong if, of elements that data may send to one place, the last one may not be stored last."""
    free = {a for a, _ in free_axes(expr)}
    rows = [(a, e) for a, e in expr.root.axes if a not in free]
    if cut := [a for a, extent in rows if box[a] != (0, extent)]:
        return f"is one of several for elements along {cut[0]}, which may have one place"
    number, lines = np.full(inside.shape, -1), np.full(inside.shape, -1)
    number[inside] = _number(axes, dict(rows), int(np.count_nonzero(inside)))
    lines[inside] = _number(axes, dict(free_axes(expr)), int(np.count_nonzero(inside)))
    kinds = [lp.kind for _, lp in access.loops]
    threads = [d for d, kind in enumerate(kinds) if kind is Kind.THREAD]
    serial = [d for d in range(len(kinds)) if d not in threads]
    by_thread, lines = (
        n.transpose(serial + threads).reshape(prod(number.shape[d] for d in serial), -1) for n in (number, lines)
    )
    line = (lines + np.arange(lines.shape[1]) * (lines.max(initial=0) + 1)).T[by_thread.T >= 0]  # of each thread
    order = np.argsort(line, kind="stable")
    again, later = line[order][1:] == line[order][:-1], np.diff(by_thread.T[by_thread.T >= 0][order]) >= 0
    if np.any(again & ~later):
        return "stores elements that may have one place in another order"
    if threads and rows and not all(len(np.unique(row[row >= 0])) <= 1 for row in by_thread):
        return "gives elements that may have one place to several threads"
    return ""


def _number(axes: Mapping[str, Numbers], extents: Mapping[str, int], elements: int) -> Numbers:
    """Return one number for where elements are along some axes."""
    number = np.zeros(elements, np.int64)
    for axis, extent in extents.items():
        number = number * extent + axes[axis]
    return number


def _same(
    expr: TensorExpr,
    given: Scalar,
    wanted: Scalar,
    loops: Mapping[str, Numbers],
    axes: Mapping[str, Numbers],
    inside: Any,
) -> bool:
    """Return whether a number that a tile program computes is the expression's, for each element that is moved."""

    def same(a: Scalar, b: Scalar) -> bool:
        match a, b:
            case Load(name, (index,), ()), Load(other, _, ()):
                return name == other and np.array_equal(_values(index, loops, inside), _flat(expr, b, axes, inside))
            case Iota(index), Iota(own):
                return np.array_equal(_values(index, loops, inside), _values(own, axes, inside))
            case Call(fn, parts), Call(other, own):
                return fn == other and len(parts) == len(own) and all(map(same, parts, own))
            case Const(), Const():
                return a == b
            case Cast(inner, dtype), Cast(other, wanted_dtype):
                return dtype is wanted_dtype and same(inner, other)
        return False

    return same(given, wanted)


def _values(index: Index, loops: Mapping[str, Numbers], inside: Any) -> Numbers:
    return np.broadcast_to(np.asarray(evaluate(index, loops), np.int64), int(np.count_nonzero(inside)))


def _flat(expr: TensorExpr, place: Load, axes: Mapping[str, Numbers], inside: Any) -> Numbers:
    """Return the position in memory of a place, as far as the axes decide it."""
    total = np.zeros(int(np.count_nonzero(inside)), np.int64)
    for index, stride in zip(place.index, row_major(expr.type_of(place.tensor).shape), strict=True):
        total = total + np.asarray(evaluate(index, axes), np.int64) * stride
    return total
