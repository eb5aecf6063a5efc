"""Normalise expressions for schedules: fuse stages, drop unused axes, merge adjacent axes.

Known as: loop fusion, coalescing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod

from rammer.ir.expr import (
    Const,
    ConstantTable,
    Iota,
    Load,
    Scalar,
    Select,
    Stage,
    TensorExpr,
    inline,
    loads,
    nodes,
    rewrite,
    stored_as,
    substitute_axes,
)
from rammer.ir.index import Index, var, variables
from rammer.ir.semantics.evaluate import identity
from rammer.ir.tensor import Digit, Layout, Shape, TensorType


def fused(expr: TensorExpr, keep: set[str]) -> list[Stage]:
    """Return the stages that get a nest of their own.

    Point-wise stages are inlined, epilogues merged, unless in `keep`.
    """
    return _fuse_epilogues(live(inline(expr, keep), expr), keep)


def live(stages: list[Stage], expr: TensorExpr) -> list[Stage]:
    """Return the stages that some output needs. Known as: dead code elimination."""
    needed = {name for name, _ in expr.outputs}
    for stage in reversed(stages):
        if stage.name in needed:
            needed |= {ld.tensor for ld, _ in loads(stage.body)}
    return [s for s in stages if s.name in needed]


def _fuse_epilogues(stages: list[Stage], keep: set[str]) -> list[Stage]:
    """Merge a point-wise stage into the one reduction that it reads at its own position."""
    reductions = {s.name: s for s in stages if s.reduce and s.name not in keep}
    readers: dict[str, set[str]] = {}
    for stage in stages:
        for ld, _ in loads(stage.body):
            readers.setdefault(ld.tensor, set()).add(stage.name)
    done: list[Stage] = []
    for stage in stages:
        reads = {ld for ld, _ in loads(stage.body) if ld.tensor in reductions}
        at_own = {ld for ld in reads if _at_own_position(ld, stage)}
        load = next(iter(at_own)) if len(at_own) == 1 else None
        again = load is not None and sum(ld.tensor == load.tensor for ld in reads) > 1
        if stage.reduce or load is None or again or len(readers[load.tensor]) > 1:
            done.append(stage)
            continue
        first = reductions.pop(load.tensor)
        done.remove(first)
        own = {a for a, _ in stage.axes}
        fresh = {a: var(a if a not in own else f"{a}_r") for a, _ in first.reduce}
        values = {a: ix for (a, _), ix in zip(first.axes, load.index, strict=True)} | fresh
        reduce = tuple((a if a not in own else f"{a}_r", e) for a, e in first.reduce)
        body = substitute_axes(first.body, values)
        done.append(
            replace(
                first,
                name=stage.name,
                axes=stage.axes,
                body=body,
                reduce=reduce,
                epilogue=_of_result(stage.body, first),
                dtype=stage.dtype,
            )
        )
    return done


def _of_result(body: Scalar, reduction: Stage) -> Scalar:
    """Return a body that reads a reduction's sum where it read its result, rounded to the result's type."""
    sums = {reduction.name: reduction.dtype.accumulator}
    return rewrite(body, lambda ld: stored_as(ld, reduction.dtype, sums) if ld.tensor == reduction.name else ld)


def _at_own_position(load: Load, stage: Stage) -> bool:
    """Check whether the stage reads each element exactly once, at axes of its own. All other axes have extent 1."""
    if load.dynamic:
        return False
    used = [ix for ix in load.index if ix != Index()]
    names = {n for ix in used for n in variables(ix)}
    if len(names) != len(used) or any(ix != var(n) for ix in used for n in variables(ix)):
        return False
    extents = dict(stage.axes)
    return all(n in extents for n in names) and all(e == 1 for a, e in stage.axes if a not in names)


def cleaned(expr: TensorExpr) -> TensorExpr:
    """Return the expression without empty reductions, and without stage axes that the stage does not depend on."""
    outputs = {name for name, _ in expr.outputs}
    dropped: dict[str, tuple[int, ...]] = {}
    stages = []

    def leaf(load: Load) -> Scalar:
        if load.tensor in dropped:
            gone = dropped[load.tensor]
            return Load(load.tensor, tuple(ix for p, ix in enumerate(load.index) if p not in gone))
        return load

    moving = {ld.tensor for s in expr.stages for ld, _ in loads(s.body) if ld.dynamic}
    for stage in expr.stages:
        body = rewrite(stage.body, leaf)
        stage = replace(stage, body=body, reduce=tuple((a, e) for a, e in stage.reduce if e != 1))
        if any(e == 0 for _, e in stage.reduce):
            stage = replace(stage, body=Const(identity(stage.combine, stage.dtype), stage.dtype), reduce=())
        ones = {a: Index() for a, e in expr.stage(stage.name).reduce if e == 1}
        if ones:
            stage = replace(stage, body=substitute_axes(stage.body, ones))
        if stage.name not in outputs and stage.name not in moving:
            used = _axes_used(stage.body)
            gone = tuple(p for p, (a, _) in enumerate(stage.axes) if a not in used)
            if gone:
                dropped[stage.name] = gone
                stage = replace(stage, axes=tuple(x for p, x in enumerate(stage.axes) if p not in gone))
        stages.append(stage)
    return replace(expr, stages=tuple(stages))


def aligned(expr: TensorExpr) -> TensorExpr:
    """Return the expression with axes renamed: a stage read at its reader's own position has the reader's names."""
    stages = {s.name: s for s in expr.stages}
    for name in reversed([s.name for s in expr.stages]):
        reader = stages[name]
        for load, _ in loads(reader.body):
            stage = stages.get(load.tensor)
            if stage is None or load.dynamic:
                continue
            axes = dict(reader.axes)
            new: dict[str, str] = {}
            for (axis, extent), ix in zip(stage.axes, load.index, strict=True):
                names = variables(ix)
                wanted = next(iter(names)) if len(names) == 1 else ""
                if ix == var(wanted) and axes.get(wanted) == extent and wanted not in new.values():
                    new[axis] = wanted
            old = [a for a, _ in (*stage.axes, *stage.reduce) if a not in new]
            new |= {a: a if a not in new.values() else f"{a}_{name}" for a in old}
            stages[stage.name] = replace(
                stage,
                axes=tuple((new[a], e) for a, e in stage.axes),
                reduce=tuple((new[a], e) for a, e in stage.reduce),
                body=substitute_axes(stage.body, {a: var(b) for a, b in new.items()}),
            )
    return replace(expr, stages=tuple(stages.values()))


def indices(body: Scalar) -> Iterator[Index]:
    """Yield the indices that are used as numbers or in conditions, but not those of loads."""
    for part in nodes(body):
        match part:
            case Iota(index) | ConstantTable(_, index):
                yield index
            case Select(where):
                yield from (r.index for r in where)


def _axes_used(body: Scalar) -> set[str]:
    read = (ix for part in nodes(body) if isinstance(part, Load) for ix in part.index)
    return {name for ix in (*indices(body), *read) for name in variables(ix)}


def flattened(expr: TensorExpr, units: int) -> tuple[TensorExpr, dict[str, int]]:
    """Merge adjacent root axes where every access allows it. Return the expression, and points per step of merged axes.

    A merged axis keeps the name of its first part of extent above 1. Tasks may cut it only in multiples of that span.
    At least `units` tasks stay possible, unless there were fewer before.
    """
    spans: dict[str, int] = {}
    p = len(expr.root.axes) - 2
    while p >= 0:
        axes = expr.root.axes
        (a, first), (b, second) = axes[p], axes[p + 1]
        merged = _merge(expr, a, b)
        if merged is not None:
            left = prod(extent for _, extent in axes[: p + 1])
            if first == 1 or second == 1 or left >= units:
                expr = merged
                if first > 1:
                    spans[a] = spans.get(a, 1) * second
        p -= 1
    return expr, spans


class _NotAdjacent(Exception):
    """Two axes are not adjacent in every access."""


@dataclass(frozen=True, slots=True)
class _Pair:
    """Two axes that may be merged, with their extents. Methods raise _Apart where the axes are not adjacent."""

    a: str
    b: str
    first: int
    second: int

    @property
    def merged(self) -> tuple[str, int]:
        """The merged axis and its extent. Its name is that of the first one of extent above 1."""
        return (self.a if self.first > 1 else self.b), self.first * self.second

    def in_axes(self, stage: Stage) -> int | None:
        """Return the position of the pair among a stage's axes; None if the stage has neither."""
        moved = {n for ix in indices(stage.body) for n in variables(ix)} | {n for n, _ in stage.reduce}
        if moved & {self.a, self.b}:
            raise _NotAdjacent
        return self.in_load(Load(stage.name, tuple(var(n) for n, _ in stage.axes)), stage.shape)

    def in_load(self, load: Load, shape: Shape) -> int | None:
        """Return the first of the two dimensions along which the pair moves a load; None if it does not move it."""
        dims = [d for d, ix in enumerate(load.index) if variables(ix) & {self.a, self.b}]
        if not dims:
            return None
        place = dims[0] if self.a in variables(load.index[dims[0]]) else dims[0] - 1
        here = {place, place + 1}
        along = load.index[place : place + 2] if place >= 0 else ()
        if (
            len(along) != 2
            or along[0] not in ((var(self.a),) if self.first > 1 else (var(self.a), Index()))
            or along[1] not in ((var(self.b),) if self.second > 1 else (var(self.b), Index()))
            or shape[place : place + 2] != (self.first, self.second)
            or not here.issuperset(dims)
            or not here.isdisjoint(d.dim for d in load.dynamic)
        ):
            raise _NotAdjacent
        return place

    def in_type(self, kind: TensorType, place: int | None) -> TensorType:
        """Return the type of a tensor whose dimensions `place` and `place + 1` are merged."""
        if place is None:
            return kind
        shape = (*kind.shape[:place], self.merged[1], *kind.shape[place + 2 :])
        return TensorType(shape, kind.dtype, kind.layout and _merge_digits(kind.layout, place))

    def in_stage(self, stage: Stage, places: Mapping[str, int | None]) -> Stage:
        """Return a stage with one axis for both. `places`: the pair's first dimension in each tensor."""
        axis, p = self.merged, places[stage.name]
        axes = stage.axes if p is None else (*stage.axes[:p], axis, *stage.axes[p + 2 :])

        def joined(load: Load) -> Scalar:
            place = places.get(load.tensor)
            if place is None:
                return load
            moved = tuple(replace(d, dim=d.dim - (d.dim > place)) for d in load.dynamic)
            return Load(load.tensor, (*load.index[:place], var(axis[0]), *load.index[place + 2 :]), moved)

        return replace(stage, axes=axes, body=rewrite(stage.body, joined))


