"""Import scatters. Known indices become a gather from data and updates; unknown ones a search for each position."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from rammer.frontend.onnx.handlers.complex_numbers import combined, folded
from rammer.frontend.onnx.handlers.indexing import check_indices, check_size, places_along
from rammer.frontend.onnx.node import Node, handles
from rammer.ir.ops.operands import MAX_ELEMENTS
from rammer.ir.ops.update import SUMMED
from rammer.ir.tensor import Array, DType, Shape, TensorId

_REDUCTIONS = ("add", "mul", "max", "min")
MAX_ROUNDS = 256  # updates of one position in a reducing scatter


@handles("ScatterElements", "Scatter", "ScatterND")
def scatter(n: Node) -> TensorId:
    """Scatter. With known indices this is a gather from the data and the updates, concatenated.

    A reduction takes rounds that update each position at most once. With unknown indices, each position searches all
    updates.
    """
    x, shape, updates = n.tensor(0), n.shape(), n.tensor(2)
    reduction = n.attrs.get("reduction") or "none"
    if reduction != "none" and reduction not in _REDUCTIONS:
        raise n.fail(f"reduction {reduction!r} is unknown", hint=f"none, {', '.join(_REDUCTIONS)}")
    if not n.type(updates).size:
        return x
    known = n.builder.value(n.tensor(1))
    if known is None:
        _check_shapes(n, n.shape(1))
        operands, placed = (x, updates, n.tensor(1)), _placed(n, reduction)
        summed = reduction != "none"
        if summed and n.dtype() in SUMMED and prod(shape) * prod(n.shape(1)) > MAX_ELEMENTS:
            return n.add("scatter", *operands, **placed)
        found = _searched(n, reduction)
        return found if summed and n.dtype() not in SUMMED else n.builder.could_update(found, *operands, **placed)
    indices = known.astype(np.int64)
    check_size(n, shape, DType.I64)
    targets = _targets(n, indices, shape)
    flat, given = n.reshape(x, (prod(shape),)), n.reshape(updates, (n.type(updates).size,))
    if reduction == "none":
        return n.reshape(_replaced(n, flat, targets, given), shape)
    order = np.argsort(targets, kind="stable")
    starts = np.concatenate([[True], np.diff(targets[order]) != 0])
    place = np.arange(targets.size)
    occurrence = np.empty_like(targets)  # number of earlier updates of the same position
    occurrence[order] = place - np.maximum.accumulate(np.where(starts, place, 0))
    if occurrence.max() >= MAX_ROUNDS:
        raise n.fail(f"more than {MAX_ROUNDS} updates of one element")
    for turn in range(int(occurrence.max()) + 1):
        chosen = np.flatnonzero(occurrence == turn)
        old = n.add("gather", flat, n.constant(targets[chosen]), axis=0)
        new = combined(n, reduction, old, n.add("gather", given, n.constant(chosen), axis=0))
        flat = _replaced(n, flat, targets[chosen], new)
    return n.reshape(flat, shape)


def _replaced(n: Node, flat: TensorId, targets: Array, values: TensorId) -> TensorId:
    """Replace elements of the flat tensor. The last of several values for one position wins."""
    total = n.type(flat).size
    source = np.arange(total)
    source[targets] = total + np.arange(targets.size)
    return n.add("gather", n.concat([flat, values], 0), n.constant(source), axis=0)


def _targets(n: Node, indices: Array, shape: Shape) -> Array:
    """Return the flat position of every update."""
    places: Array = np.arange(prod(shape)).reshape(shape)
    _check_shapes(n, indices.shape)
    if n.op == "ScatterND":
        for d in range(indices.shape[-1]):
            check_indices(n, n.constant(indices[..., d]), shape[d])
        return np.ravel(places[tuple(np.moveaxis(indices, -1, 0))])
    axis = n.axis(n.attrs["axis"], len(shape))
    check_indices(n, n.tensor(1), shape[axis])
    at = [indices % shape[axis] if d == axis else places_along(indices.shape, d) for d in range(len(shape))]
    return np.ravel(places[tuple(at)])


def _check_shapes(n: Node, given: Shape) -> None:
    """Raise ModelError unless indices of this shape fit the data and the updates."""
    shape, wanted = n.shape(), n.shape(2)
    misfit = n.fail(f"indices {list(given)} and updates {list(wanted)} do not fit {n.type(n.tensor(0))}")
    if n.op == "ScatterND":
        depth = given[-1] if given else 0
        if not 1 <= depth <= len(shape) or wanted != (*given[:-1], *shape[depth:]):
            raise misfit
        return
    axis = n.axis(n.attrs["axis"], len(shape))
    if given != wanted or len(given) != len(shape):
        raise misfit
    if any(w > e for d, (w, e) in enumerate(zip(wanted, shape, strict=True)) if d != axis):
        raise misfit


def _searched(n: Node, reduction: str) -> TensorId:
    """Scatter with unknown indices, reshaped for `scattered`: lines, positions (or updates), and the rest."""
    x, shape, given, wanted = n.tensor(0), n.shape(), n.shape(1), n.shape(2)
    if n.op == "ScatterND":
        depth = given[-1]
        rows, count, rest = prod(shape[:depth]), prod(given[:-1]), prod(shape[depth:])
        parts = n.reshape(n.tensor(1), (count, depth))
        flat: TensorId = n.constant(np.zeros((1, count), np.int64))
        for d in range(depth):
            part = _checked(n, n.reshape(n.slice(parts, (0, d), (count, 1)), (1, count)), shape[d])
            flat = n.add("add", flat, n.add("mul", part, n.constant(prod(shape[d + 1 : depth]))))
        data, updates = n.reshape(x, (1, rows, rest)), n.reshape(n.tensor(2), (1, count, rest))
        return n.reshape(scattered(n, data, flat, updates, reduction), shape)
    axis = n.axis(n.attrs["axis"], len(shape))
    perm = [*(d for d in range(len(shape)) if d != axis), axis]
    index = _checked(n, n.tensor(1), shape[axis])
    missing = [0 if d == axis else shape[d] - wanted[d] for d in range(len(shape))]
    pads = (*(0,) * len(shape), *missing)
    values = n.tensor(2)
    if any(pads):  # lines without updates get some out of range
        index = n.add("pad", index, pads=pads, mode="constant", value=shape[axis])
        values = n.add("pad", values, pads=pads, mode="constant", value=0)
    lines = prod(shape) // shape[axis]
    data = n.reshape(n.transpose(x, perm), (lines, shape[axis], 1))
    updates = n.reshape(n.transpose(values, perm), (lines, wanted[axis], 1))
    index = n.reshape(n.transpose(index, perm), (lines, wanted[axis]))
    found = n.reshape(scattered(n, data, index, updates, reduction), [shape[d] for d in perm])
    return n.transpose(found, [perm.index(d) for d in range(len(shape))])


def _placed(n: Node, reduction: str) -> dict[str, Any]:
    """Return the attributes of an update that does the same."""
    rank, given = len(n.shape()), n.shape(1)
    combine = {} if reduction == "none" else {"combine": reduction}
    if n.op == "ScatterND":
        lead, depth = len(given) - 1, given[-1]
        return {"moves": (*(~d for d in range(depth)), *range(lead, lead + rank - depth)), "how": "vectors", **combine}
    axis = n.axis(n.attrs["axis"], rank)
    return {"moves": tuple(-1 if d == axis else d for d in range(rank)), "how": "elements", **combine}


def _checked(n: Node, index: TensorId, extent: int) -> TensorId:
    """Return indices counted from the front. The gather reports those out of range at run time."""
    return n.add("gather", n.constant(np.arange(extent)), index, axis=0)


def scattered(n: Node, data: TensorId, index: TensorId, updates: TensorId, reduction: str) -> TensorId:
    """Store updates[lines, count, rest] in data[lines, places, rest] at index[lines, count]; skip what is out of range.

    Of several updates of one position the last one wins, or all are combined. Quadratic: each position searches all.
    """
    (lines, places, rest), count = n.type(data).shape, n.type(index).shape[1]
    dtype = n.type(data).dtype
    if reduction != "none":
        met = n.add("equal", n.reshape(index, (lines, 1, count, 1)), n.constant(np.arange(places).reshape(-1, 1, 1)))
        neutral = n.constant(_neutral(reduction, dtype), dtype)
        terms = n.add("where", met, n.reshape(updates, (lines, 1, count, rest)), neutral)
        return combined(n, reduction, data, folded(n, reduction, terms, 2))
    last = n.add("last_equal", n.cast(index, DType.I32), count=places)
    zero = n.constant(0, DType.I32)
    met = n.add("less_equal", zero, last)
    rows = n.add("add", n.add("where", met, last, zero), n.constant(np.arange(lines)[:, None] * count, DType.I32))
    new = n.add("gather", n.reshape(updates, (lines * count, rest)), rows, axis=0)
    return n.add("where", n.reshape(met, (lines, places, 1)), new, data)


def _neutral(reduction: str, dtype: DType) -> Any:
    if reduction in ("add", "mul"):
        return int(reduction == "mul")
    if dtype.part.is_float:
        end = -np.inf if reduction == "max" else np.inf
        return complex(end, end) if dtype.is_complex else end
    return dtype.info.min if reduction == "max" else dtype.info.max
