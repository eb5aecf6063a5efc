"""Import sampling at run-time positions between pixels: GridSample, RoiAlign, DeformConv; also MaxRoiPool.

An image is rows of channels, one per pixel. One gather fetches the taps of all points, which are then weighted.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from math import isqrt, prod

import numpy as np

from rammer.frontend.onnx.handlers.complex_numbers import channels, of_channels
from rammer.frontend.onnx.handlers.neural import windows
from rammer.frontend.onnx.node import Node, handles
from rammer.ir.tensor import DType, Shape, TensorId

MAX_BINS = 1 << 14  # bins of a region along an axis
CUBIC = -0.75
# Weights of taps as polynomials of their distance: coefficients, highest power first; one column per tap.
_INNER, _OUTER = (CUBIC + 2, -CUBIC - 3, 0.0, 1.0), (CUBIC, -5 * CUBIC, 8 * CUBIC, -4 * CUBIC)
_TAPS = {
    "nearest": ((0,), ((0.0,), (1.0,))),
    "linear": ((0, 1), ((-1.0, -1.0), (1.0, 1.0))),
    "cubic": ((-1, 0, 1, 2), tuple(zip(_OUTER, _INNER, _INNER, _OUTER, strict=True))),
}
MOST_ADDED = 8  # taps of a point that one operator gathers and adds
_MODES = {"bilinear": "linear", "bicubic": "cubic"}  # names before opset 20


@handles("GridSample")
def grid_sample(n: Node) -> TensorId:
    mode, padding = _MODES.get(n.attrs["mode"], n.attrs["mode"]), n.attrs["padding_mode"]
    if mode not in _TAPS or padding not in ("zeros", "border", "reflection"):
        raise n.fail(f"mode {mode!r} with padding_mode {padding!r} is not supported", hint="see the ONNX standard")
    (batch, _, *spatial), grid = n.shape(), n.shape(1)
    rank = len(spatial)
    if not rank or len(grid) != rank + 2 or grid[0] != batch or grid[-1] != rank or 0 in spatial:
        raise n.fail(f"grid {n.type(n.tensor(1))} does not fit {n.type(n.tensor(0))}")
    corners, points = bool(n.attrs["align_corners"]), prod(grid[1:-1])
    given = n.reshape(_wide(n, n.tensor(1)), (batch, points, rank))
    places = []
    for axis, extent in enumerate(spatial):  # the last number of a point is for the first axis
        at = n.reshape(n.slice(given, (0, 0, rank - 1 - axis), (batch, points, 1)), (batch, points))
        scale = (extent - 1 if corners else extent) / 2
        at = n.add("add", n.add("mul", at, n.like(scale, at)), n.like((extent - 1) / 2, at))
        places.append(n.add("round", at) if mode == "nearest" else at)
    first = n.constant(np.arange(batch) * prod(spatial))
    rows = _rows(n, channels(n, n.tensor(0)))
    found = _weighted(n, rows, tuple(spatial), first, places, mode, padding, corners)
    return of_channels(n, _images(n, found, grid[1:-1]), n.dtype())


@handles("RoiAlign")
def roi_align(n: Node) -> TensorId:
    """Return means, or largest weighted taps, of a grid of points in every bin of a region."""
    a, shape, (regions, *_) = n.attrs, n.shape(), n.shape(1)
    height, width, ratio = a["output_height"], a["output_width"], a["sampling_ratio"]
    if len(shape) != 4 or n.shape(1) != (regions, 4) or n.shape(2) != (regions,) or 0 in shape:
        raise n.fail(f"regions {n.type(n.tensor(1))} do not fit {n.type(n.tensor(0))}")
    if min(height, width) < 1 or ratio < 0 or a["mode"] not in ("avg", "max"):
        raise n.fail(f"an output of {height}×{width}, sampling_ratio {ratio} and mode {a['mode']!r} have no meaning")
    half = n.opset >= 16 and a["coordinate_transformation_mode"] == "half_pixel"
    boxes = _wide(n, n.tensor(1))
    boxes = n.add("sub", n.add("mul", boxes, n.like(a["spatial_scale"], boxes)), n.like(0.5 * half, boxes))
    x1, y1, x2, y2 = (n.reshape(n.slice(boxes, (0, p), (regions, 1)), (regions, 1)) for p in range(4))
    axes = []
    for low, high, bins, extent in ((y1, y2, height, shape[2]), (x1, x2, width, shape[3])):
        length = n.add("sub", high, low)
        length = length if half else n.add("max", length, n.like(1, length))
        if not ratio:  # adaptive: the number of points would differ by region
            raise n.fail("sampling_ratio is 0", hint="give the number of points in a bin, so that it is known")
        steps = (np.arange(bins * ratio) + 0.5) / (bins * ratio)
        axes.append((n.add("add", low, n.add("mul", length, n.like_array(steps[None], length))), extent))
    (ys, rows), (xs, columns) = axes
    counts = (height, ratio, width, ratio)
    places, inside = [], []
    for at, extent, spread in ((ys, rows, (height, ratio, 1, 1)), (xs, columns, (1, 1, width, ratio))):
        full = n.reshape(n.expand(n.reshape(at, (regions, *spread)), (regions, *counts)), (regions, prod(counts)))
        places.append(n.add("clip", full, low=0.0, high=float(extent - 1)))
        inside += [n.add("less_equal", n.like(-1, full), full), n.add("less_equal", full, n.like(extent, full))]
    first = n.add("mul", n.cast(n.tensor(2), DType.I64), n.constant(rows * columns))
    summed, image = a["mode"] == "avg", _rows(n, n.tensor(0))
    taps = _weighted(n, image, (rows, columns), first, places, "linear", "border", True, summed)
    valid = reduce(lambda p, q: n.add("and", p, q), inside)
    taps = n.add("where", n.reshape(valid, (regions, prod(counts), 1)), taps, n.like(0, taps))
    taps = n.reshape(taps, (1 if summed else 4, regions, *counts, shape[1]))
    found = n.reduce(taps, "sum" if summed else "max", (0, 3, 5), keepdims=False)
    if summed:
        found = n.add("mul", found, n.like(1 / ratio**2, found))
    return n.transpose(found, (0, 3, 1, 2))


@handles("MaxRoiPool")
def max_roi_pool(n: Node) -> TensorId:
    """Return maxima of whole pixels in every bin of a region; 0 for an empty bin.

    An axis has as many taps as the root of its extent. A longer bin is covered by as many maxima of that many pixels.
    """
    shape, pooled, scale = n.shape(), n.attrs["pooled_shape"], n.attrs["spatial_scale"]
    if len(shape) != 4 or len(n.shape(1)) != 2 or n.shape(1)[1] != 5 or 0 in shape:
        raise n.fail(f"regions {n.type(n.tensor(1))} do not fit {n.type(n.tensor(0))}")
    if len(pooled) != 2 or min(pooled) < 1 or max(pooled) > MAX_BINS:
        raise n.fail(f"pooled_shape is {list(pooled)[:20]}", hint=f"two numbers from 1 to {MAX_BINS} are needed")
    regions, given = n.shape(1)[0], _wide(n, n.tensor(1))
    first, *corners = (n.reshape(n.slice(given, (0, p), (regions, 1)), (regions, 1, 1)) for p in range(5))
    scaled = [n.add("mul", c, n.like(scale, c)) for c in corners]
    half_up = [n.add("floor", n.add("add", n.add("abs", c), n.like(0.5, c))) for c in scaled]
    x1, y1, x2, y2 = (n.add("mul", n.add("sign", c), r) for c, r in zip(scaled, half_up, strict=True))
    (batch, _, *spatial), tables, some = shape, [n.tensor(0)], list[TensorId]()
    images = n.constant(np.arange(batch) * prod(spatial))
    index = n.add("gather", images, n.cast(n.reshape(first, (regions,)), DType.I64), axis=0)
    index = n.reshape(index, (regions, 1, 1, 1, 1))
    for axis, (low, high) in enumerate(((y1, y2), (x1, x2))):
        bins, extent, taps = pooled[axis], spatial[axis], isqrt(spatial[axis] - 1) + 1
        zero, one, many = (n.like(v, low) for v in (0, 1, taps))
        length = n.add("max", n.add("add", n.add("sub", high, low), one), one)
        step = n.add("div", length, n.like(bins, low))
        starts, ends = (n.add("mul", step, n.like_array(np.arange(bins)[:, None] + k, low)) for k in (0, 1))
        edges = (n.add("add", e, low) for e in (n.add("floor", starts), n.add("ceil", ends)))
        begin, end = (n.add("clip", edge, low=0.0, high=float(extent)) for edge in edges)
        long = n.add("less", many, n.add("sub", end, begin))
        stride = n.add("where", long, many, one)
        at = n.add("add", begin, n.add("mul", stride, n.like_array(np.arange(taps), low)))
        at = n.cast(n.add("max", n.add("min", at, n.add("sub", end, stride)), zero), DType.I64)
        place = n.add("mul", at, n.constant(prod(spatial[axis + 1 :])))
        table = n.add("mul", n.cast(long, DType.I64), n.constant(len(tables) * batch * prod(spatial)))
        across, kernel, pads = (((bins, 1), (taps, 1)), ((1, bins), (1, taps)))[axis], [1, 1], [0, 0, 0, 0]
        kernel[axis], pads[2 + axis] = taps, taps - 1
        index = n.add("add", index, n.reshape(n.add("add", place, table), (regions, *across[0], *across[1])))
        some.append(n.reshape(n.add("less", begin, end), (regions, *across[0], 1)))
        tables += [n.add("max_pool", t, kernel=tuple(kernel), pads=tuple(pads)) for t in tables]
    found = n.add("gather", n.concat([_rows(n, t) for t in tables], 0), index, axis=0)
    found = n.reduce(found, "max", (3, 4), keepdims=False)
    return n.transpose(n.add("where", n.add("and", *some), found, n.like(0, found)), (0, 3, 1, 2))


@handles("DeformConv")
def deform_conv(n: Node) -> TensorId:
    """Sample windows whose taps are moved by offsets, and multiply them by the weight."""
    x, (batch, channels, *spatial), weight = n.tensor(0), n.shape(), n.shape(1)
    group, parts = n.attrs["group"], n.attrs["offset_group"]
    kernel = n.attrs["kernel_shape"] or weight[2:]
    w = windows(n, kernel)
    rank, taps = len(spatial), prod(w.kernel)
    if group < 1 or parts < 1 or channels % group or channels % parts or not weight or weight[0] % group:
        raise n.fail(f"{group} groups and {parts} offset groups do not divide {n.type(x)} and its weight")
    reach = [d * (k - 1) + 1 for d, k in zip(w.dilations, w.kernel, strict=True)]
    room = [e + b + f - r for e, b, f, r in zip(spatial, w.pads[:rank], w.pads[rank:], reach, strict=True)]
    out = tuple(r // s + 1 for r, s in zip(room, w.strides, strict=True))
    if weight != (weight[0], channels // group, *w.kernel) or n.shape(2) != (batch, parts * taps * rank, *out):
        raise n.fail(f"weight {n.type(n.tensor(1))} and offset {n.type(n.tensor(2))} do not fit {n.type(x)}")
    images, points = batch * parts, taps * prod(out)
    offsets = n.reshape(_wide(n, n.tensor(2)), (images, taps, rank, prod(out)))
    places = []
    for axis in range(rank):
        moved = n.slice(offsets, (0, 0, axis, 0), (images, taps, 1, prod(out)))
        windows_at = np.arange(out[axis]) * w.strides[axis] - w.pads[axis]
        own = [np.indices(extents)[axis].ravel() for extents in (w.kernel, out)]
        still = own[0][:, None] * w.dilations[axis] + windows_at[own[1]]
        moved = n.reshape(moved, (images, taps, prod(out)))
        places.append(n.reshape(n.add("add", moved, n.like_array(still[None], moved)), (images, points)))
    first = n.constant(np.arange(images) * prod(spatial))
    rows = _rows(n, n.reshape(x, (images, channels // parts, *spatial)))
    found = _weighted(n, rows, tuple(spatial), first, places, "linear", "zeros", True)
    if n.has(4):
        if n.shape(4) != (batch, parts * taps, *out):
            raise n.fail(f"mask {n.type(n.tensor(4))} does not fit offset {n.type(n.tensor(2))}")
        found = n.add("mul", found, n.reshape(n.tensor(4), (images, points, 1)))
    found = n.reshape(found, (batch, parts, taps, prod(out), channels // parts))
    found = n.reshape(n.transpose(found, (0, 1, 4, 2, 3)), (batch, group, channels // group * taps, prod(out)))
    filters = n.reshape(n.tensor(1), (group, weight[0] // group, channels // group * taps))
    result = n.reshape(n.product(filters, found), (batch, weight[0], *out))
    return n.add("add", result, n.reshape(n.tensor(3), (weight[0], *(1,) * rank))) if n.has(3) else result


def _wide(n: Node, x: TensorId) -> TensorId:
    """Return coordinates in float32 at least: half floats cannot represent all pixel numbers."""
    return n.cast(x, n.type(x).dtype.accumulator)


def _rows(n: Node, x: TensorId) -> TensorId:
    """Return [batch, channels, *spatial] as one row of channels for each pixel."""
    batch, channels, *spatial = n.type(x).shape
    return n.reshape(n.transpose(x, (0, *range(2, 2 + len(spatial)), 1)), (batch * prod(spatial), channels))


def _images(n: Node, rows: TensorId, spatial: Shape) -> TensorId:
    """Return [batch, points, channels] as images."""
    batch, _, channels = n.type(rows).shape
    return n.reshape(n.transpose(rows, (0, 2, 1)), (batch, channels, *spatial))


def _weighted(
    n: Node,
    rows: TensorId,
    spatial: Shape,
    first: TensorId,
    places: Sequence[TensorId],
    mode: str,
    padding: str,
    corners: bool,
    summed: bool = True,
) -> TensorId:
    """Return for every point the sum of its taps times their weights, or each: [taps, images, points, channels].

    `places` has coordinates [images, points] for each axis, `first` the first row of each image. A small number of taps
    is gathered and added in one operator.
    """
    (images, points), rank = n.type(places[0]).shape, len(spatial)
    offsets, polynomial = _TAPS[mode]
    index = n.reshape(first, (*(1,) * rank, images, 1))
    weights: list[TensorId] = []
    inside: list[TensorId] = []
    for axis, extent in enumerate(spatial):
        at = n.reshape(places[axis], (*(1,) * rank, images, points))
        edges = (0.0, extent - 1.0) if corners else (-0.5, extent - 0.5)
        if padding != "zeros" and mode != "cubic":  # cubic moves taps instead, and keeps the point's weights
            at = _kept(n, at, extent, padding, edges)
        steps = np.array(offsets).reshape([-1 if d == axis else 1 for d in range(rank + 2)])
        before = n.add("floor", at)
        taps = n.add("add", before, n.like_array(steps, at))
        distance = n.add("abs", n.add("sub", at, taps))
        weight = n.like_array(np.array(polynomial[0]).reshape(steps.shape), at)
        for column in polynomial[1:]:
            more = n.like_array(np.array(column).reshape(steps.shape), at)
            weight = n.add("add", n.add("mul", weight, distance), more)
        if mode == "linear":  # a point on a pixel reads it twice: zero times its neighbour may be NaN
            whole = n.add("equal", at, before)
            taps = n.add("where", whole, before, taps)
            weight = n.add("where", whole, n.like(0.5, weight), weight) if summed else weight
        weights.append(weight)
        taps = taps if padding == "zeros" else _kept(n, taps, extent, padding, edges)
        low, high = n.like(0, taps), n.like(extent - 1, taps)
        valid = n.add("and", n.add("less_equal", low, taps), n.add("less_equal", taps, high))
        inside.append(valid)
        pixel = n.cast(n.add("where", valid, taps, low), DType.I64)  # NaN is out of range, too
        index = n.add("add", index, n.add("mul", pixel, n.constant(prod(spatial[axis + 1 :]))))
    count = len(offsets) ** rank
    factor = n.reshape(reduce(lambda p, q: n.add("mul", p, q), weights), (count, images, points, 1))
    factor = n.cast(factor, n.type(rows).dtype)
    known = n.reshape(reduce(lambda p, q: n.add("and", p, q), inside), (count, images, points, 1))
    index = n.reshape(index, (count, images, points))

    def some(tap: int, taps: int) -> TensorId:
        found = n.add("gather", rows, n.cut(index, 0, tap, taps), axis=0)
        if padding == "zeros":
            found = n.add("where", n.cut(known, 0, tap, taps), found, n.like(0, found))
        return n.add("mul", found, n.cut(factor, 0, tap, taps))

    if not summed:
        return some(0, count)
    if count > MOST_ADDED:
        return n.reduce(some(0, count), "sum", (0,), keepdims=False)
    found = reduce(lambda p, q: n.add("add", p, q), (some(tap, 1) for tap in range(count)))
    return n.reshape(found, (images, points, n.type(rows).shape[1]))


def _kept(n: Node, at: TensorId, extent: int, padding: str, edges: tuple[float, float]) -> TensorId:
    """Move coordinates beyond the edges back: to the outermost pixels, or reflected at the edges."""
    low, high = edges
    beyond = n.add("or", n.add("less", at, n.like(low, at)), n.add("less", n.like(high, at), at))
    if padding == "border" or high == low:
        return n.add("where", beyond, n.add("clip", at, low=0.0, high=extent - 1.0), at)
    away = n.add("abs", n.add("sub", at, n.like(low, at)))
    period = n.like(2 * (high - low), at)
    away = n.add("fmod", away, period)
    back = n.add("min", away, n.add("sub", period, away))
    return n.add("where", beyond, n.add("add", back, n.like(low, at)), at)
