"""Import Col2Im and MaxUnpool, which put windows back into images."""

from __future__ import annotations

from math import prod

import numpy as np

from rammer.frontend.onnx.handlers.complex_numbers import channels, of_channels
from rammer.frontend.onnx.handlers.indexing import inside
from rammer.frontend.onnx.handlers.scatter import scattered
from rammer.frontend.onnx.node import Node, handles
from rammer.ir.tensor import DType, Shape, TensorId

MOST_TERMS = 1 << 10  # taps and phases along all dimensions of a block that is put back


@handles("Col2Im")
def col2im(n: Node) -> TensorId:
    """Sum overlapping blocks, one dimension after another."""
    x, shape, image, block = n.tensor(0), n.shape(), n.ints(1, "image_shape"), n.ints(2, "block_shape")
    rank, inner = len(image), prod(block)
    strides, dilations = (tuple(n.attrs[a] or (1,) * rank) for a in ("strides", "dilations"))
    pads = tuple(n.attrs["pads"] or (0,) * (2 * rank))
    fits = len(block) == len(strides) == len(dilations) == rank > 0 and len(pads) == 2 * rank and len(shape) == 3
    if not fits or min(*image, *block, *strides, *dilations) < 1 or min(pads) < 0 or shape[1] % inner:
        raise n.fail(f"blocks of {list(block)} from {n.type(x)} do not fit an image of {list(image)}")
    if sum(block) + sum(strides) > MOST_TERMS:
        raise n.fail(f"blocks are {list(block)}, strides {list(strides)}", hint=f"their sum is at most {MOST_TERMS}")
    full = [e + pads[d] + pads[rank + d] for d, e in enumerate(image)]
    counts = [(e - t * (b - 1) - 1) // s + 1 for e, t, b, s in zip(full, dilations, block, strides, strict=True)]
    if min(counts) < 1 or prod(counts) != shape[2]:
        raise n.fail(f"{counts} blocks of {list(block)} fit an image of {list(image)}, not {shape[2]}")
    found = channels(n, x)
    found = n.reshape(found, (shape[0], n.type(found).shape[1] // inner, *block, *counts))
    if max(strides) == 1:
        found = n.add("fold", found, dilations=dilations)
        found = n.slice(found, (0, 0, *pads[:rank]), (*n.type(found).shape[:2], *image))
    for d in range(rank) if max(strides) > 1 else ():
        found = n.cut(_overlapped(n, found, rank + 2, strides[d], dilations[d], full[d]), rank + 1, pads[d], image[d])
    return of_channels(n, found, n.dtype())


def _overlapped(n: Node, x: TensorId, axis: int, stride: int, dilation: int, extent: int) -> TensorId:
    """Sum the taps in dimension 2, each at its positions along an axis, for each phase of positions by the stride."""
    shape, phases, rows = n.type(x).shape, list[TensorId | None]((None,) * stride), -(-extent // stride)
    outer, count, after, rank = (*shape[:2], *shape[3:axis]), shape[axis], shape[axis + 1 :], len(shape) - 1
    for tap in range(shape[2]):
        before, phase = divmod(tap * dilation, stride)
        pads = {axis - 1: before, rank + axis - 1: rows - count - before}
        own = n.add(
            "pad", n.pick(x, 2, tap), pads=tuple(pads.get(d, 0) for d in range(2 * rank)), mode="constant", value=0.0
        )
        earlier = phases[phase]
        phases[phase] = own if earlier is None else n.add("add", earlier, own)
    zeros = n.builder.constant(np.broadcast_to(np.zeros((), n.type(x).dtype.numpy), (*outer, rows, *after)))
    parts = [n.reshape(zeros if part is None else part, (*outer, rows, 1, *after)) for part in phases]
    return n.cut(n.reshape(n.concat(parts, axis), (*outer, rows * stride, *after)), axis - 1, 0, extent)


@handles("MaxUnpool", since=9)
def max_unpool(n: Node) -> TensorId:
    """Scatter into zeros, plane by plane. A larger output_shape adds zeros at the ends."""
    x, shape, kernel = n.tensor(0), n.shape(), tuple(n.attrs["kernel_shape"])
    rank = len(kernel)
    strides, pads = tuple(n.attrs["strides"] or (1,) * rank), tuple(n.attrs["pads"] or (0,) * (2 * rank))
    if len(shape) != rank + 2 or len(strides) != rank or len(pads) != 2 * rank or n.shape(1) != shape or 0 in shape:
        raise n.fail(f"kernel_shape {list(kernel)}, strides, pads and indices do not fit {n.type(x)}")
    full: Shape = tuple((shape[2 + d] - 1) * strides[d] - pads[d] - pads[rank + d] + kernel[d] for d in range(rank))
    if min(full) < 1 or min((*kernel, *strides)) < 1 or min(pads) < 0:
        raise n.fail(f"an image of {list(full)} from windows of {list(kernel)} every {list(strides)}")
    planes, count = shape[0] * shape[1], prod(full)
    given = n.cast(n.reshape(n.tensor(1), (planes, prod(shape[2:]))), DType.I64)
    at = inside(n, n.add("sub", given, n.constant(np.arange(planes)[:, None] * count)), count)
    zeros = n.builder.constant(np.broadcast_to(np.zeros((), n.dtype().numpy), (planes, count)))
    flat = n.reshape(x, (planes, prod(shape[2:])))
    lines = [n.reshape(t, (*n.type(t).shape, 1)) for t in (zeros, flat)]
    found = n.reshape(scattered(n, lines[0], at, lines[1], "none"), (planes, count))
    found = n.builder.could_update(found, zeros, flat, at, moves=(0, -1), how="elements")
    found = n.reshape(found, (*shape[:2], *full))
    wanted = n.ints(2, "output_shape") if n.has(2) else n.type(found).shape
    if len(wanted) != rank + 2 or wanted[:2] != shape[:2] or any(w < f for w, f in zip(wanted[2:], full, strict=True)):
        raise n.fail(f"output_shape {list(wanted)} has no room for {n.type(found)}")
    more = tuple(w - f for w, f in zip(wanted, n.type(found).shape, strict=True))
    return n.add("pad", found, pads=(*(0,) * (rank + 2), *more), mode="constant", value=0.0) if any(more) else found
