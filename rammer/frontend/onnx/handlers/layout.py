"""Import Shape, and operators that only move elements."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from rammer.frontend.onnx.node import Node, handles
from rammer.ir.tensor import Array, DType, TensorId


@handles("Shape")
def shape(n: Node) -> TensorId:
    start, end = n.attrs.get("start", 0) or 0, n.attrs.get("end")
    return n.constant(n.shape()[slice(start, end)], DType.I64)


@handles("Size")
def size(n: Node) -> TensorId:
    return n.constant(prod(n.shape()), DType.I64)


@handles("Reshape")
def reshape(n: Node) -> TensorId:
    old, wanted, allow_zero = n.shape(), n.listed(1, "shape") or (), bool(n.attrs.get("allowzero"))
    new = list(wanted)
    if len(new) > n.limits.rank:
        raise n.fail(f"shape has {len(new)} dimensions, the limit is {n.limits.rank}")
    for d, extent in enumerate(new):
        if extent < -1 or (extent == 0 and not allow_zero and d >= len(old)):
            raise n.fail(f"cannot reshape {n.type(n.tensor(0))} to {list(wanted)}")
        if extent == 0 and not allow_zero:
            new[d] = old[d]
    if new.count(-1) > 1 or (allow_zero and -1 in new and 0 in new):
        raise n.fail(f"shape {list(wanted)} is ambiguous")
    if -1 in new:
        rest = -prod(new)
        if rest and prod(old) % rest == 0:
            new[new.index(-1)] = prod(old) // rest
        elif not rest and not prod(old):
            new[new.index(-1)] = 0
    if prod(new) != prod(old) or -1 in new:
        raise n.fail(f"cannot reshape {n.type(n.tensor(0))} to {list(wanted)}")
    return n.reshape(n.tensor(0), new)


@handles("Flatten")
def flatten(n: Node) -> TensorId:
    old, axis = n.shape(), n.attrs["axis"]
    if not -len(old) <= axis <= len(old):
        raise n.fail(f"axis {axis} does not exist in a tensor of rank {len(old)}")
    axis += len(old) if axis < 0 else 0
    return n.reshape(n.tensor(0), (prod(old[:axis]), prod(old[axis:])))


@handles("Squeeze", "Unsqueeze")
def squeeze(n: Node) -> TensorId:
    old, axes = n.shape(), n.listed(1, "axes")
    if n.op == "Squeeze":
        gone = n.axes(axes, len(old)) if axes is not None else [d for d, e in enumerate(old) if e == 1]
        if any(old[d] != 1 for d in gone):
            raise n.fail(f"cannot squeeze dimensions {list(gone)} of {n.type(n.tensor(0))}")
        return n.reshape(n.tensor(0), [e for d, e in enumerate(old) if d not in gone])
    if axes is None:
        raise n.fail("axes is missing")
    rank = len(old) + len(axes)
    new_axes = set(n.axes(axes, rank))
    rest = iter(old)
    return n.reshape(n.tensor(0), [1 if d in new_axes else next(rest) for d in range(rank)])


@handles("Transpose")
def transpose(n: Node) -> TensorId:
    rank = len(n.shape())
    perm = n.attrs.get("perm")
    if perm is None:
        perm = tuple(reversed(range(rank)))
    if sorted(perm) != list(range(rank)):
        raise n.fail(f"perm {list(perm)} is no permutation of {rank} dimensions")
    return n.transpose(n.tensor(0), perm)


@handles("Concat")
def concat(n: Node) -> TensorId:
    rank = len(n.shape())
    axis = n.attrs.get("axis")
    axis = n.axis(1 if axis is None else axis, rank)
    for tensor in n.present():
        other = n.type(tensor).shape
        if len(other) != rank or any(other[d] != n.shape()[d] for d in range(rank) if d != axis):
            raise n.fail(f"operands {n.type(n.tensor(0))} and {n.type(tensor)} do not fit along axis {axis}")
    return n.concat(n.present(), axis)


@handles("Split")
def split(n: Node) -> list[TensorId]:
    """Split a tensor. In opset 1 the parts may be an operand of the input's type."""
    parts: Sequence[int] | None = _whole(n, 1, "split") if n.opset < 2 and n.has(1) else n.listed(1, "split")
    whole = n.shape()
    axis = n.axis(n.attrs["axis"] or 0, len(whole))
    count = len(n.outputs)
    if parts is None:
        if n.attrs.get("num_outputs") is not None and n.attrs["num_outputs"] != count:
            raise n.fail(f"num_outputs is {n.attrs['num_outputs']}, but there are {count} outputs")
        if n.opset < 18 and whole[axis] % count:
            raise n.fail(f"{whole[axis]} elements of axis {axis} do not split into {count} equal parts")
        step = -(-whole[axis] // count)
        parts = [min(step, whole[axis] - step * p) for p in range(count)]
    if len(parts) != count or any(p < 0 for p in parts) or sum(parts) != whole[axis]:
        raise n.fail(f"split {list(parts)} does not divide {whole[axis]} elements of axis {axis} into {count} outputs")
    results, start = [], 0
    for part in parts:
        results.append(n.cut(n.tensor(0), axis, start, part))
        start += part
    return results


@handles("Slice")
def slice_(n: Node) -> TensorId:
    old, starts, ends = n.shape(), n.listed(1, "starts") or (), n.listed(2, "ends") or ()
    axes, steps = n.listed(3, "axes"), n.listed(4, "steps")
    axes = n.axes(axes if axes is not None else range(len(starts)), len(old))
    steps = steps if steps is not None else (1,) * len(starts)
    if not len(starts) == len(ends) == len(axes) == len(steps) or 0 in steps:
        raise n.fail(f"starts {list(starts)}, ends {list(ends)}, axes {list(axes)}, steps {list(steps)} do not fit")
    begin, step, new = [0] * len(old), [1] * len(old), list(old)
    for axis, *bounds in zip(axes, starts, ends, steps, strict=True):
        chosen = range(*slice(*bounds).indices(old[axis]))
        begin[axis], step[axis], new[axis] = chosen.start if len(chosen) else 0, chosen.step, len(chosen)
        if len(chosen) <= 1:
            step[axis] = 1
    if tuple(new) == old and min(step, default=1) > 0:
        return n.tensor(0)
    return n.add("slice", n.tensor(0), starts=tuple(begin), steps=tuple(step), shape=tuple(new))


@handles("Pad")
def pad(n: Node) -> TensorId:
    x, old, axes = n.tensor(0), n.shape(), n.listed(3, "axes")
    amounts = n.listed(1, "pads") or n.attrs.get("paddings") or ()
    value = n.scalar(2, "constant_value") if n.has(2) else n.attrs.get("value", 0)
    axes = n.axes(axes if axes is not None else range(len(old)), len(old))
    if len(amounts) != 2 * len(axes):
        raise n.fail(f"pads is {list(amounts)}", hint=f"{2 * len(axes)} numbers are needed")
    pads = [0] * (2 * len(old))
    for p, axis in enumerate(axes):
        pads[axis], pads[len(old) + axis] = amounts[p], amounts[len(axes) + p]
    if any(p < 0 for p in pads):  # negative pads cut off
        cut = [max(-p, 0) for p in pads]
        sizes = [e - cut[d] - cut[len(old) + d] for d, e in enumerate(old)]
        if any(s < 0 for s in sizes):
            raise n.fail(f"pads {list(amounts)} cut off more than {n.type(x)} has")
        x = n.slice(x, cut[: len(old)], sizes)
        pads = [max(p, 0) for p in pads]
    mode = n.attrs["mode"]
    if mode not in ("constant", "reflect", "edge", "wrap"):
        raise n.fail(f"mode is {mode!r}", hint="constant, reflect, edge or wrap")
    if not any(pads):
        return x
    if n.type(x).dtype is DType.BOOL:
        inner = n.add("pad", n.cast(x, DType.U8), pads=tuple(pads), mode=mode, value=int(bool(value)))
        return n.cast(inner, DType.BOOL)
    return n.add("pad", x, pads=tuple(pads), mode=mode, value=value)


@handles("Expand")
def expand(n: Node) -> TensorId:
    wanted = n.ints(1, "shape")
    if any(e < 0 for e in wanted) or len(wanted) > n.limits.rank:
        raise n.fail(f"shape is {list(wanted)[:20]}")
    try:
        return n.expand(n.tensor(0), np.broadcast_shapes(n.shape(), wanted))
    except ValueError:
        raise n.fail(f"{n.type(n.tensor(0))} does not broadcast with {list(wanted)}") from None


@handles("Tile")
def tile_axis(n: Node) -> TensorId:
    """Tile along one axis, before opset 6. Both numbers have the input's type."""
    tiles, axes = _whole(n, 1, "tiles"), _whole(n, 2, "axis")
    if len(tiles) != 1 or len(axes) != 1:
        raise n.fail(f"tiles {list(tiles)[:20]} and axis {list(axes)[:20]} must be a number each")
    axis = n.axis(axes[0], len(n.shape()))
    return _tile(n, [tiles[0] if d == axis else 1 for d in range(len(n.shape()))])


def _whole(n: Node, position: int, what: str) -> tuple[int, ...]:
    """Return the integers of a constant operand, whose type may be float."""
    values = n.value(position, what).ravel()
    if not np.array_equal(values, np.trunc(values)) or not (abs(values) < 2**31).all():
        raise n.fail(f"{what} {values.tolist()[:20]} has numbers that are no extents")
    return tuple(int(v) for v in values)


@handles("Tile", since=6)
def tile(n: Node) -> TensorId:
    return _tile(n, n.ints(1, "repeats"))


def _tile(n: Node, repeats: Sequence[int]) -> TensorId:
    """Tile: split each repeated dimension in two, and broadcast the first one."""
    old = n.shape()
    if len(repeats) != len(old) or any(r < 0 for r in repeats):
        raise n.fail(f"repeats {list(repeats)} do not fit {n.type(n.tensor(0))}")
    split = [s for e, r in zip(old, repeats, strict=True) for s in ((1, e) if r != 1 else (e,))]
    full = [s for e, r in zip(old, repeats, strict=True) for s in ((r, e) if r != 1 else (e,))]
    final = [e * r for e, r in zip(old, repeats, strict=True)]
    return n.reshape(n.expand(n.reshape(n.tensor(0), split), full), final)


@handles("ConstantOfShape")
def constant_of_shape(n: Node) -> TensorId:
    """Return a constant that takes no memory: one element, broadcast."""
    extents = n.ints(0, "shape")
    value: Array = np.zeros((1,), np.float32) if n.attrs["value"] is None else n.decode(n.attrs["value"])
    if value.size != 1 or any(e < 0 for e in extents) or len(extents) > n.limits.rank:
        raise n.fail(f"cannot make {list(extents)[:20]} from a value of {value.size} elements")
    nbytes = prod(extents) * value.itemsize
    if nbytes > n.limits.tensor_bytes:
        raise n.fail(f"a constant of {nbytes} bytes exceeds {n.limits.tensor_bytes}", hint="raise Limits.tensor_bytes")
    return n.builder.constant(np.broadcast_to(value.reshape(()), extents))


@handles("DepthToSpace", "SpaceToDepth")
def depth_to_space(n: Node) -> TensorId:
    block = n.attrs["blocksize"]
    if len(n.shape()) != 4 or block < 1:
        raise n.fail(f"blocksize {block} on {n.type(n.tensor(0))}", hint="the input must be [N, C, H, W]")
    batch, channels, height, width = n.shape()
    if n.op == "SpaceToDepth":
        if height % block or width % block:
            raise n.fail(f"blocks of {block} do not divide {n.type(n.tensor(0))}")
        x = n.reshape(n.tensor(0), (batch, channels, height // block, block, width // block, block))
        x = n.transpose(x, (0, 3, 5, 1, 2, 4) if n.attrs.get("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4))
        return n.reshape(x, (batch, channels * block * block, height // block, width // block))
    if channels % (block * block):
        raise n.fail(f"{channels} channels do not divide into blocks of {block}×{block}")
    depth = channels // (block * block)
    if n.attrs.get("mode", "DCR") == "DCR":
        x = n.transpose(n.reshape(n.tensor(0), (batch, block, block, depth, height, width)), (0, 3, 4, 1, 5, 2))
    else:
        x = n.transpose(n.reshape(n.tensor(0), (batch, depth, block, block, height, width)), (0, 1, 4, 2, 5, 3))
    return n.reshape(x, (batch, depth, height * block, width * block))
