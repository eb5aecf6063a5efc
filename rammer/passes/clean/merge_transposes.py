"""One transposition instead of two: exporters turn keys for heads, and again for their product."""

from __future__ import annotations

from rammer.ir.graph import Graph
from rammer.ir.operator import ROperator
from rammer.passes.editor import Editor


def merge_transposes(graph: Graph) -> Graph:
    """Let a transposition of what was transposed before read the first one's operand.

    Between them there may be a reshape that adds and drops dimensions of one place.
    """
    editor = Editor(graph)
    for n, op in list(editor.operators.items()):
        if op.kind == "transpose":
            _merge(editor, n, op)
    return editor.finish()


def _merge(editor: Editor, n: int, op: ROperator) -> None:
    (read,) = op.inputs
    between = editor.maker(read, "reshape")
    first = editor.maker(between.inputs[0] if between else read, "transpose")
    if first is None:
        return
    shape, seen = first.operation.outputs[0].shape, editor.types[read].shape
    long = [d for d, extent in enumerate(shape) if extent != 1]
    if [shape[d] for d in long] != [extent for extent in seen if extent != 1]:
        return
    places = dict(zip((d for d, extent in enumerate(seen) if extent != 1), long, strict=True))
    ones = [d for d, extent in enumerate(shape) if extent == 1]
    order = [*ones, *(places[d] for d in op.operation.attr("perm") if d in places)]
    perm = tuple(first.operation.attr("perm")[d] for d in order)
    editor.remove(n)
    turned = tuple(editor.types[first.inputs[0]].shape[d] for d in perm)
    wanted = op.operation.outputs[0].shape
    if turned == wanted:
        editor.define(op.name, "transpose", first.inputs[0], outputs=op.outputs, perm=perm)
    else:
        result = editor.define(op.name, "transpose", first.inputs[0], perm=perm)
        editor.define(op.name, "reshape", result, outputs=op.outputs, shape=wanted)
