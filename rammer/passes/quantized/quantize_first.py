"""Quantise before elements are moved, so that bytes move. Known as: propagation of quantisation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rammer.ir.expr import Call, nodes
from rammer.ir.graph import Graph
from rammer.ir.operator import ROperator, attributes
from rammer.ir.semantics.evaluate import MOVES, compute
from rammer.ir.tensor import DType, TensorId, TensorType
from rammer.passes.editor import Editor, apply_pattern
from rammer.passes.structure import is_elementwise

COMMUTE = {*MOVES, "gather", "max_pool"}  # rounding their operands or their results is the same
MOST_STEPS = 16  # between bytes
LONG = frozenset({"exp", "log", "tanh", "sigmoid", "erf", "sin", "cos", "asin", "acos", "atan", "pow", "mod", "fmod"})


def quantize_first(graph: Graph, tables: bool) -> Graph:
    """Quantise each part of a concatenation, and move bytes that are dequantised, moved, and quantised as before.

    With `tables`, costly functions of bytes are looked up.
    """

    def pattern(editor: Editor, _: int, op: ROperator) -> TensorId | None:
        steps = _steps(editor, op)
        if not steps:
            return None
        at, moves = steps[-1].inputs[0], list[ROperator]()
        while (maker := _private(editor, at)) is not None and maker.kind in COMMUTE and len(maker.outputs) == 1:
            moves.append(maker)
            at = maker.inputs[0]
        joined = maker if maker and maker.kind == "concat" else None
        parts = [(part, _of_bytes(editor, steps, part, tables)) for part in (joined.inputs if joined else (at,))]
        if not joined and parts[0][1] is None:
            return None
        made = [known or editor.repeated(reversed(steps), part) for part, known in parts]
        at = editor.define(op.name, "concat", *made, **joined.operation.keywords) if joined else made[0]
        return editor.repeated(reversed(moves), at)

    return apply_pattern(graph, pattern, "cast")


def _private(editor: Editor, tensor: TensorId) -> ROperator | None:
    """Return the operator that makes a tensor, if only one operator reads it."""
    return editor.maker(tensor) if editor.only_reader(tensor) is not None else None


def _is_function(editor: Editor, op: ROperator) -> bool:
    """Check whether each element of the result follows from one of the first operand."""
    numbers = all(t in editor.constants and editor.types[t].shape in ((), (1,)) for t in op.inputs[1:])
    return numbers and is_elementwise(op.operation)


def _steps(editor: Editor, op: ROperator) -> list[ROperator]:
    """Return the operators from a division by a scale to a cast to bytes, last first; or none."""
    found = [op] if op.operation.outputs[0].dtype in (DType.U8, DType.I8) else []
    while found and found[-1].kind != "div":
        maker = _private(editor, found[-1].inputs[0])
        if maker is None or maker.kind not in ("clip", "add", "round", "div") or not _is_function(editor, maker):
            return []
        found.append(maker)
    return found


def _of_bytes(editor: Editor, steps: list[ROperator], tensor: TensorId, tables: bool) -> TensorId | None:
    """Return what the steps make of a tensor, from the bytes from which it was made: tried with every byte."""
    kind, chain = steps[0].operation.outputs[0].dtype, list(steps)
    while editor.types[tensor].dtype is not kind:
        maker = editor.maker(tensor)
        if maker is None or not _is_function(editor, maker) or len(chain) > MOST_STEPS:
            return None
        chain.append(maker)
        tensor = maker.inputs[0]
    every = values = np.arange(kind.info.min, kind.info.max + 1, dtype=kind.numpy)
    for op in reversed(chain):
        types = [TensorType((), given.dtype) for given in op.operation.inputs]
        types[0] = replace(types[0], shape=every.shape)
        operation = editor.interner.define(op.kind, tuple(types), attributes(**op.operation.keywords))
        (values,) = compute(operation, [values, *(editor.constants[t].reshape(()) for t in op.inputs[1:])])
    if np.array_equal(values, every):
        return tensor
    parts = (part for op in chain for s in op.operation.expr.stages for part in nodes(s.body))
    if not tables or not any(isinstance(part, Call) and part.fn in LONG for part in parts):
        return None
    table = editor.constant(np.roll(values, kind.info.min))  # negative indices count from the end
    return editor.define(op.name, "gather", table, tensor, axis=0)
