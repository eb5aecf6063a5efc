"""Import operators whose output's size depends on values.

Where these are not known, the output has a bound: kept rows come first, and their number is an output of its own. Known
as: stream compaction, padded shapes. Sessions cut the rows. Other importers need the values at compile time.
"""

from __future__ import annotations

import numpy as np

from rammer.frontend.onnx.handlers.reduction import scanned
from rammer.frontend.onnx.node import Node, handles
from rammer.ir.tensor import DType, TensorId

MOST_ROWS = 1024  # that are kept or not in a program; NumPy is as fast with more
CORNERS = np.kron([[1, 1], [-0.5, 0.5]], np.eye(2))  # of a box by its centre and size
LONG_ROW = 64  # elements from which rows are chosen by a gather
MOST_STEPS = 128  # boxes of a class that a program selects, one after another


@handles("NonZero")
def non_zero(n: Node) -> TensorId:
    value = n.builder.value(x := n.tensor(0))
    if value is None and n.builder.counts is not None and 0 < n.type(x).size <= MOST_ROWS and not n.dtype().is_complex:
        shape, flat = n.shape() or (1,), n.reshape(x, (n.type(x).size,))
        flags = n.add("not", n.add("equal", flat, n.like(0, flat)))
        return _kept(n, n.constant(np.indices(shape).reshape(len(shape), -1), DType.I64), flags, 1)
    value = n.value(0, "X")
    return n.constant(np.array(np.nonzero(value if value.ndim else value.reshape(1)), np.int64))


@handles("Compress", since=9)
def compress(n: Node) -> TensorId:
    """Select elements, as a gather if the condition is known. Many elements by an unknown one need values, too."""
    x, given, axis = n.tensor(0), n.tensor(1), n.attrs["axis"]
    data, condition = n.builder.value(x), n.builder.value(given)
    if data is not None and condition is not None:
        most = data.size if axis is None else data.shape[n.axis(axis, data.ndim)]
        if condition.ndim != 1 or condition.size > most:
            raise n.fail(f"condition {list(condition.shape)} does not fit axis {axis} of {list(data.shape)}")
        return n.constant(np.compress(condition, data, axis))
    if axis is None:
        x, axis = n.reshape(x, (n.type(x).size,)), 0
    axis = n.axis(axis, n.type(x).rank)
    if len(n.shape(1)) != 1 or n.shape(1)[0] > n.type(x).shape[axis]:
        raise n.fail(f"condition {list(n.shape(1))} does not fit axis {axis} of {n.type(x)}")
    counted = condition is None and n.builder.counts is not None and isinstance(n.inputs[0], str)
    if counted and 0 < n.shape(1)[0] <= MOST_ROWS and n.type(x).size:
        return _kept(n, n.cut(x, axis, 0, n.shape(1)[0]), given, axis)
    if condition is None:
        n.value(0, "input")
    return n.add("gather", x, n.constant(np.flatnonzero(n.value(1, "condition")), DType.I64), axis=axis)


def _kept(n: Node, data: TensorId, flags: TensorId, axis: int) -> TensorId:
    """Return the places of `data` along an axis whose flag is set, before any others. A session cuts them behind."""
    assert n.builder.counts is not None
    shape, counted = n.type(data).shape, n.cast(flags, DType.I32)
    before = scanned(n, counted, "sum", 0, 1, reverse=False)
    places = n.add("where", flags, before, n.like(shape[axis], before))
    if n.type(data).size < LONG_ROW * shape[axis]:
        places = n.reshape(places, [e if d == axis else 1 for d, e in enumerate(shape)])
        moves = tuple(-1 if d == axis else d for d in range(len(shape)))
        result = n.add("scatter", data, data, places, moves=moves, how="chosen")
    else:  # a scatter would copy all rows, then store the kept ones
        none, numbers = (n.constant(f(shape[axis]), DType.I32) for f in (np.zeros, np.arange))
        kept = n.add("scatter", none, numbers, places, moves=(-1,), how="chosen")
        result = n.add("gather", data, kept, axis=axis)
    n.builder.counts[result] = axis, n.cast(n.reduce(counted, "sum", (0,), keepdims=False), DType.I64)
    return result


@handles("Unique")
def unique(n: Node) -> list[TensorId]:
    """Return distinct elements, or slices along an axis; sorted, or in the order of their first occurrence."""
    x, axis = n.value(0, "X"), n.attrs["axis"]
    axis = None if axis is None else n.axis(axis, x.ndim)
    found, first, inverse, counts = np.unique(x, return_index=True, return_inverse=True, return_counts=True, axis=axis)
    order = np.arange(first.size) if n.attrs["sorted"] else np.argsort(first)
    place = np.empty_like(order)
    place[order] = np.arange(first.size)
    values = np.take(found, order, 0 if axis is None else axis)
    numbers = first[order], place[inverse.ravel()], counts[order]
    return [n.constant(values), *(n.constant(v, DType.I64) for v in numbers)]


