"""Find the largest or smallest elements: of whole rows by a sorting network, of others by counting ranks in blocks."""

from __future__ import annotations

from math import isqrt, prod
from typing import Any

import numpy as np

from rammer.frontend.onnx.handlers.indexing import elements_at
from rammer.frontend.onnx.node import Node, handles
from rammer.ir.tensor import DType, TensorId

COLUMNS = 16  # of a network's words
STEPS = 3  # of a network in an operator, which keeps 2**STEPS vectors in registers; with 4 they do not fit
SEARCHED = 32  # comparisons for each pair of the first k: what blocks come to
EXCHANGE = 3  # comparisons that take as long as an exchange
DIRECT = 1 << 18  # comparisons up to which rows are ranked directly: more of them, but fewer operators


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
    keys = _without_nan(n, moved)
    compared, levels = min(shape[axis] ** 2, SEARCHED * k**2), (shape[axis] - 1).bit_length()
    slow = compared > EXCHANGE * (1 << levels) * levels * (levels + 1) / 2
    if slow and prod(shape) // shape[axis] * compared > DIRECT and dtype.itemsize <= (8 if dtype is DType.I64 else 4):
        found = n.cut(_sorted(n, keys, largest), len(shape) - 1, 0, k)
    else:
        found = n.cast(_first(n, keys, k, largest), DType.I64)
    return [n.transpose(elements_at(n, moved, found, -1), back), n.transpose(found, back)]


def _without_nan(n: Node, x: TensorId) -> TensorId:
    return n.add("where", n.add("is_nan", x), n.like(np.inf, x), x) if n.type(x).dtype.is_float else x


def _sorted(n: Node, keys: TensorId, largest: bool) -> TensorId:
    """Return the positions of the elements of each row in sorted order. Wide keys are sorted by their low parts first.

    Among equal elements the lower index comes first.
    """
    dtype = n.type(keys).dtype
    if dtype.is_float:  # bits are a sign, and a magnitude that sorts as the number does: zeros have the same one
        bits = n.add("bit_cast", n.cast(keys, DType.F32), dtype=DType.I32)
        size = n.add("bit_and", bits, n.like(2**31 - 1, bits))
        keys = n.add("where", n.add("less", bits, n.like(0, bits)), n.add("neg", size), size)
    keys = n.cast(keys, DType.I64)
    keys = n.add("bit_not", keys) if largest else keys
    if dtype not in (DType.U32, DType.I64):
        return _network(n, keys)
    low = n.add("sub", n.add("bit_and", keys, n.like(2**32 - 1, keys)), n.like(2**31, keys))
    first = _network(n, low)
    high = n.add("shift_right", elements_at(n, keys, first, -1), n.like(32, keys))
    return elements_at(n, first, _network(n, high), -1)


def _network(n: Node, keys: TensorId) -> TensorId:
    """Return the positions of the elements of each row in sorted order; keys are int32 numbers in int64.

    Words of key and position are sorted as a bitonic network does. Place p of a row is in column p // rows, so that
    most exchanges are between rows. For exchanges between columns they are transposed. Runs that go down have their
    bits inverted.
    """
    *outer, extent = n.type(keys).shape
    size, count = max(COLUMNS**2, 1 << (extent - 1).bit_length()), prod(outer)
    rows, places = size // COLUMNS, np.arange(size)
    words = n.add("mul", n.reshape(keys, (count, extent)), n.like(2**32, keys))
    words = n.add("bit_or", words, n.constant(places[:extent]))
    words, inverted = _padded(n, words, size, np.iinfo(np.int64).max), np.zeros(size, bool)

    def transposed(words: TensorId, shape: tuple[int, int]) -> TensorId:
        return n.transpose(n.reshape(words, (count, *shape)), (0, 2, 1))

    for level in range(1, size.bit_length()):
        down, distance = (places >> level) % 2 == 1, 1 << (level - 1)
        flips = np.where(down != inverted, -1, 0).reshape(COLUMNS, rows).T
        flips = next((part for part in (flips[:, :1], flips[:1]) if (part == flips).all()), flips)  # it has few numbers
        words = n.add("bit_xor", n.reshape(words, (count, rows, COLUMNS)), n.constant(flips))
        inverted = down
        if distance >= rows:
            words = _exchanged(n, transposed(words, (rows, COLUMNS)), distance, rows // 2, 1)
            words, distance = transposed(words, (COLUMNS, rows)), rows // 2
        words = _exchanged(n, words, distance, 0, COLUMNS)
    words = n.cut(n.reshape(transposed(words, (rows, COLUMNS)), (*outer, size)), len(outer), 0, extent)
    return n.add("bit_and", words, n.like(2**32 - 1, words))


def _exchanged(n: Node, words: TensorId, distance: int, stop: int, width: int) -> TensorId:
    """Exchange words at a distance, at half of it, and so on, above `stop`; next ones lie `width` elements later.

    Where steps are fewer than STEPS, they come first: then other levels have the same operations.
    """
    total = n.type(words).size
    while distance > stop:
        steps = (distance.bit_length() - stop.bit_length() - 1) % STEPS + 1
        distance >>= steps
        inner = max(2 * distance, 1) * width
        words = n.reshape(words, (total // (inner << steps), *(2,) * steps, inner))
        words = n.add("exchange", words, steps=steps)
    return words


def _first(n: Node, keys: TensorId, k: int, largest: bool) -> TensorId:
    """Return the positions of the first k elements of each row, in sorted order.

    Ranking compares all pairs, so it is quadratic. Rows are therefore split into blocks, and only the k blocks with the
    best first elements are searched: about √(extent · k) elements, twice, instead of all. Blocks keep the order of
    their positions, so that the lower index still comes first among equal elements.
    """
    *rows, extent = n.type(keys).shape
    block = 1 << (isqrt(extent // k).bit_length() - 1)
    if prod(rows) * extent**2 <= DIRECT or block == 1:
        return n.add("order", n.add("rank", keys, largest=largest), count=k)
    count = -(-extent // block)
    keys = _padded(n, keys, count * block, _last(n.type(keys).dtype, largest))
    whole = n.reshape(keys, (*rows, count, block))
    firsts = n.add("reduce", whole, fn="max" if largest else "min", axes=(-1,), keepdims=False)
    blocks = _first(n, firsts, k, largest)
    blocks = elements_at(n, blocks, n.add("order", n.add("rank", blocks, largest=False), count=k), -1)
    starts = n.reshape(n.add("mul", blocks, n.like(block, blocks)), (*rows, k, 1))
    places = n.reshape(n.add("add", starts, n.constant(np.arange(block, dtype=np.int32))), (*rows, k * block))
    return elements_at(n, places, _first(n, elements_at(n, keys, places, -1), k, largest), -1)


def _padded(n: Node, x: TensorId, extent: int, value: Any) -> TensorId:
    """Append elements to the last axis, after all equal ones."""
    kind = n.type(x)
    missing = extent - kind.shape[-1]
    if not missing:
        return x
    return n.concat([x, n.constant(np.full((*kind.shape[:-1], missing), value, kind.dtype.numpy))], kind.rank - 1)


def _last(dtype: DType, largest: bool) -> Any:
    """Return the value that sorts last."""
    if dtype.is_float:
        return -np.inf if largest else np.inf
    return dtype.info.min if largest else dtype.info.max
