"""Remove operators that change nothing, and replace general ones by simpler ones. Known as: peephole optimisation."""

from __future__ import annotations

import numpy as np

from rammer.ir.graph import Graph
from rammer.ir.operator import ROperator
from rammer.ir.tensor import TensorId
from rammer.passes.editor import Editor, apply_pattern
from rammer.passes.structure import is_identity

_NEUTRAL = {"mul": 1, "div": 1, "add": 0, "sub": 0}


def simplify(graph: Graph) -> Graph:
    """Remove copies, casts and reshapes to the same type, x * 1, x + 0, constant choices; merge reshapes.

    A gather of evenly spaced constant places becomes a slice.
    """
    return apply_pattern(graph, _simplified)


def _simplified(editor: Editor, _: int, op: ROperator) -> TensorId | None:
    if op.kind == "reshape" and not is_identity(op.operation):
        return _merged_reshape(editor, op)
    if op.kind == "gather":
        return _as_slice(editor, op)
    source = op.inputs[0] if is_identity(op.operation) else _neutral(editor, op)
    if op.outputs[0] in editor.outputs and (source in editor.fixed or source not in editor.producer):
        return None  # the copy that gives an output its own memory
    return source


def _neutral(editor: Editor, op: ROperator) -> TensorId | None:
    """Return the operand that an operation with a neutral constant, or a constant condition, returns; or None."""
    neutral = _NEUTRAL.get(op.kind)
    if op.kind == "where" and (chosen := editor.constants.get(op.inputs[0])) is not None:
        source = op.inputs[1 if np.all(chosen) else 2]
        uniform = np.all(chosen) or not np.any(chosen)
        return source if uniform and editor.types[source] == op.operation.outputs[0] else None
    if neutral is None or len(op.inputs) != 2:
        return None
    for here, other in ((0, 1), (1, 0)) if op.kind in ("mul", "add") else ((0, 1),):
        source, constant = op.inputs[here], editor.constants.get(op.inputs[other])
        if constant is not None and editor.types[source] == op.operation.outputs[0] and np.all(constant == neutral):
            return source
    return None


def _merged_reshape(editor: Editor, op: ROperator) -> TensorId | None:
    first = editor.maker(op.inputs[0], "reshape")
    if first is None:
        return None
    (source,) = first.inputs
    if editor.types[source] == op.operation.outputs[0] and op.outputs[0] not in editor.outputs:
        return source
    return editor.define(op.name, "reshape", source, **op.operation.keywords)


def _as_slice(editor: Editor, op: ROperator) -> TensorId | None:
    source, places = op.inputs[0], editor.constants.get(op.inputs[1])
    kind = editor.types[source]
    if places is None or not places.size:
        return None
    axis = op.operation.keywords.get("axis", 0) % kind.rank
    flat = places.ravel().astype(np.int64)
    flat = np.where(flat < 0, flat + kind.shape[axis], flat)
    steps = np.unique(np.diff(flat)) if flat.size > 1 else np.ones(1, np.int64)
    if len(steps) > 1 or steps[0] == 0 or flat.min() < 0 or flat.max() >= kind.shape[axis]:
        return None
    part = editor.define(
        op.name,
        "slice",
        source,
        starts=tuple(int(flat[0]) if p == axis else 0 for p in range(kind.rank)),
        steps=tuple(int(steps[0]) if p == axis else 1 for p in range(kind.rank)),
        shape=tuple(flat.size if p == axis else e for p, e in enumerate(kind.shape)),
    )
    return editor.reshaped(op.name, part, op.operation.outputs[0].shape)
