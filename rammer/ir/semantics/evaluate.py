"""Evaluate tensor expressions by NumPy, which defines what they mean. Known as: reference interpreter."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from math import isfinite, prod
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from rammer.errors import InputError
from rammer.ir.expr import (
    REDUCERS,
    Call,
    Cast,
    Const,
    ConstantTable,
    Iota,
    Load,
    Path,
    Range,
    Scalar,
    Select,
    Stage,
    TensorExpr,
    free_axes,
    result_dtype,
)
from rammer.ir.graph import Graph
from rammer.ir.index import evaluate, var
from rammer.ir.operator import Operation
from rammer.ir.semantics.functions import FUNCTIONS
from rammer.ir.semantics.grids import (
    Grid,
    Grids,
    Places,
    blocks_of,
    in_blocks,
    in_parts,
    is_contraction,
    terms_of,
    whole_of,
)
from rammer.ir.tensor import Array, DType, NamedArrays, Shape, TensorId, TensorType, pack, unpack

Box = Mapping[str, tuple[int, int]]  # axis -> [low, high)
MAX_POINTS = 1 << 24  # grid points evaluated at once; larger boxes are cut along their longest output axis
GATHERED_ONE_BY_ONE = 1 << 11  # elements that are gathered one by one, which is faster than finding their strides
MOST_SCATTERED = 1 << 20  # terms at single places that are evaluated at once; their inputs are gathered one by one
OFTEN = 8  # a constant that so many operators read is converted once
Key = TypeVar("Key", bound=Hashable)
Result = TypeVar("Result")
Mask: TypeAlias = NDArray[np.bool_]


class VirtualInput(ABC):
    """An input without an array of its shape, which computes its elements at places inside."""

    kind: TensorType

    @property
    def shape(self) -> Shape:
        return self.kind.shape

    @property
    def size(self) -> int:
        return self.kind.size

    @abstractmethod
    def at(self, places: Sequence[NDArray[np.int64]]) -> Array:
        """Return the elements at places: an index array per dimension."""


@dataclass
class _Conversions:
    """Results of converting floats that an integer type does not hold: NumPy's, or `other`. `met`: there were some."""

    other: int | None = None
    met: bool = False

    def taken(self, value: Array, dtype: DType) -> Array:
        """Return floats to be converted to an integer type, with those replaced that it does not hold."""
        outside = ~((value > float(dtype.info.min) - 1) & (value < float(dtype.info.max) + 1))
        self.met = self.met or bool(outside.any())
        return value if self.other is None else np.where(outside, min(self.other, int(dtype.info.max)), value)


_CONVERSIONS: ContextVar[_Conversions | None] = ContextVar("conversions", default=None)
_OTHERS = (0, 1, 1 << 62)  # what devices make of NaN and of what is too large: some 0, some a limit


