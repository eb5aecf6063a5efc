"""Generate convolutions of one to three dimensions, pooling and resizing."""

from __future__ import annotations

from fractions import Fraction
from math import prod
from typing import Any

from rammer.ir.tensor import Shape
from rammer_testing.fuzz import sizes
from rammer_testing.fuzz.sketch import DOUBLE, FLOAT, HALF, Sketch, Unfit


def start(s: Sketch) -> None:
    r = s.random
    rank = r.choice((1, 2, 2, 2, 2, 2, 2, 3))
    if rank == 1:
        inner: Shape = (sizes.sequence(r, 3000),)
    elif rank == 2:
        inner = sizes.image(r)
    else:
        inner = tuple(sizes.extent(r, 40) for _ in range(3))
    dtype = r.choice((FLOAT,) * 20 + (DOUBLE, DOUBLE, DOUBLE, HALF))
    s.input((sizes.batch(r), sizes.channels(r), *inner), dtype)


def spatial(s: Sketch) -> str:
    return s.pick(lambda k: k.rank in (3, 4, 5) and k.dtype in (FLOAT, DOUBLE, HALF))


def window(s: Sketch, inner: Shape) -> dict[str, Any]:
    """Return kernel, strides, dilations and pads that fit an image."""
    r = s.random
    square = r.random() < 0.7
    sizes_of = [r.choice((1, 1, 2, 3, 3, 3, 3, 5, 7)) for _ in inner]
    kernel = [min(sizes_of[0] if square else k, e) for k, e in zip(sizes_of, inner, strict=True)]
    strides = [r.choice((1, 1, 1, 2, 3))] * len(inner) if square else [r.choice((1, 1, 2, 3)) for _ in inner]
    dilations = [1] * len(inner)
    if r.random() < 0.15:
        dilations = [d if (k - 1) * d < e else 1 for k, e, d in zip(kernel, inner, (2, 3, 2), strict=False)]
    attrs: dict[str, Any] = {"kernel_shape": kernel, "strides": strides, "dilations": dilations}
    form = r.random()
    if form < 0.5:
        attrs["pads"] = [k // 2 for k in kernel] * 2
    elif form < 0.65:
        attrs["pads"] = [r.randint(0, k - 1) for k in kernel * 2]
    elif form < 0.75:
        attrs["auto_pad"] = r.choice(("SAME_UPPER", "SAME_LOWER", "VALID"))
        attrs["dilations"] = [1] * len(inner)
        if attrs["auto_pad"] != "VALID" and _cuts(inner, attrs):
            raise Unfit  # oracles are inconsistent about whether such windows begin inside of the image
    return attrs


def _cuts(inner: Shape, attrs: dict[str, Any]) -> bool:
    """Return whether windows shorter than their strides omit part of the image, so that padding would be negative."""
    steps, kernel = attrs["strides"], attrs["kernel_shape"]
    return any((-(-e // step) - 1) * step + k < e for e, step, k in zip(inner, steps, kernel, strict=True))


def conv(s: Sketch) -> None:
    x = spatial(s)
    _, into, *inner = s.shape(x)
    dtype = s.dtype(x)
    group = s.random.choice((1, 1, 1, 1, into, s.random.choice(sizes.divisors(into))))
    out = sizes.channels(s.random) if group == 1 else group * s.random.choice((1, 1, 2, max(1, into // group)))
    attrs = window(s, tuple(inner))
    terms = into // group * prod(attrs["kernel_shape"])
    w = s.weights(out, into // group, *attrs["kernel_shape"], terms=terms, dtype=dtype)
    operands = [x, w] + ([s.weights(out, terms=1, dtype=dtype)] if s.chance(0.6) else [])
    y = s.node("Conv", *operands, group=group, **attrs)
    s.spend(prod(s.shape(y)) * terms)
    after(s, y)


def after(s: Sketch, y: str) -> None:
    """Add operators that follow convolutions."""
    channels, dtype = s.shape(y)[1], s.dtype(y)
    if s.chance(0.25):
        numbers = [s.constant(s.numpy.uniform(low, 1.5, channels), dtype) for low in (0.5, -1.0, -1.0, 0.5)]
        y = s.node("BatchNormalization", y, *numbers)
    if s.chance(0.4):
        y = s.node(s.random.choice(("Relu", "LeakyRelu", "HardSwish", "Sigmoid")), y)
    if s.chance(0.25):
        s.node("Add", y, s.pick(lambda k: k.shape == s.shape(y) and k.dtype == dtype))


def transposed(s: Sketch) -> None:
    x = spatial(s)
    _, into, *inner = s.shape(x)
    group = s.random.choice((1, 1, 1, s.random.choice(sizes.divisors(into))))
    out = sizes.channels(s.random, 96)
    kernel = [s.random.choice((1, 2, 3, 4))] * len(inner)
    terms = into // group * prod(kernel)
    w = s.weights(into, out, *kernel, terms=terms, dtype=s.dtype(x))
    strides = [s.random.choice((1, 2, 2, 3))] * len(inner)
    attrs: dict[str, Any] = {"strides": strides, "group": group}
    if s.chance(0.5):
        attrs["pads"] = [s.random.randint(0, (k - 1) // 2) for k in kernel] * 2
    if s.chance(0.2) and strides[0] > 1:
        attrs["output_padding"] = [1] * len(inner)
    y = s.node(
        "ConvTranspose", x, w, *([s.weights(out * group, terms=1, dtype=s.dtype(x))] if s.chance(0.5) else []), **attrs
    )
    s.spend(prod(s.shape(y)) * terms)


def pool(s: Sketch) -> None:
    x = spatial(s)
    inner = s.shape(x)[2:]
    op = s.random.choice(("MaxPool", "MaxPool", "AveragePool", "AveragePool", "LpPool"))
    attrs = window(s, inner)
    if "pads" in attrs:
        attrs["pads"] = [min(p, (k - 1) // 2) for p, k in zip(attrs["pads"], attrs["kernel_shape"] * 2, strict=True)]
    if s.chance(0.2) and "auto_pad" not in attrs:
        attrs["ceil_mode"] = 1
    if op == "AveragePool":
        attrs["count_include_pad"] = s.random.randint(0, 1)
    y = s.node(op, x, **attrs)
    if "ceil_mode" in attrs and _begins_outside(inner, s.shape(y)[2:], attrs):
        raise Unfit  # ONNX's inference counts a window that its own evaluator leaves out
    s.spend(prod(s.shape(y)) * prod(attrs["kernel_shape"]))


def _begins_outside(inner: Shape, counts: Shape, attrs: dict[str, Any]) -> bool:
    """Return whether the last window begins behind the image and its leading padding."""
    pads = attrs.get("pads", [0] * len(inner))
    return any((n - 1) * step >= e + p for n, step, e, p in zip(counts, attrs["strides"], inner, pads, strict=False))


def whole(s: Sketch) -> None:
    s.node(s.random.choice(("GlobalAveragePool", "GlobalMaxPool", "GlobalAveragePool", "GlobalLpPool")), spatial(s))


def resize(s: Sketch) -> None:
    x = s.pick(lambda k: k.rank in (3, 4, 5) and k.dtype in (FLOAT, HALF))
    inner = s.shape(x)[2:]
    mode = s.random.choice(("nearest", "nearest", "linear", "linear", "cubic"))
    if mode == "cubic" and len(inner) != 2:
        mode = "linear"
    ways = ("half_pixel", "half_pixel", "asymmetric", "pytorch_half_pixel", "align_corners")
    attrs: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": s.random.choice(ways)}
    if mode == "nearest":
        attrs["nearest_mode"] = s.random.choice(("round_prefer_floor", "floor", "ceil", "round_prefer_ceil"))
    if s.chance(0.6):
        aligned = attrs["coordinate_transformation_mode"] == "align_corners"  # then ONNX Runtime rounds sizes first
        scale = s.random.choice((2.0, 3.0) if aligned else (2.0, 2.0, 3.0, 0.5, 1.5))
        s.node("Resize", x, "", s.constant([1.0, 1.0, *(scale for _ in inner)]), **attrs)
    else:
        target = [max(1, sizes.extent(s.random, 2 * e)) for e in inner]
        if mode == "nearest" and any(_between(e, t, attrs) for e, t in zip(inner, target, strict=True)):
            raise Unfit  # ONNX Runtime computes positions in float32: exactly between two elements it takes either
        s.node("Resize", x, "", "", s.constant([*s.shape(x)[:2], *target]), **attrs)


def _between(extent: int, target: int, attrs: dict[str, Any]) -> bool:
    """Return whether a position lies exactly where the nearest element changes.

    Only scales that are inexact in floats count.
    """
    half = Fraction(1, 2)
    match attrs["coordinate_transformation_mode"]:
        case "asymmetric":
            step, first = Fraction(extent, target), Fraction(0)
        case "align_corners":
            step, first = Fraction(extent - 1, max(target - 1, 1)), Fraction(0)
        case _:
            step, first = Fraction(extent, target), Fraction(extent, 2 * target) - half
    border = half if attrs["nearest_mode"].startswith("round") else 0
    scale = 1 / step if step else step  # ONNX Runtime divides by it
    exact = scale.denominator & (scale.denominator - 1) == 0
    return not exact and any((first + i * step - border).denominator == 1 for i in range(target))


def block(s: Sketch) -> None:
    """Add a bottleneck with a residual connection."""
    x = spatial(s)
    _, channels, *inner = s.shape(x)
    if s.dtype(x) != FLOAT:
        raise Unfit
    middle, y = max(1, channels // s.random.choice((1, 2, 4))), x
    for into, out, k in ((channels, middle, 1), (middle, middle, 3), (middle, channels, 1)):
        w = s.weights(out, into, *[k] * len(inner), terms=into * k ** len(inner))
        s.spend(prod(s.shape(x)) // channels * into * out * k ** len(inner))
        y = s.node("Conv", y, w, pads=[k // 2] * 2 * len(inner))
        y = s.node("Relu", y) if out == middle else y
    s.node("Relu", s.node("Add", x, y))


def join(s: Sketch) -> None:
    """Concatenate branches along channels."""
    x = spatial(s)
    shape = s.shape(x)
    y = s.pick(
        lambda k: (
            k.dtype == s.dtype(x) and k.rank == len(shape) and (k.shape[0], *k.shape[2:]) == (shape[0], *shape[2:])
        )
    )
    s.node("Concat", x, y, axis=1)


CONVOLUTION = ((8, conv), (1, transposed), (1, pool), (1, block), (1, join))
POOLING = ((4, pool), (4, resize), (2, whole), (2, conv), (1, join))
SIZE = (1, 6)
