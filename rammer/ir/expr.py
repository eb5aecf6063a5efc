"""Define tensor expressions: what an operator computes, separate from how it is computed.

An operator is one or more *stages*. A stage gives every point of its axes a value, optionally reduced over further
axes. Loads are affine in the axes (with Div and Mod by constants), guarded by `Select`, or data-dependent through
`Dynamic`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import inf, prod
from typing import TypeAlias, TypeVar

from rammer.ir.index import Index, substitute, variables
from rammer.ir.tensor import SMALL, DType, TensorType

Item = TypeVar("Item")


class Scalar:
    """Base class of scalar expressions, with Python's operators."""

    __slots__ = ()

    def __add__(self, other: Scalar | float) -> Call:
        return Call("add", (self, scalar(other, self)))

    def __sub__(self, other: Scalar | float) -> Call:
        return Call("sub", (self, scalar(other, self)))

    def __mul__(self, other: Scalar | float) -> Call:
        return Call("mul", (self, scalar(other, self)))

    def __truediv__(self, other: Scalar | float) -> Call:
        return Call("div", (self, scalar(other, self)))

    def clipped(self, dtype: DType) -> bool:
        """Return whether the number is clipped to what a type of integers holds (NaN aside)."""
        match self:
            case Call("min", (Call("max", (_, Const(low))), Const(high))):
                return bool(dtype.info.min <= low <= high <= dtype.info.max)
        return False


@dataclass(frozen=True, slots=True)
class Const(Scalar):
    """A literal. Without a `dtype` it takes the type of the other operand."""

    value: float | int | bool
    dtype: DType | None = None


@dataclass(frozen=True, slots=True)
class Iota(Scalar):
    """The value of an index expression, as an int64 number."""

    index: Index


@dataclass(frozen=True, slots=True)
class ConstantTable(Scalar):
    """Element values[index] of a constant table. Unrolling decides the index; a zero removes its product."""

    values: tuple[float, ...]
    index: Index


@dataclass(frozen=True, slots=True)
class Dynamic:
    """A data-dependent addition to dimension `dim` of a load's index: `value`, an integer in [-extent, extent).

    Negative values count from the end. A load out of range is an error at run time, never a stray read. A store out of
    range is dropped, which is an error only if `strict`. In a tile program the load has one flat index, and one step of
    `value` adds `stride` to it.
    """

    dim: int
    value: Scalar
    extent: int
    stride: int = 1
    strict: bool = True


@dataclass(frozen=True, slots=True)
class Load(Scalar):
    """An element of a tensor (tensor expression), or of a buffer with one flat index (tile program)."""

    tensor: str
    index: tuple[Index, ...]
    dynamic: tuple[Dynamic, ...] = ()


@dataclass(frozen=True, slots=True)
class Call(Scalar):
    """A call of a scalar function of `FUNCTIONS`. All operands have one type (see `result_dtype`)."""

    fn: str
    args: tuple[Scalar, ...]


@dataclass(frozen=True, slots=True)
class Cast(Scalar):
    """A conversion as by NumPy's astype: floats truncate toward zero, integers wrap.

    With `bits`, as by NumPy's view: the same bits, read as another type of their width.
    """

    arg: Scalar
    dtype: DType
    bits: bool = False


@dataclass(frozen=True, slots=True)
class Range:
    """The condition low <= index < high."""

    index: Index
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Select(Scalar):
    """A static choice: `then` where all affine conditions hold, else `other`. Only the chosen side is read.

    A choice that depends on data is `Call("where", (condition, then, other))`.
    """

    where: tuple[Range, ...]
    then: Scalar
    other: Scalar


def scalar(value: Scalar | float, like: Scalar | None = None) -> Scalar:
    """Convert a Python number to a Scalar. Its type follows the other operand."""
    del like
    return value if isinstance(value, Scalar) else Const(value)


# combine -> (function, identity); the identity is cast to the stage's type (±inf become the type's limits)
REDUCERS: dict[str, tuple[str, float]] = {
    "sum": ("add", 0.0),
    "prod": ("mul", 1.0),
    "max": ("max", float("-inf")),
    "min": ("min", float("inf")),
}

