"""Split products whose columns are only read in slices, so that no slice is copied: queries, keys and values.

Known as: unfused QKV projection. The parts run side by side, and their readers find each one contiguous.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import NamedTuple

import numpy as np

from rammer.ir.graph import Graph
from rammer.ir.operator import ROperator
from rammer.ir.tensor import Shape, TensorId
from rammer.passes.editor import Editor
from rammer.passes.structure import is_elementwise


class Columns(NamedTuple):
    """Where columns of a product are after moves: along an axis of a shape, `unit` of them at each index."""

    shape: Shape
    axis: int
    unit: int

    def moved(self, op: ROperator) -> Columns | None:
        """Return where they are after a reshape or transposition; None if no axis has whole groups of columns."""
        shape, begin = op.operation.outputs[0].shape, prod(self.shape[self.axis :])
        if op.kind == "transpose":
            return Columns(shape, op.operation.attr("perm").index(self.axis), self.unit)
        axes = [a for a in range(len(shape)) if prod(shape[a:]) == begin]
        if not axes or self.shape[self.axis] % shape[axes[-1]]:
            return None
        return Columns(shape, axes[-1], self.unit * self.shape[self.axis] // shape[axes[-1]])

    def taken(self, op: ROperator) -> tuple[int, int] | None:
        """Return the columns that a slice takes, from and to; None if it takes a part of another axis, or has steps."""
        starts, shape = op.operation.attr("starts"), op.operation.outputs[0].shape
        whole = all(e == o for n, (e, o) in enumerate(zip(shape, self.shape, strict=True)) if n != self.axis)
        if not whole or any(step != 1 for step in op.operation.attr("steps")):
            return None
        return starts[self.axis] * self.unit, (starts[self.axis] + shape[self.axis]) * self.unit


def split_columns(graph: Graph) -> Graph:
    """Replace x · W by products of x with those columns of W that each slice takes, if a slice would be copied.

    Slices that only element-wise operators read are no copies, and those of a single row are views.
    """
    editor = Editor(graph)
    for n, op in list(editor.operators.items()):
        if op.kind == "matmul" and op.inputs[1] in editor.constants and editor.types[op.inputs[1]].rank == 2:
            _split(editor, n)
    return editor.finish()


def _split(editor: Editor, n: int) -> None:
    op = editor.operators[n]
    kind = op.operation.outputs[0]
    if prod(kind.shape[:-1]) == 1 or op.operation.inputs[0].rank < 2:
        return
    path = list(_path(editor, op))
    last = path[-1][0].outputs[0] if path else op.outputs[0]
    columns = path[-1][1] if path else Columns(kind.shape, kind.rank - 1, 1)
    readers = [(r, editor.operators[r]) for r in editor.readers.get(last, ())]
    found = [(r, columns.taken(slice_)) for r, slice_ in readers if slice_.kind == "slice"]
    parts = {part for _, part in found if part is not None}
    copied = any(o.kind == "transpose" for o, _ in path) or any(_is_moved(editor, s.outputs[0]) for _, s in readers)
    width = kind.shape[-1]
    if last in editor.outputs or len(found) < len(readers) or None in dict(found).values() or len(parts) < 2:
        return
    if not copied or sum(end - begin for begin, end in parts) > width:
        return
    made = {part: _part(editor, op, path, *part) for part in parts}
    for r, part in found:
        assert part is not None
        slice_ = editor.remove(r)
        shape = slice_.operation.outputs[0].shape
        editor.replace_result(slice_.outputs[0], editor.reshaped(slice_.name, made[part], shape))


def _path(editor: Editor, op: ROperator) -> Iterator[tuple[ROperator, Columns]]:
    """Yield what follows a product up to its slices: biases, then moves, each with the place of columns behind it."""
    tensor, shape = op.outputs[0], op.operation.outputs[0].shape
    place = first = Columns(shape, len(shape) - 1, 1)
    while (n := editor.only_reader(tensor)) is not None:
        after = editor.operators[n]
        moved = place.moved(after) if after.kind in ("reshape", "transpose") else None
        if after.kind == "add" and place == first:
            others = [t for t in after.inputs if t != tensor]
            same = after.operation.outputs[0].shape == shape
            if not same or any(t not in editor.constants or editor.types[t].size != shape[-1] for t in others):
                return
        elif moved is None:
            return
        place = moved or place
        yield after, place
        tensor = after.outputs[0]


def _is_moved(editor: Editor, tensor: TensorId) -> bool:
    """Check whether a tensor, or a reshape of it, is read by another operator than an element-wise one."""
    readers = [editor.operators[n] for n in editor.readers.get(tensor, ())]
    return any(
        _is_moved(editor, r.outputs[0]) if r.kind == "reshape" else not is_elementwise(r.operation) for r in readers
    )


def _part(editor: Editor, op: ROperator, path: list[tuple[ROperator, Columns]], begin: int, end: int) -> TensorId:
    """Add the product of some columns, and what follows it, for these columns; an axis with one index is left out."""
    matrix, attrs = editor.constants[op.inputs[1]], op.operation.keywords
    columns = matrix[begin:end] if attrs.get("trans_b") else matrix[:, begin:end]
    weights = editor.constant(np.ascontiguousarray(columns), op.inputs[1])
    found, before = editor.define(op.name, "matmul", op.inputs[0], weights, **attrs), op.outputs[0]
    for after, place in path:
        if after.kind == "add":
            biases = {t: editor.constants[t][..., begin:end] for t in after.inputs if t != before}
            operands = (found if t == before else editor.constant(biases[t], t) for t in after.inputs)
            found = editor.define(after.name, "add", *operands)
        elif after.kind == "transpose":
            perm = after.operation.attr("perm")
            if editor.types[found].rank < len(perm):
                perm = tuple(p - (p > perm[place.axis]) for p in perm if p != perm[place.axis])
            found = editor.define(after.name, "transpose", found, perm=perm)
        else:
            extent = (end - begin) // place.unit
            kept = (extent,) if extent > 1 else ()
            shape = (*place.shape[: place.axis], *kept, *place.shape[place.axis + 1 :])
            found = editor.reshaped(after.name, found, shape)
        before = after.outputs[0]
    return found
