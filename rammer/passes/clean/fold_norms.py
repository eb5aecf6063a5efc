"""Fold batch normalisation and constant scales into the weights before them, and zero padding into convolutions."""

from __future__ import annotations

import numpy as np

from rammer.ir.graph import Graph
from rammer.ir.operator import ROperator
from rammer.ir.tensor import Array, TensorId
from rammer.passes.editor import Editor, apply_pattern
from rammer.passes.structure import WIDE


def fold_norms(graph: Graph) -> Graph:
    """Rewrite batch norm as a multiply-add per channel, and fold constant multiply-adds into weights and biases."""
    return apply_pattern(apply_pattern(graph, _split_norm, "batch_norm"), _fold, "mul", "add", "conv")


def _split_norm(editor: Editor, _: int, op: ROperator) -> TensorId | None:
    x = op.inputs[0]
    kind = editor.types[x]
    if kind.dtype not in WIDE or any(t not in editor.constants for t in op.inputs[1:]):
        return None
    scale, bias, mean, var = (editor.constants[t].astype(np.float64) for t in op.inputs[1:])
    factor = scale / np.sqrt(var + op.operation.attr("epsilon"))
    shape = (-1, *(1,) * (kind.rank - 2))
    for name, values in (("mul", factor), ("add", bias - mean * factor)):
        constant = editor.constant(values.astype(kind.dtype.numpy).reshape(shape), op.name)
        x = editor.define(op.name, name, x, constant)
    return x


def _fold(editor: Editor, n: int, op: ROperator) -> TensorId | None:
    return _fold_pad(editor, op) if op.kind == "conv" else _fold_scale(editor, n, op)


def _fold_scale(editor: Editor, n: int, op: ROperator) -> TensorId | None:
    """Multiply constant weights by a constant per output channel, or add one to a constant bias."""
    for here, other in ((0, 1), (1, 0)):
        value, first = editor.constants.get(op.inputs[other]), editor.producer.get(op.inputs[here])
        if value is None or first is None or editor.only_reader(op.inputs[here]) != n:
            continue
        source = editor.operators[first]
        weights = [editor.constants.get(t) for t in source.inputs[1:]]
        kind = source.operation.outputs[0]
        if source.kind not in ("conv", "matmul") or any(w is None for w in weights) or kind.dtype not in WIDE:
            continue
        if any(given.dtype is not kind.dtype for given in source.operation.inputs):
            continue  # integers stay integers
        channel = 1 if source.kind == "conv" else kind.rank - 1
        values = _per_channel(value, kind.shape, channel)
        if values is None or op.operation.outputs[0] != kind:
            continue
        arrays = [w for w in weights if w is not None]
        if op.kind == "mul":
            if source.kind == "matmul" and arrays[0].ndim != 2:
                continue
            across = source.kind == "matmul" and not source.operation.keywords.get("trans_b")
            arrays[0] = _scaled(arrays[0], values if across else values.reshape(-1, *(1,) * (arrays[0].ndim - 1)))
            arrays[1:] = [_scaled(b, values) for b in arrays[1:]]
        elif source.kind == "conv":
            bias = arrays[1].astype(np.float64) if len(arrays) > 1 else 0
            arrays[1:] = [(bias + values).astype(kind.dtype.numpy)]
        else:
            continue
        tensors = [editor.constant(a, source.name) for a in arrays]
        editor.remove(first)
        return editor.define(source.name, source.kind, source.inputs[0], *tensors, **source.operation.keywords)
    return None


def _per_channel(value: Array, shape: tuple[int, ...], channel: int) -> Array | None:
    """Return the constant as one float64 per channel; None if it varies along another dimension of `shape`."""
    if value.ndim > len(shape):
        return None
    full = value.reshape((1,) * (len(shape) - value.ndim) + value.shape)
    if any(e != 1 for p, e in enumerate(full.shape) if p != channel):
        return None
    return np.broadcast_to(full.ravel(), (shape[channel],)).astype(np.float64)


def _scaled(array: Array, factor: Array) -> Array:
    """Return the product, rounded once from float64, without a copy of the array in float64."""
    out = np.empty(np.broadcast_shapes(array.shape, factor.shape), array.dtype)
    return np.multiply(array, factor, out=out, dtype=np.float64, casting="unsafe")


def _fold_pad(editor: Editor, op: ROperator) -> TensorId | None:
    """Let the convolution pad by itself."""
    pad = editor.maker(op.inputs[0], "pad")
    if pad is None:
        return None
    attrs = pad.operation.keywords
    source: TensorId = pad.inputs[0]
    rank = editor.types[source].rank
    begin, end = attrs["pads"][:rank], attrs["pads"][rank:]
    if attrs.get("mode", "constant") != "constant" or attrs.get("value", 0) != 0:
        return None
    if any(begin[:2]) or any(end[:2]) or min(*begin, *end) < 0:
        return None
    before = op.operation.attr("pads") or (0,) * (2 * (rank - 2))
    pads = tuple(a + b for a, b in zip(before, (*begin[2:], *end[2:]), strict=True))
    return editor.define(op.name, "conv", source, *op.inputs[1:], **op.operation.keywords | {"pads": pads})
