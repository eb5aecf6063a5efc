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
        first, readers = editor.producer.get(x), [*editor.readers.get(op.outputs[0], ())]
        if first is None or not readers or editor.only_reader(x) != n or op.outputs[0] in editor.outputs:
            continue
        wanted = all(wants_last_channels(editor.operators[r], op.outputs[0]) for r in readers)
        if wanted and moves_last_channels(editor.operators[first]):
            for m in (first, n, *readers):
                _retype(editor, m, {x, op.outputs[0]})
    return editor.finish()


def moves_last_channels(op: ROperator) -> bool:
    """Check that an operator is a transpose that moves the last dimension, of channels, to dimension 1."""
    return op.kind == "transpose" and all(
        load.index[-1] == var(stage.axes[1][0]) for stage in op.operation.expr.stages for load, _ in loads(stage.body)
    )


def wants_last_channels(op: ROperator, tensor: TensorId) -> bool:
    """Check that a pointwise operator reads dimension 1 of a tensor, of channels, along its own last dimension."""
    names = {name for (name, _), t in zip(op.operation.expr.inputs, op.inputs, strict=True) if t == tensor}
    return is_pointwise(op.operation) and all(
        len(stage.axes) > 1 and load.index[1] == var(stage.axes[-1][0])
        for stage in op.operation.expr.stages
        for load, _ in loads(stage.body)
        if load.tensor in names
    )


def _retype(editor: Editor, n: int, tensors: set[TensorId]) -> None:
    op = editor.remove(n)

    def last(tensor: TensorId, kind: TensorType) -> TensorType:
        if tensor not in tensors:
            return kind
        order = (0, *range(2, kind.rank), 1)
        return TensorType(kind.shape, kind.dtype, Layout(tuple(Digit(d) for d in order)))

    inputs = tuple(map(last, op.inputs, op.operation.inputs))
    outputs = tuple(map(last, op.outputs, op.operation.outputs))
    operation = editor.interner.retype(op.operation, inputs, outputs, op.operation.static)
    editor.add(op.name, operation, op.inputs, op.outputs)
