"""The meaning of a tensor expression, by NumPy."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from rammer.errors import InputError
from rammer.ir.expr import (
    REDUCERS,
    Call,
    Cast,
    Const,
    Iota,
    Load,
    Range,
    Scalar,
    Select,
    Stage,
    TensorExpr,
)
from rammer.ir.functions import FUNCTIONS
from rammer.ir.graph import Graph
from rammer.ir.index import evaluate
from rammer.ir.tensor import Array, DType, TensorId, TensorType, pack, unpack

Box = Mapping[str, tuple[int, int]]  # axis -> [low, high)
MAX_POINTS = 1 << 24  # grid points evaluated at once; larger boxes are cut along their longest output axis


def evaluate_expr(expr: TensorExpr, inputs: Mapping[str, Array]) -> list[Array]:
    """All outputs for logical (unpacked) inputs. Floats are computed in float64 and rounded to each stage's type."""
    box = {axis: (0, extent) for axis, extent in expr.root.axes}
    return evaluate_box(expr, inputs, box)


def evaluate_box(expr: TensorExpr, inputs: Mapping[str, Array], box: Box) -> list[Array]:
    """The outputs inside a box of the root's axes: what one rTask computes. Shapes are the box's."""
    widest = max((a for a, _ in expr.root.axes), key=lambda a: box[a][1] - box[a][0], default=None)
    points = prod(high - low for low, high in box.values())
    reduced = max((prod(e for _, e in s.reduce) for s in expr.stages), default=1)
    if widest is not None and points * reduced > MAX_POINTS and box[widest][1] - box[widest][0] > 1:
        low, high = box[widest]
        middle = (low + high) // 2
        axis = [a for a, _ in expr.root.axes].index(widest)
        first, second = (evaluate_box(expr, inputs, {**box, widest: part}) for part in ((low, middle), (middle, high)))
        return [np.concatenate(pair, axis) for pair in zip(first, second, strict=True)]
    evaluator = _Evaluator(expr, inputs)
    root_axes = [a for a, _ in expr.root.axes]
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
            self.write(name, value)

    def physical(self, tensor: TensorId) -> Array:
        """The tensor's physical elements, flat; made (filled with NaN, or 77 for integers) when first asked for."""
        root, offset = self.graph.storage(tensor)
        kind = self.graph.types[root]
        if root not in self.arrays:
            dtype = kind.dtype.numpy
            fill = np.nan if kind.dtype.is_float else 77
            self.arrays[root] = np.full(prod(kind.physical_shape), fill).astype(dtype)
        return self.arrays[root][offset : offset + prod(self.graph.types[tensor].physical_shape)]

    def read(self, tensor: TensorId) -> Array:
        """The logical value."""
        kind = self.graph.types[tensor]
        flat = self.physical(tensor)
        return unpack(flat, kind.layout, kind.shape) if kind.layout else flat.reshape(kind.shape)

    def write(self, tensor: TensorId, value: Array) -> None:
        """Store a logical value."""
        kind: TensorType = self.graph.types[tensor]
        array = np.asarray(value, kind.dtype.numpy)
        self.physical(tensor)[...] = (pack(array, kind.layout) if kind.layout else array).ravel()


def _wide(dtype: DType) -> np.dtype[Any]:
    return np.dtype(np.float64) if dtype.is_float else dtype.numpy


