"""Whether a graph for larger extents computes, in its first elements, what the graph for smaller ones does.

Both are imported from one model. They are compared operator by operator: where each element of the smaller result is
the same formula of the same elements in both, what lies behind them cannot matter. A sum over a padded dimension is
another formula, and so is what counts from such a dimension's end.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from rammer.calling import on_gpu
from rammer.errors import InputError, ModelError, did_you_mean
from rammer.ir.expr import Call, Cast, Const, Dynamic, Iota, Load, Range, Scalar, Select, Stage, Table
from rammer.ir.graph import Graph
from rammer.ir.index import Bounds, Index, bounds, simplify, substitute
from rammer.ir.operator import Operation, ROperator
from rammer.ir.tensor import Array, Shape, TensorId

if TYPE_CHECKING:
    from rammer.frontend.onnx import Declared


def require_prefix(exact: Graph, padded: Graph) -> None:
    """Raise ModelError naming the first operator whose results would depend on the padding."""
    same: dict[TensorId, TensorId] = dict(zip(exact.inputs, padded.inputs, strict=True))
    for small, large in zip(exact.operators, padded.operators, strict=False):
        if small.kind != large.kind or len(small.inputs) != len(large.inputs):
            raise _refusal(small, "it becomes another operator")
        for a, b in zip(small.inputs, large.inputs, strict=True):
            if a in exact.constants and b in padded.constants:
                if not _begins(exact.constants[a], padded.constants[b]):
                    raise _refusal(small, f"its constant {a!r} becomes another one")
            elif same.get(a) != b:
                raise _refusal(small, f"its input {a!r} becomes another one")
        if why := _differs(small.operation, large.operation):
            raise _refusal(small, why)
        same |= zip(small.outputs, large.outputs, strict=True)
    if len(exact.operators) != len(padded.operators):
        longer = max(exact, padded, key=lambda g: len(g.operators))
        raise _refusal(longer.operators[min(len(exact.operators), len(padded.operators))], "it comes or goes")
    for output in exact.outputs:
        if same.get(output) != output:
            raise ModelError(f"output {output!r} cannot be padded: another operator computes it")


def cut(array: Array, shape: Shape) -> Array:
    """The first elements in every dimension."""
    return array if array.shape == shape else np.ascontiguousarray(array[tuple(slice(e) for e in shape)])


def fill(name: str, array: Any, shape: Shape) -> Array:
    """The array with zeros behind it in every dimension that is larger."""
    if tuple(array.shape) == shape:
        return array  # type: ignore[no-any-return]
    if on_gpu(array):
        raise InputError(f"input {name!r} is to be padded, and lies on a GPU", hint="give it as a NumPy array")
    padded = np.zeros(shape, array.dtype)
    padded[tuple(slice(e) for e in array.shape)] = array
    return padded


def require_symbols(keyword: str, names: Iterable[str], ports: Sequence[Declared]) -> None:
    """Raise InputError for a name that is no symbolic dimension of an input."""
    symbols = sorted({e for port in ports for e in port.shape or () if isinstance(e, str)})
    for name in names:
        if name not in symbols:
            hint = did_you_mean(name, symbols) or f"symbolic dimensions are {', '.join(symbols) or '(none)'}"
            raise InputError(f"{keyword}= names {name!r}, which is no symbolic dimension of the model", hint=hint)


class Buckets:
    """Extents that symbolic dimensions are filled up to. A larger one than all of them stays as it is."""

    def __init__(self, buckets: Mapping[str, Sequence[int]], ports: Sequence[Declared]) -> None:
        require_symbols("buckets", buckets, ports)
        for name, extents in buckets.items():
            if not extents or min(extents) < 1:
                raise InputError(f"buckets= gives {name!r} {list(extents)}", hint="for example [1, 8, 64]")
        self._buckets = {name: sorted(extents) for name, extents in buckets.items()}
        self._ports = {port.name: port for port in ports}
        self._given = self._fed = 0
        self._lock = threading.Lock()

    def padding(self) -> float:
        """The part of all elements so far that was filled in."""
        return 1 - self._given / self._fed if self._fed else 0.0

    def padded(self, shapes: dict[str, Any], arrays: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Shapes and arrays of inputs, filled up; lists stay as they are."""
        if not self._buckets:
            return shapes, arrays
        filled = {name: self._shape(self._ports[name], shape) for name, shape in shapes.items()}
        changed = {n: fill(n, arrays[n], shape) for n, shape in filled.items() if n in arrays and shape is not None}
        with self._lock:
            self._given += sum(prod(shapes[n]) for n in changed)
            self._fed += sum(prod(filled[n]) for n in changed)
        return filled, arrays | changed

    def _shape(self, port: Declared, shape: Any) -> Any:
        if shape is None or port.is_list or port.shape is None:
            return shape
        return tuple(self._extent(symbol, extent) for symbol, extent in zip(port.shape, shape, strict=True))

    def _extent(self, symbol: object, extent: int) -> int:
        known = self._buckets.get(symbol, ()) if isinstance(symbol, str) else ()
        return next((e for e in known if e >= extent), extent)


