"""Merge two transpositions into one: exporters transpose keys for heads, and again for their product."""

from __future__ import annotations

from math import prod

from rammer.ir.graph import Graph
from rammer.ir.operator import ROperator
from rammer.ir.tensor import Shape, TensorId
from rammer.passes.editor import Editor, apply_pattern


def merge_transposes(graph: Graph) -> Graph:
    """Let a transposition of a transposed tensor read the first one's operand.

    A reshape that joins neighbouring dimensions may lie between them: those dimensions then move together. So do the
    places of an image that a convolution has made. A reshape that cuts what a transpose has moved into places is done
    first: transposes next to convolutions then have images on both sides.
    """
    return apply_pattern(graph, _merge, "transpose", "reshape")


def _merge(editor: Editor, _: int, op: ROperator) -> TensorId | None:
    if op.kind == "reshape":
        return _cut_first(editor, op)
    (read,) = op.inputs
    between = editor.maker(read, "reshape")
    source = between.inputs[0] if between else read
    first = editor.maker(source, "transpose")
    joined = _joined(editor.types[source].shape, editor.types[read].shape)
    if joined is None or not (first or (between and editor.maker(source, "conv"))):
        return None
    inner = first.operation.attr("perm") if first else range(editor.types[source].rank)
    perm = tuple(inner[d] for p in op.operation.attr("perm") for d in joined[p])
    transposed = editor.define(op.name, "transpose", first.inputs[0] if first else source, perm=perm)
    return editor.reshaped(op.name, transposed, op.operation.outputs[0].shape)


def _cut_first(editor: Editor, op: ROperator) -> TensorId | None:
    """Return a transpose of an image instead of an image cut from a transposed [n, places, channels].

    None unless convolutions read it, and nothing else.
    """
    first, shape = editor.maker(op.inputs[0], "transpose"), op.operation.outputs[0].shape
    if first is None or first.operation.attr("perm") != (0, 2, 1) or len(shape) < 4:
        return None
    n, _, channels = first.operation.inputs[0].shape
    readers = [editor.operators[r].kind for r in editor.readers.get(op.outputs[0], ())]
    if shape[:2] != (n, channels) or set(readers) != {"conv"}:
        return None
    image = editor.define(op.name, "reshape", first.inputs[0], shape=(n, *shape[2:], channels))
    return editor.define(op.name, "transpose", image, perm=(0, len(shape) - 1, *range(1, len(shape) - 1)))


def _joined(shape: Shape, seen: Shape) -> list[list[int]] | None:
    """Return for each dimension of a reshape's result the ones that it joins, in order; None if it cuts one."""
    runs: list[list[int]] = []
    left = list(range(len(shape)))
    for extent in seen:
        runs.append([])
        while left and prod(shape[d] for d in runs[-1]) < extent:
            runs[-1].append(left.pop(0))
        if prod(shape[d] for d in runs[-1]) != extent:
            return None
    return [*runs[:-1], runs[-1] + left] if runs else None  # the rest are dimensions of one place
