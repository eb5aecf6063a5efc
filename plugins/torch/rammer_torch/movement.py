"""Import ATen operators that move elements: views, slices, concatenations, gathers and scatters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import fx

from rammer_torch.writer import Operand, Unsupported, Writer, handles, shape_of

_REDUCTIONS = {"sum": "add", "prod": "mul", "amax": "max", "amin": "min"}


@handles("view.default", "_unsafe_view", "reshape", "unsqueeze", "squeeze")
def view(w: Writer, x: fx.Node, *_: Any) -> str:
    return w.reshape(x, list(w.out.shape))


@handles("expand")
def expand(w: Writer, x: fx.Node, *_: Any) -> str:
    return w("Expand", x, list(w.out.shape))


@handles("permute")
def permute(w: Writer, x: fx.Node, axes: Sequence[int]) -> str:
    return w("Transpose", x, perm=[a % len(axes) for a in axes]) if axes else w.name(x)


@handles("as_strided", "diagonal", "unfold")
def moved(w: Writer, x: fx.Node, *arguments: Any) -> str:
    if w.target == "as_strided" and not x.meta["val"].is_contiguous():
        raise Unsupported("strides of what is not contiguous")
    return w.moved(x, lambda places: w.operator(places, *arguments))


@handles("slice.Tensor")
def slice_(w: Writer, x: fx.Node, axis: int, start: int | None, end: int | None, step: int) -> str:
    low, high, _ = slice(start, end).indices(shape_of(x)[axis])
    return w.slice(x, axis, low, high, step)


@handles("select.int")
def select(w: Writer, x: fx.Node, axis: int, index: int) -> str:
    at = index % shape_of(x)[axis]
    return w.reshape(w.slice(x, axis, at, at + 1), list(w.out.shape))


@handles("slice_scatter")
def slice_scatter(
    w: Writer, x: fx.Node, source: Operand, axis: int, start: int | None, end: int | None, step: int
) -> str:
    if step != 1:
        raise Unsupported(f"step {step}")
    extent = shape_of(x)[axis]
    low, high, _ = slice(start, end).indices(extent)
    parts: list[Operand] = [w.slice(x, axis, 0, low)] if low else []
    parts += [source, *([w.slice(x, axis, max(low, high), extent)] if max(low, high) < extent else [])]
    return w("Concat", *parts, axis=axis) if high > low else w.name(x)


@handles("select_scatter")
def select_scatter(w: Writer, x: fx.Node, source: fx.Node, axis: int, index: int) -> str:
    shape = shape_of(x)
    at = index % shape[axis]
    shape[axis] = 1
    return slice_scatter(w, x, w.reshape(source, shape), axis, at, at + 1, 1)


@handles("split_with_sizes")
def split(w: Writer, x: fx.Node, sizes: Sequence[int], axis: int) -> tuple[str, ...]:
    return w.many("Split", len(sizes), x, list(sizes), axis=axis)


@handles("cat")
def cat(w: Writer, tensors: Sequence[fx.Node], axis: int) -> str:
    parts = [w.cast(t, w.out.dtype) for t in tensors if shape_of(t) != [0]]  # torch still allows [0] beside any rank
    return w("Concat", *parts, axis=axis) if len(parts) > 1 else parts[0]


@handles("repeat")
def repeat(w: Writer, x: fx.Node, repeats: Sequence[int]) -> str:
    shape = shape_of(x)
    return w("Tile", w.reshape(x, [1] * (len(repeats) - len(shape)) + shape), list(repeats))


@handles("flip")
def flip(w: Writer, x: fx.Node, axes: Sequence[int]) -> str:
    n = len(axes)
    return w("Slice", x, [-1] * n, [-(1 << 31)] * n, list(axes), [-1] * n) if n else w.name(x)


@handles("constant_pad_nd")
def constant_pad(w: Writer, x: fx.Node, pads: Sequence[int], value: float) -> str:
    return _pad(w, x, pads, "constant", w.number(value, w.out.dtype))


@handles(*(f"{way}_pad{n}d" for way in ("reflection", "replication") for n in (1, 2, 3)))
def pad(w: Writer, x: fx.Node, pads: Sequence[int]) -> str:
    return _pad(w, x, pads, "reflect" if w.target.startswith("reflection") else "edge", None)


def _pad(w: Writer, x: fx.Node, pads: Sequence[int], mode: str, value: str | None) -> str:
    """Pad. torch lists the pads of the last dimension first."""
    rank = len(shape_of(x))
    pairs = [(0, 0)] * (rank - len(pads) // 2) + list(zip(pads[::2], pads[1::2], strict=True))[::-1]
    return w("Pad", x, [low for low, _ in pairs] + [high for _, high in pairs], value, mode=mode)


# indexing by tensors


@handles("embedding")
def embedding(w: Writer, weight: fx.Node, places: fx.Node, *_: Any) -> str:
    return w("Gather", weight, places, axis=0)


@handles("index_select")
def index_select(w: Writer, x: fx.Node, axis: int, places: fx.Node) -> str:
    return w("Gather", x, places, axis=axis)


@handles("gather")
def gather(w: Writer, x: fx.Node, axis: int, places: fx.Node, _: bool) -> str:
    return w("GatherElements", x, places, axis=axis)


def _broadcast(w: Writer, indices: Sequence[fx.Node | None]) -> tuple[list[int], list[int], list[str]]:
    """Return the axes that index tensors select from, the indices' common shape, and the indices expanded to it."""
    given = [(axis, index) for axis, index in enumerate(indices) if index is not None]
    if any(not _is_number(index) for _, index in given):
        raise Unsupported("a mask decides the shape")
    shape = list(torch.broadcast_shapes(*(index.meta["val"].shape for _, index in given)))
    names = [w("Expand", w.cast(index, torch.int64), shape) for _, index in given]
    return [axis for axis, _ in given], shape, names


