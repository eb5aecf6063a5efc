"""Hoist moves of elements before functions of constants, so that only the needed part of a table is dequantised."""

from __future__ import annotations

from rammer.ir.graph import Graph
from rammer.ir.operator import ROperator
from rammer.ir.tensor import TensorId
from rammer.passes.editor import Editor
from rammer.passes.structure import is_elementwise, known_tensors

_MOVES = ("gather", "transpose", "slice")


def move_first(graph: Graph) -> Graph:
    """Move the constants instead of a function's result: for slices, transpositions, and gathers that shrink it."""
    editor, known = Editor(graph), known_tensors(graph)
    for n in list(editor.operators):
        op = editor.operators[n]
        if op.kind not in _MOVES or op.inputs[0] not in known:
            continue
        if op.kind == "gather":
            n, op = _before_reshape(editor, n, op)
        if not _is_computed(editor, op.inputs[0]):
            continue
        if op.operation.outputs[0].size > op.operation.inputs[0].size:
            continue
        editor.remove(n)
        editor.replace_result(op.outputs[0], _moved(editor, op, op.inputs[0]))
    return editor.finish()


def _before_reshape(editor: Editor, n: int, op: ROperator) -> tuple[int, ROperator]:
    """Swap a gather of rows with a reshape before it that keeps rows whole; return the operator unchanged otherwise."""
    shaped = editor.maker(op.inputs[0], "reshape")
    if shaped is None or op.operation.keywords.get("axis", 0) != 0:
        return n, op
    whole, given = shaped.operation.outputs[0].shape, editor.types[shaped.inputs[0]].shape
    if not given or given[:1] != whole[:1] or not _is_computed(editor, shaped.inputs[0]):
        return n, op
    rows = editor.define(op.name, "gather", shaped.inputs[0], op.inputs[1], axis=0)
    editor.remove(n)
    editor.replace_result(op.outputs[0], editor.define(op.name, "reshape", rows, shape=op.operation.outputs[0].shape))
    moved = editor.producer[rows]
    return moved, editor.operators[moved]


def _is_computed(editor: Editor, tensor: TensorId) -> bool:
    """Check whether a tensor is an element-wise function that may be defined on moved operands."""
    maker = editor.maker(tensor)
    return maker is not None and is_elementwise(maker.operation) and editor.broadcasts(maker)


def _moved(editor: Editor, move: ROperator, tensor: TensorId) -> TensorId:
    """Move a tensor's elements as `move` moves those of its first operand, which has the same shape."""
    maker = editor.maker(tensor)
    if maker is None or not _is_computed(editor, tensor):
        return _apply(editor, move, tensor)
    operands = tuple(_operand(editor, move, t) for t in maker.inputs)
    return editor.define(maker.name, maker.kind, *operands, **maker.operation.keywords)


def _operand(editor: Editor, move: ROperator, tensor: TensorId) -> TensorId:
    """Return an operand for the moved result, if the original is broadcast to the operand of `move`."""
    whole, shape = move.operation.inputs[0].shape, editor.types[tensor].shape
    if shape == whole:
        return _moved(editor, move, tensor)
    if editor.types[tensor].size == 1:
        return editor.define(move.name, "reshape", tensor, shape=()) if shape else tensor
    lead = (1,) * (len(whole) - len(shape))
    if not lead:
        return _moved(editor, move, tensor)
    return _apply(editor, move, editor.define(move.name, "reshape", tensor, shape=(*lead, *shape)))


def _apply(editor: Editor, move: ROperator, tensor: TensorId) -> TensorId:
    """Apply the move to a tensor of the same rank, with an extent of 1 where it is broadcast."""
    attrs, shape = move.operation.keywords, editor.types[tensor].shape
    if move.kind == "transpose":
        return editor.define(move.name, "transpose", tensor, **attrs)
    if move.kind == "slice":
        cut = [
            (0, 1, 1) if extent == 1 else own
            for extent, own in zip(
                shape, zip(attrs["starts"], attrs["steps"], attrs["shape"], strict=True), strict=True
            )
        ]
        starts, steps, extents = zip(*cut, strict=True)
        return editor.define(move.name, "slice", tensor, starts=starts, steps=steps, shape=extents)
    axis = attrs.get("axis", 0) % len(shape)
    if shape[axis] == 1 and move.operation.inputs[0].shape[axis] > 1:
        ones = (1,) * move.operation.inputs[1].rank
        return editor.define(move.name, "reshape", tensor, shape=(*shape[:axis], *ones, *shape[axis + 1 :]))
    shaped = editor.maker(tensor, "reshape")
    if shaped is not None and axis == 0 and editor.types[shaped.inputs[0]].shape[:1] == shape[:1]:  # rows stay rows
        rows = editor.define(move.name, "gather", shaped.inputs[0], move.inputs[1], axis=0)
        return editor.define(move.name, "reshape", rows, shape=(*move.operation.inputs[1].shape, *shape[1:]))
    return editor.define(move.name, "gather", tensor, move.inputs[1], **attrs)
