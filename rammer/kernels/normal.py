"""Expressions brought into the form that schedules speak about: few stages, no useless axes, neighbours merged."""

from __future__ import annotations

from dataclasses import replace
from math import isfinite

import numpy as np

from rammer.ir.expr import REDUCERS, Const, Load, Scalar, Stage, TensorExpr, inline, loads, rewrite, substitute_axes
from rammer.ir.index import Index, var, variables
from rammer.ir.tensor import Digit, DType, Layout, TensorType


def fused(expr: TensorExpr, keep: set[str]) -> list[Stage]:
    """The stages that get a nest of their own: point-wise ones inlined, epilogues merged, except those in `keep`."""
    return _fuse_epilogues(_live(inline(expr, keep), expr), keep)


def _live(stages: list[Stage], expr: TensorExpr) -> list[Stage]:
    """Stages that an output needs."""
    needed = {name for name, _ in expr.outputs}
    for stage in reversed(stages):
        if stage.name in needed:
            needed |= {ld.tensor for ld, _ in loads(stage.body)}
    return [s for s in stages if s.name in needed]


def _fuse_epilogues(stages: list[Stage], keep: set[str]) -> list[Stage]:
    """Merge a point-wise stage into the reduction that it reads at its own position."""
    reductions = {s.name: s for s in stages if s.reduce and s.name not in keep}
    readers: dict[str, set[str]] = {}
    for stage in stages:
        for ld, _ in loads(stage.body):
            readers.setdefault(ld.tensor, set()).add(stage.name)
    done: list[Stage] = []
    for stage in stages:
        reads = {ld for ld, _ in loads(stage.body) if ld.tensor in reductions}
        load = next(iter(reads)) if len(reads) == 1 else None
        if stage.reduce or load is None or len(readers[load.tensor]) > 1 or not _at_own_position(load, stage):
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
                epilogue=stage.body,
                dtype=stage.dtype,
            )
        )
    return done


def _at_own_position(load: Load, stage: Stage) -> bool:
    """Whether the stage reads each element exactly once, at axes of its own (others have extent 1)."""
    if load.dynamic:
        return False
    used = [ix for ix in load.index if ix != Index()]
    names = {n for ix in used for n in variables(ix)}
    if len(names) != len(used) or any(ix != var(n) for ix in used for n in variables(ix)):
        return False
    extents = dict(stage.axes)
    return all(n in extents for n in names) and all(e == 1 for a, e in stage.axes if a not in names)


def cleaned(expr: TensorExpr) -> TensorExpr:
    """Without reductions over nothing, and without stage axes that the stage does not depend on."""
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
    """Stages renamed so that one read at its own position has its reader's axis names."""
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


def identity(combine: str, dtype: DType) -> float | int | bool:
    """The neutral element of a reduction as a number of `dtype`."""
    value = REDUCERS[combine][1]
    if dtype.is_float:
        return value
    if dtype is DType.BOOL:
        return value > 0
    info = np.iinfo(np.dtype(dtype.value))
    return int(value) if isfinite(value) else int(info.max if value > 0 else info.min)


def _axes_used(body: Scalar) -> set[str]:
    names: set[str] = set()

    def leaf(load: Load) -> Scalar:
        for ix in load.index:
            names.update(variables(ix))
        return load

    def index(ix: Index) -> Index:
        names.update(variables(ix))
        return ix

    rewrite(body, leaf, index)
    return names


def flattened(expr: TensorExpr, units: int) -> tuple[TensorExpr, dict[str, int]]:
    """Neighbouring root axes merged where every access allows it, and how many points one step of a merged axis spans.

    A merged axis keeps the name of its first part of extent above 1; tasks may cut it only in multiples of the span.
    At least `units` tasks must stay possible, unless there were fewer before.
    """
    spans: dict[str, int] = {}
    p = len(expr.root.axes) - 2
    while p >= 0:
        axes = expr.root.axes
        (a, first), (b, second) = axes[p], axes[p + 1]
        merged = _merge(expr, a, b)
        if merged is not None:
            left = 1
            for _, extent in axes[: p + 1]:
                left *= extent
            if first == 1 or second == 1 or left >= units:
                expr = merged
                if first > 1:
                    spans[a] = spans.get(a, 1) * second
        p -= 1
    return expr, spans


