"""The largest or smallest elements, by counting, block by block."""

from __future__ import annotations

from typing import Any

import numpy as np

from rammer.frontend.onnx.handlers.indexing import elements_at
from rammer.frontend.onnx.node import Node, handles
from rammer.ir.tensor import DType, TensorId

BLOCK = 1024  # elements that are sorted at once, at least: smaller blocks cost more operators than they save


@handles("TopK")
def top_k_attribute(n: Node) -> list[TensorId]:
    return _top_k(n, n.attrs["k"])


@handles("TopK", since=10)
def top_k_input(n: Node) -> list[TensorId]:
    return _top_k(n, int(n.scalar(1, "K")))


def _top_k(n: Node, k: int) -> list[TensorId]:
    """The first k elements of each block go on, in their order, until one block holds all that are left.

    Sorting is by counting, quadratic in the block: so blocks are a few times as long as k, and the whole takes about
    6·k comparisons for each element. Of equal elements the first comes first; NaN counts as infinity.
    """
    x, shape = n.tensor(0), n.shape()
    axis = n.axis(n.attrs["axis"], len(shape))
    if not 0 <= k <= shape[axis]:
        raise n.fail(f"K is {k}, but axis {axis} has {shape[axis]} elements")
    perm = [*(d for d in range(len(shape)) if d != axis), axis]
    back = [perm.index(d) for d in range(len(shape))]
    moved = n.transpose(x, perm)
    rows, dtype, largest = n.type(moved).shape[:-1], n.dtype(), bool(n.attrs.get("largest", 1))
    if not k:
        return [
            n.constant(np.zeros([0 if d == axis else e for d, e in enumerate(shape)], t.numpy))
            for t in (dtype, DType.I64)
        ]
    keys = n.add("where", n.add("is_nan", moved), n.like(np.inf, moved), moved) if dtype.is_float else moved
    places: TensorId | None = None  # of the keys in x; None: where they are
    block = max(BLOCK, 4 * k)
    while (extent := n.type(keys).shape[-1]) > block:
        count = -(-extent // block)
        keys = _padded(n, keys, count * block, _last(dtype, largest))
        chosen = n.add("order", n.add("rank", n.reshape(keys, (*rows, count, block)), largest=largest), count=k)
        chosen = n.add("add", chosen, n.constant(np.arange(count, dtype=np.int32)[:, None] * np.int32(block)))
        chosen = n.reshape(chosen, (*rows, count * k))
        places = chosen if places is None else elements_at(n, _padded(n, places, count * block, 0), chosen, -1)
        keys = elements_at(n, keys, chosen, -1)
    found = n.add("order", n.add("rank", keys, largest=largest), count=k)
    found = n.cast(found if places is None else elements_at(n, places, found, -1), DType.I64)
    values = elements_at(n, moved, found, -1)
    return [n.transpose(values, back), n.transpose(found, back)]


def _padded(n: Node, x: TensorId, extent: int, value: Any) -> TensorId:
    """More elements at the end of the last axis: after all equal ones."""
    kind = n.type(x)
    missing = extent - kind.shape[-1]
    if not missing:
        return x
    return n.concat([x, n.constant(np.full((*kind.shape[:-1], missing), value, kind.dtype.numpy))], kind.rank - 1)


def _last(dtype: DType, largest: bool) -> Any:
    """The value that comes last."""
    if dtype.is_float:
        return -np.inf if largest else np.inf
    return dtype.info.min if largest else dtype.info.max
