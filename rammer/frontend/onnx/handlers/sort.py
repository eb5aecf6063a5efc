"""Find the largest or smallest elements, by counting ranks within the blocks that can contain them."""

from __future__ import annotations

from math import isqrt, prod
from typing import Any

import numpy as np

from rammer.frontend.onnx.handlers.indexing import elements_at
from rammer.frontend.onnx.node import Node, handles
from rammer.ir.tensor import DType, TensorId

SEARCHED = 64  # places up to which each of them is searched for, in vectors
DIRECT = 1 << 18  # comparisons up to which rows are ranked directly: more of them, but fewer operators


@handles("TopK")
def top_k(n: Node) -> list[TensorId]:
    """Return the top k. Among equal elements the lower index comes first; NaN counts as infinity."""
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
    keys = n.add("where", n.add("is_nan", moved), n.like(np.inf, moved), moved) if dtype.is_float else moved
    found = n.cast(_first(n, keys, k, largest), DType.I64)
    return [n.transpose(elements_at(n, moved, found, -1), back), n.transpose(found, back)]


def _first(n: Node, keys: TensorId, k: int, largest: bool) -> TensorId:
    """Return the positions of the first k elements of each row, in sorted order.

    Ranking compares all pairs, so it is quadratic. Rows are therefore split into blocks, and only the k blocks with the
    best first elements are searched: about √(extent · k) elements, twice, instead of all. Blocks keep the order of
    their positions, so that the lower index still comes first among equal elements.
    """
    *rows, extent = n.type(keys).shape
    block = 1 << (isqrt(extent // k).bit_length() - 1)
    if prod(rows) * extent**2 <= DIRECT or block == 1:
        return _order(n, n.add("rank", keys, largest=largest), k)
    count = -(-extent // block)
    keys = _padded(n, keys, count * block, _last(n.type(keys).dtype, largest))
    whole = n.reshape(keys, (*rows, count, block))
    firsts = n.add("reduce", whole, fn="max" if largest else "min", axes=(-1,), keepdims=False)
    blocks = _first(n, firsts, k, largest)
    blocks = elements_at(n, blocks, _order(n, n.add("rank", blocks, largest=False), k), -1)
    starts = n.reshape(n.add("mul", blocks, n.like(block, blocks)), (*rows, k, 1))
    places = n.reshape(n.add("add", starts, n.constant(np.arange(block, dtype=np.int32))), (*rows, k * block))
    return elements_at(n, places, _first(n, elements_at(n, keys, places, -1), k, largest), -1)


def _order(n: Node, ranks: TensorId, k: int) -> TensorId:
    """Return the place of each of the first k ranks: found by comparing, or stored there if that is less work."""
    found, shape = n.add("order", ranks, count=k), n.type(ranks).shape
    if k < SEARCHED:
        return found
    places = np.broadcast_to(np.arange(shape[-1], dtype=np.int32), shape)
    moves = (*range(len(shape) - 1), -1)
    zeros = n.constant(np.zeros((*shape[:-1], k), np.int32))
    return n.builder.could_update(found, zeros, n.constant(places), ranks, moves=moves, how="chosen")


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
