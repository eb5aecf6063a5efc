"""Import gathers, and constants with a pattern."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from rammer.frontend.onnx.node import Node, handles
from rammer.frontend.onnx.tensors import element_type
from rammer.ir.tensor import Array, DType, Shape, TensorId


@handles("Gather")
def gather(n: Node) -> TensorId:
    axis = n.axis(n.attrs["axis"], len(n.shape()))
    check_indices(n, n.tensor(1), n.shape()[axis])
    known = n.builder.value(n.tensor(1))
    if known is not None and (regular := _progression(known, n.shape()[axis])) is not None:
        start, step = regular  # evenly spaced indices are a slice: affine, and a view along the outermost axis
        shape = n.shape()
        starts = tuple(start if d == axis else 0 for d in range(len(shape)))
        steps = tuple(step if d == axis else 1 for d in range(len(shape)))
        part = (*shape[:axis], known.size, *shape[axis + 1 :])
        return n.reshape(
            n.add("slice", n.tensor(0), starts=starts, steps=steps, shape=part),
            (*shape[:axis], *known.shape, *shape[axis + 1 :]),
        )
    return n.add("gather", n.tensor(0), n.tensor(1), axis=axis)


def _progression(indices: Array, extent: int) -> tuple[int, int] | None:
    """Return first index and step of evenly spaced indices; None for others."""
    places = indices.astype(np.int64).ravel() % extent if extent else indices.ravel()
    if not places.size:
        return None
    steps = np.diff(places)
    if not steps.size:
        return int(places[0]), 1
    return (int(places[0]), int(steps[0])) if steps[0] and bool((steps == steps[0]).all()) else None


def check_indices(n: Node, indices: TensorId, extent: int) -> None:
    """Raise ModelError for a constant index out of range. Other indices are checked at run time."""
    if (known := n.builder.value(indices)) is not None:
        check_range(n, known, extent)


def check_range(n: Node, known: Array, extent: int) -> None:
    """Raise ModelError for an index out of range."""
    if known.size and not (-extent <= known.min() and known.max() < extent):
        bad = known[(known < -extent) | (known >= extent)].ravel()[0]
        raise n.fail(f"index {bad} is outside [-{extent}, {extent})")


def inside(n: Node, index: TensorId, extent: int) -> TensorId:
    """Return an index as int64. A number outside 0 … extent - 1 raises an error at run time."""
    wide = n.cast(index, DType.I64)
    never = n.add("where", n.add("less", wide, n.constant(0)), n.constant(extent), wide)
    return n.add("gather", n.constant(np.arange(extent)), never, axis=0)


def places_along(shape: Shape, axis: int) -> Array:
    """Return the position along one axis, shaped to broadcast."""
    return np.arange(shape[axis]).reshape([-1 if d == axis else 1 for d in range(len(shape))])


@handles("GatherElements")
def gather_elements(n: Node) -> TensorId:
    return elements_at(n, n.tensor(0), n.tensor(1), n.attrs["axis"])


def elements_at(n: Node, x: TensorId, indices: TensorId, axis: int) -> TensorId:
    """Gather elements along an axis, one for each index."""
    axis = n.axis(axis, n.type(x).rank)
    check_indices(n, indices, n.type(x).shape[axis])
    return n.add("gather_elements", x, _as_index(n, indices), axis=axis)


def _as_index(n: Node, x: TensorId) -> TensorId:
    return x if n.type(x).dtype in (DType.I32, DType.I64) else n.cast(x, DType.I64)


@handles("GatherND")
def gather_nd(n: Node) -> TensorId:
    batch = n.attrs.get("batch_dims", 0)
    found = n.add("gather_nd", n.tensor(0), _as_index(n, n.tensor(1)), batch_dims=batch)
    if (known := n.builder.value(n.tensor(1))) is not None:
        for extent, part in zip(n.shape()[batch:], np.moveaxis(known, -1, 0), strict=False):
            check_range(n, part, extent)
    return found


@handles("Range")
def range_(n: Node) -> TensorId:
    start, limit, delta = (n.scalar(p, what) for p, what in enumerate(("start", "limit", "delta")))
    if delta == 0 or not np.isfinite([start, limit, delta]).all():
        raise n.fail(f"range({start}, {limit}, {delta}) has no end")
    steps = np.ceil((limit - start) / delta) if isinstance(start, float) else len(range(start, limit, delta))
    count = max(int(steps), 0)
    if count * n.dtype().itemsize > n.limits.fold_bytes:
        raise n.fail(f"range({start}, {limit}, {delta}) has {count} elements", hint="raise Limits.fold_bytes")
    dtype = n.dtype().numpy
    wide = np.float32 if n.dtype() in (DType.F16, DType.BF16) and n.attrs.get("stash_type", 1) else dtype
    return n.constant((np.arange(count) * np.asarray(delta, wide) + np.asarray(start, wide)).astype(dtype))


@handles("EyeLike")
def eye_like(n: Node) -> TensorId:
    shape, code = n.shape(), n.attrs.get("dtype")
    if len(shape) != 2:
        raise n.fail(f"{n.type(n.tensor(0))} is no matrix")
    dtype = n.dtype() if code is None else element_type(code, "attribute 'dtype'", node=n.label, op=n.op)
    check_size(n, shape, dtype)
    return n.constant(np.eye(*shape, k=n.attrs["k"]), dtype)


def check_size(n: Node, shape: Sequence[int], dtype: DType) -> None:
    nbytes = prod(shape) * dtype.itemsize
    if nbytes > n.limits.fold_bytes:
        raise n.fail(f"needs a constant of {nbytes} bytes", hint="raise Limits.fold_bytes")


@handles("Trilu")
def trilu(n: Node) -> TensorId:
    x, shape = n.tensor(0), n.shape()
    if len(shape) < 2:
        raise n.fail(f"{n.type(x)} is no matrix")
    k = int(n.scalar(1, "k")) if n.has(1) else 0
    check_size(n, shape[-2:], DType.BOOL)
    i, j = np.ogrid[: shape[-2], : shape[-1]]
    kept = (j - i >= k) if n.attrs["upper"] else (j - i <= k)
    if n.type(x).dtype is DType.BOOL:
        return n.add("and", x, n.constant(kept))
    return n.add("where", n.constant(kept), x, n.like(0, x))


@handles("OneHot")
def one_hot(n: Node) -> TensorId:
    depth = int(n.scalar(1, "depth"))
    shape = n.shape()
    if depth < 1:
        raise n.fail(f"depth is {depth}")
    axis = n.axis(n.attrs["axis"], len(shape) + 1)
    index = n.cast(n.tensor(0), DType.I64)
    index = n.add("where", n.add("less", index, n.constant(0)), n.add("add", index, n.constant(depth)), index)
    index = n.reshape(index, (*shape[:axis], 1, *shape[axis:]))
    places = np.arange(depth).reshape([-1 if d == axis else 1 for d in range(len(shape) + 1)])
    values = n.tensor(2)
    if n.shape(2) != (2,):
        raise n.fail(f"values is {n.type(values)} instead of two numbers")
    off, on = (n.reshape(n.slice(values, (p,), (1,)), ()) for p in range(2))
    return n.add("where", n.add("equal", index, n.constant(places)), on, off)


@handles("ReverseSequence")
def reverse_sequence(n: Node) -> TensorId:
    """Reverse the first elements of each sequence, as a gather of rows; the others stay where they are."""
    x, shape = n.tensor(0), n.shape()
    if len(shape) < 2 or {n.attrs["batch_axis"], n.attrs["time_axis"]} != {0, 1}:
        raise n.fail("batch_axis and time_axis must be 0 and 1, in either order")
    axis = n.attrs["time_axis"]
    batch, time, rest = shape[1 - axis], shape[axis], shape[2:]
    if n.shape(1) != (batch,):
        raise n.fail(f"sequence_lens is {n.type(n.tensor(1))} instead of one number for each of {batch} sequences")
    known = n.builder.value(n.tensor(1))
    if known is not None and known.size and not 0 <= known.min() <= known.max() <= time:
        raise n.fail(f"sequence_lens has numbers outside 0…{time}")
    own, steps = (np.expand_dims(np.arange(e), a) for e, a in ((batch, axis), (time, 1 - axis)))  # each along its axis
    length, at = n.reshape(inside(n, n.tensor(1), time + 1), own.shape), n.constant(steps)
    backwards = n.add("sub", n.add("sub", length, n.constant(1)), at)
    place = n.add("where", n.add("less", at, length), backwards, at)
    strides = (batch, 1) if axis == 0 else (1, time)
    rows = n.add("add", n.add("mul", place, n.constant(strides[0])), n.constant(own * strides[1]))
    return n.add("gather", n.reshape(x, (batch * time, *rest)), rows, axis=0)


@handles("TensorScatter")
def tensor_scatter(n: Node) -> TensorId:
    """Update a cache: each position gathers its element of the update if it has one, else keeps its own."""
    cache, shape, update = n.tensor(0), n.shape(), n.shape(1)
    axis, mode = n.axis(n.attrs["axis"], len(shape)), n.attrs["mode"]
    if mode not in ("linear", "circular"):
        raise n.fail(f"mode is {mode!r}", hint="linear or circular")
    others = [(*s[:axis], *s[axis + 1 :]) for s in (shape, update)]
    if axis == 0 or len(update) != len(shape) or update[axis] > shape[axis] or others[0] != others[1]:
        raise n.fail(f"update {n.type(n.tensor(1))} does not fit {n.type(cache)} along axis {axis}")
    batch, extent, count = shape[0], shape[axis], update[axis]
    if not n.type(n.tensor(1)).size:
        return cache
    start: TensorId = n.constant(np.zeros(batch, np.int64))
    if n.has(2):
        start = n.tensor(2)
        if n.shape(2) != (batch,):
            raise n.fail(f"write_indices is {n.type(start)} instead of one number for each of {batch} batches")
    known = n.builder.value(start)
    if known is not None and mode == "linear" and not 0 <= known.min() <= known.max() <= extent - count:
        raise n.fail(f"write_indices has numbers outside 0…{extent - count}")
    first = start
    start = inside(n, start, extent - count + 1) if mode == "linear" else start
    source = n.add("sub", n.constant(np.arange(extent)), n.reshape(start, (batch, 1)))
    if mode == "circular":
        source = n.add("mod", source, n.constant(extent))
    found = with_rows(n, cache, n.tensor(1), source, axis)
    if known is not None:
        return found
    moves = tuple(-1 if d == axis else d for d in range(len(shape)))
    return n.builder.could_update(found, cache, n.tensor(1), first, moves=moves, how=mode)


def with_rows(n: Node, base: TensorId, new: TensorId, source: TensorId, axis: int) -> TensorId:
    """Return `base` with rows of `new` along an axis where `source` [batch, extent] is the number of one."""
    shape, zero = n.type(new).shape, n.constant(0)
    batch, count, rank = shape[0], shape[axis], len(shape)
    place = [batch if d == 0 else n.type(source).shape[1] if d == axis else 1 for d in range(rank)]
    written = n.add("and", n.add("less_equal", zero, source), n.add("less", source, n.constant(count)))
    if count > 1:
        source = n.add("where", written, source, zero)
        source = n.add("add", source, n.constant(np.arange(batch)[:, None] * count))
        perm = [0, axis, *(d for d in range(1, rank) if d != axis)]
        rows = n.transpose(new, perm)
        new = n.add("gather", n.reshape(rows, (batch * count, *n.type(rows).shape[2:])), source, axis=0)
        new = n.transpose(new, [perm.index(d) for d in range(rank)])
    return n.add("where", n.reshape(written, place), new, base)
