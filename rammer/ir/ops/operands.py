"""Check operands, axes and indices of operator definitions, and assemble their expressions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

import numpy as np

from rammer.errors import TypeMismatch
from rammer.ir.expr import Axes, Call, Cast, Const, Load, Range, Scalar, Select, Stage, TensorExpr, scalar
from rammer.ir.index import Index, var
from rammer.ir.tensor import DType, Shape, TensorType

MAX_ELEMENTS = 2**31 - 1  # of one tensor or stage: flat indices fit 32 bits


def require(ok: bool, what: str, hint: str = "") -> None:
    """Raise TypeMismatch unless `ok`."""
    if not ok:
        raise TypeMismatch(what, hint=hint)


def listed(types: Iterable[TensorType]) -> str:
    """Format operand types for a message."""
    return ", ".join(map(str, types))


def same_dtype(kind: str, types: Sequence[TensorType]) -> DType:
    """Return the one element type of all operands. Raises TypeMismatch."""
    require(len({t.dtype for t in types}) == 1, f"{kind}: operands of several types: {listed(types)}", "add a cast")
    return types[0].dtype


def float_only(kind: str, types: Sequence[TensorType]) -> DType:
    """Return the one floating-point type of all operands. Raises TypeMismatch."""
    dtype = computed(kind, types)
    require(dtype.is_float, f"{kind}: needs floating-point operands, not {listed(types)}", "add a cast")
    return dtype


def computed(kind: str, types: Sequence[TensorType]) -> DType:
    """Return the one type of all operands. Raises TypeMismatch, also for a type that is only stored."""
    dtype = same_dtype(kind, types)
    require(not dtype.only_stored, f"{kind}: {dtype.value} is only stored and converted, not computed", "add a cast")
    return dtype


def numbers_only(kind: str, types: Sequence[TensorType]) -> DType:
    """Return the one type of all operands, which must have arithmetic. Raises TypeMismatch."""
    dtype = computed(kind, types)
    require(dtype is not DType.BOOL, f"{kind}: needs numbers, not {listed(types)}", "add a cast")
    return dtype


def normal_axis(kind: str, axis: int, rank: int) -> int:
    """Return the axis counted from the front. Raises TypeMismatch if it is outside [-rank, rank)."""
    require(-rank <= axis < rank, f"{kind}: axis {axis} of a tensor of rank {rank}", f"it must be in [{-rank}, {rank})")
    return axis % rank


def broadcast(kind: str, types: Sequence[TensorType]) -> Shape:
    """Return NumPy's common shape. Raises TypeMismatch."""
    try:
        return tuple(np.broadcast_shapes(*(t.shape for t in types)))
    except ValueError:
        raise TypeMismatch(
            f"{kind}: shapes do not broadcast: {listed(types)}",
            hint="dimensions, aligned at the last one, must be equal or 1",
        ) from None


def point_axes(shape: Shape) -> Axes:
    """Return the axes a0, a1, … of a point-wise stage."""
    return tuple((f"a{p}", extent) for p, extent in enumerate(shape))


def variables_of(axes: Axes) -> tuple[Index, ...]:
    return tuple(var(name) for name, _ in axes)


def broadcast_index(shape: Shape, axes: Axes) -> tuple[Index, ...]:
    """Return the index at which an operand of `shape` is read at a point of `axes`, by NumPy's broadcasting."""
    last = axes[len(axes) - len(shape) :]
    return tuple(Index() if e == 1 and full != 1 else var(name) for e, (name, full) in zip(shape, last, strict=True))


def within(places: Sequence[Index], extents: Shape, begin: Shape, end: Shape, value: Scalar, fill: Scalar) -> Scalar:
    """Return `value` where the places are inside of the extents, else `fill`; only pads (begin, end) lead outside."""
    edges = zip(places, extents, begin, end, strict=True)
    guards = tuple(Range(place, 0, extent) for place, extent, b, e in edges if b > 0 or e > 0)
    return Select(guards, value, fill) if guards else value


def call(fn: str, *args: Scalar | float) -> Call:
    """Apply a scalar function to scalars and literals."""
    return Call(fn, tuple(scalar(a) for a in args))


def widened(value: Scalar, dtype: DType) -> Scalar:
    """Convert `value` of type `dtype` to the type that its sums are held in."""
    return value if dtype.accumulator is dtype else Cast(value, dtype.accumulator)


def factor(value: Scalar, kind: TensorType, dtype: DType) -> Scalar:
    """Convert a factor of type `kind` to the type that sums of `dtype` are held in."""
    return value if kind.dtype is dtype.accumulator else Cast(value, dtype.accumulator)


def wide_enough(kind: str, types: Sequence[TensorType], dtype: DType | None) -> DType:
    """Return the type of a product: `dtype` if given, else the one type of its operands.

    Raises TypeMismatch, also if `dtype` does not hold all numbers of the operands.
    """
    if dtype is None:
        return numbers_only(kind, types)
    computed = not any(t.dtype is DType.BOOL or t.dtype.only_stored for t in types)
    most = 2 if dtype is DType.F32 else dtype.itemsize
    fits = all(t.dtype is dtype or (not t.dtype.is_float and t.dtype.itemsize <= most) for t in types)
    known = computed and fits and (dtype is DType.F32 or not dtype.is_float)
    hint = "integers are widened to as wide ones, those of 16 bits also to float32"
    require(known, f"{kind}: {listed(types)} in {dtype.value}", hint)
    return dtype


def narrowed(value: Scalar, dtype: DType) -> Scalar:
    """Convert a value of the accumulator's type back to `dtype`."""
    return value if dtype.accumulator is dtype else Cast(value, dtype)


def number(value: float, dtype: DType) -> Const:
    """Return an untyped literal, written as `dtype` has it."""
    return Const(float(value) if dtype.is_float else bool(value) if dtype is DType.BOOL else int(value))


def summed(axes: Axes, body: Scalar, reduce: Axes, dtype: DType, combine: str = "sum") -> tuple[Stage, ...]:
    """Build the stage `out`: `body` (of the accumulator's type) combined over `reduce`, and rounded to `dtype`."""
    wide = dtype.accumulator
    if wide is dtype:
        return (Stage("out", axes, body, reduce, combine, dtype),)
    total = Stage("sum", axes, body, reduce, combine, wide)
    return (total, Stage("out", axes, Cast(Load("sum", variables_of(axes)), dtype), dtype=dtype))


def expression(
    kind: str, inputs: Iterable[tuple[str, TensorType]], stages: Sequence[Stage], outputs: Sequence[str] = ("out",)
) -> TensorExpr:
    """Build the operator's expression, without layouts of inputs. Raises TypeMismatch if a tensor is too large."""
    logical = tuple((name, TensorType(t.shape, t.dtype)) for name, t in inputs)
    shapes = [(name, t.shape) for name, t in logical] + [(s.name, s.shape) for s in stages]
    for name, shape in shapes:
        given = f"{kind}: {name} of shape {shape} has more than {MAX_ELEMENTS} elements"
        require(prod(shape) <= MAX_ELEMENTS, given, "split the tensor")
    types = {s.name: TensorType(s.shape, s.dtype) for s in stages}
    return TensorExpr(kind, logical, tuple(stages), tuple((name, types[name]) for name in outputs))
