"""Push 1x1 convolutions through broadcasts: convolve once, then repeat. Known as: hoisting."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from math import prod

import numpy as np

from rammer.ir.graph import Graph
from rammer.ir.operator import ROperator
from rammer.ir.tensor import TensorId
from rammer.passes.editor import Editor, apply_pattern
from rammer.passes.structure import WIDE

MIN_SAVED = 32  # multiply-adds saved per result that pay for one more addition: estimated


def convolve_first(graph: Graph) -> Graph:
    """Rewrite conv(concat(x, repeat(v))) = conv(x) + repeat(conv(v)) for 1x1 filters, with weights split by channels.

    Used for statistics of all frames beside every frame, for speaker or style embeddings, and for coarse features that
    are enlarged to their nearest neighbours.
    """
    return apply_pattern(graph, _convolve, "conv")


def _is_1x1(editor: Editor, op: ROperator) -> bool:
    """Check whether a convolution sums channels of one position by constant weights, for each position in turn."""
    attrs, weights = op.operation.keywords, editor.constants.get(op.inputs[1])
    if weights is None or weights.ndim < 3 or any(kind.dtype not in WIDE for kind in op.operation.inputs):
        return False
    steps = {*weights.shape[2:], *(attrs.get("strides") or (1,)), attrs.get("group", 1)}
    return steps == {1} and not any(attrs.get("pads") or ())


def _convolve(editor: Editor, n: int, op: ROperator) -> TensorId | None:
    """Convolve before the repetition. Channels that are repeated alike are convolved together."""
    if not _is_1x1(editor, op):
        return None
    concat = editor.maker(op.inputs[0], "concat")
    if concat is not None and concat.operation.attr("axis") % op.operation.inputs[0].rank != 1:
        concat = None
    parts = op.inputs[:1] if concat is None else concat.inputs
    count = op.operation.outputs[0].shape[1]
    repeats = [_repeats(editor, tensor) for tensor in parts]
    repeats = [steps if _pays(steps, count) else () for steps in repeats]
    groups: dict[Hashable, list[int]] = {}
    for p, steps in enumerate(repeats):
        groups.setdefault(tuple(map(_how, steps)), []).append(p)
    rest = groups.pop((), [])
    if not groups or (len(rest) > 1 and editor.only_reader(op.inputs[0]) != n):
        return None  # nothing is repeated; or others read all parts joined, and joining some of them is extra work
    channels = [editor.types[tensor].shape[1] for tensor in parts]
    weights = np.split(editor.constants[op.inputs[1]], np.cumsum(channels)[:-1], axis=1)
    total: TensorId | None = None
    for positions in filter(None, (rest, *groups.values())):
        steps = repeats[positions[0]]
        sources = [repeats[p][0].inputs[0] if steps else parts[p] for p in positions]
        x = sources[0] if len(sources) == 1 else editor.define(op.name, "concat", *sources, axis=1)
        own = editor.constant(np.concatenate([weights[p] for p in positions], axis=1), op.inputs[1])
        bias = op.inputs[2:] if total is None else ()
        term = _repeated(editor, steps, editor.define(op.name, "conv", x, own, *bias))
        total = term if total is None else editor.define(op.name, "add", total, term)
    return total


def _repeats(editor: Editor, tensor: TensorId) -> tuple[ROperator, ...]:
    """Return the operators that repeat positions to make a tensor, in order."""
    steps: list[ROperator] = []
    while (op := editor.maker(tensor)) is not None and _is_repeat(editor, op):
        steps.insert(0, op)
        tensor = op.inputs[0]
    return tuple(steps)


def _is_repeat(editor: Editor, op: ROperator) -> bool:
    if op.kind not in ("expand", "gather"):
        return False
    source, target = op.operation.inputs[0].shape, op.operation.outputs[0].shape
    inside = len(source) == len(target) and source[:2] == target[:2] and prod(source) <= prod(target)
    return inside and (op.kind == "expand" or op.inputs[1] in editor.constants)


def _how(step: ROperator) -> Hashable:
    """Return a key that is equal for equal repetitions of different channels."""
    shapes = step.operation.inputs[0].shape[2:], step.operation.outputs[0].shape[2:]
    return step.kind, shapes, step.inputs[1:], step.operation.keywords.get("axis")


def _pays(steps: Sequence[ROperator], count: int) -> bool:
    """Check whether the saved products pay for an addition, without moving more channels than before."""
    if not steps:
        return False
    before, (_, channels, *positions) = steps[0].operation.inputs[0].shape[2:], steps[-1].operation.outputs[0].shape
    moved = any(step.kind == "gather" for step in steps)  # an addition reads an expanded operand in place
    return channels * (1 - prod(before) / prod(positions)) >= MIN_SAVED and (count <= channels or not moved)


def _repeated(editor: Editor, steps: Sequence[ROperator], tensor: TensorId) -> TensorId:
    """Repeat the positions of a tensor in the same way."""
    for step in steps:
        attrs = step.operation.keywords
        if step.kind == "expand":
            attrs = {"shape": (*editor.types[tensor].shape[:2], *step.operation.outputs[0].shape[2:])}
        tensor = editor.define(step.name, step.kind, tensor, *step.inputs[1:], **attrs)
    return tensor
