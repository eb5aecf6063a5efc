"""Hoist moves of elements before functions of constants, so that only the needed part of a table is dequantised."""

from __future__ import annotations

from rammer.ir.graph import Graph
from rammer.ir.operator import ROperator
from rammer.ir.tensor import TensorId
from rammer.passes.editor import Editor, apply_pattern
from rammer.passes.structure import is_elementwise, known_tensors


def move_first(graph: Graph) -> Graph:
    """Move the constants instead of a function's result: for slices, transpositions, and gathers that shrink it."""
    known = known_tensors(graph)

    def pattern(editor: Editor, _: int, op: ROperator) -> TensorId | None:
        if op.inputs[0] not in known:
            return None
        move = _before_reshape(editor, op) if op.kind == "gather" else op
        found: TensorId | None = None if move is op else move.outputs[0]
        if _is_computed(editor, move.inputs[0]) and op.operation.outputs[0].size <= move.operation.inputs[0].size:
            found = _moved(editor, move, move.inputs[0])
        return found and editor.reshaped(op.name, found, op.operation.outputs[0].shape)

    return apply_pattern(graph, pattern, "gather", "transpose", "slice")


def _before_reshape(editor: Editor, op: ROperator) -> ROperator:
    """Return a gather of rows from before a reshape that keeps rows whole; the operator itself without such a one."""
    shaped = editor.maker(op.inputs[0], "reshape")
    if shaped is None or op.operation.keywords.get("axis", 0) != 0:
        return op
    whole, given = shaped.operation.outputs[0].shape, editor.types[shaped.inputs[0]].shape
    if not given or given[:1] != whole[:1] or not _is_computed(editor, shaped.inputs[0]):
        return op
    return editor.operators[editor.producer[editor.define(op.name, "gather", shaped.inputs[0], op.inputs[1], axis=0)]]


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
