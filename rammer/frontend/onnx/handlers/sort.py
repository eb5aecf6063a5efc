"""Find the largest or smallest elements: by a network of exchanges, in rows or in those of their blocks that matter."""

from __future__ import annotations

from math import isqrt, prod

import numpy as np

from rammer.frontend.onnx.handlers.indexing import elements_at
from rammer.frontend.onnx.node import Node, handles
from rammer.ir.tensor import DType, TensorId

STEPS = 3  # of a network in an operator, which keeps 2**STEPS vectors in registers; with 4 they do not fit
BESIDE = 8  # rows whose words lie beside each other in a vector
RANKED = 1 << 13  # comparisons up to which ranks take less time than the many operators of a network
RANKED_WIDE = 1 << 18  # the same for keys of 64 bits, which take two networks
WHOLE, LEAST_BLOCK = 1 << 13, 4  # words up to which, and words in a block below which, rows are sorted whole
SEARCHED = 32  # comparisons for each pair of the first k: what blocks come to


@handles("TopK")
def top_k(n: Node) -> list[TensorId]:
    """Return the top k. Among equal elements the lower index comes first.

    NaN counts as infinity. The largest element alone is the first NaN of its row, as that of ArgMax.
    """
    x, shape = n.tensor(0), n.shape()
    k = int(n.scalar(1, "K")) if n.has(1) else n.attrs["k"]
    axis = n.axis(n.attrs["axis"], len(shape))
    if not 0 <= k <= shape[axis]:
        raise n.fail(f"K is {k}, but axis {axis} has {shape[axis]} elements")
    perm = [*(d for d in range(len(shape)) if d != axis), axis]
    back = [perm.index(d) for d in range(len(shape))]
    moved = n.transpose(x, perm)
    dtype, largest = n.dtype(), bool(n.attrs.get("largest", 1))
    if not k:
        return [
            n.constant(np.zeros([0 if d == axis else e for d, e in enumerate(shape)], t.numpy))
            for t in (dtype, DType.I64)
        ]
    if k == 1:
        first = n.add(*("arg_max", x) if largest else ("arg_min", _without_nan(n, x)), axis=axis)
        return [elements_at(n, x, first, axis), first]
    found = _first(n, _ordered(n, moved), k, largest)
    return [n.transpose(elements_at(n, moved, found, -1), back), n.transpose(found, back)]


def _without_nan(n: Node, x: TensorId) -> TensorId:
    return n.add("where", n.add("is_nan", x), n.like(np.inf, x), x) if n.type(x).dtype.is_float else x


def _ordered(n: Node, x: TensorId) -> TensorId:
    """Return int32 or int64 numbers that are ordered as x is.

    A float's bits are a sign, and a magnitude that is ordered as the number is: zeros have the same one. NaN becomes
    infinity. Nothing is chosen, as compilers would gather what is chosen from.
    """
    dtype = n.type(x).dtype
    if not dtype.is_float:
        if dtype is DType.U64:
            bits = n.add("bit_cast", x, dtype=DType.I64)
            return n.add("bit_xor", bits, n.like(-(2**63), bits))
        if dtype is DType.U32:
            x = n.add("sub", n.cast(x, DType.I64), n.like(2**31, n.cast(x, DType.I64)))
        return n.cast(x, DType.I64 if dtype is DType.I64 else DType.I32)
    whole, bits_type = (DType.F64, DType.I64) if dtype is DType.F64 else (DType.F32, DType.I32)
    bits = n.add("bit_cast", n.cast(x, whole), dtype=bits_type)
    one, last = n.like(1, bits), n.like(8 * bits_type.itemsize - 1, bits)
    infinity = n.like(int(np.array(np.inf, whole.numpy).view(bits_type.numpy)), bits)
    size = n.add("bit_and", bits, n.like(bits_type.info.max, bits))
    is_number = n.add("shift_right", n.add("sub", n.add("sub", size, infinity), one), last)  # -1 or 0
    negative = n.add("bit_and", n.add("shift_right", bits, last), is_number)
    return n.add("mul", n.add("min", size, infinity), n.add("bit_or", negative, one))


def _first(n: Node, keys: TensorId, k: int, largest: bool) -> TensorId:
    """Return the places of the first k keys of each row in sorted order. Of equal ones the lower place is first.

    Keys of 32 bits become words. A row of 64-bit keys is sorted whole, or only the k blocks with the best first
    elements are searched, whichever compares less. Blocks keep the order of their places, so that the lower place still
    comes first among equal keys.
    """
    *outer, extent = n.type(keys).shape
    rows, levels = prod(outer), (extent - 1).bit_length()
    narrow, block = n.type(keys).dtype is DType.I32, _block(extent, k)
    whole_row = levels * (levels + 1) // 2 << levels  # exchanges of two networks
    by_blocks = block > 1 and SEARCHED * k**2 <= whole_row
    ranked = extent**2 <= 2 * whole_row and rows * extent**2 <= RANKED_WIDE and not (narrow or by_blocks)
    if ranked or rows * extent**2 <= RANKED:
        return n.cast(n.add("order", n.add("rank", keys, largest=largest), count=k), DType.I64)
    if narrow or not by_blocks:
        rising = n.add("bit_not", keys) if largest else keys
        if narrow:
            return _places(n, _least(n, _words(n, rising), k), (*outer, k))
        low = n.add("sub", n.add("bit_and", rising, n.like(2**32 - 1, keys)), n.like(2**31, keys))
        by_low = _places(n, _least(n, _words(n, low), extent), (*outer, extent))
        high = n.add("shift_right", elements_at(n, rising, by_low, -1), n.like(32, keys))
        return elements_at(n, by_low, _places(n, _least(n, _words(n, high), k), (*outer, k)), -1)
    whole = _blocks(n, n.reshape(keys, (rows, extent)), block, largest)
    best = n.add("reduce", whole, fn="max" if largest else "min", axes=(-1,), keepdims=False)
    chosen = n.cast(_first(n, best, k, largest), DType.I32)
    in_order = n.add("order", n.add("rank", chosen, largest=False), count=k)
    chosen = n.cast(elements_at(n, chosen, in_order, -1), DType.I64)
    starts = n.reshape(n.add("mul", chosen, n.like(block, chosen)), (*outer, k, 1))
    places = n.reshape(n.add("add", starts, n.constant(np.arange(block))), (*outer, k * block))
    found = n.add("gather_nd", whole, n.reshape(chosen, (rows, k, 1)), batch_dims=1)
    return elements_at(n, places, _first(n, n.reshape(found, (*outer, k * block)), k, largest), -1)