Axes: TypeAlias = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage: name[axes] = combine over `reduce` of body, stored as `dtype`."""

    name: str
    axes: Axes
    body: Scalar
    reduce: Axes = ()
    combine: str = "sum"
    dtype: DType = DType.F32
    epilogue: Scalar | None = None  # set by lowering only: applied to the reduced value, which it loads by its old name

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(extent for _, extent in self.axes)


@dataclass(frozen=True, slots=True)
class TensorExpr:
    """Stages in topological order. The last output is the root: its tiles are the rTasks.

    All outputs have the root's shape. Names of inputs and stages are unique identifiers without "__".

    An expression with `into` is an update. Its one output is that input, which no stage reads, with the root's elements
    stored at this place. If several elements have one place, the last one stays. With `combine`, a function of two
    numbers, each is combined with what is there, in order. It is computed in the input's own memory. With `copied`, the
    input stays as it is: each rTask first copies its part of it.
    """

    name: str
    inputs: tuple[tuple[str, TensorType], ...]
    stages: tuple[Stage, ...]
    outputs: tuple[tuple[str, TensorType], ...]
    into: Load | None = None
    copied: bool = False
    combine: str = ""

    @property
    def in_place(self) -> bool:
        """Whether the output is computed in the memory of an input."""
        return self.into is not None and not self.copied

    @property
    def root(self) -> Stage:
        return self.stage(self.outputs[-1][0])

    def stage(self, name: str) -> Stage:
        return next(s for s in self.stages if s.name == name)

    def type_of(self, tensor: str) -> TensorType:
        """Return the type of an input, an output, or a stage."""
        for name, kind in (*self.inputs, *self.outputs):
            if name == tensor:
                return kind
        stage = self.stage(tensor)
        return TensorType(stage.shape, stage.dtype)

    def most_read(self, name: str) -> float:
        """Return the most elements of an input that are read; infinity unless other inputs hold its indices.

        Of a table, that is the rows that are looked up.
        """
        found = ((s, ld) for s in self.stages for ld, _ in loads(s.body) if ld.tensor == name)
        return sum(prod(e for _, e in (*s.axes, *s.reduce)) if ld.dynamic else inf for s, ld in found)


def free_axes(expr: TensorExpr) -> Axes:
    """Return the root axes of an update along which no two elements have one place, so that their order is free."""
    assert expr.into is not None
    moved = {d.dim for d in expr.into.dynamic}
    own = set[str]().union(*(variables(index) for dim, index in enumerate(expr.into.index) if dim not in moved))
    return tuple((axis, extent) for axis, extent in expr.root.axes if axis in own)


COMPARISONS = frozenset({"equal", "less", "less_equal", "greater", "greater_equal", "is_nan", "is_inf"})


def result_dtype(value: Scalar, dtype_of: Mapping[str, DType]) -> DType | None:
    """Return the type of a scalar expression; None for an untyped literal."""
    match value:
        case Const(_, dtype):
            return dtype
        case ConstantTable():
            return None
        case Iota():
            return DType.I64
        case Load(tensor):
            return dtype_of[tensor]
        case Cast(_, dtype):
            return dtype
        case Call(fn, _) if fn in COMPARISONS:
            return DType.BOOL
        case Call("where", (_, then, other)) | Select(_, then, other):
            return result_dtype(then, dtype_of) or result_dtype(other, dtype_of)
        case Call("real" | "imag", (arg,)):
            whole = result_dtype(arg, dtype_of)
            return whole and whole.part
        case Call("complex", (arg, _)):
            return DType.C64 if result_dtype(arg, dtype_of) is DType.F32 else DType.C128
        case Call(_, args):
            return next((d for a in args if (d := result_dtype(a, dtype_of)) is not None), None)
    raise TypeError(f"not a scalar expression: {value!r}")


def mapped(value: Scalar, change: Callable[[Scalar], Scalar], index: Callable[[Index], Index] = lambda i: i) -> Scalar:
    """Rebuild a scalar with its direct operands changed, and its own indices except those of a load."""
    match value:
        case Load(tensor, places, dynamic):
            moved = tuple(replace(d, value=change(d.value)) for d in dynamic)
            return Load(tensor, places, moved) if dynamic else value
        case Call(fn, args):
            return Call(fn, tuple(map(change, args)))
        case Cast(arg):
            return replace(value, arg=change(arg))
        case Select(where, then, other):
            ranges = tuple(Range(index(r.index), r.low, r.high) for r in where)
            return Select(ranges, change(then), change(other))
        case Iota(place):
            return Iota(index(place))
        case ConstantTable(values, place):
            return ConstantTable(values, index(place))
    return value


def rewrite(body: Scalar, leaf: Callable[[Load], Scalar], index: Callable[[Index], Index] = lambda i: i) -> Scalar:
    """Rebuild `body` with every load replaced by leaf(load) and every other index by index(index).

    `leaf` sees loads whose dynamic parts are already rewritten; it must map the load's own static indices itself.
    """

    def walk(value: Scalar) -> Scalar:
        made = mapped(value, walk, index)
        return leaf(made) if isinstance(made, Load) else made

    return walk(body)


def substitute_axes(body: Scalar, values: Mapping[str, Index]) -> Scalar:
    """Replace axes by index expressions everywhere in `body`."""
    return rewrite(
        body,
        lambda ld: Load(ld.tensor, tuple(substitute(i, values) for i in ld.index), ld.dynamic),
        lambda i: substitute(i, values),
    )


def rename_tensors(body: Scalar, names: Mapping[str, str]) -> Scalar:
    """Replace tensor names in every load."""
    return rewrite(body, lambda ld: Load(names.get(ld.tensor, ld.tensor), ld.index, ld.dynamic))


def inside(value: Scalar) -> tuple[Scalar, ...]:
    """Return the operands of a scalar expression, dynamic indices included."""
    match value:
        case Call(_, args):
            return args
        case Cast(arg, _):
            return (arg,)
        case Select(_, then, other):
            return then, other
        case Load(_, _, dynamic):
            return tuple(d.value for d in dynamic)
    return ()


def nodes(value: Scalar) -> Iterator[Scalar]:
    """Yield a scalar expression and everything inside it, dynamic indices included; parents first."""
    yield value
    for part in inside(value):
        yield from nodes(part)


Path: TypeAlias = tuple[tuple[tuple[Range, ...], bool], ...]
Role: TypeAlias = tuple[str, ...]  # functions that a value passes through, each with the position where it enters


def indices_of(value: Scalar) -> Iterator[Index]:
    """Yield every index of a scalar expression: of its loads, its conditions, and numbers that it computes."""
    for part in nodes(value):
        match part:
            case Load(_, places):
                yield from places
            case Iota(index) | ConstantTable(_, index):
                yield index
            case Select(where):
                yield from (r.index for r in where)


def decided_by(index: Index, path: Path) -> set[str]:
    """Return the variables that decide which element is accessed at an index, and whether it is."""
    return variables(index).union(*(variables(r.index) for where, _ in path for r in where))


def independent_groups(
    items: Iterable[tuple[set[str], Item]], path: Path
) -> Iterator[tuple[set[str], list[Item], Path]]:
    """Group items, given with their variables, and conditions so that no two groups share a variable."""
    groups: list[tuple[set[str], list[Item], Path]] = [(used, [item], ()) for used, item in items]
    groups += [(set().union(*(variables(r.index) for r in where)), [], ((where, wanted),)) for where, wanted in path]
    while groups:
        used, found, conditions = groups.pop()
        while joined := next((g for g in groups if g[0] & used), None):
            groups.remove(joined)
            used, found, conditions = used | joined[0], found + joined[1], conditions + joined[2]
        yield used, found, conditions


def loads(body: Scalar, path: Path = ()) -> Iterator[tuple[Load, Path]]:
    """Yield every load with the (conditions, wanted truth) under which it is read, also loads in dynamic indices."""
    match body:  # called very often: roles would take twice the time
        case Load(_, _, dynamic):
            yield body, path
            for d in dynamic:
                yield from loads(d.value, path)
        case Call(_, args):
            for arg in args:
                yield from loads(arg, path)
        case Cast(arg, _):
            yield from loads(arg, path)
        case Select(where, then, other):
            yield from loads(then, (*path, (where, True)))
            yield from loads(other, (*path, (where, False)))


def loads_in_role(
    body: Scalar, path: Path = (), role: Role = (), folds: Callable[[Call], bool] = lambda call: False
) -> Iterator[tuple[Load, Path, Role]]:
    """Yield every load as `loads` does, with its role: the functions that its value passes through, without folds."""
    match body:
        case Load(_, _, dynamic):
            yield body, path, role
            for d in dynamic:
                yield from loads_in_role(d.value, path, (*role, "at"), folds)
        case Call(fn, args):
            folded = folds(body)
            for n, arg in enumerate(args):
                yield from loads_in_role(arg, path, role if folded else (*role, f"{fn}.{n}"), folds)
        case Cast(arg, _):
            yield from loads_in_role(arg, path, role, folds)
        case Select(where, then, other):
            yield from loads_in_role(then, (*path, (where, True)), role, folds)
            yield from loads_in_role(other, (*path, (where, False)), role, folds)


def stored_as(value: Scalar, dtype: DType, dtype_of: Mapping[str, DType]) -> Scalar:
    """Return `value` as a stage of type `dtype` stores it: with a Cast if that converts it, or rounds it to 16 bits."""
    same = result_dtype(value, dtype_of) is dtype
    return value if same and (dtype.accumulator is dtype or _is_exact(value, dtype)) else Cast(value, dtype)


def _is_exact(value: Scalar, dtype: DType) -> bool:
    """Return whether a value of the accumulator's type is exact in `dtype`, because it is only moved or selected."""
    match value:
        case Load() | Cast():
            return True
        case Const(number):
            return float(dtype.numpy.type(number)) == number
        case Call("where", (_, *args)) | Call("max" | "min" | "neg" | "abs", args):
            return all(_is_exact(a, dtype) for a in args)
        case Select(_, then, other):
            return _is_exact(then, dtype) and _is_exact(other, dtype)
    return False


