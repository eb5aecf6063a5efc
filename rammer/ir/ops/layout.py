"""Define operators that move elements without computing: all are index arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from rammer.ir.expr import Const, Dynamic, Load, Range, Scalar, Select, Stage, TensorExpr
from rammer.ir.index import Index, simplify, var
from rammer.ir.operator import OpDef
from rammer.ir.ops.operands import (
    broadcast,
    broadcast_index,
    call,
    expression,
    listed,
    normal_axis,
    number,
    point_axes,
    require,
    same_dtype,
    variables_of,
    within,
)
from rammer.ir.tensor import DType, Shape, TensorType


def _moved(kind: str, x: TensorType, shape: Shape, index: tuple[Index, ...]) -> TensorExpr:
    return expression(kind, [("x", x)], [Stage("out", point_axes(shape), Load("x", index), dtype=x.dtype)])


def _transpose(x: TensorType, *, perm: tuple[int, ...]) -> TensorExpr:
    """Build x with dimension perm[p] of x as dimension p."""
    require(sorted(perm) == list(range(x.rank)), f"transpose: perm {perm} of {x}", "name every axis of x once")
    index = tuple(var(f"a{perm.index(p)}") for p in range(x.rank))
    return _moved("transpose", x, tuple(x.shape[p] for p in perm), index)


def _reshape(x: TensorType, *, shape: Shape) -> TensorExpr:
    """Build the same elements, in row-major order, with another shape."""
    fits, hint = min(shape, default=0) >= 0 and prod(shape) == x.size, "resolve 0 and -1 first"
    require(fits, f"reshape: {x} to {shape}", f"x has {x.size} elements; {hint}")
    if x.size == 0:
        return _moved("reshape", x, shape, (Index(),) * x.rank)
    axes, flat = point_axes(shape), Index()
    for p, (name, _) in enumerate(axes):
        flat += var(name) * prod(shape[p + 1 :])
    within = {name: (0, extent - 1) for name, extent in axes}
    return _moved(
        "reshape",
        x,
        shape,
        tuple(simplify(flat // prod(x.shape[p + 1 :]) % extent, within) for p, extent in enumerate(x.shape)),
    )


def _slice(x: TensorType, *, starts: Shape, steps: Shape, shape: Shape) -> TensorExpr:
    """Build out[i] = x[starts + i * steps], per dimension; a negative step walks backwards."""
    given = f"slice: {x} from {starts} by {steps} to shape {shape}"
    require(len(starts) == len(steps) == len(shape) == x.rank, given, f"x has {x.rank} dimensions")
    for start, step, extent, full in zip(starts, steps, shape, x.shape, strict=True):
        last = start + (extent - 1) * step
        fits = step != 0 and extent >= 0 and (extent == 0 or (0 <= start < full and 0 <= last < full))
        require(fits, given, "every element must lie inside x, and no step may be 0")
    axes = point_axes(shape)
    places = tuple(var(n) * step + start for (n, _), step, start in zip(axes, steps, starts, strict=True))
    return _moved("slice", x, shape, places)


def _stretch(x: TensorType, *, axis: int, size: int, first: int = 0, step: int = 1, by: int = 1) -> TensorExpr:
    """Build out[…, i, …] = x[…, (first + i step) // by, …] for i below `size`, along `axis`."""
    given, p = f"stretch: {x} to {size} by ({first} + i {step}) // {by}", normal_axis("stretch", axis, x.rank)
    inside = size > 0 and first >= 0 and step > 0 and by > 0 and (first + (size - 1) * step) // by < x.shape[p]
    require(inside, given, "places rise, and lie inside x")
    shape = (*x.shape[:p], size, *x.shape[p + 1 :])
    here = variables_of(point_axes(shape))
    place = simplify((here[p] * step + first) // by, {f"a{p}": (0, size - 1)})
    return _moved("stretch", x, shape, (*here[:p], place, *here[p + 1 :]))


def _concat(*xs: TensorType, axis: int) -> TensorExpr:
    """Build the operands one after another along `axis`, as a balanced tree of Selects."""
    require(len(xs) > 0, "concat: no operands", "it takes one or more")
    dtype = same_dtype("concat", xs)
    p = normal_axis("concat", axis, xs[0].rank)
    rest = {(t.rank, t.shape[:p], t.shape[p + 1 :]) for t in xs}
    require(len(rest) == 1, f"concat: {listed(xs)} at axis {p}", "all other dimensions must be equal")
    axes = point_axes((*xs[0].shape[:p], sum(t.shape[p] for t in xs), *xs[0].shape[p + 1 :]))
    here, along = variables_of(axes), var(f"a{p}")
    parts: list[tuple[int, str]] = []  # (first place, operand); operands without elements are never read
    start = 0
    for n, t in enumerate(xs):
        if t.shape[p] or (n == len(xs) - 1 and not parts):
            parts.append((start, f"x{n}"))
        start += t.shape[p]

    def tree(part: list[tuple[int, str]]) -> Scalar:
        if len(part) == 1:
            first, name = part[0]
            return Load(name, (*here[:p], along - first, *here[p + 1 :]))
        middle = len(part) // 2
        return Select((Range(along, part[0][0], part[middle][0]),), tree(part[:middle]), tree(part[middle:]))

    inputs = [(f"x{n}", t) for n, t in enumerate(xs)]
    return expression("concat", inputs, [Stage("out", axes, tree(parts), dtype=dtype)])


def _pad(x: TensorType, *, pads: Shape, mode: str = "constant", value: complex = 0) -> TensorExpr:
    """Build x with `pads` (begin…, end…) more elements on each side; negative ones crop, before any are added."""
    given = f"pad: {x} by {pads} in mode {mode!r}"
    require(len(pads) == 2 * x.rank, given, f"x has {x.rank} dimensions: pads needs twice as many numbers")
    require(mode in ("constant", "reflect", "edge", "wrap"), given, "the modes are constant, reflect, edge, wrap")
    begin, end = pads[: x.rank], pads[x.rank :]
    shape = tuple(b + e + f for b, e, f in zip(begin, x.shape, end, strict=True))
    require(min(shape, default=0) >= 0, given, "the pads crop more than there is")
    axes = point_axes(shape)
    if mode == "constant":
        places = tuple(var(name) - b for (name, _), b in zip(axes, begin, strict=True))
        body = within(places, x.shape, begin, end, Load("x", places), _literal(value, x.dtype))
        return expression("pad", [("x", x)], [Stage("out", axes, body, dtype=x.dtype)])
    changed = [p for p in range(x.rank) if begin[p] or end[p]]
    stages: list[Stage] = []
    source, current = "x", list(x.shape)
    for p in changed:  # one dimension after another
        low, high = max(-begin[p], 0), x.shape[p] - max(-end[p], 0)
        require(high > low or shape[p] == 0, given, f"dimension {p} has nothing to repeat")
        current[p] = shape[p]
        axes = point_axes(tuple(current))
        here = variables_of(axes)

        def load_at(place: Index, p: int = p, here: tuple[Index, ...] = here, source: str = source) -> Load:
            return Load(source, (*here[:p], place, *here[p + 1 :]))

        before, after = max(begin[p], 0), max(end[p], 0)
        body = _repeated(mode, here[p] - before, before, after, low, max(high - low, 1), load_at)
        source = "out" if p == changed[-1] else f"p{p}"
        stages.append(Stage(source, axes, body, dtype=x.dtype))
    if not stages:
        stages.append(Stage("out", axes, Load("x", variables_of(axes)), dtype=x.dtype))
    return expression("pad", [("x", x)], stages)


def _repeated(
    mode: str, at: Index, before: int, after: int, low: int, extent: int, load_at: Callable[[Index], Load]
) -> Scalar:
    """Return the element at a place of a padded row, which starts at `low` and has `extent` elements.

    The place `at` lies from -before to extent + after - 1. Loops are split where one of the pieces ends, so each piece
    is as fast as a copy. Rows that are repeated more than once on a side need a modulo.
    """
    period = extent if mode == "wrap" else max(2 * (extent - 1), 1)
    if mode == "edge" or max(before, after) <= (extent if mode == "wrap" else extent - 1):
        sides = {
            "edge": (Index(low), Index(low + extent - 1)),
            "wrap": (at + (low + period), at + (low - period)),
            "reflect": (at * -1 + low, at * -1 + (low + period)),
        }
        first, last = map(load_at, sides[mode])
        own = load_at(at + low)
        upper = Select((Range(at, 0, extent),), own, last) if after else own
        return Select((Range(at, -before, 0),), first, upper) if before else upper
    inside = (at + -(-before // period) * period) % period  # never negative before the modulo
    if mode == "wrap" or extent < 3:
        return load_at(inside + low)
    return Select((Range(inside, 0, extent),), load_at(inside + low), load_at(inside * -1 + (low + period)))


def _gather(x: TensorType, idx: TensorType, *, axis: int = 0) -> TensorExpr:
    """Build x with dimension `axis` replaced by the elements that idx selects; negative indices count from the end."""
    given = f"gather: {listed([x, idx])} at axis {axis}"
    require(idx.dtype in (DType.I32, DType.I64, DType.U8, DType.I8), given, "indices must be int32, int64 or bytes")
    p = normal_axis("gather", axis, x.rank)
    require(x.shape[p] > 0 or idx.size == 0, given, "there is nothing to choose from")
    axes = point_axes((*x.shape[:p], *idx.shape, *x.shape[p + 1 :]))
    here = variables_of(axes)
    chosen = Dynamic(p, Load("idx", here[p : p + idx.rank]), x.shape[p])
    body = Load("x", (*here[:p], Index(), *here[p + idx.rank :]), (chosen,))
    return expression("gather", [("x", x), ("idx", idx)], [Stage("out", axes, body, dtype=x.dtype)])


def _gather_elements(x: TensorType, idx: TensorType, *, axis: int) -> TensorExpr:
    """Build the elements of x at an index along `axis` for each place of idx. Known as: take_along_axis, torch.gather.

    Negative indices count from the end. Along other axes idx may be shorter than x.
    """
    given = f"gather_elements: {listed([x, idx])} at axis {axis}"
    require(idx.dtype in (DType.I32, DType.I64), given, "indices must be int32 or int64")
    p = normal_axis("gather_elements", axis, x.rank)
    fits = idx.rank == x.rank and all(i <= e for d, (i, e) in enumerate(zip(idx.shape, x.shape, strict=True)) if d != p)
    require(fits, given, "along other axes indices have at most the extents of x")
    require(x.shape[p] > 0 or idx.size == 0, given, "there is nothing to choose from")
    axes = point_axes(idx.shape)
    here = variables_of(axes)
    chosen = Dynamic(p, Load("idx", here), x.shape[p])
    body = Load("x", (*here[:p], Index(), *here[p + 1 :]), (chosen,))
    return expression("gather_elements", [("x", x), ("idx", idx)], [Stage("out", axes, body, dtype=x.dtype)])


def _gather_nd(x: TensorType, idx: TensorType, *, batch_dims: int = 0) -> TensorExpr:
    """Build the slices of x that the last axis of idx selects, along the axes that follow `batch_dims` common ones."""
    given = f"gather_nd: {listed([x, idx])} with batch_dims {batch_dims}"
    require(idx.dtype in (DType.I32, DType.I64), given, "indices must be int32 or int64")
    require(0 <= batch_dims < min(x.rank, idx.rank), given, "batch_dims is less than both ranks")
    require(idx.shape[:batch_dims] == x.shape[:batch_dims], given, "the first batch_dims axes have equal extents")
    depth = idx.shape[-1]
    require(1 <= depth <= x.rank - batch_dims, given, "the last axis of idx has one index for each axis, 1 to all")
    indexed = range(batch_dims, batch_dims + depth)
    require(all(x.shape[d] > 0 for d in indexed) or idx.size == 0, given, "there is nothing to choose from")
    axes = point_axes((*idx.shape[:-1], *x.shape[indexed.stop :]))
    here, q = variables_of(axes), idx.rank - 1
    chosen = tuple(Dynamic(d, Load("idx", (*here[:q], Index(d - batch_dims))), x.shape[d]) for d in indexed)
    body = Load("x", (*here[:batch_dims], *[Index()] * depth, *here[q:]), chosen)
    return expression("gather_nd", [("x", x), ("idx", idx)], [Stage("out", axes, body, dtype=x.dtype)])


def _literal(value: complex, dtype: DType) -> Scalar:
    """Return a literal of a type; a complex one is made of its parts."""
    if dtype.is_complex:
        return call("complex", Const(value.real, dtype.part), Const(value.imag, dtype.part))
    require(not isinstance(value, complex), f"pad: {value} among {dtype.value}", "give a real number")
    return number(value.real, dtype)


def _expand(x: TensorType, *, shape: Shape) -> TensorExpr:
    """Build x broadcast against `shape`, in both directions as ONNX's Expand."""
    full = broadcast("expand", [x, TensorType(shape)])
    return _moved("expand", x, full, broadcast_index(x.shape, point_axes(full)))


DEFINITIONS = (
    OpDef("transpose", _transpose),
    OpDef("reshape", _reshape),
    OpDef("slice", _slice),
    OpDef("stretch", _stretch),
    OpDef("concat", _concat),
    OpDef("pad", _pad),
    OpDef("gather", _gather),
    OpDef("gather_elements", _gather_elements),
    OpDef("gather_nd", _gather_nd),
    OpDef("expand", _expand),
)
