"""Keep channels last where transposes around a depthwise convolution only move them. Known as: NHWC."""

from __future__ import annotations

from rammer.ir.expr import loads
from rammer.ir.graph import Graph
from rammer.ir.index import var
from rammer.ir.operator import ROperator
from rammer.ir.tensor import Digit, Layout, TensorId, TensorType
from rammer.passes.editor import Editor
from rammer.passes.structure import is_pointwise


def keep_channels_last(graph: Graph, lanes: int) -> Graph:
    """Let a depthwise convolution read and write channels last if its operand has them so, and all readers want it.

    Both transposes are then views. Vectors are along channels, as with blocked channels.
    """
    editor = Editor(graph)
    for n, op in list(editor.operators.items()):
        x, kind = op.inputs[0], op.operation.inputs[0]
        channels = op.operation.keywords.get("group", 1) if op.kind == "conv" else 0
        if channels < lanes or {channels} != {kind.shape[1], op.operation.outputs[0].shape[1]}:
            continue
        makers = [editor.producer[x]] if x in editor.producer else []
        readers = [*editor.readers.get(op.outputs[0], ())]
        if (
            makers
            and readers
            and editor.only_reader(x) == n
            and op.outputs[0] not in editor.outputs
            and moves_channels(editor.operators[makers[0]])
            and all(moves_channels(editor.operators[r], op.outputs[0]) for r in readers)
        ):
            for m in (*makers, n, *readers):
                _retype(editor, m, {x, op.outputs[0]})
    return editor.finish()


def moves_channels(op: ROperator, tensor: TensorId | None = None) -> bool:
    """Check that an operator moves channels from the last dimension to dimension 1, or back for `tensor`."""
    stages, names = op.operation.expr.stages, [name for name, _ in op.operation.expr.inputs]
    if not is_pointwise(op.operation) or (tensor is None and op.kind != "transpose"):
        return False
    found = [(load, s) for s in stages for load, _ in loads(s.body) if load.tensor in names]
    if tensor is None:
        return all(load.index[-1] == var(s.axes[1][0]) for load, s in found)
    own = [(load, s) for load, s in found if op.inputs[names.index(load.tensor)] == tensor]
    return all(len(s.axes) > 1 and load.index[1] == var(s.axes[-1][0]) for load, s in own)


def _retype(editor: Editor, n: int, tensors: set[TensorId]) -> None:
    op = editor.remove(n)

    def last(tensor: TensorId, kind: TensorType) -> TensorType:
        if tensor not in tensors:
            return kind
        order = (0, *range(2, kind.rank), 1)
        return TensorType(kind.shape, kind.dtype, Layout(tuple(Digit(d) for d in order)))

    inputs = tuple(map(last, op.inputs, op.operation.inputs))
    outputs = tuple(map(last, op.outputs, op.operation.outputs))
    editor.add(
        op.name, editor.interner.retype(op.operation, inputs, outputs, op.operation.static), op.inputs, op.outputs
    )
