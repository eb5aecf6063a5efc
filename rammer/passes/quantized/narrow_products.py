"""Products of bytes that were widened first become products of bytes, on devices that multiply these.

Only unsigned bytes are multiplied by signed ones. A signed operand counts from -128 on; zero points, and weights that
begin elsewhere, come to sums over the other operand: those over weights are constants. In int32, which wraps around,
all this is exact.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

import numpy as np

from rammer.ir.device import VDeviceSpec
from rammer.ir.graph import Graph
from rammer.ir.operator import ROperator
from rammer.ir.tensor import Array, DType, TensorId
from rammer.passes.clean.fold_constants import compute
from rammer.passes.editor import Editor

OFFSET = 128  # from a signed byte to the unsigned one that stands for it
FEWEST_OUTPUTS = 16  # channels: fewer are not worth copying windows


def narrow_products(graph: Graph, spec: VDeviceSpec) -> Graph:
    """Multiply bytes by constants that fit bytes as such, where the vDevice has an instruction for that."""
    if not multiplies_bytes(spec):
        return graph
    narrower = _Narrower(Editor(graph))
    for n in list(narrower.editor.operators):
        narrower.visit(n)
    return narrower.editor.finish()


def multiplies_bytes(spec: VDeviceSpec) -> bool:
    """Whether the vDevice has an instruction for products of unsigned and signed bytes."""
    return any(i.multiplies and i.operands == (DType.U8, DType.I8) for i in spec.instructions)


class _Source(NamedTuple):
    """Bytes that an int32 tensor was made of: it is bytes - zero."""

    tensor: TensorId
    zero: TensorId | None  # int32, of one element


class _Weights(NamedTuple):
    """Constants as signed bytes: they are values + shift, where a shift is for all the terms of a sum."""

    values: Array
    shift: Array


class _Narrower:
    def __init__(self, editor: Editor) -> None:
        self.editor = editor
        self.unsigned: dict[TensorId, TensorId] = {}

    def visit(self, n: int) -> None:
        """Define one product anew, if it is one of bytes."""
        op = self.editor.operators[n]
        if op.kind not in ("matmul", "conv") or any(t.dtype is not DType.I32 for t in op.operation.inputs):
            return
        total = self._matmul(op) if op.kind == "matmul" else self._conv(op)
        if total is not None:
            self.editor.remove(n)
            self.editor.replace_result(op.outputs[0], total)

    def _matmul(self, op: ROperator) -> TensorId | None:
        x, w = op.inputs
        attrs = op.operation.keywords
        source, found = self._source(x), self._value(w)
        if source is None or found is None or found.ndim < 2 or len(self.editor.types[x].shape) < 2:
            return None
        if attrs.get("trans_a") or not found.size:
            return None
        weights = _narrowed(found.swapaxes(-1, -2) if attrs.get("trans_b") else found, -2)
        if weights is None:
            return None
        rows = self._unsigned(source)
        values = self.editor.constant(np.ascontiguousarray(weights.values), w)
        product = self.editor.define(op.name, "matmul", rows, values, dtype=DType.I32)
        return self._corrected(op.name, product, source, rows, weights, -2)

    def _conv(self, op: ROperator) -> TensorId | None:
        """The product of weights and of what lies in the windows."""
        x, w, *bias = op.inputs
        attrs = op.operation.keywords
        source, found, group = self._source(x), self._value(w), attrs.get("group", 1)
        if source is None or found is None or group > 1 or not found.size or len(found) < FEWEST_OUTPUTS:
            return None
        kernel = found.shape[2:]
        weights = _narrowed(found.reshape(len(found), -1), 1)
        if weights is None:
            return None
        window = {name: attrs[name] for name in ("strides", "pads", "dilations") if attrs.get(name)}
        edge = self._edge(source) if any(window.get("pads", ())) else 0
        if edge is None:
            return None
        rows = self._unsigned(source)
        if prod(kernel) > 1 or any(s > 1 for s in window.get("strides", ())) or any(window.get("pads", ())):
            rows = self.editor.define(op.name, "unfold", rows, kernel=kernel, value=edge, **window)
        values = self.editor.constant(weights.values.reshape(*weights.values.shape, *(1 for _ in kernel)), w)
        product = self.editor.define(op.name, "conv", rows, values, dtype=DType.I32)
        shift = weights.shift.reshape(-1, *(1 for _ in kernel))
        weights = _Weights(weights.values.reshape(*shift.shape, -1), shift[..., None])
        total = self._corrected(op.name, product, source, rows, weights, -1)
        if bias:
            shape = (self.editor.types[bias[0]].size, *(1 for _ in kernel))
            total = self.editor.define(
                op.name, "add", total, self.editor.define(op.name, "reshape", bias[0], shape=shape)
            )
        return total

    def _corrected(
        self, name: str, product: TensorId, source: _Source, rows: TensorId, weights: _Weights, axis: int
    ) -> TensorId:
        """The product of what stands for the operands, made that of the operands; `axis`: of the terms in weights."""
        values, shift = weights
        over = values.sum(axis, keepdims=True, dtype=np.int64) + values.shape[axis] * shift
        if axis == -1:
            over, shift = over[..., 0], shift[..., 0]
        zero, moved = self._zero(source)
        if zero is not None:
            product = self.editor.define(name, "sub", product, self.editor.define(name, "mul", zero, self._int32(over)))
        if moved and over.any():
            product = self.editor.define(name, "sub", product, self._int32(moved * over))
        if shift.any():
            terms = 1 if axis == -1 else len(self.editor.types[rows].shape) - 1
            wide = self.editor.define(name, "cast", rows, dtype=DType.I32)
            sums = self.editor.define(name, "reduce", wide, fn="sum", axes=(terms,), keepdims=True)
            product = self.editor.define(
                name, "add", product, self.editor.define(name, "mul", sums, self._int32(shift))
            )
        return product

    def _value(self, tensor: TensorId) -> Array | None:
        """A constant, or one less another, also where folding left it as it was."""
        found, op = self.editor.constants.get(tensor), self.editor.maker(tensor)
        if op is None or op.kind not in ("cast", "sub"):
            return found
        values = [value for t in op.inputs if (value := self._value(t)) is not None]
        return compute(op.operation, values)[0] if len(values) == len(op.inputs) else None

    def _source(self, tensor: TensorId) -> _Source | None:
        """The bytes that an int32 tensor is made of, if it is."""
        op, zero = self.editor.maker(tensor), None
        if op is not None and op.kind == "sub" and self.editor.types[op.inputs[1]].size == 1:
            zero, op = op.inputs[1], self.editor.maker(op.inputs[0])
        if op is None or op.kind != "cast" or op.operation.inputs[0].dtype not in (DType.U8, DType.I8):
            return None
        if self.editor.types[op.inputs[0]].rank != self.editor.types[tensor].rank:
            return None
        return _Source(op.inputs[0], zero)

    def _unsigned(self, source: _Source) -> TensorId:
        """The bytes, from 0 on."""
        tensor = source.tensor
        if self.editor.types[tensor].dtype is DType.U8:
            return tensor
        if tensor not in self.unsigned:
            as_unsigned = self.editor.define(tensor, "cast", tensor, dtype=DType.U8)
            offset = self.editor.constant(np.array(OFFSET, np.uint8))
            self.unsigned[tensor] = self.editor.define(tensor, "add", as_unsigned, offset)
        return self.unsigned[tensor]

    def _zero(self, source: _Source) -> tuple[TensorId | None, int]:
        """What stands for zero: a tensor of one element, if it is not known, plus a number."""
        offset = OFFSET if self.editor.types[source.tensor].dtype is DType.I8 else 0
        if source.zero is None:
            return None, offset
        known = self.editor.constants.get(source.zero)
        if known is not None:
            return None, offset + int(known.reshape(()))
        return self.editor.define(source.zero, "reshape", source.zero, shape=()), offset

    def _edge(self, source: _Source) -> int | None:
        """The byte that stands for zero, if that is known."""
        if source.zero is not None and source.zero not in self.editor.constants:
            return None
        _, value = self._zero(source)
        return value if 0 <= value < 256 else None

    def _int32(self, values: Array) -> TensorId:
        return self.editor.constant(np.asarray(values).astype(np.int64).astype(np.int32))


def _narrowed(weights: Array, axis: int) -> _Weights | None:
    """Weights as signed bytes, where those of each sum span no more than these; `axis`: of the sum's terms."""
    low, high = weights.min(axis, keepdims=True).astype(np.int64), weights.max(axis, keepdims=True)
    if (high - low).max() >= 2 * OFFSET:
        return None
    shift = np.where((low >= -OFFSET) & (high < OFFSET), 0, low + OFFSET)
    return _Weights((weights - shift).astype(np.int8), shift)