class _Evaluator:
    """Evaluates stages on demand, at broadcastable grids of index arrays."""

    def __init__(self, expr: TensorExpr, inputs: Mapping[str, Array]) -> None:
        self.expr = expr
        self.inputs = inputs
        self.stages = {s.name: s for s in expr.stages}

    def stage(self, stage: Stage, grid: Mapping[str, Any]) -> Any:
        if not stage.reduce:
            return self.rounded(self.value(stage.body, grid), stage.dtype)
        rank = max((np.ndim(g) for g in grid.values()), default=0)
        count = len(stage.reduce)
        inner: dict[str, Any] = {
            a: np.reshape(g, (*(1,) * (rank - np.ndim(g)), *np.shape(g), *(1,) * count)) for a, g in grid.items()
        }
        for p, (axis, extent) in enumerate(stage.reduce):
            inner[axis] = np.arange(extent).reshape((1,) * rank + (1,) * p + (extent,) + (1,) * (count - p - 1))
        outer = np.broadcast_shapes(*(np.shape(g) for g in inner.values()))[:rank]
        full = (*outer, *(e for _, e in stage.reduce))
        over = tuple(range(rank, rank + count))
        match stage.body:
            case Call("mul", (left, right)) if stage.combine == "sum" and stage.dtype.is_float:
                value = _contract(self.value(left, inner), self.value(right, inner), full, rank)
            case body:
                fn, identity = REDUCERS[stage.combine]
                points = np.broadcast_to(self.value(body, inner), full)
                dtype = _wide(stage.dtype)
                start = dtype.type(_limit(identity, stage.dtype))
                ufunc = FUNCTIONS[fn].numpy
                assert isinstance(ufunc, np.ufunc)
                value = ufunc.reduce(points.astype(dtype), axis=over, initial=start)
        return self.rounded(value, stage.dtype)

    def rounded(self, value: Any, dtype: DType) -> Any:
        """Round to the stage's type, and keep computing wide."""
        return np.asarray(value).astype(dtype.numpy).astype(_wide(dtype))

    def value(self, body: Scalar, grid: Mapping[str, Any]) -> Any:
        match body:
            case Const(value, dtype):
                return np.asarray(value, _wide(dtype)) if dtype else value
            case Iota(index):
                return np.asarray(evaluate(index, grid), np.int64)
            case Cast(arg, dtype):
                with np.errstate(all="ignore"):
                    return self.rounded(self.value(arg, grid), dtype)
            case Load(tensor, index, dynamic):
                places = [evaluate(i, grid) for i in index]
                for d in dynamic:
                    chosen = np.asarray(self.value(d.value, grid))
                    wrong = chosen[(chosen < -d.extent) | (chosen >= d.extent)]
                    if wrong.size:
                        raise InputError(
                            f"{self.expr.name}: index {wrong.flat[0]} is outside [-{d.extent}, {d.extent})",
                            hint="check the indices given to this operator",
                        )
                    places[d.dim] = places[d.dim] + np.where(chosen < 0, chosen + d.extent, chosen)
                if tensor in self.stages:
                    stage = self.stages[tensor]
                    clipped = [np.clip(p, 0, e - 1) for p, e in zip(places, stage.shape, strict=True)]
                    return self.stage(stage, dict(zip((a for a, _ in stage.axes), clipped, strict=True)))
                array = self.inputs[tensor]  # clipping stands for "not read": a Select drops the value
                if array.size == 0:
                    return np.zeros(np.broadcast_shapes(*map(np.shape, places)), array.dtype)
                picked = array[tuple(np.clip(p, 0, n - 1) for p, n in zip(places, array.shape, strict=True))]
                return picked.astype(np.float64) if self.expr.type_of(tensor).dtype.is_float else picked
            case Call(fn, args):
                with np.errstate(all="ignore"):
                    return FUNCTIONS[fn].numpy(*(self.value(a, grid) for a in args))
            case Select(where, then, other):
                ok = np.asarray(True)
                for r in where:
                    ok = ok & holds(r, grid)
                return np.where(ok, self.value(then, grid), self.value(other, grid))
        raise TypeError(f"not a scalar expression: {body!r}")


def holds(condition: Range, grid: Mapping[str, Any]) -> Any:
    """Where the condition is true on a grid."""
    value = evaluate(condition.index, grid)
    return np.logical_and(condition.low <= np.asarray(value), np.asarray(value) < condition.high)


def _limit(identity: float, dtype: DType) -> float | int | bool:
    if np.isfinite(identity) or dtype.is_float:
        return identity if dtype.is_float else int(identity)
    if dtype is DType.BOOL:
        return identity > 0
    info = np.iinfo(np.dtype(dtype.value))
    return int(info.max if identity > 0 else info.min)


def _contract(left: Any, right: Any, full: tuple[int, ...], rank: int) -> Any:
    """Sum of products over the trailing dimensions, by einsum: dimensions of extent 1 are dropped from an operand."""
    if 0 in full:
        return np.zeros(full[:rank])
    operands: list[Any] = []
    seen: set[int] = set()
    for value in (left, right):
        array = np.asarray(value, np.float64)
        array = array.reshape((1,) * (len(full) - array.ndim) + array.shape)
        kept = [d for d in range(len(full)) if array.shape[d] > 1]
        seen |= set(kept)
        operands += [array.reshape([array.shape[d] for d in kept]), kept]
    out = [d for d in range(rank) if d in seen]
    scale = prod(full[d] for d in range(rank, len(full)) if d not in seen)
    with np.errstate(all="ignore"):
        value = np.einsum(*operands, out, optimize=True) * scale
    return np.broadcast_to(value.reshape([full[d] if d in seen else 1 for d in range(rank)]), full[:rank])
