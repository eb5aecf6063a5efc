"""Import operators whose output's size depends on values, if these are known at compile time."""

from __future__ import annotations

import numpy as np

from rammer.frontend.onnx.node import Node, handles
from rammer.ir.tensor import Array, DType, TensorId


@handles("NonZero")
def non_zero(n: Node) -> TensorId:
    value = n.value(0, "X")
    return n.constant(np.array(np.nonzero(value if value.ndim else value.reshape(1)), np.int64))


@handles("Compress", since=9)
def compress(n: Node) -> TensorId:
    """Select elements, as a gather. The condition must be known, the data need not."""
    x, condition, axis = n.tensor(0), n.value(1, "condition"), n.attrs["axis"]
    if axis is None:
        x, axis = n.reshape(x, (n.type(x).size,)), 0
    axis = n.axis(axis, n.type(x).rank)
    if condition.ndim != 1 or condition.size > n.type(x).shape[axis]:
        raise n.fail(f"condition {list(condition.shape)} does not fit axis {axis} of {n.type(x)}")
    return n.add("gather", x, n.constant(np.flatnonzero(condition), DType.I64), axis=axis)


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
    boxes, scores = n.value(0, "boxes").astype(np.float64), n.value(1, "scores")
    if boxes.ndim != 3 or scores.ndim != 3 or boxes.shape[2] != 4 or scores.shape[::2] != boxes.shape[:2]:
        raise n.fail(f"boxes {list(boxes.shape)} and scores {list(scores.shape)} do not fit")
    if n.attrs["center_point_box"] not in (0, 1):
        raise n.fail(f"center_point_box is {n.attrs['center_point_box']}", hint="0 or 1")
    most = int(n.scalar(2, "max_output_boxes_per_class")) if n.has(2) else 0
    bound = float(n.scalar(3, "iou_threshold")) if n.has(3) else 0.0
    least = float(n.scalar(4, "score_threshold")) if n.has(4) else -np.inf
    low, high = np.moveaxis(_corners(boxes, bool(n.attrs["center_point_box"])), -2, 0)
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


def _corners(boxes: Array, centred: bool) -> Array:
    """Return least and greatest coordinates: [..., 2, 2]."""
    pairs = boxes.reshape(*boxes.shape[:-1], 2, 2)
    if centred:
        middle, half = pairs[..., 0, :], pairs[..., 1, :] / 2
        return np.stack([middle - half, middle + half], -2)
    return np.sort(pairs, -2)
