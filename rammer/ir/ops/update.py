"""Define updates, which write elements into a tensor at places that data give, in the tensor's own memory.

Known as: scatter. A step of a key-value cache is one.
"""

from __future__ import annotations

from dataclasses import replace

from rammer.ir.expr import Call, Cast, Const, Dynamic, Iota, Load, Scalar, Stage, TensorExpr
from rammer.ir.index import Index
from rammer.ir.operator import OpDef
from rammer.ir.ops.operands import expression, listed, point_axes, require, variables_of
from rammer.ir.tensor import DType, TensorType

COUNTED = ("linear", "circular")
COMBINED = ("add", "mul", "max", "min")
SUMMED = frozenset({DType.F32, DType.F64, DType.I32, DType.I64})  # types that keep what they add up


def _update(
    data: TensorType, updates: TensorType, at: TensorType, *, moves: tuple[int, ...], how: str, combine: str = ""
) -> TensorExpr:
    """Build `data` with each element of `updates` at its own place; of several at one place the last one stays.

    With `combine` (add, mul, max or min), each is combined with what is there instead.

    Along dimension d, the place is the element's own along dimension moves[d] of `updates`. If moves[d] is negative,
    `at` gives the place, which may count from the end; `how` says in which form:

    - "elements": for each element; the shape of `at` is broadcast to that of `updates`.
    - "chosen": likewise, but never from the end, and a place outside is not an error.
    - "vectors": as component ~moves[d] of the last dimension of `at`, for the first dimensions of `updates`.
    - "linear", "circular": the first place for each batch, along one dimension; the others follow it.
    """
    return _stored("update", data, updates, at, moves, how, combine)


def _scatter(
    data: TensorType, updates: TensorType, at: TensorType, *, moves: tuple[int, ...], how: str, combine: str = ""
) -> TensorExpr:
    """Build what `update` does, with memory of its own. Updates are as long as the data where they keep their place."""
    expr = _stored("scatter", data, updates, at, moves, how, combine)
    whole = all(move < 0 or updates.shape[move] == extent for extent, move in zip(data.shape, moves, strict=True))
    require(data.rank > 0 and whole, f"scatter: {listed((data, updates, at))} by {moves}", "extend the updates")
    return replace(expr, copied=True)


def _stored(
    kind: str, data: TensorType, updates: TensorType, at: TensorType, moves: tuple[int, ...], how: str, combine: str
) -> TensorExpr:
    given = f"{kind}: {listed((data, updates, at))} by {moves} {how} {combine}"
    counts = combine in COMBINED and data.dtype in SUMMED and any(m < 0 for m in moves)
    require(not combine or counts, given, f"combine is one of {', '.join(COMBINED)}, of float32, float64, int32, int64")
    require(data.dtype is updates.dtype and len(moves) == data.rank, given, "one move for each dimension of the data")
    own = [(extent, move) for extent, move in zip(data.shape, moves, strict=True) if move >= 0]
    fits = all(m < updates.rank and updates.shape[m] <= extent for extent, m in own)
    require(fits and len({m for _, m in own}) == len(own), given, "a move is a dimension of the updates, no longer")
    require(not at.dtype.is_float, given, "places are integers")
    axes = point_axes(updates.shape)
    here = variables_of(axes)
    dynamic = tuple(
        Dynamic(d, _place(at, updates, extent, d, ~move, how, given), extent, strict=how != "chosen")
        for d, (move, extent) in enumerate(zip(moves, data.shape, strict=True))
        if move < 0
    )
    inputs = [("data", data), ("updates", updates), ("places", at)]
    expr = expression(kind, inputs, [Stage("out", axes, Load("updates", here), dtype=data.dtype)])
    into = Load("data", tuple(here[m] if m >= 0 else Index() for m in moves), dynamic)
    return replace(expr, outputs=(("out", TensorType(data.shape, data.dtype)),), into=into, combine=combine)


def _place(at: TensorType, updates: TensorType, extent: int, dim: int, part: int, how: str, given: str) -> Scalar:
    """Return the place that `at` gives along a dimension of the data."""
    here = variables_of(point_axes(updates.shape))
    if how in ("elements", "chosen"):
        fits = at.rank == updates.rank and all(p in (1, e) for p, e in zip(at.shape, updates.shape, strict=True))
        require(fits, given, "places are broadcast to the updates")
        place: Scalar = Load("places", tuple(i if e > 1 else Index() for i, e in zip(here, at.shape, strict=True)))
        return _from_the_front(place, at.dtype, extent) if how == "chosen" else place
    if how == "vectors":
        depth = at.rank - 1
        fits = at.shape[:-1] == updates.shape[:depth] and part < at.shape[-1]
        require(fits, given, "a vector for each of the updates")
        return Load("places", (*here[:depth], Index(part)))
    counted = how in COUNTED and at.shape == updates.shape[:1] and 0 < dim < updates.rank
    require(counted and at.dtype is DType.I64, given, "an int64 for each batch, elements, vectors, linear or circular")
    first = Load("places", (here[0],))
    place = first + Iota(here[dim])
    if how == "circular":
        return Call("mod", (place, Const(extent, DType.I64)))
    return Call("where", (Call("less", (first, Const(0, DType.I64))), Const(extent, DType.I64), place))


def _from_the_front(place: Scalar, dtype: DType, extent: int) -> Scalar:
    """Return the place, or one outside if it is negative."""
    wide = place if dtype is DType.I64 else Cast(place, DType.I64)
    return Call("where", (Call("less", (wide, Const(0, DType.I64))), Const(extent, DType.I64), wide))


DEFINITIONS = (OpDef("update", _update), OpDef("scatter", _scatter))
