"""Compute equal things once. Known as: common subexpression elimination."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable

from rammer.ir.graph import Graph
from rammer.ir.tensor import Array, TensorId
from rammer.passes.editor import Editor

MAX_HASHED_BYTES = 1 << 20  # larger constants are equal only if they are the same array


def eliminate_common(graph: Graph) -> Graph:
    """Merge equal constants, and operators of the same operation on the same tensors."""
    editor = Editor(graph)
    constants: dict[Hashable, TensorId] = {}
    for name, value in graph.constants.items():
        kept = constants.setdefault((graph.types[name], _content(value)), name)
        if kept != name:
            editor.redirect(name, kept)
    seen: dict[Hashable, tuple[TensorId, ...]] = {}
    for n in list(editor.operators):
        op = editor.operators[n]
        results = seen.setdefault((op.operation, op.inputs), op.outputs)
        if results is op.outputs or any(t in editor.outputs for t in op.outputs):
            continue
        editor.remove(n)
        for old, new in zip(op.outputs, results, strict=True):
            editor.redirect(old, new)
    return editor.finish()


def _content(value: Array) -> Hashable:
    if value.nbytes > MAX_HASHED_BYTES:
        return id(value)
    return hashlib.blake2b(value.tobytes(), digest_size=16).digest()
