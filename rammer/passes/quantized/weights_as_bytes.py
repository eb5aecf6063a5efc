"""Let products of float32 read dequantised weights as bytes: x · (w s) = (x · w) s if a sum has one scale.

Decoding is bound by weight bandwidth: 8-bit weights read a quarter of the bytes of float32.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

import numpy as np

from rammer.ir.device import VDeviceSpec
from rammer.ir.graph import Graph
from rammer.ir.operator import ROperator
from rammer.ir.remembered import memoized
from rammer.ir.tensor import Array, DType, Shape, TensorId
from rammer.passes.editor import Editor
from rammer.passes.quantized.dequantised import dequantised
from rammer.passes.structure import known_tensors

MOST_ROWS = 32  # with more rows, and instructions that multiply float32, weights stay float32
FEWEST = 1 << 12  # weights
BYTE = 8  # least bits; matrices below that stay packed in blocks


CELLS = {"lstm_cell": 3, "gru_cell": 2}  # kind -> the operand that multiplies the state


def weights_as_bytes(graph: Graph, spec: VDeviceSpec) -> Graph:
    """Keep weights of products as integers of 8 or 16 bits."""
    narrower, known = _ByteWeights(Editor(graph)), known_tensors(graph)
    floats = any(i.operands == (DType.F32, DType.F32) for i in spec.multipliers)
    for n in list(narrower.editor.operators):
        op = narrower.editor.operators[n]
        if any(kind.dtype is not DType.F32 for kind in op.operation.inputs):
            continue
        if op.kind in CELLS and op.inputs[CELLS[op.kind]] in known:
            narrower.cell(n, op, CELLS[op.kind])
        elif op.kind in ("matmul", "conv"):
            x, w = op.operation.inputs[:2]
            pays = op.kind == "conv" or prod(x.shape[:-1]) <= MOST_ROWS or not floats
            if pays and op.inputs[1] in known and op.inputs[0] not in known and w.size >= FEWEST:
                narrower.product(n, op)
    return narrower.editor.finish()


class Whole(NamedTuple):
    """Weights as integers of 8 or 16 bits, and the factor for sums of products with them."""

    numbers: Array
    scale: Array  # with an extent of 1 in dimensions that are summed


def whole_weights(editor: Editor, tensor: TensorId, summed: tuple[int, ...], least_bits: int = 0) -> Whole | None:
    """Return a dequantised constant with one scale for each sum over the dimensions `summed`; or None."""
    found = dequantised(editor, tensor)
    if found is None or found.bits < least_bits:
        return None
    scale = found.scale[tuple(np.s_[:1] if d in summed else np.s_[:] for d in range(found.scale.ndim))]
    if (found.scale != scale).any():
        return None
    numbers = found.numbers.astype(np.int16) - found.zero.astype(np.int16)
    byte = np.iinfo(np.int8)
    fits = bool(((numbers >= byte.min) & (numbers <= byte.max)).all())
    return Whole(numbers.astype(np.int8, order="C") if fits else numbers, np.ascontiguousarray(scale))


class _ByteWeights:
    def __init__(self, editor: Editor) -> None:
        self.editor = editor

    def product(self, n: int, op: ROperator) -> None:
        """Redefine a product with dequantised weights."""
        x, w, *biases = op.inputs
        attrs, rank = op.operation.keywords, self.editor.types[w].rank
        if op.kind == "conv":
            found = self._weights(w, tuple(range(1, rank)))
        elif min(rank, self.editor.types[x].rank) > 1:
            found = self._weights(w, (rank - (1 if attrs.get("trans_b") else 2),), BYTE)
        else:
            found = None
        if found is None:
            return
        numbers, scale = found
        self.editor.remove(n)
        total = self.editor.define(op.name, op.kind, x, numbers, **attrs | {"dtype": DType.F32})
        total = self.editor.define(op.name, "mul", total, self._across(op, scale))
        self.editor.replace_result(op.outputs[0], self.editor.biased(op, total, biases))

    def cell(self, n: int, op: ROperator, position: int) -> None:
        """Redefine a cell with a dequantised matrix."""
        before, r, rest = op.inputs[:position], op.inputs[position], op.inputs[position + 1 :]
        found = self._weights(r, (2,)) if self.editor.types[r].size >= FEWEST else None
        if found is None:
            return
        numbers, scale = found
        by_unit = self.editor.define(op.name, "reshape", scale, shape=self.editor.types[scale].shape[:2])
        inputs = (*before, numbers, by_unit, *rest)
        types = tuple(self.editor.types[t] for t in inputs)
        operation = self.editor.interner.define(op.kind, types, op.operation.attrs)
        self.editor.remove(n)
        self.editor.add(op.name, operation, inputs, op.outputs)

    @memoized
    def _weights(self, tensor: TensorId, summed: Shape, least_bits: int = 0) -> tuple[TensorId, TensorId] | None:
        """Return the numbers and the scale of dequantised weights as constants; or None."""
        found = whole_weights(self.editor, tensor, summed, least_bits)
        if found is None:
            return None
        return self.editor.constant(found.numbers, tensor), self.editor.constant(found.scale, tensor)

    def _across(self, op: ROperator, values: TensorId) -> TensorId:
        """Reshape values per column, or per channel, so that they broadcast to a product's result."""
        kind, rank = self.editor.types[values], op.operation.outputs[0].rank
        if op.kind == "conv":
            shape = (kind.size, *(1 for _ in range(rank - 2)))
        else:
            shape = (*kind.shape[:-2], 1, prod(kind.shape[-2:]))
        return self.editor.define(op.name, "reshape", values, shape=shape)
