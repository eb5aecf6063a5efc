"""Merge two transpositions into one: exporters transpose keys for heads, and again for their product."""

from __future__ import annotations

from math import prod

from rammer.ir.graph import Graph
from rammer.ir.operator import ROperator
from rammer.ir.tensor import Shape, TensorId
from rammer.passes.editor import Editor, apply_pattern


def merge_transposes(graph: Graph) -> Graph:
    """Let a transposition of a transposed tensor read the first one's operand.

    A reshape that joins neighbouring dimensions may lie between them: those dimensions then move together.
    """
    return apply_pattern(graph, _merge, "transpose")


def _merge(editor: Editor, _: int, op: ROperator) -> TensorId | None:
    (read,) = op.inputs
    between = editor.maker(read, "reshape")
    first = editor.maker(between.inputs[0] if between else read, "transpose")
    joined = _joined(first.operation.outputs[0].shape, editor.types[read].shape) if first else None
    if first is None or joined is None:
        return None
    inner = first.operation.attr("perm")
    perm = tuple(inner[d] for p in op.operation.attr("perm") for d in joined[p])
    transposed = editor.define(op.name, "transpose", first.inputs[0], perm=perm)
    return editor.reshaped(op.name, transposed, op.operation.outputs[0].shape)


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