def evaluate_defined(compute: Callable[[], Mapping[Key, Array]]) -> tuple[Mapping[Key, Array], dict[Key, Mask]]:
    """Return the values of `compute`, and masks of the defined elements, which alone can be compared.

    A float that an integer type does not hold becomes some integer. Where that happens, `compute` runs again with other
    integers there: elements that then differ depend on undefined ones.
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


_IN_ORDER = {"add": np.add.at, "mul": np.multiply.at, "max": np.maximum.at, "min": np.minimum.at}


def evaluate_expr(expr: TensorExpr, inputs: NamedArrays, grids: Grids | None = None) -> list[Array]:
    """Return all outputs for logical (unpacked) inputs.

    Floats are computed in float64 and rounded to each stage's type. `grids` are kept between calls with this
    expression.
    """
    box = {axis: (0, extent) for axis, extent in expr.root.axes}
    if expr.into is None:
        return _evaluate(Evaluator(expr, inputs, grids), box)
    updated = np.array(inputs[expr.into.tensor])
    update_box(expr, inputs, box, updated)
    return [updated]


def update_box(expr: TensorExpr, inputs: NamedArrays, box: Box, updated: Array) -> None:
    """Apply one rTask of an update to its (logical) output: the rows of a box go to their places, in order."""
    assert expr.into is not None
    (value,) = evaluate_box(expr, inputs, box)
    axes = [np.arange(*box[a]) for a, _ in expr.root.axes]
    grid = Grid(dict(zip((a for a, _ in expr.root.axes), np.ix_(*axes), strict=True)) if axes else {})
    places = [np.broadcast_to(p, value.shape).ravel() for p in Evaluator(expr, inputs).places(expr.into, grid)]
    inside = np.ones(value.size, bool)
    for at, extent in zip(places, updated.shape, strict=True):
        inside &= (at >= 0) & (at < extent)
    rows = np.flatnonzero(inside)
    flat = np.ravel_multi_index([at[rows] for at in places], updated.shape) if places else np.zeros(len(rows), np.int64)
    if expr.combine:
        _IN_ORDER[expr.combine](updated.reshape(-1), flat, value.reshape(-1)[rows])
        return
    last = len(flat) - 1 - np.unique(flat[::-1], return_index=True)[1]  # NumPy does not define which of several stays
    updated.reshape(-1)[flat[last]] = value.reshape(-1)[rows[last]]


def kept_part(expr: TensorExpr, box: Box) -> tuple[slice, ...]:
    """Return the part of its output that an rTask of an update may change, and copies first if that is not in place."""
    assert expr.into is not None
    moved = {d.dim for d in expr.into.dynamic}
    spans = {a: slice(*box[a]) for a in box}
    return tuple(
        slice(None) if dim in moved else next((spans[a] for a in spans if place == var(a)), slice(None))
        for dim, place in enumerate(expr.into.index)
    )


def evaluate_box(expr: TensorExpr, inputs: NamedArrays, box: Box) -> list[Array]:
    """Return the outputs inside a box of the root's axes: what one rTask computes. Shapes are the box's."""
    return _evaluate(Evaluator(expr, inputs), box)


def stored_at(
    expr: TensorExpr, inputs: Mapping[str, Array | VirtualInput], places: NDArray[np.int64]
) -> list[NDArray[np.int64]]:
    """Return the index in the output, dimension by dimension, of the root's elements at single places."""
    if expr.into is None:
        return list(places.T)
    grid = Grid(dict(zip((a for a, _ in expr.root.axes), places.T, strict=True)))
    return [np.zeros(len(places), np.int64) + p for p in Evaluator(expr, inputs).places(expr.into, grid)]