@handles("NonMaxSuppression")
def non_max_suppression(n: Node) -> TensorId:
    """Select boxes by falling score, for each batch and class, unless they overlap a selected one too much."""
    most = int(n.scalar(2, "max_output_boxes_per_class")) if n.has(2) else 0
    bound = max(float(n.scalar(3, "iou_threshold")), 0.0) if n.has(3) else 0.0
    least = float(n.scalar(4, "score_threshold")) if n.has(4) else -np.inf
    if n.attrs["center_point_box"] not in (0, 1):
        raise n.fail(f"center_point_box is {n.attrs['center_point_box']}", hint="0 or 1")
    unknown = any(n.builder.value(n.tensor(k)) is None for k in (0, 1))
    if n.builder.counts is not None and len(n.shape(1)) == 3 and unknown:
        (batch, kinds, number), steps = n.shape(1), min(most, n.shape(1)[-1])
        if 0 < steps <= MOST_STEPS and 0 < batch * kinds * steps <= MOST_ROWS and n.shape() == (batch, number, 4):
            return _selected(n, steps, bound, least)
    boxes, scores = n.value(0, "boxes").astype(np.float64), n.value(1, "scores")
    if boxes.ndim != 3 or scores.ndim != 3 or boxes.shape[2] != 4 or scores.shape[::2] != boxes.shape[:2]:
        raise n.fail(f"boxes {list(boxes.shape)} and scores {list(scores.shape)} do not fit")
    corners = boxes @ CORNERS if n.attrs["center_point_box"] else boxes
    low, high = np.moveaxis(np.sort(corners.reshape(*boxes.shape[:-1], 2, 2), -2), -2, 0)
    areas = np.prod(high - low, -1)
    chosen: list[tuple[int, int, int]] = []
    for batch, kind in np.ndindex(*scores.shape[:2]):
        own = scores[batch, kind]
        left = np.argsort(-own, kind="stable")
        left = left[own[left] > least] if n.has(4) else left
        for _ in range(most):
            if not left.size:
                break
            box, left = left[0], left[1:]
            chosen.append((batch, kind, box))
            sides = np.minimum(high[batch, left], high[batch, box]) - np.maximum(low[batch, left], low[batch, box])
            shared = np.prod(np.maximum(sides, 0), -1)
            whole = areas[batch, left] + areas[batch, box] - shared
            left = left[~(shared > bound * whole)]  # a box without area shares nothing
    return n.constant(np.array(chosen, np.int64).reshape(-1, 3))


def _selected(n: Node, steps: int, bound: float, least: float) -> TensorId:
    """Return selected boxes with a bound: each step takes the highest score that is left in every class."""
    (batch, kinds, number), x, scores = n.shape(1), n.tensor(0), n.tensor(1)
    corners = n.product(x, n.like_array(CORNERS, x)) if n.attrs["center_point_box"] else x
    gone, last, zero = (n.like(value, scores) for value in (-np.inf, -3.4e38, 0))
    sides = [n.cut(n.transpose(corners, (0, 2, 1)), 1, at, 2) for at in (0, 2)]
    low, high = (n.add(fn, *sides) for fn in ("min", "max"))
    area = n.reduce(n.add("sub", high, low), "prod", (1,))
    planes = n.concat([low, high, area], 1)  # of all boxes: neighbours in vectors
    table = n.transpose(planes, (0, 2, 1))
    places = n.constant(np.arange(number).reshape(1, 1, -1), DType.I32)
    left = n.add("where", n.add("less", last, scores), scores, last)  # so that -inf and NaN come last, and are not gone
    if n.has(4):
        left = n.add("where", n.add("less", n.like(least, scores), scores), left, gone)
    found, tops = list[TensorId](), list[TensorId]()
    for _ in range(steps):
        found.append(n.add("arg_max", left, axis=2, keepdims=True, select_last_index=False))
        tops.append(n.add("gather_elements", left, found[-1], axis=2))
        own = n.add("gather_nd", table, n.reshape(found[-1], (batch, kinds, 1, 1)), batch_dims=1)
        pairs = [(n.cut(planes, 1, k, 1), n.pick(own, 3, k)) for k in range(5)]
        inner = [n.add("sub", n.add("min", *pairs[k + 2]), n.add("max", *pairs[k])) for k in (0, 1)]
        shared = n.add("mul", *(n.add("max", side, zero) for side in inner))
        whole = n.add("sub", n.add("add", *pairs[4]), shared)
        over = n.add("less", n.add("mul", n.like(bound, whole), whole), shared)
        left = n.add("where", n.add("or", over, n.add("equal", places, n.cast(found[-1], DType.I32))), gone, left)
    rows = batch * kinds * steps
    classes = n.constant(np.indices((batch, kinds, steps))[:2].reshape(2, rows).T, DType.I64)
    chosen = n.concat([classes, n.reshape(n.concat(found, 2), (rows, 1))], 1)
    return _kept(n, chosen, n.add("less", gone, n.reshape(n.concat(tops, 2), (rows,))), 0)
