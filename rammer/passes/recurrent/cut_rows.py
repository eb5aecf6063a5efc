"""Split a product of all steps into one per step, so that layers of a recurrent network run side by side.

Known as: wavefront parallelism. It is the inverse of `stack_rows`, for targets with so many vEUs that hand-overs cost
more than reading weights again.
"""

from __future__ import annotations

from itertools import accumulate
from math import prod
from typing import NamedTuple

from rammer.ir.graph import Graph
from rammer.ir.operator import ROperator
from rammer.ir.tensor import TensorId
from rammer.passes.editor import Editor


class Rows(NamedTuple):
    """A tensor that is `height` rows of a larger one, from row `first` on."""

    tensor: TensorId
    first: int
    height: int


def cut_rows(graph: Graph) -> Graph:
    """Split matmul(concat(a, b, …), W) if slices of the result are read in the order in which a, b, … are computed.

    It is done if the longest path gets shorter: a recurrent layer then starts when the first steps of the layer below
    are done. A sum with a constant, and reshapes, may lie between.
    """
    editor = Editor(graph)
    wave = {n: w for w, numbers in enumerate(graph.wavefronts()) for n in numbers}
    for op in graph.operators:
        if op.kind == "matmul" and op.inputs[1] in editor.constants and op.operation.inputs[0].rank == 2:
            parts, steps = _parts(editor, op), _steps(editor, op)
            if parts and steps and _fit(parts, steps) and _saves(editor, wave, parts, steps):
                _cut(editor, op, parts, steps)
    return editor.finish()


def _parts(editor: Editor, op: ROperator) -> list[Rows]:
    """Return the tensors whose rows make up a product's left operand; none if it is not a concatenation."""
    if dict(op.operation.attrs).get("trans_a"):
        return []
    depth = op.operation.inputs[0].shape[1]
    maker = editor.maker(editor.source(op.inputs[0], "reshape"), "concat")
    if maker is None or len(maker.inputs) < 2:
        return []
    whole = maker.operation.outputs[0]
    axis = maker.operation.attr("axis") % whole.rank
    sizes = [editor.types[t].size for t in maker.inputs]
    if prod(whole.shape[:axis]) != 1 or any(size % depth for size in sizes):
        return []
    ends = accumulate(size // depth for size in sizes)
    return [Rows(t, end - s // depth, s // depth) for t, end, s in zip(maker.inputs, ends, sizes, strict=True)]


class Steps(NamedTuple):
    """The operators after a product: sums with constants, and the slices of rows, its only readers."""

    sums: list[ROperator]
    slices: list[Rows]  # of its results


def _steps(editor: Editor, op: ROperator) -> Steps | None:
    rows, sums, last = op.operation.inputs[0].shape[0], [], op.outputs[0]
    while (reader := editor.only_reader(last)) is not None:
        after = editor.operators[reader]
        if after.kind == "add" and _for_all_rows(editor, after, last):
            sums.append(after)
        elif after.kind != "reshape":
            break
        last = after.outputs[0]
    whole = editor.types[last].shape
    if last in editor.outputs or not whole or rows % whole[0]:
        return None
    each = rows // whole[0]  # rows of the product per row of the result, whose first axis may be that of steps
    slices = []
    for reader in editor.readers.get(last, ()):
        after = editor.operators[reader]
        if after.kind != "slice":
            return None
        shape = after.operation.attr("shape")
        if set(after.operation.attr("steps")) != {1} or shape[1:] != whole[1:]:
            return None
        slices.append(Rows(after.outputs[0], each * after.operation.attr("starts")[0], each * shape[0]))
    return Steps(sums, slices) if len(slices) > 1 else None


def _for_all_rows(editor: Editor, add: ROperator, tensor: TensorId) -> bool:
    """Check whether the other operand is a constant that is the same for all rows of a matrix."""
    others = [t for t in add.inputs if t != tensor]
    same = add.operation.outputs[0] == editor.types[tensor] and editor.types[tensor].rank == 2
    return (
        same and len(others) == 1 and others[0] in editor.constants and editor.types[others[0]].shape[:-1] in {(), (1,)}
    )


def _fit(parts: list[Rows], steps: Steps) -> bool:
    """Check whether each slice is one of the parts."""
    return {(r.first, r.height) for r in steps.slices} <= {(r.first, r.height) for r in parts}


def _saves(editor: Editor, wave: dict[int, int], parts: list[Rows], steps: Steps) -> bool:
    """Check whether the last reader is reached in fewer waves, if each slice is computed right after its part."""
    made = {r.first: wave[editor.producer[r.tensor]] if r.tensor in editor.producer else -1 for r in parts}
    needed = {s.first: _needed(editor, wave, s.tensor) for s in steps.slices}
    soonest = min(needed.values())
    return max(made[first] - (at - soonest) for first, at in needed.items()) < max(made.values())


def _needed(editor: Editor, wave: dict[int, int], tensor: TensorId) -> int:
    """Return the wave of the first operator that reads a tensor, perhaps reshaped."""
    operators = [(n, editor.operators[n]) for n in editor.readers.get(tensor, ()) if n in wave]
    return min(
        (_needed(editor, wave, op.outputs[0]) if op.kind == "reshape" else wave[n] for n, op in operators),
        default=len(wave),
    )


def _cut(editor: Editor, op: ROperator, parts: list[Rows], steps: Steps) -> None:
    rows = {r.first: r for r in parts}
    depth = op.operation.inputs[0].shape[1]
    for piece in steps.slices:
        part = rows[piece.first]
        name = editor.operators[editor.producer[part.tensor]].name if part.tensor in editor.producer else op.name
        last = editor.define(name, "reshape", part.tensor, shape=(part.height, depth))
        last = editor.define(op.name, "matmul", last, op.inputs[1], **op.operation.keywords)
        for add in steps.sums:
            constant = next(t for t in add.inputs if t in editor.constants)
            last = editor.define(add.name, "add", last, constant)
        cut = editor.remove(editor.producer[piece.tensor])
        editor.define(cut.name, "reshape", last, outputs=(piece.tensor,), shape=cut.operation.outputs[0].shape)