def sampled_places(expr: TensorExpr, count: int, seed: int = 0) -> NDArray[np.int64]:
    """Return up to `count` places of the root, one a row: at corners, edges and in the middle.

    For an update, where the last of several elements for one place stays, return last ones.
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
        rows = [tuple(at if a in free else e - 1 for at, (a, e) in zip(r, expr.root.axes, strict=True)) for r in rows]
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
        sizes = tuple(box[a] for a in root_axes)
        value = evaluator.at_once(stage, sizes)
        shape = tuple(high - low for low, high in sizes)
        results.append(np.array(np.broadcast_to(value, shape), kind.dtype.numpy, order="C"))
    return results


def _cut(expr: TensorExpr, box: Box) -> str | None:
    """Return the axis along which to halve the box, if some stage would need over MAX_POINTS elements at once."""
    if prod(h - low for low, h in box.values()) * max(prod(e for _, e in s.reduce) for s in expr.stages) <= MAX_POINTS:
        return None
    for stage in expr.stages:
        extents = {**dict((*stage.axes, *stage.reduce)), **{a: high - low for a, (low, high) in box.items()}}
        used = [dict.fromkeys(dict((*stage.axes, *stage.reduce)), 1)]
        match stage.body:
            case Call("mul", factors) if is_contraction(stage):  # the product is never stored, its factors are
                used = [blocks_of(factor) for factor in factors]
        for axes in used:
            long = [a for a in axes if a in box and extents[a] > 1]
            if long and prod(-(-extents[a] // block) for a, block in axes.items()) > MAX_POINTS:
                return max(long, key=lambda a: (extents[a], a))
    return None


def _cut_along(start: int, step: int, extent: int) -> slice:
    """Return the slice of `extent` elements from `start`; a negative step may end before element 0."""
    stop = start + step * extent
    return slice(start, stop if stop >= 0 else None, step) if extent else slice(0, 0)


# Operators that only move elements. NumPy returns views where it can, at any size.
MOVES: Mapping[str, Callable[..., Array]] = {
    "reshape": lambda x, shape: x.reshape(shape),
    "transpose": lambda x, perm: x.transpose(perm),
    "expand": lambda x, shape: np.broadcast_to(x, shape),
    "slice": lambda x, starts, steps, shape: x[tuple(map(_cut_along, starts, steps, shape))],
}


def compute(operation: Operation, values: Sequence[Array]) -> list[Array]:
    """Return the results of an operation on constants."""
    if operation.kind in MOVES:
        return [MOVES[operation.kind](values[0], **operation.keywords)]
    return evaluate_expr(operation.expr, dict(zip((name for name, _ in operation.expr.inputs), values, strict=True)))


def evaluate_graph(
    graph: Graph, inputs: NamedArrays, change: Callable[[TensorId, Array], Array] | None = None
) -> dict[TensorId, Array]:
    """Return the outputs of a whole graph, operator by operator: the reference for every backend and every pass.

    `change` is applied to each operator's result.
    """
    memory = Memory(graph)
    for name in graph.inputs:
        memory.write(name, np.asarray(inputs[name]))
    readers = Counter(t for op in graph.operators for t in op.inputs if t in graph.constants)
    wide = {
        t: memory.read(t).astype(np.float64) for t, n in readers.items() if n >= OFTEN and graph.types[t].dtype.is_float
    }
    grids: dict[int, Grids] = defaultdict(dict)
    for op in graph.operators:
        expr = op.operation.expr
        values = {n: wide[t] if t in wide else memory.read(t) for (n, _), t in zip(expr.inputs, op.inputs, strict=True)}
        for tensor, value in zip(op.outputs, evaluate_expr(expr, values, grids[id(expr)]), strict=True):
            memory.write(tensor, value if change is None else change(tensor, value))
    return {t: memory.read(t) for t in graph.outputs}


class Memory:
    """Tensors of a graph in NumPy arrays: one flat physical array per owner, with views inside it."""

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
        """Return the tensor's physical elements, flat; made (filled with NaN, or 77 for integers) on first use.

        Threads that call it at once all get the same array.
        """
        root, offset = self.graph.storage(tensor)
        kind = self.graph.types[root]
        if root not in self.arrays:
            dtype = kind.dtype.numpy
            fill = np.nan if kind.dtype.is_float else 77
            self.arrays.setdefault(root, np.full(kind.span, fill).astype(dtype))
        return self.arrays[root][offset : offset + self.graph.types[tensor].span]

    def read(self, tensor: TensorId) -> Array:
        """Return the logical value."""
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
        """Store the value of a box; elements outside it stay."""
        put_box(self.physical(tensor), self.graph.types[tensor], box, value)


def put_box(flat: Array, kind: TensorType, box: Box, value: Array) -> None:
    """Store the value of a box in a tensor's physical elements; others stay."""
    spans = tuple(slice(*span) for span in box.values())
    if kind.layout is None:
        flat.reshape(kind.physical_shape)[spans] = value
        return
    grid = np.ogrid[spans]
    index = [grid[d.dim] // d.div % d.mod if d.mod else grid[d.dim] // d.div for d in kind.layout.digits]
    flat[sum(at * stride for at, stride in zip(index, kind.strides, strict=True))] = value


def logical(flat: Array, kind: TensorType) -> Array:
    """Return a tensor's value from its physical elements."""
    return unpack(flat, kind.layout, kind.shape) if kind.layout else flat.reshape(kind.shape)


def wide_type(dtype: DType) -> np.dtype[Any]:
    if dtype.is_float:
        return np.dtype(np.float64)
    return np.dtype("u1" if dtype.value.startswith("u") else "i1") if dtype.bits < 8 else dtype.numpy


class Evaluator:
    """Evaluator of stages on demand, at broadcastable grids of index arrays."""

    def __init__(
        self,
        expr: TensorExpr,
        inputs: NamedArrays | Mapping[str, Array | VirtualInput],
        grids: Grids | None = None,
    ) -> None:
        self.expr = expr
        self.grids: Grids = {} if grids is None else grids
        self.inputs = {name: np.asarray(x) if isinstance(x, np.generic) else x for name, x in inputs.items()}
        self.stages = {s.name: s for s in expr.stages}
        self.wholes: dict[str, Array] = {}  # stages computed at all of their points

    def grid(self, stage: Stage, spans: tuple[tuple[int, int], ...]) -> Grid:
        """Return the grid of a box of a stage's points."""
        if (stage.name, spans) not in self.grids:
            axes = np.ogrid[tuple(slice(*s) for s in spans)] if spans else ()
            self.grids[stage.name, spans] = Grid(dict(zip((a for a, _ in stage.axes), axes, strict=True)))
        return self.grids[stage.name, spans]

    def stage(self, stage: Stage, grid: Grid) -> Any:
        if not stage.reduce:
            return self.rounded(self.value(stage.body, grid), stage.dtype)
        inner, full, rank = terms_of(stage, grid)
        over = tuple(range(rank, len(full)))
        match stage.body:
            case Call("mul", (left, right)) if is_contraction(stage):
                key = stage.name, "in blocks"
                inner, terms, dims = grid.once(key, lambda: terms_of(stage, in_blocks(stage, grid)))
                value = contract(self.value(left, inner), self.value(right, inner), terms, dims).reshape(full[:rank])
            case body:
                points = np.broadcast_to(self.value(body, inner), full)
                dtype = wide_type(stage.dtype)
                start = dtype.type(identity(stage.combine, stage.dtype))
                ufunc = FUNCTIONS[REDUCERS[stage.combine][0]]
                assert isinstance(ufunc, np.ufunc)
                value = ufunc.reduce(points.astype(dtype, copy=False), axis=over, initial=start)
        return self.rounded(value, stage.dtype)

    def read(self, tensor: str, places: Places) -> Any:
        """Return a tensor at a grid of places. Places outside stand for "not read": a Select drops their values."""
        if tensor in self.stages:
            stage = self.stages[tensor]
            if tensor not in self.wholes and in_parts(stage, places):
                return self.stage(stage, places.grid(stage))
            array: Array | VirtualInput = self.whole(stage)
        else:
            array = self.inputs[tensor]
        return gathered(array, wide_type(self.expr.type_of(tensor).dtype), places)

    def at_once(self, stage: Stage, spans: tuple[tuple[int, int], ...]) -> Any:
        """Return a stage in a box. If the box has all of its points, and there are other stages, it is kept."""
        if len(self.stages) > 1 and spans == whole_of(stage):
            return self.whole(stage)
        return self.stage(stage, self.grid(stage, spans))

    def whole(self, stage: Stage) -> Array:
        if stage.name not in self.wholes:
            value = self.stage(stage, self.grid(stage, whole_of(stage)))
            self.wholes[stage.name] = np.asarray(np.broadcast_to(value, stage.shape), order="C")
        return self.wholes[stage.name]

    def places(self, load: Load, grid: Grid) -> Places:
        """Return the index in every dimension. Raises InputError for a strict one that data place outside."""
        places = grid.once(
            id(load),
            lambda: Places((evaluate(i, grid) for i in load.index), self.expr.type_of(load.tensor).shape),
            lambda made: made.size,
        )
        if load.dynamic:
            places = Places(places, places.within)
        for d in load.dynamic:
            chosen = np.asarray(self.value(d.value, grid), np.int64)
            wrong = chosen[(chosen < -d.extent) | (chosen >= d.extent)]
            if wrong.size and d.strict:
                raise InputError(
                    f"{self.expr.name}: index {wrong.flat[0]} is outside [-{d.extent}, {d.extent})",
                    hint="check the indices given to this operator",
                )
            places[d.dim] = places[d.dim] + np.where(chosen < 0, chosen + d.extent, chosen)
        return places

    def rounded(self, value: Any, dtype: DType) -> Any:
        """Round to the stage's type, and keep computing wide. Overflow becomes infinite, without a warning."""
        value, conversions = np.asarray(value), _CONVERSIONS.get()
        with np.errstate(all="ignore"):
            if conversions and value.dtype.kind == "f" and not (dtype.part.is_float or dtype is DType.BOOL):
                value = conversions.taken(value, dtype)
            return value.astype(dtype.numpy).astype(wide_type(dtype))

    def chosen(self, body: Select, grid: Grid) -> Any:
        """Return where all conditions hold."""
        return grid.once(id(body), lambda: all_hold(body.where, grid), np.size)

    def value(self, body: Scalar, grid: Grid) -> Any:
        match body:
            case Const(value, dtype):
                return np.asarray(value, wide_type(dtype)) if dtype else value
            case ConstantTable(values, index):
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
                    return FUNCTIONS[fn](*(self.value(a, grid) for a in args))
            case Select(_, then, other):
                return np.where(self.chosen(body, grid), self.value(then, grid), self.value(other, grid))
        raise TypeError(f"not a scalar expression: {body!r}")


def gathered(array: Array | VirtualInput, wide: np.dtype[Any], places: Places) -> Any:
    """Return elements at a grid of places, as a `wide` type; at places outside, some element."""
    if array.size == 0:
        return np.zeros(places.shape, wide)
    alone = not isinstance(array, np.ndarray) or places.points <= GATHERED_ONE_BY_ONE
    step = None if alone else places.steps
    if step is None or not isinstance(array, np.ndarray):
        clipped = places.inside
        found = array[clipped] if isinstance(array, np.ndarray) else array.at(clipped)
        return found.astype(wide, copy=False)
    first, steps = step
    strides = [sum(s[d] * n for s, n in zip(steps, array.strides, strict=True)) for d in range(len(places.shape))]
    once = tuple(n if stride else 1 for n, stride in zip(places.shape, strides, strict=True))
    if prod(once) > array.size:
        array = array.astype(wide, copy=False)
        strides = [sum(s[d] * n for s, n in zip(steps, array.strides, strict=True)) for d in range(len(places.shape))]
    bits = array[tuple(slice(f, None) for f in first)]
    bits = bits if array.dtype.kind == "c" else bits.view(f"u{array.itemsize}")  # as_strided knows not every type
    view = np.lib.stride_tricks.as_strided(bits, once, strides).view(array.dtype)
    return np.broadcast_to(view.astype(wide, copy=False), places.shape)


def holds(condition: Range, grid: Mapping[str, Any]) -> Any:
    """Return where the condition is true on a grid."""
    value = evaluate(condition.index, grid)
    return np.logical_and(condition.low <= np.asarray(value), np.asarray(value) < condition.high)


def all_hold(where: Sequence[Range], grid: Mapping[str, Any]) -> Any:
    """Return where all conditions are true on a grid."""
    ok: Any = np.True_
    for condition in where:
        ok = ok & holds(condition, grid)
    return ok


def happens(path: Path, grid: Mapping[str, Any], shape: Sequence[int]) -> NDArray[np.bool_]:
    """Return where a path of conditions is taken, on a grid of this shape."""
    inside = np.ones(shape, bool)
    for where, wanted in path:
        inside &= all_hold(where, grid) == wanted
    return inside


def identity(combine: str, dtype: DType) -> float | int | bool:
    """Return the neutral element of a reduction as a number of `dtype`."""
    value = REDUCERS[combine][1]
    if dtype.is_float:
        return value
    if dtype is DType.BOOL:
        return value > 0
    info = np.iinfo(np.dtype(dtype.value))
    return int(value) if isfinite(value) else int(info.max if value > 0 else info.min)


def contract(left: Any, right: Any, full: tuple[int, ...], rank: int) -> Any:
    """Sum products over the trailing dimensions of the shape `full`, as one batched matrix product."""
    if 0 in full:
        return np.zeros(full[:rank])
    factors: list[Array] = []
    kept: list[set[int]] = []
    for value in (left, right):
        array = np.asarray(value, np.float64)
        array = array.reshape((1,) * (len(full) - array.ndim) + array.shape)
        array = array[tuple(slice(None if stride else 1) for stride in array.strides)]  # what is repeated, once
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