def _block(extent: int, k: int) -> int:
    """Return how long blocks are, so that there are about as many as elements in k of them: a power of two."""
    return 1 << (isqrt(extent // k).bit_length() - 1)


def _words(n: Node, keys: TensorId) -> TensorId:
    """Return rows of words of a key, an int32 number in any type, and its place. No two of a row are equal."""
    *outer, extent = n.type(keys).shape
    wide = n.reshape(n.cast(keys, DType.I64), (prod(outer), extent))
    return n.add("bit_or", n.add("mul", wide, n.like(2**32, wide)), n.constant(np.arange(extent)))


def _places(n: Node, words: TensorId, shape: tuple[int, ...]) -> TensorId:
    return n.reshape(n.add("bit_and", words, n.like(2**32 - 1, words)), shape)


def _least(n: Node, words: TensorId, k: int) -> TensorId:
    """Return the k least words of each row in sorted order. Of a long row only the k blocks with the least count."""
    rows, extent = n.type(words).shape
    block = _block(extent, k)
    if rows * extent <= WHOLE or block < LEAST_BLOCK:
        return _network(n, words, k)
    whole = _blocks(n, words, block, largest=False)
    least = _network(n, n.add("reduce", whole, fn="min", axes=(-1,), keepdims=False), k)
    chosen = n.add("shift_right", _places(n, least, (rows, k, 1)), n.like(block.bit_length() - 1, words))
    return _network(n, n.reshape(n.add("gather_nd", whole, chosen, batch_dims=1), (rows, k * block)), k)


def _blocks(n: Node, rows: TensorId, block: int, largest: bool) -> TensorId:
    """Return each row in blocks. The last one is filled up with elements that come last."""
    count, extent = n.type(rows).shape
    blocks = -(-extent // block)
    return n.reshape(_padded(n, rows, (count, blocks * block), largest), (count, blocks, block))


def _network(n: Node, words: TensorId, k: int) -> TensorId:
    """Return the k least words of each row in sorted order.

    Columns of one word are merged to columns of two, and so on, as a bitonic network does. Columns of k words stay as
    long: of two, the smaller half is kept. Vectors lie across columns. Once these are fewer than a vector's lanes,
    several rows lie beside each other.
    """
    rows, extent = n.type(words).shape
    columns, run, beside, kept = 1 << (extent - 1).bit_length(), 1, 1, (k - 1).bit_length()
    groups = -(-rows // BESIDE) if rows >= BESIDE else 0
    blocks = groups * BESIDE or rows
    words = _padded(n, words, (blocks, columns), largest=False)
    while columns > 1:
        levels = 1 if run > 1 else min(kept, STEPS)
        keep, columns = run >> kept > 0, columns >> levels
        if columns < BESIDE and groups and beside == 1:
            words = n.reshape(words, (groups, BESIDE, run * columns << levels))
            words, blocks, beside = n.transpose(words, (0, 2, 1)), groups, BESIDE
        words = _merged(n, n.reshape(words, (blocks, run, columns * beside << levels)), levels, keep)
        run <<= 0 if keep else levels
    if beside > 1:
        words = n.transpose(n.reshape(words, (blocks, run, beside)), (0, 2, 1))
    return n.slice(n.reshape(words, (blocks * beside, run)), (0, 0), (rows, k))


def _merged(n: Node, words: TensorId, levels: int, keep: bool) -> TensorId:
    """Merge pairs of columns, some steps in each operator. Steps that remain from full operators come first."""
    _, run, width = n.type(words).shape
    steps = levels if run == 1 else (run.bit_length() - 1 - keep) % STEPS + 1 + keep
    words = n.add("merge", words, steps=steps, levels=levels, keep=keep)
    size, inner = n.type(words).size, n.type(words).shape[-2] * (width >> levels)
    while inner > width >> levels:
        inner >>= STEPS
        words = n.add("exchange", n.reshape(words, (size // (inner << STEPS), *(2,) * STEPS, inner)), steps=STEPS)
    return words


def _padded(n: Node, x: TensorId, shape: tuple[int, int], largest: bool) -> TensorId:
    """Append elements that come last, up to a shape."""
    kind = n.type(x)
    missing = [new - old for new, old in zip(shape, kind.shape, strict=True)]
    value = int(kind.dtype.info.min if largest else kind.dtype.info.max)
    return n.add("pad", x, pads=(0, 0, *missing), value=value) if any(missing) else x
