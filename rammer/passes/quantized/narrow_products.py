"""Rewrite products of widened bytes as products of bytes, on devices that multiply those.

Devices multiply unsigned bytes by signed ones only. A signed operand is shifted to count from -128 on. Zero points, and
weights with other ranges, are corrected by sums over the other operand: those over weights are constants. In int32,
which wraps around, all of this is exact.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

import numpy as np

from rammer.ir.device import VDeviceSpec
from rammer.ir.graph import Graph
from rammer.ir.operator import ROperator, flops
from rammer.ir.semantics.evaluate import compute
from rammer.ir.tensor import Array, DType, TensorId
from rammer.passes.clean.fold_constants import MAX_FLOPS, known_value
from rammer.passes.editor import Editor, apply_pattern

OFFSET = 128  # from a signed byte to the unsigned one that represents it
LARGEST, WHOLE = 255, 1 << 24  # the largest difference of bytes; the largest integer up to which float32 is exact
FEWEST_OUTPUTS = 4  # least output channels that pay for copying windows
FEWEST_CHANNELS = 4  # least input channels: windows of fewer are copied byte by byte


def narrow_products(graph: Graph, spec: VDeviceSpec) -> Graph:
    """Multiply bytes by constants that fit bytes, if the vDevice has an instruction for that."""
    if not multiplies_bytes(spec):
        return graph
    unsigned: dict[TensorId, TensorId] = {}
    return apply_pattern(graph, lambda editor, _, op: _Narrower(editor, unsigned).narrowed(op), "matmul", "conv")


def multiplies_bytes(spec: VDeviceSpec) -> bool:
    """Check whether the vDevice has an instruction for products of unsigned and signed bytes."""
    return any(i.multiplies and i.operands == (DType.U8, DType.I8) for i in spec.instructions)


class _Source(NamedTuple):
    """The bytes of an int32 tensor: it is bytes - zero."""

    tensor: TensorId
    zero: TensorId | None  # int32, of one element


class _Weights(NamedTuple):
    """Constants as signed bytes: they are values + shift, with one shift for all terms of a sum."""

    values: Array
    shift: Array


class _Narrower:
    def __init__(self, editor: Editor, unsigned: dict[TensorId, TensorId]) -> None:
        self.editor, self.unsigned = editor, unsigned

    def narrowed(self, op: ROperator) -> TensorId | None:
        """Return the result of one product, defined anew if it is one of bytes; else None."""
        if any(kind.dtype is not DType.I32 for kind in op.operation.inputs):
            return None
        return self._known(op) or (self._matmul(op) if op.kind == "matmul" else self._conv(op))

    def _known(self, op: ROperator) -> TensorId | None:
        """Return the product as a constant if all operands are known, such as a zero initial state; or None."""
        values = [value for t in op.inputs if (value := known_value(self.editor, t)) is not None]
        if len(values) < len(op.inputs) or flops(op.operation.expr) > MAX_FLOPS:
            return None
        return self.editor.constant(compute(op.operation, values)[0], op.name)

    def _matmul(self, op: ROperator) -> TensorId | None:
        x, w = op.inputs
        attrs = op.operation.keywords
        source, found = self._source(x), known_value(self.editor, w)
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
        """Return the convolution as a product of weights and of the windows' elements; or None."""
        x, w, *_ = op.inputs
        attrs = op.operation.keywords
        source, found, group = self._source(x), known_value(self.editor, w), attrs.get("group", 1)
        if source is None or found is None or not found.size:
            return None
        if group > 1 or len(found) < FEWEST_OUTPUTS or found.shape[1] < FEWEST_CHANNELS:
            return self._as_it_is(op, source, found)
        kernel = found.shape[2:]
        weights = _narrowed(np.moveaxis(found, 1, -1).reshape(len(found), -1), 1)  # as `unfold` has them
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
        return self._biased(op, self._corrected(op.name, product, source, rows, weights, -1, self._bias(op)))

    def _as_it_is(self, op: ROperator, source: _Source, found: Array) -> TensorId | None:
        """Return the convolution of bytes that are widened as they are read, or before. Padding is the zero point.

        Sums that stay below WHOLE are made in float32, which is exact for such integers.
        """
        known = 0 if source.zero is None else self.editor.constants.get(source.zero)
        if known is None:
            return None
        values, zero = source.tensor, int(np.reshape(known, ()))
        attrs = {name: value for name, value in op.operation.keywords.items() if name != "dtype"}
        if zero and any(pads := attrs.get("pads", ())):
            around = (0, 0, *pads[: len(pads) // 2], 0, 0, *pads[len(pads) // 2 :])
            values = self.editor.define(op.name, "pad", values, pads=around, value=zero)
            attrs["pads"] = ()
        over = found.sum(tuple(range(1, found.ndim)), dtype=np.int64).reshape(-1, *(1 for _ in found.shape[2:]))
        added = self._bias(op) - zero * over
        most = int((np.abs(found.astype(np.int64)).reshape(len(found), -1).sum(1) * LARGEST).max() + abs(added).max())
        held = DType.F32 if most <= WHOLE else DType.I32
        weights = self.editor.constant(found.astype(held.numpy), op.inputs[1])
        # Without strides, floats might be multiplied in Winograd's form, which is not exact.
        if attrs.get("group", 1) == 1 < min(attrs.get("strides") or (1,)):
            values = self.editor.define(op.name, "cast", values, dtype=held)
        total = self.editor.define(op.name, "conv", values, weights, dtype=held, **attrs)
        if added.any():
            total = self.editor.define(op.name, "add", total, self.editor.constant(added.astype(held.numpy)))
        if held is DType.F32:
            whole = all(t in self.editor.constants for t in op.inputs[2:])
            for n in list(self.editor.readers.get(op.outputs[0], ())) if whole else ():
                reader = self.editor.operators[n]
                if reader.kind == "cast" and reader.operation.outputs[0].dtype is held:  # it has them already
                    self.editor.remove(n)
                    total = self.editor.replace_result(reader.outputs[0], total)
            total = self.editor.define(op.name, "cast", total, dtype=DType.I32)
        return self._biased(op, total)

    def _bias(self, op: ROperator) -> Array:
        """Return the constant part of what a convolution adds to each of its results."""
        ones = (1,) * len(op.operation.outputs[0].shape[2:])
        known = [self.editor.constants[t] for t in op.inputs[2:] if t in self.editor.constants]
        return sum((value.astype(np.int64).reshape(-1, *ones) for value in known), np.zeros((1, *ones), np.int64))

    def _biased(self, op: ROperator, total: TensorId) -> TensorId:
        """Add a convolution's bias to its sums, if the bias is not constant."""
        return self.editor.biased(op, total, [t for t in op.inputs[2:] if t not in self.editor.constants])

    def _corrected(
        self,
        name: str,
        product: TensorId,
        source: _Source,
        rows: TensorId,
        weights: _Weights,
        axis: int,
        added: Array | int = 0,
    ) -> TensorId:
        """Correct the product of shifted operands to that of the original ones, and add `added`.

        `axis`: the axis of the terms in weights.
        """
        values, shift = weights
        over = values.sum(axis, keepdims=True, dtype=np.int64) + values.shape[axis] * shift
        if axis == -1:
            over, shift = over[..., 0], shift[..., 0]
        zero, moved = self._zero(source)
        if zero is not None:
            product = self.editor.define(name, "sub", product, self.editor.define(name, "mul", zero, self._int32(over)))
        more = np.asarray(added - moved * over)
        if more.any():
            product = self.editor.define(name, "add", product, self._int32(more))
        if shift.any():
            terms = 1 if axis == -1 else len(self.editor.types[rows].shape) - 1
            wide = self.editor.define(name, "cast", rows, dtype=DType.I32)
            sums = self.editor.define(name, "reduce", wide, fn="sum", axes=(terms,), keepdims=True)
            shifted = self.editor.define(name, "mul", sums, self._int32(shift))
            product = self.editor.define(name, "add", product, shifted)
        return product

    def _source(self, tensor: TensorId) -> _Source | None:
        """Return the bytes from which an int32 tensor is made, or None."""
        op, zero = self.editor.maker(tensor), None
        if op is not None and op.kind == "sub" and self.editor.types[op.inputs[1]].size == 1:
            zero, op = op.inputs[1], self.editor.maker(op.inputs[0])
        if op is None or op.kind != "cast" or op.operation.inputs[0].dtype not in (DType.U8, DType.I8):
            return None
        if self.editor.types[op.inputs[0]].rank != self.editor.types[tensor].rank:
            return None
        return _Source(op.inputs[0], zero)

    def _unsigned(self, source: _Source) -> TensorId:
        """Return the bytes as unsigned ones."""
        tensor = source.tensor
        if self.editor.types[tensor].dtype is DType.U8:
            return tensor
        if tensor not in self.unsigned:
            as_unsigned = self.editor.define(tensor, "cast", tensor, dtype=DType.U8)
            offset = self.editor.constant(np.array(OFFSET, np.uint8))
            self.unsigned[tensor] = self.editor.define(tensor, "add", as_unsigned, offset)
        return self.unsigned[tensor]

    def _zero(self, source: _Source) -> tuple[TensorId | None, int]:
        """Return the zero point of the unsigned bytes as a sum: a one-element tensor (None if known), and a number."""
        offset = OFFSET if self.editor.types[source.tensor].dtype is DType.I8 else 0
        if source.zero is None:
            return None, offset
        known = self.editor.constants.get(source.zero)
        if known is not None:
            return None, offset + int(known.reshape(()))
        return self.editor.define(source.zero, "reshape", source.zero, shape=()), offset

    def _edge(self, source: _Source) -> int | None:
        """Return the byte that represents zero, if it is known."""
        if source.zero is not None and source.zero not in self.editor.constants:
            return None
        _, value = self._zero(source)
        return value if 0 <= value <= np.iinfo(np.uint8).max else None

    def _int32(self, values: Array) -> TensorId:
        return self.editor.constant(np.asarray(values).astype(np.int64).astype(np.int32))


def _narrowed(weights: Array, axis: int) -> _Weights | None:
    """Return weights as signed bytes, if those of each sum span at most 256 values. `axis`: that of the sum's terms."""
    low, high = weights.min(axis, keepdims=True).astype(np.int64), weights.max(axis, keepdims=True)
    if (high - low).max() >= 2 * OFFSET:
        return None
    shift = np.where((low >= -OFFSET) & (high < OFFSET), 0, low + OFFSET)
    return _Weights((weights - shift).astype(np.int8), shift)
