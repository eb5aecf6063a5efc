"""Cut operations into parts: a part computes a box of a result from the boxes of operands that it needs.

A part is an ordinary operation, so whatever applies to operations applies to it. Paper: GraphTurbo §3.3, where an
instance is a slice of a result with everything that the slice needs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from rammer.ir.analysis.simplify import undecided
from rammer.ir.expr import Load, Range, Scalar, Select, Stage, TensorExpr, loads, mapped
from rammer.ir.index import Index, bounds, substitute, var
from rammer.ir.operator import Operation, Operations
from rammer.ir.tensor import TensorType

Box: TypeAlias = tuple[tuple[int, int], ...]  # of each dimension the first place, and the end
Boxes: TypeAlias = dict[str, Box]


def full_box(shape: Sequence[int]) -> Box:
    """Return the box of a whole tensor."""
    return tuple((0, extent) for extent in shape)


def needs(expr: TensorExpr, box: Box, dims: Collection[int]) -> Boxes | None:
    """Return the box of each stage and input that a box of the root needs; it is cut along `dims` alone.

    None for an update, and for a box that reads nothing of an operand.
    """
    if expr.into is not None:
        return None
    found: Boxes = {name: box for name, _ in expr.outputs}
    shapes = {name: kind.shape for name, kind in expr.inputs} | {s.name: s.shape for s in expr.stages}
    for stage in reversed(expr.stages):
        if stage.name not in found:
            return None
        ranges = {axis: (low, high - 1) for (axis, _), (low, high) in zip(stage.axes, found[stage.name], strict=True)}
        ranges |= {axis: (0, extent - 1) for axis, extent in stage.reduce}
        for load, _ in loads(stage.body):
            read = list(full_box(shape := shapes[load.tensor]))
            moved = {d.dim for d in load.dynamic}
            for dim in dims:
                if dim < len(shape) and dim not in moved:
                    low, high = bounds(load.index[dim], ranges)
                    read[dim] = max(low, 0), min(high + 1, shape[dim])
                    if read[dim][0] >= read[dim][1]:
                        return None
            known = found.get(load.tensor)
            found[load.tensor] = joined(known, tuple(read)) if known else tuple(read)
    return found


def joined(one: Box, other: Box) -> Box:
    """Return the smallest box around two."""
    return tuple((min(a, c), max(b, d)) for (a, b), (c, d) in zip(one, other, strict=True))


def part(
    operations: Operations, operation: Operation, needed: Boxes, inputs: Sequence[TensorType], output: TensorType
) -> Operation:
    """Build the operation that computes the `needed` box of each stage from inputs of these types.

    An input is a box, or a whole tensor, which is read at the places where the whole operation reads it.
    """
    expr, boxes = operation.expr, dict(needed)
    for (name, kind), given in zip(expr.inputs, inputs, strict=True):
        if given.shape == kind.shape:
            boxes[name] = full_box(kind.shape)
    stages = tuple(_part_of_stage(stage, boxes) for stage in expr.stages)
    cut = replace(
        expr,
        inputs=tuple((name, kind) for (name, _), kind in zip(expr.inputs, inputs, strict=True)),
        stages=stages,
        outputs=tuple((name, output) for name, _ in expr.outputs),
    )
    found = operations.wrap(operation.kind, cut, lambda: cut)
    return operations.retype(found, found.inputs, found.outputs, operation.static)


def _part_of_stage(stage: Stage, boxes: Boxes) -> Stage:
    box = boxes[stage.name]
    axes = tuple((axis, high - low) for (axis, _), (low, high) in zip(stage.axes, box, strict=True))
    moved = {axis: var(axis) + low for (axis, _), (low, _) in zip(stage.axes, box, strict=True) if low}
    ranges = {axis: (0, extent - 1) for axis, extent in (*axes, *stage.reduce)}
    return replace(stage, axes=axes, body=_Moved(boxes, moved, ranges).of(stage.body))


class _Moved:
    """Rewriter of bodies for a box: `moved` replaces axes that begin elsewhere, `ranges` has the bounds of all axes."""

    def __init__(self, boxes: Boxes, moved: Mapping[str, Index], ranges: Mapping[str, tuple[int, int]]) -> None:
        self._boxes, self._moved, self._ranges = boxes, moved, ranges

    def of(self, body: Scalar) -> Scalar:
        match body:
            case Load(tensor, index, dynamic):
                begins = [low for low, _ in self._boxes[tensor]]
                places = tuple(self._index(ix) - low for ix, low in zip(index, begins, strict=True))
                return mapped(Load(tensor, places, dynamic), self.of)
            case Select(where, then, other):
                return self._select(where, then, other)
        return mapped(body, self.of, self._index)

    def _index(self, index: Index) -> Index:
        return substitute(index, self._moved)

    def _select(self, where: Sequence[Range], then: Scalar, other: Scalar) -> Scalar:
        """Drop conditions that always hold in the box, and fit the others to operands that are boxes."""
        left: list[Range] = []
        for condition in where:
            moved = Range(self._index(condition.index), condition.low, condition.high)
            if (still_open := undecided((moved,), self._ranges)) is None:
                return self.of(other)
            if still_open and (reach := self._reach(condition.index, then)):
                begin, end = reach
                low, high = max(moved.low, begin), min(moved.high, end)
                still_open = (Range(moved.index - begin, low - begin, high - begin),)
            left += still_open
        return Select(tuple(left), self.of(then), self.of(other)) if left else self.of(then)

    def _reach(self, index: Index, then: Scalar) -> tuple[int, int] | None:
        """Return the span of the dimension that is read at `index` wherever the conditions hold; None if not certain.

        Conditions that reach past this span are equivalent to conditions that end there.
        """
        for load, inner in loads(then):
            for place, span in zip(load.index, self._boxes[load.tensor], strict=True):
                if place == index and not inner and not load.dynamic:
                    return span
        return None