def _refusal(op: ROperator, why: str) -> ModelError:
    return ModelError(
        f"its results would depend on padding: {why}",
        node=op.name,
        op=op.kind,
        hint="leave the dimension out of buckets=; each extent is then compiled by itself",
    )


def _begins(small: Array, large: Array) -> bool:
    """Whether one constant is the first elements of the other."""
    fits = small.ndim == large.ndim and all(a <= b for a, b in zip(small.shape, large.shape, strict=True))
    return fits and small.dtype == large.dtype and cut(large, small.shape).tobytes() == small.tobytes()


def _differs(small: Operation, large: Operation) -> str:
    """Why an element of the smaller result is not the same formula in both; empty if it is."""
    if len(small.expr.stages) != len(large.expr.stages):
        return "it has other stages"
    for a, b in zip(small.expr.stages, large.expr.stages, strict=True):
        if (a.name, a.combine, a.dtype) != (b.name, b.combine, b.dtype):
            return "it has other stages"
        if [n for n, _ in (*a.axes, *a.reduce)] != [n for n, _ in (*b.axes, *b.reduce)]:
            return "it has other dimensions"
        if a.reduce != b.reduce:
            return "it reduces a padded dimension"
        if any(e > f for (_, e), (_, f) in zip(a.axes, b.axes, strict=True)):
            return "it has a smaller result"
        if _Canonical(a).scalar(a.body) != _Canonical(a).scalar(b.body):
            return "elements are computed from others"
    return ""


class _Canonical:
    """Bodies over the axes of a stage, in a form in which equal ones compare equal."""

    def __init__(self, stage: Stage) -> None:
        axes = (*stage.axes, *stage.reduce)
        self._bounds: Bounds = {name: (0, extent - 1) for name, extent in axes}
        self._fixed: Mapping[str, Index] = {name: Index() for name, extent in axes if extent == 1}

    def index(self, index: Index) -> Index:
        return simplify(substitute(index, self._fixed), self._bounds)

    def scalar(self, value: Scalar) -> Scalar:
        match value:
            case Const():
                return Const(repr(value.value), value.dtype)  # type: ignore[arg-type]  # NaN equals itself, 0 not -0
            case Iota(index):
                return Iota(self.index(index))
            case Table(values, index):
                return Table(values, self.index(index))
            case Load(tensor, index, dynamic):
                moved = tuple(Dynamic(d.dim, self.scalar(d.value), d.extent, d.stride) for d in dynamic)
                return Load(tensor, tuple(map(self.index, index)), moved)
            case Call(fn, args):
                return Call(fn, tuple(map(self.scalar, args)))
            case Cast(arg, dtype):
                return Cast(self.scalar(arg), dtype)
            case Select(where, then, other):
                return self._select(where, then, other)
        raise TypeError(f"not a scalar expression: {value!r}")

    def _select(self, where: tuple[Range, ...], then: Scalar, other: Scalar) -> Scalar:
        """Without conditions that the bounds decide."""
        undecided = []
        for condition in where:
            index = self.index(condition.index)
            low, high = bounds(index, self._bounds)
            if high < condition.low or low >= condition.high:
                return self.scalar(other)
            if low < condition.low or high >= condition.high:
                undecided.append(Range(index, condition.low, condition.high))
        return Select(tuple(undecided), self.scalar(then), self.scalar(other)) if undecided else self.scalar(then)
