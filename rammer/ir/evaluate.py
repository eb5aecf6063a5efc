"""The meaning of a tensor expression, by NumPy."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from math import isfinite, prod
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from rammer.errors import InputError
from rammer.ir.expr import (
    REDUCERS,
    Call,
    Cast,
    Const,
    Iota,
    Load,
    Path,
    Range,
    Scalar,
    Select,
    Stage,
    Table,
    TensorExpr,
    free_axes,
    loads,
    result_dtype,
)
from rammer.ir.functions import FUNCTIONS
from rammer.ir.graph import Graph
from rammer.ir.index import evaluate, variables
from rammer.ir.tensor import Array, DType, Shape, TensorId, TensorType, pack, unpack

Box = Mapping[str, tuple[int, int]]  # axis -> [low, high)
MAX_POINTS = 1 << 24  # grid points evaluated at once; larger boxes are cut along their longest output axis
FEW = 1 << 11  # elements that are looked up one by one, as that takes less time than to find out how they lie
MOST_SCATTERED = 1 << 20  # of single places, whose inputs are looked up one by one
Key = TypeVar("Key", bound=Hashable)
Result = TypeVar("Result")
Mask: TypeAlias = NDArray[np.bool_]


class Elements(Protocol):
    """An input that is in no array: it tells its elements at places that are inside."""

    @property
    def shape(self) -> Shape: ...

    @property
    def size(self) -> int: ...

    def at(self, places: Sequence[NDArray[np.int64]]) -> Array: ...


@dataclass
class _Conversions:
    """What floats become that an integer type does not hold: as NumPy has them, or `other`; `met`: there were some."""

    other: int | None = None
    met: bool = False

    def taken(self, value: Array, dtype: DType) -> Array:
        """Floats to be converted to an integer type, with those replaced that it does not hold."""
        outside = ~((value > float(dtype.info.min) - 1) & (value < float(dtype.info.max) + 1))
        self.met = self.met or bool(outside.any())
        return value if self.other is None else np.where(outside, min(self.other, int(dtype.info.max)), value)


_CONVERSIONS: ContextVar[_Conversions | None] = ContextVar("conversions", default=None)
_OTHERS = (0, 1, 1 << 62)  # what devices make of NaN and of what is too large: some 0, some a limit


def evaluate_defined(
    compute: Callable[[], Mapping[Key, Array]],
) -> tuple[Mapping[Key, Array], dict[Key, Mask]]:
    """What `compute` evaluates, and which of its elements are defined: these can be compared.

    A float that an integer type does not hold becomes some integer. Where that happens, `compute` runs again with
    other integers there: elements that then differ depend on what is not defined.
    """
    conversions = _Conversions()
    token = _CONVERSIONS.set(conversions)
    try:
        values = compute()
        defined = {key: np.ones(value.shape, bool) for key, value in values.items()}
        for other in _OTHERS if conversions.met else ():
            conversions.other = other
            for key, value in compute().items():
                defined[key] &= (value == values[key]) | ((value != value) & (values[key] != values[key]))
    finally:
        _CONVERSIONS.reset(token)
    return values, defined


def evaluate_expr(expr: TensorExpr, inputs: Mapping[str, Array]) -> list[Array]:
    """All outputs for logical (unpacked) inputs. Floats are computed in float64 and rounded to each stage's type."""
    box = {axis: (0, extent) for axis, extent in expr.root.axes}
    if expr.into is None:
        return evaluate_box(expr, inputs, box)
    updated = np.array(inputs[expr.into.tensor])
    update_box(expr, inputs, box, updated)
    return [updated]


