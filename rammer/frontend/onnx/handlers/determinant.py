"""Compute determinants by Gaussian elimination."""

from __future__ import annotations

from math import prod

import numpy as np

from rammer.frontend.onnx.node import Node, handles
from rammer.ir.tensor import DType, TensorId

LARGEST = 64  # rows; each becomes a dozen operators


@handles("Det")
def det(n: Node) -> TensorId:
    """Multiply the pivots, each the largest of its column. Swapping a pivot row in changes the sign."""
    x, shape = n.tensor(0), n.shape()
    if len(shape) < 2 or shape[-1] != shape[-2]:
        raise n.fail(f"{n.type(x)} is no square matrix")
    if shape[-1] > LARGEST:
        raise n.fail(f"a matrix of {shape[-1]} rows", hint=f"up to {LARGEST} are supported")
    batch = prod(shape[:-2])
    rest = n.reshape(n.cast(x, n.dtype().accumulator), (batch, *shape[-2:]))
    result = n.constant(np.ones((batch, 1, 1)), n.type(rest).dtype)
    for size in range(shape[-1], 0, -1):
        column = n.slice(rest, (0, 0, 0), (batch, size, 1))
        chosen = n.add("arg_max", n.add("abs", column), axis=1, keepdims=True, select_last_index=False)
        pivot_row = n.add("gather_nd", rest, chosen, batch_dims=1)
        pivot = n.slice(pivot_row, (0, 0, 0), (batch, 1, 1))
        zero = n.like(0, pivot)
        kept = n.add("equal", chosen, n.constant(0, DType.I64))
        sign = n.add("where", kept, n.like(1, pivot), n.like(-1, pivot))
        result = n.add("mul", result, n.add("mul", pivot, sign))
        if size == 1:
            break
        first = n.slice(rest, (0, 0, 0), (batch, 1, size))
        moved = n.add("equal", n.constant(np.arange(size)[:, None]), chosen)
        rest = n.slice(n.add("where", moved, first, rest), (0, 1, 0), (batch, size - 1, size))
        safe = n.add("where", n.add("equal", pivot, zero), n.like(1, pivot), pivot)  # a column of zeros: det is 0
        factors = n.add("div", n.slice(rest, (0, 0, 0), (batch, size - 1, 1)), safe)
        taken = n.add("mul", factors, n.slice(pivot_row, (0, 0, 1), (batch, 1, size - 1)))
        rest = n.add("sub", n.slice(rest, (0, 0, 1), (batch, size - 1, size - 1)), taken)
    return n.cast(n.reshape(result, shape[:-2]), n.dtype())
