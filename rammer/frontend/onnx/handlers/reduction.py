"""Import reductions, and operators built from them."""

from __future__ import annotations

from math import gcd

import numpy as np

from rammer.frontend.onnx.node import Node, handles
from rammer.ir.tensor import DType, TensorId

BLOCK = 8  # elements of a cumulative sum that are combined in registers
_KINDS = ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2")
_FUNCTIONS = {
    **{f"Reduce{kind}": kind.lower() for kind in _KINDS},
    "ReduceSumSquare": "sum_square",
    "ReduceLogSum": "log_sum",
    "ReduceLogSumExp": "log_sum_exp",
}
_SAME = ("sum", "mean", "max", "min", "prod", "l2", "log_sum_exp")
_OF_PARTS = {**{fn: fn for fn in _SAME}, "sum_square": "sum", "l1": "sum"}
LEAST_PARTS, MOST, LARGE = 64, 1024, 1 << 16  # parts of a reduction of all elements, from so many elements on


@handles(*_FUNCTIONS)
def reduce(n: Node) -> TensorId:
    x, rank = n.tensor(0), len(n.shape())
    fn, axes, noop = _FUNCTIONS[n.op], n.listed(1, "axes"), bool(n.attrs.get("noop_with_empty_axes"))
    if not axes:
        if noop and fn in ("sum", "mean", "max", "min", "prod"):
            return x
        axes = () if noop else tuple(range(rank))
    return reduced(n, x, fn, tuple(sorted(n.axes(axes, rank))), bool(n.attrs["keepdims"]))


def reduced(n: Node, x: TensorId, fn: str, axes: tuple[int, ...], keepdims: bool = False) -> TensorId:
    """Reduce a tensor; all elements of a large one in parts, so that all vEUs share them."""
    kind, size = n.type(x), n.type(x).size
    parts = gcd(size, MOST) if size % LEAST_PARTS == 0 and size >= LARGE and len(axes) == kind.rank else 1
    if parts == 1 or fn not in _OF_PARTS or kind.dtype.accumulator is not kind.dtype:
        return n.reduce(x, fn, axes, keepdims)
    of_parts = n.reduce(n.reshape(x, (parts, size // parts)), fn, (1,), keepdims=False)
    return n.reshape(n.reduce(of_parts, _OF_PARTS[fn], (0,)), (1,) * kind.rank if keepdims else ())


@handles("ArgMax", "ArgMin")
def arg(n: Node) -> TensorId:
    kind = "arg_max" if n.op == "ArgMax" else "arg_min"
    axis = n.axis(n.attrs["axis"], len(n.shape()))
    if n.shape()[axis] == 0:
        raise n.fail(f"axis {axis} is empty")
    last = bool(n.attrs.get("select_last_index"))
    return n.add(kind, n.tensor(0), axis=axis, keepdims=bool(n.attrs["keepdims"]), select_last_index=last)


@handles("Softmax", "LogSoftmax", "Hardmax", since=13)
def softmax(n: Node) -> TensorId:
    return _softmax(n, n.tensor(0), n.axis(n.attrs["axis"], len(n.shape())))


@handles("Softmax", "LogSoftmax", "Hardmax")
def softmax_flattened(n: Node) -> TensorId:
    """Compute softmax before opset 13: over all axes from `axis` on."""
    shape = n.shape()
    axis = n.axis(n.attrs["axis"], len(shape)) if n.attrs["axis"] != len(shape) else len(shape)
    rows = int(np.prod(shape[:axis], dtype=object))
    columns = int(np.prod(shape[axis:], dtype=object))
    return n.reshape(_softmax(n, n.reshape(n.tensor(0), (rows, columns)), 1), shape)


def _softmax(n: Node, x: TensorId, axis: int) -> TensorId:
    if n.op == "Hardmax":
        shape = n.type(x).shape
        first = n.add("arg_max", x, axis=axis, keepdims=True, select_last_index=False)
        places = np.arange(shape[axis]).reshape([-1 if d == axis else 1 for d in range(len(shape))])
        return n.cast(n.add("equal", n.constant(places, DType.I64), first), n.type(x).dtype)
    return n.add("softmax" if n.op == "Softmax" else "log_softmax", x, axis=axis)


@handles("CumSum", "CumProd")
def accumulated(n: Node) -> TensorId:
    """Compute a cumulative sum or product.

    Excluded elements are left out, not multiplied by zero, which would make NaN of an infinity.
    """
    x, fn = n.cast(n.tensor(0), n.dtype().accumulator), "sum" if n.op == "CumSum" else "prod"
    axis = n.axis(int(n.scalar(1, "axis")), len(n.shape()))
    return n.cast(scanned(n, x, fn, axis, int(n.attrs["exclusive"]), reverse=bool(n.attrs["reverse"])), n.dtype())


def scanned(n: Node, x: TensorId, fn: str, axis: int, skipped: int, *, reverse: bool) -> TensorId:
    """Combine elements of a block with the scan of earlier blocks' results. It reads twice, whatever the extent is."""
    shape = n.type(x).shape
    extent, rank = shape[axis], len(shape)
    block = max((b for b in range(BLOCK // 2, BLOCK + 1) if extent % b == 0), default=BLOCK)
    if extent <= block:
        return n.add("accumulate", x, fn=fn, axis=axis, skipped=skipped, reverse=reverse)
    blocks = -(-extent // block)
    missing = tuple(blocks * block - extent if d == rank + axis else 0 for d in range(2 * rank))
    if any(missing):
        x = n.add("pad", x, pads=missing, mode="constant", value=int(fn == "prod"))
    x = n.reshape(x, (*shape[:axis], blocks, block, *shape[axis + 1 :]))
    earlier = scanned(n, n.reduce(x, fn, (axis + 1,), keepdims=False), fn, axis, 1, reverse=reverse)
    inside = n.add("accumulate", x, fn=fn, axis=axis + 1, skipped=skipped, reverse=reverse)
    earlier = n.reshape(earlier, (*shape[:axis], blocks, 1, *shape[axis + 1 :]))
    found = n.add("add" if fn == "sum" else "mul", inside, earlier)
    return n.slice(n.reshape(found, (*shape[:axis], blocks * block, *shape[axis + 1 :])), (0,) * rank, shape)
