"""Layouts of packed tensors: panels, and packings of merged dimensions in terms of the operation's own ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from rammer.ir.expr import Load
from rammer.ir.index import variables
from rammer.ir.tensor import Digit, Layout, Shape


def dim_of(load: Load, axis: str) -> int:
    """The dimension of a tensor that an axis moves along."""
    return next(d for d, ix in enumerate(load.index) if axis in variables(ix))


def panels(load: Load, axis: str, width: int, inner: Sequence[Digit] | None = None) -> Layout:
    """A tensor in panels of `width` points of an axis, which lie side by side; each panel holds `inner` digits.

    By default, a panel holds all other dimensions. Dimensions of no digit are outermost.
    """
    lane = dim_of(load, axis)
    if inner is None:
        inner = [Digit(d) for d in range(len(load.index)) if d != lane]
    used = {lane, *(digit.dim for digit in inner)}
    rest = (Digit(d) for d in range(len(load.index)) if d not in used)
    return Layout((*rest, Digit(lane, width), *inner, Digit(lane, 1, width)))


def unmerged(layout: Layout, merged: Shape, shape: Shape) -> Layout | None:
    """The layout of a tensor of shape `shape` that packs it as `layout` packs it once reshaped to `merged`.

    None where a digit cuts a dimension elsewhere than between its blocks: such a packing has no digits of its own.
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
    """For each merged dimension those that it was made of, but for dimensions of extent 1, which hold no digits."""
    left = [dim for dim, extent in enumerate(shape) if extent != 1]
    parts: list[list[int]] = []
    for extent in merged:
        own: list[int] = []
        while left and prod(shape[dim] for dim in own) != extent:
            own.append(left.pop(0))
        parts.append(own)
    return parts


def _own_digits(digit: Digit, dims: Sequence[tuple[int, int]]) -> list[Digit] | None:
    """One digit of a number whose own digits are indices of `dims`, (dimension, extent) with the last one fastest."""
    end = digit.div * digit.mod if digit.mod else None  # of the values that the digit counts; None: all above
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
