"""Build layouts of packed tensors: panels, and packings of merged dimensions in terms of the original ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from rammer.ir.expr import Load
from rammer.ir.index import variables
from rammer.ir.tensor import Digit, Layout, Shape


def dim_of(load: Load, axis: str) -> int:
    """Return the dimension of a tensor that an axis moves along."""
    return next(d for d, ix in enumerate(load.index) if axis in variables(ix))


def panels(load: Load, axis: str, width: int, inner: Sequence[Digit] | None = None) -> Layout:
    """Return a layout in panels of `width` adjacent points of an axis. Each panel holds `inner` digits.

    By default, a panel holds all other dimensions. Dimensions without a digit are outermost.
    """
    lane = dim_of(load, axis)
    if inner is None:
        inner = [Digit(d) for d in range(len(load.index)) if d != lane]
    used = {lane, *(digit.dim for digit in inner)}
    rest = (Digit(d) for d in range(len(load.index)) if d not in used)
    return Layout((*rest, Digit(lane, width), *inner, Digit(lane, 1, width)))


def unmerged(layout: Layout, merged: Shape, shape: Shape) -> Layout | None:
    """Return the layout that packs shape `shape` as `layout` packs the tensor reshaped to `merged`.

    None if a digit cuts a merged dimension in the middle of one of its parts: no layout of `shape` expresses that.
    """
    if merged == shape:
        return layout
    parts = _parts(merged, shape)
    digits: list[Digit] = []
    for digit in layout.digits:
        held = parts[digit.dim] or [shape.index(1)]  # a single element, perhaps in a padded block
        own = _own_digits(digit, [(dim, shape[dim]) for dim in held])
        if own is None:
            return None
        digits += own
    return replace(layout, digits=tuple(digits))


def _parts(merged: Shape, shape: Shape) -> list[list[int]]:
    """Return for each merged dimension the original ones. Dimensions of extent 1 hold no digits and are left out."""
    left = [dim for dim, extent in enumerate(shape) if extent != 1]
    parts: list[list[int]] = []
    for extent in merged:
        own: list[int] = []
        while left and prod(shape[dim] for dim in own) != extent:
            own.append(left.pop(0))
        parts.append(own)
    return parts


def _own_digits(digit: Digit, dims: Sequence[tuple[int, int]]) -> list[Digit] | None:
    """Return a digit of a merged number as digits of `dims`: pairs of dimension and extent, the last one fastest."""
    end = digit.div * digit.mod if digit.mod else None  # end of the values that the digit counts; None: unbounded
    found = []
    for place, (dim, extent) in enumerate(dims):
        weight = prod(e for _, e in dims[place + 1 :])
        top = None if place == 0 else weight * extent  # the outermost one counts on past its extent: padding
        low = max(digit.div, weight)
        high = end if top is None else top if end is None else min(top, end)
        if high is not None and low >= high:
            continue
        if low % weight or (high is not None and high % low) or (top is not None and top % (high or top)):
            return None
        found.append(Digit(dim, low // weight, 0 if high == top else (high or 0) // low))
    return found
