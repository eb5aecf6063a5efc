"""Scale sums of quantised products once: fold a division into the constants that scale and shift them."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from rammer.ir.graph import Graph
from rammer.ir.operator import ROperator
from rammer.ir.tensor import Array, DType, TensorId
from rammer.passes.editor import Editor, apply_pattern

_Chain: TypeAlias = list[tuple[ROperator, TensorId, TensorId]]  # operators, last first: their operand, and constant


def requantize(graph: Graph) -> Graph:
    """Rewrite (sums * scale + shift) / step = sums * (scale / step) + shift / step, for constants and integer sums.

    Sums of two such numbers, or of dequantised bytes, too: ONNX Runtime adds bytes so. Divisions take several times as
    long as products. There is one rounding less: results may differ where they lie between two numbers.
    """

    def pattern(editor: Editor, _: int, op: ROperator) -> TensorId | None:
        step = editor.constants.get(op.inputs[1])
        if step is None or step.size != 1 or step.dtype != np.float32 or not np.isfinite(step).all() or step <= 0:
            return None
        total = editor.maker(op.inputs[0], "add")
        two = total is not None and len(total.inputs) == 2 and not editor.constants.keys() & set(total.inputs)
        terms = total.inputs if total and two else op.inputs[:1]
        chains = [_chain(editor, t, of_bytes=two) for t in terms]
        if not all(chains):
            return None
        quotients = [_divided(editor, chain, step.reshape(())) for chain in chains]
        return editor.define(op.name, "add", *quotients) if two else quotients[0]

    return apply_pattern(graph, pattern, "div")


def _chain(editor: Editor, tensor: TensorId, *, of_bytes: bool) -> _Chain:
    """Return the operators that scale integers and add constants; none if the tensor is not made so."""
    found: _Chain = []
    while (op := editor.maker(tensor)) is not None and op.kind in ("mul", "add") and len(op.inputs) == 2:
        tensor, constant = sorted(op.inputs, key=lambda t: t in editor.constants)
        if constant not in editor.constants or editor.constants[constant].dtype != np.float32:
            return []
        found.append((op, tensor, constant))
        if op.kind == "mul" and _is_whole(editor, tensor, of_bytes):
            return found
    return []


def _divided(editor: Editor, chain: _Chain, step: Array) -> TensorId:
    """Repeat a chain with its first factor, and all constants that are added, divided."""
    first, value, _ = chain[-1]
    for op, _, constant in reversed(chain):
        if op is first or op.kind == "add":
            constant = editor.constant(editor.constants[constant] / step, op.name)
        value = editor.define(op.name, op.kind, value, constant)
    return value


def _is_whole(editor: Editor, tensor: TensorId, of_bytes: bool) -> bool:
    """Check whether a tensor has sums of products of bytes, or bytes if wanted, perhaps with integers added."""
    source = editor.source(tensor, "cast", "sub", "add")
    maker = editor.maker(source)
    summed = maker if maker and maker.kind in ("conv", "matmul") else None
    kind = summed.operation.inputs[0] if summed else editor.types[source]
    return (of_bytes or summed is not None) and kind.dtype in (DType.U8, DType.I8)