def _merge(expr: TensorExpr, a: str, b: str) -> TensorExpr | None:
    """The expression with axes a and b as one, if every tensor holds them in neighbouring dimensions or not at all."""
    root = dict(expr.root.axes)
    first, second = root[a], root[b]
    name = a if first > 1 else b
    places: dict[str, int] = {}  # tensor -> the first of its two dimensions
    types = dict((*expr.inputs, *expr.outputs))
    for stage in expr.stages:
        names = [n for n, _ in stage.axes]
        if a in names or b in names:
            if a not in names or b not in names or names.index(b) != names.index(a) + 1:
                return None
            if dict(stage.axes)[a] != first or dict(stage.axes)[b] != second:
                return None
            places[stage.name] = names.index(a)
        if any(n in (a, b) for n, _ in stage.reduce):
            return None
    touched: dict[str, int | None] = dict(places)
    for stage in expr.stages:
        used: set[str] = set()
        found: list[Load] = []

        def leaf(load: Load, found: list[Load] = found) -> Scalar:
            found.append(load)
            return load

        def index(ix: Index, used: set[str] = used) -> Index:
            used |= variables(ix)
            return ix

        rewrite(stage.body, leaf, index)
        if used & {a, b}:
            return None
        for load in found:
            dims = [d for d, ix in enumerate(load.index) if variables(ix) & {a, b}]
            place: int | None = None
            if dims:
                place = dims[0] if a in variables(load.index[dims[0]]) else dims[0] - 1
                pair = load.index[place : place + 2] if place >= 0 else ()
                shape = types[load.tensor].shape if load.tensor in types else expr.stage(load.tensor).shape
                ok = (
                    len(pair) == 2
                    and pair[0] in ((var(a),) if first > 1 else (var(a), Index()))
                    and pair[1] in ((var(b),) if second > 1 else (var(b), Index()))
                    and shape[place : place + 2] == (first, second)
                    and set(dims) <= {place, place + 1}
                    and not any(d.dim in (place, place + 1) for d in load.dynamic)
                )
                if not ok:
                    return None
            if load.tensor in touched and touched[load.tensor] != place:
                return None
            if load.tensor not in types and load.tensor not in places and place is not None:
                return None  # a stage whose own axes have other names
            touched[load.tensor] = place
    new_types: dict[str, TensorType] = {}
    for tensor, kind in types.items():
        place = touched.get(tensor)
        if place is None:
            new_types[tensor] = kind
            continue
        layout = kind.layout
        if layout is not None:
            layout = _merge_digits(layout, place)
            if layout is None:
                return None
        shape = (*kind.shape[:place], first * second, *kind.shape[place + 2 :])
        new_types[tensor] = TensorType(shape, kind.dtype, layout)

    def joined(load: Load) -> Scalar:
        place = touched.get(load.tensor)
        if place is None:
            return load
        moved = tuple(replace(d, dim=d.dim - (d.dim > place)) for d in load.dynamic)
        return Load(load.tensor, (*load.index[:place], var(name), *load.index[place + 2 :]), moved)

    stages = []
    for stage in expr.stages:
        axes = stage.axes
        if stage.name in places:
            p = places[stage.name]
            axes = (*axes[:p], (name, first * second), *axes[p + 2 :])
        stages.append(replace(stage, axes=axes, body=rewrite(stage.body, joined)))
    return replace(
        expr,
        inputs=tuple((n, new_types[n]) for n, _ in expr.inputs),
        outputs=tuple((n, new_types[n]) for n, _ in expr.outputs),
        stages=tuple(stages),
    )


def _merge_digits(layout: Layout, place: int) -> Layout | None:
    digits = layout.digits
    at = [p for p, d in enumerate(digits) if d.dim in (place, place + 1)]
    if len(at) != 2 or at[1] != at[0] + 1 or digits[at[0]] != Digit(place) or digits[at[1]] != Digit(place + 1):
        return None
    rest = [d for p, d in enumerate(digits) if p != at[1]]
    return Layout(tuple(replace(d, dim=d.dim - (d.dim > place)) for d in rest))
