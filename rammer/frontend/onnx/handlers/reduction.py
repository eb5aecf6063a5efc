"""Reductions, and what is made of them."""

from __future__ import annotations

import numpy as np

from rammer.frontend.onnx.node import Node, handles
from rammer.ir.tensor import DType, TensorId

_FUNCTIONS = {
    "ReduceSum": "sum",
    "ReduceMean": "mean",
    "ReduceMax": "max",
    "ReduceMin": "min",
    "ReduceProd": "prod",
    "ReduceSumSquare": "sum_square",
    "ReduceL1": "l1",
    "ReduceL2": "l2",
    "ReduceLogSum": "log_sum",
    "ReduceLogSumExp": "log_sum_exp",
}


@handles(*_FUNCTIONS)
def reduce(n: Node) -> TensorId:
    x, rank = n.tensor(0), len(n.shape())
    fn, axes, noop = _FUNCTIONS[n.op], n.listed(1, "axes"), bool(n.attrs.get("noop_with_empty_axes"))
    if not axes:
        if noop and fn in ("sum", "mean", "max", "min", "prod"):
            return x
        axes = () if noop else tuple(range(rank))
    found = tuple(sorted(n.axes(axes, rank)))
    keep = bool(n.attrs["keepdims"])
    return n.reduce(x, fn, found, keep)


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
    """Before opset 13: over everything from `axis` on."""
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


@handles("CumSum")
def cum_sum(n: Node) -> TensorId:
    """A product with a triangular matrix of ones along the axis."""
    x, shape = n.tensor(0), n.shape()
    axis = n.axis(int(n.scalar(1, "axis")), len(shape))
    extent = shape[axis]
    if extent > 4096:
        raise n.fail(f"axis {axis} has {extent} elements", hint="CumSum is supported up to 4096")
    i, j = np.ogrid[:extent, :extent]
    if n.attrs["reverse"]:
        i, j = -i, -j
    matrix = (i < j) if n.attrs["exclusive"] else (i <= j)
    last = len(shape) - 1
    perm = [*(d for d in range(len(shape)) if d != axis), axis]
    product = n.add("matmul", n.transpose(x, perm), n.constant(matrix, n.type(x).dtype))
    return n.transpose(product, [perm.index(d) for d in range(last + 1)])


@handles("CumProd")
def cum_prod(n: Node) -> TensorId:
    """Products of 1, 2, 4, … elements in turn: each is that of half as many, times its neighbour's."""
    x, shape = n.tensor(0), n.shape()
    axis = n.axis(int(n.scalar(1, "axis")), len(shape))
    extent, back = shape[axis], bool(n.attrs["reverse"])
    if n.attrs["exclusive"] and extent:
        x = _moved_along(n, x, axis, 1, back)
    step = 1
    while step < extent:
        x = n.add("mul", x, _moved_along(n, x, axis, step, back))
        step *= 2
    return x


def _moved_along(n: Node, x: TensorId, axis: int, step: int, back: bool) -> TensorId:
    """The elements `step` places before along an axis (after, if `back`), and ones where there are none."""
    rank = n.type(x).rank
    amount = [step if d == axis else 0 for d in range(rank)]
    less = [-a for a in amount]
    return n.add("pad", x, pads=tuple(less + amount if back else amount + less), mode="constant", value=1)
