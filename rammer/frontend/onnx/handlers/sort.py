"""Import the choice of the largest or smallest elements."""

from __future__ import annotations

import numpy as np

from rammer.frontend.onnx.handlers.indexing import elements_at
from rammer.frontend.onnx.node import Node, handles
from rammer.ir.tensor import DType, TensorId


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
        empty = [0 if d == axis else e for d, e in enumerate(shape)]
        return [n.constant(np.zeros(empty, t.numpy)) for t in (dtype, DType.I64)]
    if k == 1:
        first = n.add(*("arg_max", x) if largest else ("arg_min", _without_nan(n, x)), axis=axis)
        return [elements_at(n, x, first, axis), first]
    ranks = n.add("rank", _without_nan(n, moved), largest=largest)
    found = n.cast(n.add("order", ranks, count=k), DType.I64)
    return [n.transpose(elements_at(n, moved, found, -1), back), n.transpose(found, back)]


def _without_nan(n: Node, x: TensorId) -> TensorId:
    return n.add("where", n.add("is_nan", x), n.like(np.inf, x), x) if n.type(x).dtype.is_float else x
