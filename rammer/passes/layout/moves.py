"""Move less: merge slices, do not compute padding that is cut off, and apply activations before a concat."""

from __future__ import annotations

from itertools import accumulate
from math import prod

from rammer.ir.graph import Graph
from rammer.ir.operator import ROperator
from rammer.ir.tensor import TensorId
from rammer.passes.editor import Editor, apply_pattern

_POOLS = ("average_pool", "max_pool")


def merge_slices(graph: Graph) -> Graph:
    """Merge slices, and let them cut padding, convolutions and concats before these are computed.

    Pooling over windows of one element becomes a slice. A slice that is one part of a concat becomes that part, such as
    the last step of a recurrent layer. A slice of a convolution becomes its window. A concat of all slices of a tensor,
    in order, reads the tensor.
    """
    return apply_pattern(graph, _moved, *_POOLS, "slice", "concat")


def _moved(editor: Editor, n: int, op: ROperator) -> TensorId | None:
    if op.kind == "concat":
        return _rejoined(editor, op)
    if op.kind in _POOLS:
        op = _pool_as_slice(editor, n, op)
    if op.kind == "slice":
        _merge(editor, op)
        _narrow(editor, editor.producer[op.outputs[0]])
        _take_part(editor, editor.producer[op.outputs[0]])
    return None


def _pool_as_slice(editor: Editor, n: int, op: ROperator) -> ROperator:
    attrs, kind = op.operation.keywords, op.operation.inputs[0]
    pads, strides, kernel = attrs.get("pads", ()), attrs.get("strides", ()), attrs["kernel"]
    if set(kernel) != {1} or any(pads) or len(op.outputs) > 1:
        return op
    steps = (1, 1, *(strides or (1,) * len(kernel)))
    editor.remove(n)
    editor.cut(op.name, op.inputs[0], (0,) * kind.rank, steps, op.operation.outputs[0].shape, op.outputs)
    return editor.operators[editor.producer[op.outputs[0]]]


def _merge(editor: Editor, op: ROperator) -> None:
    """Let a slice read the operand of the slice or padding before it, as long as it is the only reader of that one."""
    while (first := editor.producer.get(op.inputs[0])) is not None:
        n = editor.producer[op.outputs[0]]
        before, cut = editor.operators[first], op.operation
        if before.kind not in ("slice", "pad") or editor.only_reader(op.inputs[0]) != n:
            return
        starts, steps, shape = cut.attr("starts"), cut.attr("steps"), cut.attr("shape")
        kind = before.operation.inputs[0]
        around: list[tuple[int, int]] = [(0, 0)] * kind.rank
        if before.kind == "slice":
            inner = list(zip(before.operation.attr("starts"), before.operation.attr("steps"), strict=True))
            starts = tuple(s + at * step for (s, step), at in zip(inner, starts, strict=True))
            steps = tuple(step * by for (_, step), by in zip(inner, steps, strict=True))
        else:
            attrs = before.operation.keywords
            pads = attrs["pads"]
            if attrs.get("mode", "constant") != "constant" or min(*pads, *steps) < 0 or 0 in shape:
                return
            begins = pads[: kind.rank]
            ranges = [_inside(*d) for d in zip(starts, steps, shape, begins, kind.shape, strict=True)]
            if any(last < low for low, last in ranges):
                return
            around = [(low, e - 1 - last) for (low, last), e in zip(ranges, shape, strict=True)]
            starts = tuple(s + low * by - b for s, by, b, (low, _) in zip(starts, steps, begins, ranges, strict=True))
            shape = tuple(last - low + 1 for low, last in ranges)
        editor.remove(n)
        editor.remove(first)
        padded = any(map(any, around))
        last = () if padded else op.outputs
        attrs = {"starts": starts, "steps": steps, "shape": shape}
        piece = editor.define(op.name, "slice", *before.inputs, outputs=last, **attrs)
        if padded:
            more = before.operation.keywords | {"pads": (*(b for b, _ in around), *(e for _, e in around))}
            editor.define(before.name, "pad", piece, outputs=op.outputs, **more)
        op = editor.operators[editor.producer[piece]]


def _narrow(editor: Editor, n: int) -> None:
    """Let a convolution compute only the positions that a slice takes, by less padding or larger strides."""
    op = editor.operators[n]
    conv = editor.maker(op.inputs[0], "conv") if op.kind == "slice" else None
    if conv is None or editor.only_reader(op.inputs[0]) != n:
        return
    x, w = (editor.types[t] for t in conv.inputs[:2])
    starts, steps, shape = (op.operation.attr(name) for name in ("starts", "steps", "shape"))
    attrs, rank = conv.operation.keywords, x.rank - 2
    if shape[:2] != conv.operation.outputs[0].shape[:2] or min(*steps, *shape) < 1:
        return
    strides, dilations = (attrs.get(name) or (1,) * rank for name in ("strides", "dilations"))
    begins = (attrs.get("pads") or (0,) * 2 * rank)[:rank]
    reach = [(k - 1) * d + 1 for k, d in zip(w.shape[2:], dilations, strict=True)]
    begins = tuple(b - start * s for b, start, s in zip(begins, starts[2:], strides, strict=True))
    strides = tuple(s * step for s, step in zip(strides, steps[2:], strict=True))
    needed = [(m - 1) * s + r - b for m, s, r, b in zip(shape[2:], strides, reach, begins, strict=True)]
    ends = tuple(max(last - extent, 0) for last, extent in zip(needed, x.shape[2:], strict=True))
    left = [e + end - last for e, end, last in zip(x.shape[2:], ends, needed, strict=True)]
    if min(begins) < 0 or any(rest >= s for rest, s in zip(left, strides, strict=True)):
        return  # x itself would have to be cut
    editor.remove(n)
    editor.remove(editor.producer[conv.outputs[0]])
    more = attrs | {"strides": strides, "pads": (*begins, *ends)}
    editor.define(conv.name, "conv", *conv.inputs, outputs=op.outputs, **more)


