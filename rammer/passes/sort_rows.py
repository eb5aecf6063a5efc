"""Find the first elements of long rows otherwise than by the ranks of all: by networks, or in the best blocks."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isqrt, prod
from typing import Any

import numpy as np

from rammer.ir.device import VDeviceSpec
from rammer.ir.graph import Graph
from rammer.ir.operator import ROperator
from rammer.ir.tensor import DType, Shape, TensorId, TensorType
from rammer.passes.editor import Editor, apply_pattern

STEPS = 3  # of a network in an operator, which keeps 2**STEPS vectors in registers; with 4 they do not fit
BESIDE = 8  # rows whose words lie beside each other in a vector
RANKED = 1 << 13  # comparisons up to which ranks take less time than the many operators of a network
RANKED_WIDE = 1 << 18  # the same for elements that take two networks, or have none
WHOLE, LEAST_BLOCK = 1 << 13, 4  # words up to which, and words in a block below which, rows are sorted whole
SEARCHED = 32  # comparisons for each pair of the first k: what blocks come to
HALF, LOW = 32, (1 << 32) - 1  # bits of a word that hold the place


def sort_rows(graph: Graph, spec: VDeviceSpec) -> Graph:
    """Replace `order` of `rank` where rows are long. Without 64-bit integers on the device there are no networks."""

    def pattern(editor: Editor, _: int, op: ROperator) -> TensorId | None:
        if (rank := editor.maker(op.inputs[0], "rank")) is None:
            return None
        sorter = _Sorter(editor, op.name, rank.operation.keywords.get("largest", True), spec.has_int64)
        (x,), k = rank.inputs, op.operation.keywords["count"]
        return None if sorter.are_ranked(x, k) else sorter.first(x, k)

    return apply_pattern(graph, pattern, "order")


@dataclass(frozen=True, slots=True)
class _Sorter:
    """The operators that find places. `words`: a 64-bit integer may hold a key and its place."""

    editor: Editor
    name: str
    largest: bool
    words: bool

    def are_ranked(self, x: TensorId, k: int) -> bool:
        """Check whether the ranks of all elements take the least time."""
        *outer, extent = self.type(x).shape
        most = RANKED_WIDE if self.by_blocks(x, k) else inf
        if self.words:
            less = self.narrow(x) or self.by_blocks(x, k) or extent**2 > 2 * _exchanges(extent)
            most = RANKED if less else RANKED_WIDE
        return prod(outer) * extent**2 <= most

    def narrow(self, x: TensorId) -> bool:
        """Check whether a word has room for an element and its place."""
        return self.words and self.type(x).dtype.itemsize < DType.I64.itemsize

    def by_blocks(self, x: TensorId, k: int) -> bool:
        """Check whether a search in the best blocks compares less than two networks, or there are none."""
        extent = self.type(x).shape[-1]
        less = not self.words or SEARCHED * k**2 <= _exchanges(extent)
        return less and _block(extent, k) > 1 and not self.narrow(x)

    def first(self, x: TensorId, k: int) -> TensorId:
        """Return the places (int32) of the first k elements of each row in sorted order, of equal ones the lower first.

        A row of 64-bit elements is sorted whole, in two networks, or in blocks, whichever compares less.
        """
        if self.are_ranked(x, k):
            return self.add("order", self.add("rank", x, largest=self.largest), count=k)
        keys, extent = self.keys(x) if self.words else x, self.type(x).shape[-1]
        if self.by_blocks(x, k):
            return self.in_blocks(keys, k)
        rising = self.add("bit_not", keys) if self.largest else keys
        if self.narrow(x):
            return self.least(rising, k)
        low = self.add("sub", self.add("bit_and", rising, self.like(LOW, keys)), self.like(1 << (HALF - 1), keys))
        by_low = self.least(low, extent)
        high = self.add("shift_right", self.at(rising, by_low), self.like(HALF, keys))
        return self.at(by_low, self.least(high, k))

    def in_blocks(self, x: TensorId, k: int) -> TensorId:
        """Search only those k blocks of each row whose first elements come first.

        Blocks keep the order of their places, so that the lower place still comes first among equal elements.
        """
        *outer, extent = self.type(x).shape
        rows, block = prod(outer), _block(extent, k)
        whole = self.blocks(self.reshape(x, (rows, extent)), block, self.largest)
        best = self.add("reduce", whole, fn="max" if self.largest else "min", axes=(-1,), keepdims=False)
        chosen = self.first(best, k)
        chosen = self.at(chosen, self.add("order", self.add("rank", chosen, largest=False), count=k))
        starts = self.reshape(self.add("mul", chosen, self.like(block, chosen)), (*outer, k, 1))
        places = self.add("add", starts, self.editor.constant(np.arange(block, dtype=np.int32)))
        found = self.add("gather_nd", whole, self.reshape(chosen, (rows, k, 1)), batch_dims=1)
        inside = self.first(self.reshape(found, (*outer, k * block)), k)
        return self.at(self.reshape(places, (*outer, k * block)), inside)

    def keys(self, x: TensorId) -> TensorId:
        """Return int32 or int64 numbers that are ordered as x is.

        A float's bits are a sign, and a magnitude that is ordered as the number is: zeros have the same one. NaN
        becomes infinity. Nothing is chosen, as compilers would gather what is chosen from.
        """
        dtype = self.type(x).dtype
        if dtype.is_float:
            whole, kind = (DType.F64, DType.I64) if dtype is DType.F64 else (DType.F32, DType.I32)
            bits = self.add("bit_cast", self.cast(self.with_nan(x), whole), dtype=kind)
            one, last = self.like(1, bits), self.like(8 * kind.itemsize - 1, bits)
            infinity = self.like(int(np.array(np.inf, whole.numpy).view(kind.numpy)), bits)
            size = self.add("bit_and", bits, self.like(kind.info.max, bits))
            is_number = self.add("shift_right", self.add("sub", self.add("sub", size, infinity), one), last)  # -1 or 0
            negative = self.add("bit_and", self.add("shift_right", bits, last), is_number)
            return self.add("mul", self.add("min", size, infinity), self.add("bit_or", negative, one))
        if signed := {DType.U64: DType.I64, DType.U32: DType.I32}.get(dtype):
            bits = self.add("bit_cast", x, dtype=signed)
            return self.add("bit_xor", bits, self.like(signed.info.min, bits))
        return self.cast(x, DType.I64 if dtype is DType.I64 else DType.I32)

    def with_nan(self, x: TensorId) -> TensorId:
        """Return what `x` was before infinity replaced NaN: keys do so, too."""
        chosen = self.editor.maker(x, "where")
        asked = chosen and self.editor.maker(chosen.inputs[0], "is_nan")
        if chosen is None or asked is None or asked.inputs[0] != chosen.inputs[2]:
            return x
        return asked.inputs[0] if np.all(self.editor.constants.get(chosen.inputs[1], 0) == inf) else x

    def least(self, keys: TensorId, k: int) -> TensorId:
        """Return the places (int32) of the least keys, which are int32 numbers of any type.

        Rows of words of a key and its place are sorted, of which no two are equal: of a long row, the k blocks with the
        least.
        """
        *outer, extent = self.type(keys).shape
        rows, block = prod(outer), _block(extent, k)
        words, places = self.reshape(self.cast(keys, DType.I64), (rows, extent)), np.arange(extent)
        words = self.add("mul", words, self.like(1 << HALF, words))
        words = self.add("bit_or", words, self.editor.constant(places))
        if rows * extent > WHOLE and block >= LEAST_BLOCK:
            whole = self.blocks(words, block, largest=False)
            best = self.network(self.add("reduce", whole, fn="min", axes=(-1,), keepdims=False), k)
            chosen = self.add("shift_right", self.places(best), self.like(block.bit_length() - 1, words))
            found = self.add("gather_nd", whole, self.reshape(chosen, (rows, k, 1)), batch_dims=1)
            words = self.reshape(found, (rows, k * block))
        return self.reshape(self.cast(self.places(self.network(words, k)), DType.I32), (*outer, k))

    def places(self, words: TensorId) -> TensorId:
        return self.add("bit_and", words, self.like(LOW, words))

    def blocks(self, rows: TensorId, block: int, largest: bool) -> TensorId:
        """Return each row in blocks. The last one is filled up with elements that come last."""
        count, extent = self.type(rows).shape
        blocks = -(-extent // block)
        return self.reshape(self.padded(rows, (count, blocks * block), largest), (count, blocks, block))

    def network(self, words: TensorId, k: int) -> TensorId:
        """Return the k least words of each row in sorted order.

        Columns of one word are merged to columns of two, and so on, as a bitonic network does. Columns of k words stay
        as long: of two, the smaller half is kept. Vectors lie across columns. Once these are fewer than a vector's
        lanes, several rows lie beside each other.
        """
        rows, extent = self.type(words).shape
        columns, run, beside, kept = 1 << (extent - 1).bit_length(), 1, 1, (k - 1).bit_length()
        groups = -(-rows // BESIDE) if rows >= BESIDE else 0
        blocks = groups * BESIDE or rows
        words = self.padded(words, (blocks, columns), largest=False)
        while columns > 1:
            levels = 1 if run > 1 else min(kept, STEPS)
            keep, columns = run >> kept > 0, columns >> levels
            if columns < BESIDE and groups and beside == 1:
                words = self.reshape(words, (groups, BESIDE, run * columns << levels))
                words, blocks, beside = self.add("transpose", words, perm=(0, 2, 1)), groups, BESIDE
            words = self.merged(self.reshape(words, (blocks, run, columns * beside << levels)), levels, keep)
            run <<= 0 if keep else levels
        if beside > 1:
            words = self.add("transpose", self.reshape(words, (blocks, run, beside)), perm=(0, 2, 1))
        words = self.reshape(words, (blocks * beside, run))
        return self.add("slice", words, starts=(0, 0), steps=(1, 1), shape=(rows, k))

    def merged(self, words: TensorId, levels: int, keep: bool) -> TensorId:
        """Merge pairs of columns, some steps in each operator. Steps that remain from full operators come first."""
        _, run, width = self.type(words).shape
        steps = levels if run == 1 else (run.bit_length() - 1 - keep) % STEPS + 1 + keep
        words = self.add("merge", words, steps=steps, levels=levels, keep=keep)
        size, inner = self.type(words).size, self.type(words).shape[-2] * (width >> levels)
        while inner > width >> levels:
            inner >>= STEPS
            words = self.reshape(words, (size // (inner << STEPS), *(2,) * STEPS, inner))
            words = self.add("exchange", words, steps=STEPS)
        return words

    def padded(self, x: TensorId, shape: Shape, largest: bool) -> TensorId:
        """Append elements that come last, up to a shape."""
        kind = self.type(x)
        missing = [new - old for new, old in zip(shape, kind.shape, strict=True)]
        least, most = (-inf, inf) if kind.dtype.is_float else (int(kind.dtype.info.min), int(kind.dtype.info.max))
        return self.add("pad", x, pads=(0, 0, *missing), value=least if largest else most) if any(missing) else x

    def at(self, x: TensorId, places: TensorId) -> TensorId:
        return self.add("gather_elements", x, places, axis=self.type(x).rank - 1)

    def add(self, kind: str, *inputs: TensorId, **attrs: Any) -> TensorId:
        return self.editor.define(self.name, kind, *inputs, **attrs)

    def reshape(self, tensor: TensorId, shape: Shape) -> TensorId:
        return self.editor.reshaped(self.name, tensor, shape)

    def cast(self, tensor: TensorId, dtype: DType) -> TensorId:
        return tensor if self.type(tensor).dtype is dtype else self.add("cast", tensor, dtype=dtype)

    def like(self, value: float, tensor: TensorId) -> TensorId:
        return self.editor.constant(np.asarray(value, self.type(tensor).dtype.numpy))

    def type(self, tensor: TensorId) -> TensorType:
        return self.editor.types[tensor]


def _block(extent: int, k: int) -> int:
    """Return how long blocks are, so that there are about as many as elements in k of them: a power of two."""
    return 1 << (isqrt(extent // k).bit_length() - 1)


def _exchanges(extent: int) -> int:
    """Return the exchanges of two networks that sort a row."""
    levels = (extent - 1).bit_length()
    return levels * (levels + 1) // 2 << levels