def _merge(expr: TensorExpr, a: str, b: str) -> TensorExpr | None:
    """Return the expression with axes a and b merged.

    None unless every tensor has both in adjacent dimensions, or neither.
    """
    extents = dict(expr.root.axes)
    pair = _Pair(a, b, extents[a], extents[b])
    try:
        places = _places(expr, pair)
        inputs, outputs = (
            tuple((n, pair.in_type(kind, places.get(n))) for n, kind in side) for side in (expr.inputs, expr.outputs)
        )
    except _NotAdjacent:
        return None
    return replace(expr, inputs=inputs, outputs=outputs, stages=tuple(pair.in_stage(s, places) for s in expr.stages))


def _places(expr: TensorExpr, pair: _Pair) -> dict[str, int | None]:
    """Return the first dimension of a pair in each tensor, None for tensors without it. Raises _Apart."""
    places = {stage.name: pair.in_axes(stage) for stage in expr.stages}  # by the stage's own axes, not its readers'
    for load in (ld for stage in expr.stages for ld, _ in loads(stage.body)):
        place = pair.in_load(load, expr.type_of(load.tensor).shape)
        if places.setdefault(load.tensor, place) != place:
            raise _NotAdjacent
    return places


def _merge_digits(layout: Layout, place: int) -> Layout:
    digits = layout.digits
    at = [p for p, d in enumerate(digits) if d.dim in (place, place + 1)]
    if len(at) != 2 or at[1] != at[0] + 1 or digits[at[0]] != Digit(place) or digits[at[1]] != Digit(place + 1):
        raise _NotAdjacent
    rest = [d for p, d in enumerate(digits) if p != at[1]]
    return Layout(tuple(replace(d, dim=d.dim - (d.dim > place)) for d in rest))