def update_box(expr: TensorExpr, inputs: Mapping[str, Array], box: Box, updated: Array) -> None:
    """Do to the (logical) output of an update what one rTask does: the rows of a box go to their places, in order."""
    assert expr.into is not None
    (value,) = evaluate_box(expr, inputs, box)
    axes = [np.arange(*box[a]) for a, _ in expr.root.axes]
    grid = dict(zip((a for a, _ in expr.root.axes), np.ix_(*axes), strict=True)) if axes else {}
    places = [np.broadcast_to(p, value.shape).ravel() for p in Evaluator(expr, inputs).places(expr.into, grid)]
    inside = np.ones(value.size, bool)
    for at, extent in zip(places, updated.shape, strict=True):
        inside &= (at >= 0) & (at < extent)
    rows = np.flatnonzero(inside)
    flat = np.ravel_multi_index([at[rows] for at in places], updated.shape) if places else np.zeros(len(rows), np.int64)
    last = len(flat) - 1 - np.unique(flat[::-1], return_index=True)[1]  # NumPy does not say which of several stays
    updated.reshape(-1)[flat[last]] = value.reshape(-1)[rows[last]]


def evaluate_box(expr: TensorExpr, inputs: Mapping[str, Array], box: Box) -> list[Array]:
    """The outputs inside a box of the root's axes: what one rTask computes. Shapes are the box's."""
    return _evaluate(Evaluator(expr, inputs), box)


def stored_at(
    expr: TensorExpr, inputs: Mapping[str, Array | Elements], places: NDArray[np.int64]
) -> list[NDArray[np.int64]]:
    """The index in the output, dimension by dimension, of the root's elements at single places."""
    if expr.into is None:
        return list(places.T)
    grid = dict(zip((a for a, _ in expr.root.axes), places.T, strict=True))
    return [np.zeros(len(places), np.int64) + p for p in Evaluator(expr, inputs).places(expr.into, grid)]