def _take_part(editor: Editor, n: int) -> None:
    """Read one operand of a concat instead of a slice of its (perhaps reshaped) result that is this operand."""
    op = editor.operators[n]
    if op.kind != "slice" or set(op.operation.attr("steps")) != {1}:
        return
    whole, shape = op.operation.inputs[0].shape, op.operation.attr("shape")
    cut = [d for d, extent in enumerate(whole) if shape[d] != extent]
    maker = editor.maker(editor.source(op.inputs[0], "reshape"), "concat")
    if len(cut) != 1 or prod(whole[: cut[0]]) != 1 or maker is None:
        return
    kind = maker.operation.outputs[0]
    if prod(kind.shape[: maker.operation.attr("axis") % kind.rank]) != 1:
        return
    first = op.operation.attr("starts")[cut[0]] * prod(whole[cut[0] + 1 :])
    ends = accumulate(editor.types[part].size for part in maker.inputs)
    for part, end in zip(maker.inputs, ends, strict=True):
        if (end - editor.types[part].size, editor.types[part].size) == (first, prod(shape)):
            editor.remove(n)
            editor.define(op.name, "reshape", part, outputs=op.outputs, shape=op.operation.outputs[0].shape)
            return


def _rejoined(editor: Editor, op: ROperator) -> TensorId | None:
    """Return a concat that reads a tensor instead of neighbouring slices that make up all of it."""
    axis = op.operation.attr("axis") % op.operation.outputs[0].rank
    runs: list[tuple[TensorId, int, int, list[TensorId]]] = []  # a tensor, begin and end in it, and these slices
    for tensor in op.inputs:
        source, start, end = _piece(editor, tensor, axis)
        if runs and runs[-1][0] == source and runs[-1][2] == start:
            _, first, _, before = runs.pop()
            runs.append((source, first, end, [*before, tensor]))
        else:
            runs.append((source, start, end, [tensor]))
    parts: list[TensorId] = []
    for source, start, end, slices in runs:
        parts += [source] if end - start == editor.types[source].shape[axis] else slices
    if len(parts) == len(op.inputs):
        return None
    return parts[0] if len(parts) == 1 else editor.define(op.name, "concat", *parts, **op.operation.keywords)


def _piece(editor: Editor, tensor: TensorId, axis: int) -> tuple[TensorId, int, int]:
    """Return the tensor that this one is a slice of along an axis, with begin and end; itself if it is not a slice."""
    cut, extent = editor.maker(tensor, "slice"), editor.types[tensor].shape[axis]
    if cut is None or set(cut.operation.attr("steps")) != {1}:
        return tensor, 0, extent
    whole = editor.types[cut.inputs[0]].shape
    if any(a != b for d, (a, b) in enumerate(zip(whole, editor.types[tensor].shape, strict=True)) if d != axis):
        return tensor, 0, extent
    start = cut.operation.attr("starts")[axis]
    return cut.inputs[0], start, start + extent


def _inside(start: int, step: int, count: int, begin: int, extent: int) -> tuple[int, int]:
    """Return the first and last position of a slice that lie inside of the tensor before padding."""
    return max(-((start - begin) // step), 0), min((extent - 1 + begin - start) // step, count - 1)


def split_activations(graph: Graph) -> Graph:
    """Rewrite f(concat(a, b)) = concat(f(a), f(b)) for images: f is then fused into the operators of a and b."""

    def pattern(editor: Editor, n: int, op: ROperator) -> TensorId | None:
        concat = editor.maker(op.inputs[0], "concat") if len(op.inputs) == 1 else None
        if concat is None or not editor.broadcasts(op) or editor.only_reader(op.inputs[0]) != n:
            return None
        kind = concat.operation.outputs[0]
        images = kind.rank >= 4 and kind.shape == op.operation.outputs[0].shape
        if not images or concat.operation.attr("axis") % kind.rank != 1:
            return None
        parts = [editor.define(op.name, op.kind, tensor, **op.operation.keywords) for tensor in concat.inputs]
        return editor.define(concat.name, "concat", *parts, **concat.operation.keywords)

    return apply_pattern(graph, pattern)
