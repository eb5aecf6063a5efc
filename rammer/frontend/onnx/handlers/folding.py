"""Import Col2Im and MaxUnpool, which put windows back into images."""

from __future__ import annotations

from math import prod

import numpy as np

from rammer.frontend.onnx.handlers.complex_numbers import channels, of_channels
from rammer.frontend.onnx.handlers.indexing import inside
from rammer.frontend.onnx.handlers.scatter import scattered
from rammer.frontend.onnx.node import Node, handles
from rammer.ir.tensor import DType, Shape, TensorId


@handles("Col2Im")
def col2im(n: Node) -> TensorId:
    """Sum overlapping blocks: gather all elements that meet at a pixel, then reduce."""
    x, shape, image, block = n.tensor(0), n.shape(), n.ints(1, "image_shape"), n.ints(2, "block_shape")
    rank, inner = len(image), prod(block)
    strides, dilations = (tuple(n.attrs[a] or (1,) * rank) for a in ("strides", "dilations"))
    pads = tuple(n.attrs["pads"] or (0,) * (2 * rank))
    fits = len(block) == len(strides) == len(dilations) == rank > 0 and len(pads) == 2 * rank and len(shape) == 3
    if not fits or min(*image, *block, *strides, *dilations) < 1 or min(pads) < 0 or shape[1] % inner:
        raise n.fail(f"blocks of {list(block)} from {n.type(x)} do not fit an image of {list(image)}")
    reach = [d * (b - 1) + 1 for d, b in zip(dilations, block, strict=True)]
    counts = [(e + pads[d] + pads[rank + d] - reach[d]) // strides[d] + 1 for d, e in enumerate(image)]
    if min(counts) < 1 or prod(counts) != shape[2]:
        raise n.fail(f"{counts} blocks of {list(block)} fit an image of {list(image)}, not {shape[2]}")
    if max(inner * shape[2], prod(image)) * 8 > n.limits.fold_bytes:
        raise n.fail(f"{inner * shape[2]} numbers for {list(image)} pixels", hint="raise Limits.fold_bytes")
    inside, pixel = np.ones((inner, shape[2]), bool), np.zeros((inner, shape[2]), np.int64)
    for d in range(rank):
        step, at = (np.indices(extents)[d].ravel() for extents in (block, counts))
        place = step[:, None] * dilations[d] + at * strides[d] - pads[d]
        inside &= (place >= 0) & (place < image[d])
        pixel = pixel * image[d] + place
    source = np.flatnonzero(inside)
    target = pixel.ravel()[source]
    order = np.argsort(target, kind="stable")
    source, target = source[order], target[order]
    turn = np.arange(target.size) - np.searchsorted(target, target)  # number of earlier elements of the same pixel
    rounds = int(turn.max(initial=0)) + 1
    if rounds * prod(image) * 8 > n.limits.fold_bytes:
        raise n.fail(f"{rounds} blocks meet at each of {list(image)} pixels", hint="raise Limits.fold_bytes")
    index, known = np.zeros((rounds, prod(image)), np.int64), np.zeros((rounds, prod(image)), bool)
    index[turn, target], known[turn, target] = source, True
    x = channels(n, x)
    planes = n.type(x).shape[1] // inner
    found = n.add("gather", n.reshape(x, (shape[0] * planes, inner * shape[2])), n.constant(index), axis=1)
    found = n.add("where", n.constant(known), found, n.like(0, found))
    found = n.reshape(n.reduce(found, "sum", (1,), keepdims=False), (shape[0], planes, *image))
    return of_channels(n, found, n.dtype())


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
    zeros = n.builder.constant(np.broadcast_to(np.zeros((), n.dtype().numpy), (planes, count, 1)))
    found = n.reshape(scattered(n, zeros, at, n.reshape(x, (planes, prod(shape[2:]), 1)), "none"), (*shape[:2], *full))
    wanted = n.ints(2, "output_shape") if n.has(2) else n.type(found).shape
    if len(wanted) != rank + 2 or wanted[:2] != shape[:2] or any(w < f for w, f in zip(wanted[2:], full, strict=True)):
        raise n.fail(f"output_shape {list(wanted)} has no room for {n.type(found)}")
    more = tuple(w - f for w, f in zip(wanted, n.type(found).shape, strict=True))
    return n.add("pad", found, pads=(*(0,) * (rank + 2), *more), mode="constant", value=0.0) if any(more) else found
