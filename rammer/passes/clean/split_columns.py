"""Split products whose columns are only read in slices, so that no slice is copied: queries, keys and values.

Known as: unfused QKV projection. The parts run side by side, and their readers find each one contiguous.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import TypeAlias

import numpy as np

from rammer.ir.graph import Graph
from rammer.ir.operator import ROperator
from rammer.ir.tensor import Array, Shape, TensorId, TensorType
from rammer.passes.editor import Editor
from rammer.passes.structure import is_elementwise

Box: TypeAlias = tuple[tuple[int, int], ...]  # along each axis of columns, from and to


@dataclass
class Columns:
    """A product, and how its columns reach their readers: biases are added, axes are cut, then permuted.

    `shape`: after cutting; the axes from `first` on are the columns. `perm`: of its axes. `result`: what is read.
    """

    op: ROperator
    result: TensorId
    shape: Shape
    first: int
    perm: tuple[int, ...]
    adds: list[ROperator] = field(default_factory=list)

    def box(self, slice_: ROperator) -> Box | None:
        """Return the columns that a slice takes; None if it takes some rows only, or has steps."""
        starts, taken = slice_.operation.attr("starts"), slice_.operation.outputs[0].shape
        cuts = {axis: (at, at + extent) for axis, at, extent in zip(self.perm, starts, taken, strict=True)}
        rows = all(cuts[axis] == (0, self.shape[axis]) for axis in range(self.first))
        if not rows or any(step != 1 for step in slice_.operation.attr("steps")):
            return None
        return tuple(cuts[axis] for axis in range(self.first, len(self.shape)))


def split_columns(graph: Graph) -> Graph:
    """Replace x · W by products of x with those columns of W that each slice takes, if a slice would be copied.

    Element-wise operators read slices in place, and slices of a single row are views.
    """
    editor = Editor(graph)
    for op in list(editor.operators.values()):
        if op.kind == "matmul" and op.inputs[1] in editor.constants and editor.types[op.inputs[1]].rank == 2:
            _split(editor, _columns(editor, op))
    return editor.finish()


def _columns(editor: Editor, op: ROperator) -> Columns:
    """Follow a product to its slices."""
    shape = op.operation.outputs[0].shape
    found = Columns(op, op.outputs[0], shape, len(shape) - 1, tuple(range(len(shape))))
    while (n := editor.only_reader(found.result)) is not None:
        after = editor.operators[n]
        kind = after.operation.outputs[0]
        if after.kind == "transpose":
            found.perm = tuple(found.perm[p] for p in after.operation.attr("perm"))
        elif found.perm != tuple(range(len(found.shape))):
            break
        elif after.kind == "reshape" and (at := [a for a in range(kind.rank) if prod(kind.shape[a:]) == shape[-1]]):
            found.shape, found.first, found.perm = kind.shape, at[-1], tuple(range(kind.rank))
        elif after.kind == "add" and found.shape == kind.shape == shape:
            others = [t for t in after.inputs if t != found.result]
            if len(others) != 1 or others[0] not in editor.constants or not _is_row(editor.types[others[0]], shape[-1]):
                break
            found.adds.append(after)
        else:
            break
        found.result = after.outputs[0]
    return found


def _is_row(kind: TensorType, width: int) -> bool:
    return kind.size == width and kind.shape[-1:] == (width,)


def _split(editor: Editor, columns: Columns) -> None:
    shape, result = columns.op.operation.outputs[0].shape, columns.result
    readers = {n: editor.operators[n] for n in editor.readers.get(result, ())}
    found = {n: columns.box(op) for n, op in readers.items() if op.kind == "slice"}
    boxes = {n: box for n, box in found.items() if box is not None}
    if len(boxes) < max(len(readers), 2) or result in editor.outputs:
        return
    is_copied = columns.perm != tuple(range(len(columns.shape))) or any(
        _is_moved(editor, op.outputs[0]) for op in readers.values()
    )
    count = sum(prod(end - begin for begin, end in box) for box in boxes.values())
    if not is_copied or count > shape[-1] or prod(shape[:-1]) == 1:
        return
    for n, box in boxes.items():
        op, part = editor.remove(n), _part(editor, columns, box)
        editor.replace_result(op.outputs[0], editor.reshaped(op.name, part, op.operation.outputs[0].shape))


def _is_moved(editor: Editor, tensor: TensorId) -> bool:
    """Check whether a tensor, or a reshape of it, is read by another operator than an element-wise one."""
    readers = [editor.operators[n] for n in editor.readers.get(tensor, ())]
    return any(
        _is_moved(editor, r.outputs[0]) if r.kind == "reshape" else not is_elementwise(r.operation) for r in readers
    )


def _part(editor: Editor, columns: Columns, box: Box) -> TensorId:
    """Add the product of some columns, and what follows it; axes with one index are left out."""
    op, shape, first = columns.op, columns.shape, columns.first
    numbers: Array = np.arange(prod(shape[first:])).reshape(shape[first:])[tuple(slice(*cut) for cut in box)].ravel()
    matrix, attrs = editor.constants[op.inputs[1]], op.operation.keywords
    weights = editor.constant(matrix[numbers] if attrs.get("trans_b") else matrix[:, numbers].copy("C"), op.inputs[1])
    found, before = editor.define(op.name, "matmul", op.inputs[0], weights, **attrs), op.outputs[0]
    for add in columns.adds:
        biases = (editor.constant(editor.constants[t][..., numbers], t) for t in add.inputs if t != before)
        found, before = editor.define(add.name, "add", found, *biases), add.outputs[0]
    extents = (*shape[:first], *(end - begin for begin, end in box))
    kept = [axis for axis, extent in enumerate(extents) if axis < first or extent > 1]
    found = editor.reshaped(op.name, found, tuple(extents[axis] for axis in kept))
    perm = tuple(kept.index(axis) for axis in columns.perm if axis in kept)
    return found if perm == tuple(range(len(kept))) else editor.define(op.name, "transpose", found, perm=perm)