def _is_number(index: fx.Node) -> bool:
    return index.meta["val"].dtype in (torch.int64, torch.int32)


@handles("index.Tensor")
def index(w: Writer, x: fx.Node, indices: Sequence[fx.Node | None]) -> str:
    """Index like x[:, i, j]: move the indexed axes to the front for GatherND, then to torch's position."""
    present = [i for i in indices if i is not None]
    if len(present) == 1 and _is_number(present[0]):
        return w("Gather", x, present[0], axis=list(indices).index(present[0]))
    axes, shape, names = _broadcast(w, indices)
    rank = len(shape_of(x))
    rest = [a for a in range(rank) if a not in axes]
    chosen = w("GatherND", w("Transpose", x, perm=axes + rest), _stacked(w, names, shape))
    at, n = _chosen_at(axes), len(shape)
    order = [n + a for a in range(at)] + list(range(n)) + [n + a for a in range(at, len(rest))]
    return w("Transpose", chosen, perm=order) if order != sorted(order) else chosen


def _chosen_at(axes: Sequence[int]) -> int:
    """Return where torch puts the indexed dimensions: at the indexed axes if these are neighbours, else first."""
    return axes[0] if list(axes) == list(range(axes[0], axes[-1] + 1)) else 0


def _stacked(w: Writer, names: Sequence[str], shape: Sequence[int]) -> str:
    columns = [w("Reshape", name, [*shape, 1]) for name in names]
    return w("Concat", *columns, axis=len(shape)) if len(columns) > 1 else columns[0]


@handles("index_put", "_unsafe_index_put")
def index_put(
    w: Writer, x: fx.Node, indices: Sequence[fx.Node | None], values: fx.Node, accumulate: bool, *_: Any
) -> str:
    masks = [i for i in indices if i is not None]
    if len(masks) == 1 and len(indices) == 1 and masks[0].meta["val"].dtype is torch.bool and not accumulate:
        if values.meta["val"].numel() == 1:
            mask = masks[0]
            tail = [1] * (len(shape_of(x)) - len(shape_of(mask)))
            return w("Where", w.reshape(mask, shape_of(mask) + tail), w.reshape(values, []), x)
        raise Unsupported("a mask decides which values are used")
    axes, shape, names = _broadcast(w, indices)
    rank, n = len(shape_of(x)), len(shape)
    rest = [a for a in range(rank) if a not in axes]
    perm, at = axes + rest, _chosen_at(axes)
    others = [shape_of(x)[a] for a in rest]
    spread = w("Expand", values, others[:at] + shape + others[at:])
    if at:
        spread = w("Transpose", spread, perm=[*range(at, at + n), *range(at), *range(at + n, n + len(rest))])
    how = "add" if accumulate else "none"
    found = w("ScatterND", w("Transpose", x, perm=perm), _stacked(w, names, shape), spread, reduction=how)
    return found if perm == sorted(perm) else w("Transpose", found, perm=[perm.index(a) for a in range(rank)])


@handles("scatter.src", "scatter.value", "scatter_add")
def scatter(w: Writer, x: fx.Node, axis: int, places: fx.Node, source: Operand) -> str:
    return _scatter(w, x, axis, places, source, "add" if w.target == "scatter_add" else "none")


@handles("scatter_reduce.two")
def scatter_reduce(
    w: Writer, x: fx.Node, axis: int, places: fx.Node, source: fx.Node, reduce: str, include_self: bool
) -> str:
    if reduce not in _REDUCTIONS or not include_self:
        raise Unsupported(f"reduce={reduce!r}, include_self={include_self}")
    return _scatter(w, x, axis, places, source, _REDUCTIONS[reduce])


def _scatter(w: Writer, x: fx.Node, axis: int, places: fx.Node, source: Operand, how: str) -> str:
    shape = shape_of(places)
    if isinstance(source, fx.Node) and shape_of(source) != shape:  # torch uses its first elements
        cut: Operand = w("Slice", source, [0] * len(shape), shape)
    else:
        cut = source if isinstance(source, fx.Node) else w("Expand", w.number(source, w.out.dtype), shape)
    return w("ScatterElements", x, places, cut, axis=axis, reduction=how)


@handles("topk")
def topk(w: Writer, x: fx.Node, k: int, axis: int, largest: bool, _: bool) -> tuple[str, ...]:
    return w.many("TopK", 2, x, [k], axis=axis, largest=int(largest))


@handles("sort.default")
def sort(w: Writer, x: fx.Node, axis: int, descending: bool) -> tuple[str, ...]:
    return w.many("TopK", 2, x, [shape_of(x)[axis]], axis=axis, largest=int(descending))


@handles("sort.stable")
def sort_stable(w: Writer, x: fx.Node, _: bool | None, axis: int, descending: bool) -> tuple[str, ...]:
    """Sort. TopK returns the lower index first among equal elements, so it is stable."""
    return sort(w, x, axis, descending)


@handles("masked_scatter")
def masked_scatter(w: Writer, x: fx.Node, mask: fx.Node, source: fx.Node) -> str:
    """Store the n-th value at the n-th position that the mask selects."""
    shape = shape_of(x)
    flat = w.reshape(w("Expand", w.to(mask, torch.int64), shape), [-1])
    number = w("Max", w("Sub", w("CumSum", flat, np.asarray(0)), w.number(1, torch.int64)), w.number(0, torch.int64))
    values = w.reshape(w("Gather", w.reshape(source, [-1]), number, axis=0), shape)
    return w("Where", mask, values, x)
