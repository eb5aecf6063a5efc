"""Import Resize and Upsample: along each axis a gather, or a product with a matrix of interpolation weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import floor, gcd

import numpy as np

from rammer.frontend.onnx.handlers.complex_numbers import from_parts, parts
from rammer.frontend.onnx.node import Node, handles
from rammer.ir.tensor import Array, DType, TensorId

MOST_EVEN = 4  # steps and divisors of evenly spaced places that are looked for


@handles("Upsample")
def upsample(n: Node) -> TensorId:
    if n.opset < 7:
        scales: Sequence[float] = (1.0, 1.0, n.attrs["height_scale"], n.attrs["width_scale"])
        if len(n.shape()) != 4:
            raise n.fail(f"input {n.type(n.tensor(0))} is no image")
    else:
        scales = n.attrs["scales"] if n.opset < 9 else tuple(float(v) for v in n.value(1, "scales").ravel())
    mode = {"nearest": "nearest", "linear": "linear", "bilinear": "linear"}.get(n.attrs["mode"], "")
    return _scaled(n, mode, scales)


def _scaled(n: Node, mode: str, scales: Sequence[float]) -> TensorId:
    """Resize all axes, as the first versions of both operators do."""
    if len(scales) != len(n.shape()) or not np.isfinite(scales).all():
        raise n.fail(f"scales {list(scales)[:20]} do not fit {n.type(n.tensor(0))}")
    sizes = [floor(e * s) for e, s in zip(n.shape(), scales, strict=True)]
    return _resize(n, _Rule(n, mode), range(len(scales)), scales, sizes, [(0.0, 1.0)] * len(scales))


@handles("Resize", since=10)
def resize_10(n: Node) -> TensorId:
    return _scaled(n, n.attrs["mode"], tuple(float(v) for v in n.value(1, "scales").ravel()))


@handles("Resize", since=11)
def resize(n: Node) -> TensorId:
    shape, a = n.shape(), n.attrs
    axes = n.axes(a["axes"] if a.get("axes") is not None else range(len(shape)), len(shape))
    rule = _Rule(
        n,
        a["mode"],
        a["coordinate_transformation_mode"],
        a["nearest_mode"],
        a["cubic_coeff_a"],
        bool(a["exclude_outside"]),
        a["extrapolation_value"],
        bool(a.get("antialias", 0)),
    )
    if n.has(3) and n.shape(3) != (0,):
        sizes = list(n.ints(3, "sizes"))
        if len(sizes) != len(axes):
            raise n.fail(f"sizes {sizes} do not fit {len(axes)} axes")
        scales = [s / shape[d] if shape[d] else 1.0 for s, d in zip(sizes, axes, strict=True)]
        policy = a.get("keep_aspect_ratio_policy", "stretch")
        if policy in ("not_larger", "not_smaller"):
            scale = min(scales) if policy == "not_larger" else max(scales)
            scales = [scale] * len(axes)
            sizes = [floor(scale * shape[d] + 0.5) for d in axes]
    else:
        scales = [float(v) for v in n.value(2, "scales").ravel()]
        if len(scales) != len(axes):
            raise n.fail(f"scales {scales} do not fit {len(axes)} axes")
        sizes = [floor(shape[d] * s) for s, d in zip(scales, axes, strict=True)]
    roi = [(0.0, 1.0)] * len(axes)
    if rule.coordinates == "tf_crop_and_resize":
        values = [float(v) for v in n.value(1, "roi").ravel()]
        if len(values) != 2 * len(axes):
            raise n.fail(f"roi has {len(values)} numbers instead of {2 * len(axes)}")
        roi = list(zip(values[: len(axes)], values[len(axes) :], strict=True))
    return _resize(n, rule, axes, scales, sizes, roi)


@dataclass(frozen=True, slots=True)
class _Rule:
    """The positions and weights of interpolation along one axis."""

    n: Node
    mode: str
    coordinates: str = "asymmetric"
    nearest: str = "floor"
    cubic_a: float = -0.75
    exclude_outside: bool = False
    extrapolation: float = 0.0
    antialias: bool = False

    def __post_init__(self) -> None:
        if self.mode not in ("nearest", "linear", "cubic"):
            raise self.n.fail(f"mode {self.mode!r} is not supported", hint="nearest, linear or cubic")

    def positions(self, extent: int, size: int, scale: float, roi: tuple[float, float]) -> Array:
        """Return the position of each output element in the input."""
        x = np.arange(size, dtype=np.float64)
        exact = scale * extent  # the standard keeps the fraction of the output's extent
        match self.coordinates:
            case "half_pixel":
                return (x + 0.5) / scale - 0.5
            case "half_pixel_symmetric":
                return extent / 2 * (1 - size / exact) + (x + 0.5) / scale - 0.5
            case "pytorch_half_pixel":
                return (x + 0.5) / scale - 0.5 if size > 1 else np.zeros(size)
            case "align_corners":
                return x * (extent - 1) / (exact - 1) if exact != 1 else np.zeros(size)
            case "asymmetric":
                return x / scale
            case "tf_crop_and_resize":
                start, end = roi
                if exact != 1:
                    return start * (extent - 1) + x * (end - start) * (extent - 1) / (exact - 1)
                return np.full(size, 0.5 * (start + end) * (extent - 1))
        raise self.n.fail(f"coordinate_transformation_mode {self.coordinates!r} is not supported")

    def nearest_index(self, positions: Array, extent: int) -> Array:
        match self.nearest:
            case "round_prefer_floor":
                index = np.ceil(positions - 0.5)
            case "round_prefer_ceil":
                index = np.floor(positions + 0.5)
            case "floor":
                index = np.floor(positions)
            case "ceil":
                index = np.ceil(positions)
            case other:
                raise self.n.fail(f"nearest_mode {other!r} is not supported")
        return np.clip(index, 0, extent - 1).astype(np.int64)

    def taps(self, positions: Array, extent: int, scale: float) -> tuple[Array, Array, Array | None]:
        """Return [outputs, taps] weights, each row summing to 1, the input positions that they weigh, and the first.

        Other positions are not read: multiplying them by zero would make NaN of an infinity. First positions may lie
        outside, where the edge stands for what is missing. They are None if not all positions follow on them.
        """
        stretch = min(scale, 1.0) if self.antialias else 1.0
        reach = (2 if self.mode == "cubic" else 1) / stretch
        first = np.floor(positions - reach) + 1
        count = int((np.floor(positions + reach) - first).max()) + 1
        places = first[:, None] + np.arange(count)
        weights = self.kernel((places - positions[:, None]) * stretch)
        if self.exclude_outside:
            weights = np.where((places >= 0) & (places < extent), weights, 0.0)
        total = weights.sum(axis=1, keepdims=True)
        found = _without_zeros(weights / np.where(total == 0, 1.0, total), np.clip(places, 0, extent - 1))
        return *found, first.astype(np.int64) if weights.all() else None

    def kernel(self, distance: Array) -> Array:
        d, a = np.abs(distance), self.cubic_a
        if self.mode == "linear":
            hat: Array = np.maximum(1 - d, 0.0)
            return hat
        inner = (a + 2) * d**3 - (a + 3) * d**2 + 1
        outer = a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a
        weights: Array = np.where(d <= 1, inner, np.where(d < 2, outer, 0.0))
        return weights


def _resize(
    n: Node,
    rule: _Rule,
    axes: Sequence[int],
    scales: Sequence[float],
    sizes: Sequence[int],
    roi: Sequence[tuple[float, float]],
) -> TensorId:
    x, dtype = parts(n, n.tensor(0)), n.dtype().part
    if any(not s > 0 or not np.isfinite(s) for s in scales) or any(s < 0 for s in sizes):
        raise n.fail(f"scales {list(scales)} and sizes {list(sizes)} must be positive")
    if not n.type(x).size or 0 in sizes:
        raise n.fail(f"cannot resize {n.type(x)} to {list(sizes)}")
    outside: Array | None = None
    for axis, scale, size, window in zip(axes, scales, sizes, roi, strict=True):
        extent = n.type(x).shape[axis]
        crop = rule.coordinates == "tf_crop_and_resize"
        if (size == extent and scale == 1 and not crop) or (crop and size == extent and window == (0.0, 1.0)):
            continue
        if size > 1 << 16 or size * extent * 8 > n.limits.fold_bytes:
            raise n.fail(f"an axis of {extent} is too long to be resized to {size}")
        positions = rule.positions(extent, size, scale, window)
        if crop:
            beyond = (positions < 0) | (positions > extent - 1)
            beyond = beyond.reshape([-1 if d == axis else 1 for d in range(n.type(x).rank)])
            outside = beyond if outside is None else outside | beyond
        if rule.mode == "nearest":
            index = rule.nearest_index(positions, extent)
            if (even := _even(index)) is None:
                x = n.add("gather", x, n.constant(index), axis=axis)
            else:
                start, c, step, by = even
                x = n.add("stretch", x, axis=axis, size=size, first=start * by + c, step=step, by=by)
        else:
            x = n.cast(x, DType.F32 if not dtype.is_float else dtype)
            weights, places, first = rule.taps(positions, extent, scale)
            if first is not None and (even := _even(first)) is not None:
                x = _resampled(n, x, weights, even, axis)
            else:
                x = n.add("resample", x, n.like_array(weights, x), n.constant(places), axis=axis)
    if outside is not None and outside.any():
        there = np.array([rule.extrapolation, 0.0][: 1 + n.dtype().is_complex])
        x = n.add("where", n.constant(outside), n.like_array(there, x), x)
    return from_parts(n, x if n.type(x).dtype is dtype else _back(n, x, dtype), n.dtype())


def _even(first: Array) -> tuple[int, int, int, int] | None:
    """Return start, c, step and by, if first places are start + (c + i step) // by for i = 0, 1, …; else None."""
    for by, step in product(range(1, MOST_EVEN + 1), range(1, MOST_EVEN + 1)):
        for c in range(by) if gcd(by, step) == 1 else ():
            if np.array_equal(first - first[0], (c + np.arange(len(first)) * step) // by):
                return int(first[0]), c, step, by
    return None


def _resampled(n: Node, x: TensorId, weights: Array, even: tuple[int, int, int, int], axis: int) -> TensorId:
    """Resample at evenly spaced places: x is padded by its edges, so that lanes read neighbours in one pattern."""
    start, c, step, by = even
    rank, extent, (size, taps) = n.type(x).rank, n.type(x).shape[axis], weights.shape
    before, last = max(-start, 0), start + (c + (size - 1) * step) // by + taps
    pads = [0] * (2 * rank)
    pads[axis], pads[rank + axis] = before, max(last - extent, 0)
    x = n.add("pad", x, pads=tuple(pads), mode="edge") if any(pads) else x
    first = (start + before) * by + c
    return n.add("resample_evenly", x, n.like_array(weights, x), axis=axis, first=first, step=step, by=by)


def _without_zeros(weights: Array, places: Array) -> tuple[Array, Array]:
    """Replace taps of weight zero: they read the row's largest tap, and share its weight equally.

    Sums stay the same.
    """
    zero, rows = weights == 0, np.arange(len(weights))
    largest = np.abs(weights).argmax(axis=1)
    share = weights[rows, largest] / (1 + zero.sum(axis=1))
    shared = zero | (np.arange(weights.shape[1]) == largest[:, None])
    places = np.where(zero, places[rows, largest][:, None], places)
    return np.where(shared, share[:, None], weights), places.astype(np.int64)


def _back(n: Node, x: TensorId, dtype: DType) -> TensorId:
    """Cast to the element type of the input. Integers are rounded and clipped to their range."""
    if not dtype.is_float:
        info = np.iinfo(dtype.value)
        x = n.add("clip", n.add("round", x), low=float(info.min), high=float(info.max))
    return n.cast(x, dtype)
