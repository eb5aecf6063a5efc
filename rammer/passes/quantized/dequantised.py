"""Find the integers from which a constant was dequantised, through all later moves of its elements."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rammer.ir.operator import ROperator
from rammer.ir.semantics.evaluate import MOVES
from rammer.ir.tensor import Array, DType, TensorId
from rammer.passes.editor import Editor

BITS = (2, 4, 8)


class Dequantised(NamedTuple):
    """Weights (numbers - zero) * scale, all three of one shape, perhaps broadcast. Numbers have `bits` bits each."""

    numbers: Array
    zero: Array
    scale: Array
    bits: int

    def moved(self, op: ROperator) -> Dequantised:
        """Return the weights with elements moved by an operator.

        Padding with zeros adds numbers equal to their zero point.
        """
        if op.kind != "pad":
            numbers, zero, scale = (_moved(op, x) for x in self[:3])
            return self._replace(numbers=numbers, zero=zero, scale=scale)
        pads, rank = op.operation.attr("pads"), self.numbers.ndim
        around = list(zip(pads[:rank], pads[rank:], strict=True))
        added = np.pad(np.zeros(self.numbers.shape, bool), around, constant_values=True)
        zero, scale = (np.pad(x, around, mode="edge") for x in (self.zero, self.scale))
        numbers = np.where(added, zero, np.pad(self.numbers, around)).astype(self.numbers.dtype)
        return self._replace(numbers=numbers, zero=zero, scale=scale)


def dequantised(editor: Editor, tensor: TensorId) -> Dequantised | None:
    """Return the numbers from which a tensor was dequantised, after all later moves of its elements; or None."""
    op = editor.maker(tensor)
    if op is None or editor.types[tensor].dtype is not DType.F32:
        return None
    if op.kind in MOVES or _adds_zeros(op):
        found = dequantised(editor, op.inputs[0])
        return found.moved(op) if found else None
    scale = _known(editor, op.inputs[1]) if op.kind == "mul" else None
    widened = editor.maker(op.inputs[0], "cast") if scale is not None else None
    if scale is None or widened is None or widened.operation.inputs[0].dtype is not DType.I32:
        return None
    difference = editor.maker(widened.inputs[0], "sub")
    zero = _known(editor, difference.inputs[1]) if difference else np.zeros((), np.int32)
    cast = editor.maker(difference.inputs[0] if difference else widened.inputs[0], "cast")
    numbers = _known(editor, cast.inputs[0]) if cast else None
    if numbers is None or zero is None or cast is None or numbers.shape != editor.types[tensor].shape:
        return None
    kind = cast.operation.inputs[0].dtype
    if kind.bits not in BITS or kind.is_float or kind is DType.BOOL:
        return None
    first = int(kind.info.min)
    numbers = (numbers.astype(np.int16) - first).astype(np.uint8)
    shape = numbers.shape
    return Dequantised(numbers, np.broadcast_to(zero - first, shape), np.broadcast_to(scale, shape), kind.bits)


def _adds_zeros(op: ROperator) -> bool:
    attrs = op.operation.keywords
    return (
        op.kind == "pad"
        and attrs.get("mode", "constant") == "constant"
        and not attrs.get("value")
        and min(attrs["pads"]) >= 0
    )


def _moved(op: ROperator, value: Array) -> Array:
    return MOVES[op.kind](value, **op.operation.keywords)


def _known(editor: Editor, tensor: TensorId) -> Array | None:
    """Return the value of a constant, with its elements moved and widened."""
    op = editor.maker(tensor)
    if op is None or op.kind not in (*MOVES, "cast"):
        return editor.constants.get(tensor)
    found = _known(editor, op.inputs[0])
    if found is None:
        return None
    return found.astype(op.operation.outputs[0].dtype.numpy) if op.kind == "cast" else _moved(op, found)