def sampled_places(expr: TensorExpr, count: int, seed: int = 0) -> NDArray[np.int64]:
    """Up to so many places of the root, one a row: at corners, edges and in the middle.

    Of an update, where of elements for one place the last one stays, the last ones.
    """
    shape = expr.root.shape
    if 0 in shape:
        return np.zeros((0, len(shape)), np.int64)
    random = np.random.default_rng(seed)
    rows = [tuple(0 for _ in shape), tuple(e - 1 for e in shape), tuple(e // 2 for e in shape)]
    while len(rows) < count:
        ends = [(0, min(1, e - 1), int(random.integers(e)), max(e - 2, 0), e - 1) for e in shape]
        rows.append(tuple(int(random.choice(end)) for end in ends))
    rows = list(dict.fromkeys(rows[:count]))
    if expr.into:
        free = {axis for axis, _ in free_axes(expr)}
        rows = [
            tuple(at if a in free else e - 1 for at, (a, e) in zip(row, expr.root.axes, strict=True)) for row in rows
        ]
        rows = list(dict.fromkeys(rows))
    return np.array(rows, np.int64).reshape(len(rows), len(shape))


def _evaluate(evaluator: Evaluator, box: Box) -> list[Array]:
    expr = evaluator.expr
    root_axes = [a for a, _ in expr.root.axes]
    if (widest := _cut(expr, box)) is not None:
        low, high = box[widest]
        middle = (low + high) // 2
        axis = root_axes.index(widest)
        first, second = (_evaluate(evaluator, {**box, widest: part}) for part in ((low, middle), (middle, high)))
        return [np.concatenate(pair, axis) for pair in zip(first, second, strict=True)]
    results = []
    for name, kind in expr.outputs:
        stage = expr.stage(name)
        axes = [a for a, _ in stage.axes]  # outputs share the root's shape, axis by axis
        sizes = [box[a] for a in root_axes]
        grid = dict(zip(axes, np.ogrid[tuple(slice(*s) for s in sizes)] if sizes else (), strict=True))
        value = evaluator.stage(stage, grid)
        shape = tuple(high - low for low, high in sizes)
        results.append(np.array(np.broadcast_to(value, shape), kind.dtype.numpy, order="C"))
    return results


def _cut(expr: TensorExpr, box: Box) -> str | None:
    """The axis along which to halve the box, if some stage would need more than MAX_POINTS elements at once."""
    if prod(h - low for low, h in box.values()) * max(prod(e for _, e in s.reduce) for s in expr.stages) <= MAX_POINTS:
        return None
    for stage in expr.stages:
        extents = {**dict((*stage.axes, *stage.reduce)), **{a: high - low for a, (low, high) in box.items()}}
        used = [set(dict((*stage.axes, *stage.reduce)))]
        match stage.body:
            case Call("mul", factors) if is_contraction(stage):  # the product is never stored, its factors are
                used = [{v for ld, _ in loads(f) for i in ld.index for v in variables(i)} for f in factors]
        for axes in used:
            long = [a for a in axes if a in box and extents[a] > 1]
            if long and prod(extents[a] for a in axes) > MAX_POINTS:
                return max(long, key=lambda a: (extents[a], a))
    return None


def is_contraction(stage: Stage) -> bool:
    """Whether a stage sums products, which NumPy's `matmul` computes."""
    return (
        bool(stage.reduce)
        and stage.combine == "sum"
        and stage.dtype.is_float
        and isinstance(stage.body, Call)
        and stage.body.fn == "mul"
    )


def evaluate_graph(graph: Graph, inputs: Mapping[str, Array]) -> dict[TensorId, Array]:
    """The outputs of a whole graph, operator by operator: the reference for every backend and every pass."""
    memory = Memory(graph)
    for name in graph.inputs:
        memory.write(name, np.asarray(inputs[name]))
    for op in graph.operators:
        names = [n for n, _ in op.operation.expr.inputs]
        values = {n: memory.read(t) for n, t in zip(names, op.inputs, strict=True)}
        for tensor, value in zip(op.outputs, evaluate_expr(op.operation.expr, values), strict=True):
            memory.write(tensor, value)
    return {t: memory.read(t) for t in graph.outputs}


class Memory:
    """The tensors of a graph in NumPy arrays: one flat physical array per owner, views inside it."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.arrays: dict[TensorId, Array] = {}
        for name, value in graph.constants.items():
            kind = graph.types[name]
            if kind.layout is None and name not in graph.views and value.dtype == kind.dtype.numpy:
                self.arrays[name] = value.reshape(-1)  # nothing is written there
            else:
                self.write(name, value)

    def physical(self, tensor: TensorId) -> Array:
        """The tensor's physical elements, flat; made (filled with NaN, or 77 for integers) when first asked for.

        By several threads at once, too: all get the same array.
        """
        root, offset = self.graph.storage(tensor)
        kind = self.graph.types[root]
        if root not in self.arrays:
            dtype = kind.dtype.numpy
            fill = np.nan if kind.dtype.is_float else 77
            self.arrays.setdefault(root, np.full(kind.span, fill).astype(dtype))
        return self.arrays[root][offset : offset + self.graph.types[tensor].span]

    def read(self, tensor: TensorId) -> Array:
        """The logical value."""
        return logical(self.physical(tensor), self.graph.types[tensor])

    def write(self, tensor: TensorId, value: Array) -> None:
        """Store a logical value."""
        kind: TensorType = self.graph.types[tensor]
        array = np.asarray(value, kind.dtype.numpy)
        if kind.layout and kind.layout.pitched:
            put_box(self.physical(tensor), kind, {str(d): (0, e) for d, e in enumerate(kind.shape)}, array)
        else:
            self.physical(tensor)[...] = (pack(array, kind.layout) if kind.layout else array).ravel()

    def write_box(self, tensor: TensorId, box: Box, value: Array) -> None:
        """Store the value of a box; elements outside of it stay as they are."""
        put_box(self.physical(tensor), self.graph.types[tensor], box, value)


def put_box(flat: Array, kind: TensorType, box: Box, value: Array) -> None:
    """Store the value of a box in a tensor's physical elements; others stay as they are."""
    spans = tuple(slice(*span) for span in box.values())
    if kind.layout is None:
        flat.reshape(kind.physical_shape)[spans] = value
        return
    grid = np.ogrid[spans]
    index = [grid[d.dim] // d.div % d.mod if d.mod else grid[d.dim] // d.div for d in kind.layout.digits]
    flat[sum(at * stride for at, stride in zip(index, kind.strides, strict=True))] = value


def logical(flat: Array, kind: TensorType) -> Array:
    """A tensor's value, from its physical elements."""
    return unpack(flat, kind.layout, kind.shape) if kind.layout else flat.reshape(kind.shape)


def wide_type(dtype: DType) -> np.dtype[Any]:
    if dtype.is_float:
        return np.dtype(np.float64)
    return np.dtype("u1" if dtype.value.startswith("u") else "i1") if dtype.bits < 8 else dtype.numpy


class Evaluator:
    """Evaluates stages on demand, at broadcastable grids of index arrays."""

    def __init__(self, expr: TensorExpr, inputs: Mapping[str, Array] | Mapping[str, Array | Elements]) -> None:
        self.expr = expr
        self.inputs = {name: np.asarray(x) if isinstance(x, np.generic) else x for name, x in inputs.items()}
        self.stages = {s.name: s for s in expr.stages}
        self.wholes: dict[str, Array] = {}  # stages computed at all of their points

    def stage(self, stage: Stage, grid: Mapping[str, Any]) -> Any:
        if not stage.reduce:
            return self.rounded(self.value(stage.body, grid), stage.dtype)
        inner, full, rank = terms_of(stage, grid)
        over = tuple(range(rank, len(full)))
        match stage.body:
            case Call("mul", (left, right)) if is_contraction(stage):
                value = contract(self.value(left, inner), self.value(right, inner), full, rank)
            case body:
                points = np.broadcast_to(self.value(body, inner), full)
                dtype = wide_type(stage.dtype)
                start = dtype.type(identity(stage.combine, stage.dtype))
                ufunc = FUNCTIONS[REDUCERS[stage.combine][0]].numpy
                assert isinstance(ufunc, np.ufunc)
                value = ufunc.reduce(points.astype(dtype, copy=False), axis=over, initial=start)
        return self.rounded(value, stage.dtype)

    def read(self, tensor: str, places: list[Any]) -> Any:
        """A tensor at a grid of places. Places outside it stand for "not read": a Select drops what they give."""
        shape = np.broadcast_shapes(*map(np.shape, places))
        if tensor in self.stages:
            stage = self.stages[tensor]
            again = 4 if stage.reduce else 1  # a reduction is often read in parts, and more than once
            if tensor not in self.wholes and (prod(shape) * again <= prod(stage.shape) or not stage.axes):
                clipped = [np.clip(p, 0, max(e - 1, 0)) for p, e in zip(places, stage.shape, strict=True)]
                return self.stage(stage, dict(zip((a for a, _ in stage.axes), clipped, strict=True)))
            array: Array | Elements = self.whole(stage)
        else:
            array = self.inputs[tensor]
        return gathered(array, wide_type(self.expr.type_of(tensor).dtype), places)

    def whole(self, stage: Stage) -> Array:
        if stage.name not in self.wholes:
            grid = dict(zip((a for a, _ in stage.axes), np.ogrid[tuple(map(slice, stage.shape))], strict=True))
            self.wholes[stage.name] = np.ascontiguousarray(np.broadcast_to(self.stage(stage, grid), stage.shape))
        return self.wholes[stage.name]

    def places(self, load: Load, grid: Mapping[str, Any]) -> list[Any]:
        """The index in every dimension. Raises InputError for one that data put outside, if that is an error."""
        places = [evaluate(i, grid) for i in load.index]
        for d in load.dynamic:
            chosen = np.asarray(self.value(d.value, grid))
            wrong = chosen[(chosen < -d.extent) | (chosen >= d.extent)]
            if wrong.size and d.strict:
                raise InputError(
                    f"{self.expr.name}: index {wrong.flat[0]} is outside [-{d.extent}, {d.extent})",
                    hint="check the indices given to this operator",
                )
            places[d.dim] = places[d.dim] + np.where(chosen < 0, chosen + d.extent, chosen)
        return places

    def rounded(self, value: Any, dtype: DType) -> Any:
        """Round to the stage's type, and keep computing wide. What is too large becomes infinite, without a warning."""
        value, conversions = np.asarray(value), _CONVERSIONS.get()
        with np.errstate(all="ignore"):
            if conversions and value.dtype.kind == "f" and not (dtype.part.is_float or dtype is DType.BOOL):
                value = conversions.taken(value, dtype)
            return value.astype(dtype.numpy).astype(wide_type(dtype))

    def value(self, body: Scalar, grid: Mapping[str, Any]) -> Any:
        match body:
            case Const(value, dtype):
                return np.asarray(value, wide_type(dtype)) if dtype else value
            case Table(values, index):
                return np.asarray(values)[evaluate(index, grid)]
            case Iota(index):
                return np.asarray(evaluate(index, grid), np.int64)
            case Cast(arg, dtype, bits):
                given = np.asarray(self.value(arg, grid))
                if bits:
                    held = result_dtype(arg, {n: self.expr.type_of(n).dtype for n in (*self.inputs, *self.stages)})
                    given = given.astype((held or dtype).numpy).view(dtype.numpy)
                return self.rounded(given, dtype)
            case Load():
                return self.read(body.tensor, self.places(body, grid))
            case Call(fn, args):
                with np.errstate(all="ignore"):
                    return FUNCTIONS[fn].numpy(*(self.value(a, grid) for a in args))
            case Select(where, then, other):
                ok = np.asarray(True)
                for r in where:
                    ok = ok & holds(r, grid)
                return np.where(ok, self.value(then, grid), self.value(other, grid))
        raise TypeError(f"not a scalar expression: {body!r}")


def terms_of(stage: Stage, grid: Mapping[str, Any]) -> tuple[dict[str, Any], Shape, int]:
    """The grid of all terms of a reduction at a grid of places: its indices, its shape, and how many dimensions of that
    are the places'."""
    rank = max((np.ndim(g) for g in grid.values()), default=0)
    count = len(stage.reduce)
    inner: dict[str, Any] = {
        a: np.reshape(g, (*(1,) * (rank - np.ndim(g)), *np.shape(g), *(1,) * count)) for a, g in grid.items()
    }
    for p, (axis, extent) in enumerate(stage.reduce):
        inner[axis] = np.arange(extent).reshape((1,) * rank + (1,) * p + (extent,) + (1,) * (count - p - 1))
    outer = np.broadcast_shapes(*(np.shape(g) for g in inner.values()))[:rank]
    return inner, (*outer, *(e for _, e in stage.reduce)), rank


def gathered(array: Array | Elements, wide: np.dtype[Any], places: list[Any]) -> Any:
    """Elements at a grid of places, as a `wide` type; of places outside some element."""
    shape = np.broadcast_shapes(*map(np.shape, places))
    if array.size == 0:
        return np.zeros(shape, wide)
    alone = not isinstance(array, np.ndarray) or prod(shape) <= FEW
    step = None if alone else _progressions(places, array.shape)
    if step is None or not isinstance(array, np.ndarray):
        clipped = [np.minimum(np.maximum(p, 0), n - 1) for p, n in zip(places, array.shape, strict=True)]
        found = array[tuple(clipped)] if isinstance(array, np.ndarray) else array.at(clipped)
        return found.astype(wide, copy=False)
    if prod(shape) > array.size:
        array = array.astype(wide, copy=False)
    first, steps = step
    strides = [sum(s[d] * n for s, n in zip(steps, array.strides, strict=True)) for d in range(len(shape))]
    bits = array[tuple(slice(f, None) for f in first)]
    bits = bits if array.dtype.kind == "c" else bits.view(f"u{array.itemsize}")  # as_strided knows not every type
    view = np.lib.stride_tricks.as_strided(bits, shape, strides).view(array.dtype)
    return view.astype(wide, copy=False)


def holds(condition: Range, grid: Mapping[str, Any]) -> Any:
    """Where the condition is true on a grid."""
    value = evaluate(condition.index, grid)
    return np.logical_and(condition.low <= np.asarray(value), np.asarray(value) < condition.high)


def happens(path: Path, grid: Mapping[str, Any], shape: Sequence[int]) -> NDArray[np.bool_]:
    """Where a path of conditions is taken, on a grid of this shape."""
    inside = np.ones(shape, bool)
    for where, wanted in path:
        together: Any = np.True_
        for r in where:
            together = together & holds(r, grid)
        inside &= together == wanted
    return inside


def identity(combine: str, dtype: DType) -> float | int | bool:
    """The neutral element of a reduction as a number of `dtype`."""
    value = REDUCERS[combine][1]
    if dtype.is_float:
        return value
    if dtype is DType.BOOL:
        return value > 0
    info = np.iinfo(np.dtype(dtype.value))
    return int(value) if isfinite(value) else int(info.max if value > 0 else info.min)


def _progressions(places: list[Any], shape: Shape) -> tuple[list[int], list[list[int]]] | None:
    """First place, and step per grid dimension, of every index; None unless all are inside and affine in the grid."""
    rank = max((np.ndim(p) for p in places), default=0)
    first, steps = [], []
    for place, extent in zip(places, shape, strict=True):
        place = np.reshape(place, (1,) * (rank - np.ndim(place)) + np.shape(place))
        if place.size == 0 or place.min() < 0 or place.max() >= extent:
            return None
        start = int(place.flat[0])
        step = [int(place.take(1, d).flat[0]) - start if place.shape[d] > 1 else 0 for d in range(rank)]
        affine = np.array(start)
        for d in range(rank):
            affine = affine + (np.arange(place.shape[d]) * step[d]).reshape((-1,) + (1,) * (rank - d - 1))
        if not np.array_equal(affine.reshape(place.shape), place):
            return None
        first.append(start)
        steps.append(step)
    return first, steps


def contract(left: Any, right: Any, full: tuple[int, ...], rank: int) -> Any:
    """Sum of products over the trailing dimensions of the shape `full`, as one batched matrix product."""
    if 0 in full:
        return np.zeros(full[:rank])
    factors: list[Array] = []
    kept: list[set[int]] = []
    for value in (left, right):
        array = np.asarray(value, np.float64)
        array = array.reshape((1,) * (len(full) - array.ndim) + array.shape)
        factors.append(array)
        kept.append({d for d in range(len(full)) if array.shape[d] > 1})
    both = kept[0] & kept[1]
    batch, inner = sorted(d for d in both if d < rank), sorted(d for d in both if d >= rank)
    rows, columns = (sorted(d for d in own - both if d < rank) for own in kept)
    scale = prod(full[d] for d in range(rank, len(full)) if d not in kept[0] | kept[1])
    matrices = []
    for array, own, order in zip(factors, kept, (batch + rows + inner, batch + inner + columns), strict=True):
        alone = tuple(d for d in own - both if d >= rank)
        array = array.sum(axis=alone, keepdims=True) if alone else array
        rest = [d for d in range(len(full)) if d not in order]
        matrices.append(array.transpose(order + rest))
    size = [prod(full[d] for d in dims) for dims in (batch, rows, inner, columns)]
    with np.errstate(all="ignore"):
        product = np.matmul(matrices[0].reshape(size[:3]), matrices[1].reshape(size[0], *size[2:])) * scale
    dims = batch + rows + columns
    value = product.reshape([full[d] for d in dims]).transpose(np.argsort(dims))
    return np.broadcast_to(value.reshape([full[d] if d in dims else 1 for d in range(rank)]), full[:rank])