def inline(expr: TensorExpr, keep: frozenset[str] | set[str]) -> list[Stage]:
    """Substitute every point-wise stage that is not in `keep` into its consumers, with a Cast to its type.

    Outputs stay, and stages that are read at dynamic indices.
    """
    gone: dict[str, Stage] = {}
    kept = []
    outputs = {name for name, _ in expr.outputs}
    dtypes = {name: kind.dtype for name, kind in expr.inputs} | {s.name: s.dtype for s in expr.stages}

    def leaf(load: Load) -> Scalar:
        stage = gone.get(load.tensor)
        if stage is None:
            return load
        body = substitute_axes(stage.body, dict(zip((a for a, _ in stage.axes), load.index, strict=True)))
        return stored_as(body, stage.dtype, dtypes)

    for stage in expr.stages:
        stage = replace(stage, body=recast(rewrite(stage.body, leaf)))
        if stage.reduce or stage.name in keep or stage.name in outputs or _read_dynamically(stage.name, expr):
            kept.append(stage)
        else:
            gone[stage.name] = stage
    return kept


def recast(value: Scalar) -> Scalar:
    """Convert what is loaded, not what padding selects, and clipped numbers to int32 without a smaller type between.

    Vectors hold no numbers smaller than int32: they are converted where they are loaded and stored.
    """
    value = mapped(value, recast)
    match value:
        case Cast(Cast(arg, small, False), DType.I32, False) if small in SMALL and arg.clipped(small):
            return Cast(arg, DType.I32)
        case Cast(Select(where, Load() as inside, Const(0)), DType.F32 | DType.I32 as dtype, False):
            return Select(where, Cast(inside, dtype), Const(0.0 if dtype.is_float else 0))
    return value


def _read_dynamically(name: str, expr: TensorExpr) -> bool:
    bodies = (body for s in expr.stages for body in (s.body, s.epilogue) if body is not None)
    return any(ld.tensor == name and ld.dynamic for body in bodies for ld, _ in loads(body))
