"""Fold channel shuffles into convolutions, which then read the channels where they lie."""

from __future__ import annotations

import numpy as np

from rammer.ir.graph import Graph
from rammer.ir.operator import ROperator
from rammer.ir.tensor import TensorId
from rammer.passes.editor import Editor, apply_pattern


def read_shuffled(graph: Graph) -> Graph:
    """Let a convolution take its channels in turn from the parts of a tensor that was shuffled.

    A depthwise convolution in between computes channels in memory order, with its filters in that order. Integers are
    left as they are: their products have passes of their own.
    """
    return apply_pattern(graph, _reading, "conv")


def _reading(editor: Editor, _: int, op: ROperator) -> TensorId | None:
    x = op.operation.inputs[0]
    if not x.dtype.is_float or op.operation.keywords.get("group", 1) >= x.shape[1]:
        return None
    between = _depthwise(editor, op.inputs[0])
    shuffle = _shuffle(editor, op.inputs[0] if between is None else between.inputs[0])
    if shuffle is None or "shuffled" in op.operation.keywords:
        return None
    source, parts = shuffle
    attrs, weights = op.operation.keywords, op.inputs[1]
    order = np.argsort(np.arange(editor.types[source].shape[1]).reshape(parts, -1).T.reshape(-1))
    if between is not None:
        constants = (editor.constant(editor.constants[t][order], t) for t in between.inputs[1:])
        source = editor.define(between.name, "conv", source, *constants, **between.operation.keywords)
    if attrs.get("group", 1) == 1 and weights in editor.constants:  # all are summed, in memory order
        weights = editor.constant(editor.constants[weights][:, order], weights)
    else:
        attrs = attrs | {"shuffled": parts}
    return editor.define(op.name, "conv", source, weights, *op.inputs[2:], **attrs)


def _depthwise(editor: Editor, tensor: TensorId) -> ROperator | None:
    """Return the depthwise convolution that computes a tensor, if its filters are constant and it has one reader."""
    op = editor.maker(tensor, "conv")
    if op is None or editor.only_reader(tensor) is None or not editor.constants.keys() >= set(op.inputs[1:]):
        return None
    channels, attrs = op.operation.inputs[0].shape[1], op.operation.keywords
    alone = attrs.get("group", 1) == channels == op.operation.outputs[0].shape[1] and "shuffled" not in attrs
    return op if alone else None


def _shuffle(editor: Editor, tensor: TensorId) -> tuple[TensorId, int] | None:
    """Return the tensor before a shuffle and its number of parts: a reshape to [n, parts, channels, …], a transpose."""
    last = editor.maker(tensor, "reshape")
    turn = editor.maker(last.inputs[0], "transpose") if last else None
    first = editor.maker(turn.inputs[0], "reshape") if turn else None
    if last is None or turn is None or first is None:
        return None
    source, shape = first.operation.inputs[0].shape, turn.operation.inputs[0].shape
    if len(shape) != len(source) + 1 or turn.operation.attr("perm") != (0, 2, 1, *range(3, len(shape))):
        return None
    whole = last.operation.outputs[0].shape == source == (shape[0], shape[1] * shape[2], *shape[3:])
    return (first.inputs[0], shape[1]) if whole else None
