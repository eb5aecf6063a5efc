"""Import transposed convolutions as convolutions for the phases of the output. Known as: polyphase decomposition."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, product
from math import prod
from typing import NamedTuple

import numpy as np

from rammer.frontend.onnx.node import Node, handles
from rammer.ir.tensor import Shape, TensorId

MOST_PHASES = 1 << 16


@handles("ConvTranspose")
def conv_transpose(n: Node) -> TensorId:
    """Compute a convolution with the flipped weight for each phase: output positions of equal remainder by the stride.

    Phases with equally many taps are channels of one convolution, and moved to their positions at the end. So nothing
    is multiplied by inserted zeros.
    """
    x, weight, group = n.tensor(0), n.shape(1), n.attrs["group"]
    channels, *spatial = n.shape()[1:]
    rank = len(spatial)
    if rank < 1 or len(weight) != rank + 2 or weight[0] != channels or group < 1 or channels % group:
        raise n.fail(f"weight {n.type(n.tensor(1))} with {group} groups does not fit input {n.type(x)}")
    kernel, strides, dilations, output_padding = _sides(n, weight[2:])
    reach = [d * (k - 1) + 1 for d, k in zip(dilations, kernel, strict=True)]
    pads = _transpose_pads(n, spatial, strides, reach, output_padding)

    extents = [
        s * (e - 1) + more + r - pads[d] - pads[rank + d]
        for d, (e, s, r, more) in enumerate(zip(spatial, strides, reach, output_padding, strict=True))
    ]
    if min(extents) < 0:
        raise n.fail(f"pads {pads} leave nothing of an output of {n.type(x)}")
    if prod(strides) > MOST_PHASES:
        raise n.fail(f"strides are {list(strides)}", hint=f"up to {MOST_PHASES} phases are supported")
    sides = [_by_phases(*side) for side in zip(kernel, strides, dilations, strict=True)]
    # range of positions of each phase; positions for which x would need cropping are cropped at the end
    first = [min(pads[d] // strides[d], *(p.reach for p in side)) for d, side in enumerate(sides)]
    last = [
        max(-(-(pads[d] + extents[d]) // strides[d]), *(spatial[d] + p.first for p in side))
        for d, side in enumerate(sides)
    ]
    parts = list(product(*sides))
    y = _convolved(n, parts, _folded(n, group, strides, dilations), first, last)
    batch, outs, counts = n.shape()[0], weight[1], [b - a for a, b in zip(first, last, strict=True)]
    phases = (at for part in parts for at in product(*(range(p.phase, p.phase + p.several) for p in part)))
    order = [int(np.ravel_multi_index(at, strides)) for at in phases]
    if order != sorted(order):
        y = n.reshape(y, (batch, group, prod(strides), outs, *counts))
        y = n.add("gather", y, n.constant(np.argsort(order)), axis=2)
    if len(parts) > 1:
        y = n.reshape(y, (batch, group, *strides, outs, *counts))
        perm = (0, 1, 2 + rank, *(axis for d in range(rank) for axis in (3 + rank + d, 2 + d)))
    else:
        y = n.reshape(y, (batch, group * outs, *strides, *counts))
        perm = (0, 1, *(axis for d in range(rank) for axis in (2 + rank + d, 2 + d)))
    y = n.reshape(n.transpose(y, perm), (batch, group * outs, *(c * s for c, s in zip(counts, strides, strict=True))))
    starts = (pads[d] - at * s for d, (at, s) in enumerate(zip(first, strides, strict=True)))
    return n.slice(y, (0, 0, *starts), (batch, group * outs, *extents))


def _sides(n: Node, weight: Shape) -> tuple[Shape, Shape, Shape, Shape]:
    """Return kernel, strides, dilations and output padding of each side. Raises ModelError for invalid ones."""
    ones, zeros = (1,) * len(weight), (0,) * len(weight)
    given = (("kernel_shape", weight, 1), ("strides", ones, 1), ("dilations", ones, 1), ("output_padding", zeros, 0))
    found: list[Shape] = []
    for name, default, least in given:
        values = tuple(n.attrs.get(name) or default)
        if len(values) != len(weight) or min(values) < least:
            raise n.fail(f"{name} is {list(values)}", hint=f"{len(weight)} numbers of at least {least} are needed")
        found.append(values)
    if found[0] != weight:
        raise n.fail(f"kernel_shape is {list(found[0])}, but the weight is {n.type(n.tensor(1))}")
    return found[0], found[1], found[2], found[3]


def _convolved(
    n: Node, parts: Sequence[Sequence[_Phases]], folded: TensorId, first: Sequence[int], last: Sequence[int]
) -> TensorId:
    """Return the phases of all parts, part by part, at positions from `first` up to `last`.

    With several parts, phases are outer channels, so that their results are adjacent; else they are inner ones.
    """
    x, group, outs, outer = n.tensor(0), n.attrs["group"], n.shape(1)[1], len(parts) > 1
    batch, _, *spatial = n.shape()
    counts, made = [b - a for a, b in zip(first, last, strict=True)], []
    for part in parts:
        several = prod(p.several for p in part)
        layout = (group, several, outs) if outer else (group, outs, several)
        bias = n.reshape(n.tensor(2) if n.has(2) else n.like_array(np.zeros(group * outs), x), (group, outs))
        bias = n.expand(n.reshape(bias, tuple(1 if d == 2 - outer else e for d, e in enumerate(layout))), layout)
        bias = n.reshape(bias, (prod(layout),))
        if all(p.taps for p in part):
            begin = [p.reach - at for p, at in zip(part, first, strict=True)]
            end = [at - p.first - e for p, at, e in zip(part, last, spatial, strict=True)]
            operands = [x, _filters(n, folded, part, outer), *([bias] if n.has(2) else [])]
            dilated = tuple(p.step for p in part)
            y = n.add("conv", *operands, pads=(*begin, *end), dilations=dilated, group=group)
        else:  # these phases have no taps
            y = n.expand(n.reshape(bias, (prod(layout), *(1,) * len(spatial))), (batch, prod(layout), *counts))
        made.append(n.reshape(y, (batch, group, several * outs, *counts)) if group > 1 else y)
    return n.concat(made, 1 + (group > 1))


class _Phases(NamedTuple):
    """Neighbouring phases of a side with equally many taps: output position s m + phase reads x at m - first, ….

    `row` and `rows` are the first tap, and the distance between taps, in a weight that is folded by the stride.
    """

    phase: int
    several: int
    taps: int
    first: int
    step: int  # distance between positions of x that are read
    row: int
    rows: int

    @property
    def reach(self) -> int:
        """Distance back to the position that the last tap reads."""
        return self.first + max(self.taps - 1, 0) * self.step


def _by_phases(kernel: int, stride: int, dilation: int) -> list[_Phases]:
    """Return all phases of a side, including those without taps."""
    if stride == 1:
        return [_Phases(0, 1, kernel, 0, dilation, 0, 1)]
    own: list[list[int]] = [[] for _ in range(stride)]  # by phase: distances back that its taps read
    for tap in range(kernel):
        own[tap * dilation % stride].append(tap * dilation // stride)
    found = []
    for (taps, first), same in groupby(range(stride), lambda phase: (len(own[phase]), sum(own[phase][:1]))):
        phases = list(same)
        step = own[phases[0]][1] - first if taps > 1 else 1
        found.append(_Phases(phases[0], len(phases), taps, first, step, first, step))
    return found


def _folded(n: Node, group: int, strides: Shape, dilations: Shape) -> TensorId:
    """Return the weight as [group, *phases, outputs, channels of a group, *rows]: tap s row + phase of each side."""
    channels, outs, *kernel = n.shape(1)
    rank, w, split = len(kernel), n.tensor(1), []
    for d, s in enumerate(strides):
        if s > 1 and dilations[d] > 1:  # zeros between the taps: their phases differ
            w = _spread(n, w, 2 + d, dilations[d])
        missing = -n.type(w).shape[2 + d] % s
        w = n.add("pad", w, pads=_one_pad(2 + rank, 2 + d, missing), mode="constant", value=0.0) if missing else w
        split += [n.type(w).shape[2 + d] // s, s]
    w = n.reshape(w, (group, channels // group, outs, *split))
    return n.transpose(w, (0, *range(4, 4 + 2 * rank, 2), 2, 1, *range(3, 3 + 2 * rank, 2)))


def _filters(n: Node, folded: TensorId, part: Sequence[_Phases], phases_first: bool) -> TensorId:
    """Return the weight of the convolution for some phases, which are its channels: their taps, reversed."""
    rank, (group, *_), (outs, depth) = len(part), n.type(folded).shape, n.type(folded).shape[1 + len(part) :][:2]
    shape = (group, *(p.several for p in part), outs, depth, *(p.taps for p in part))
    starts = (0, *(p.phase for p in part), 0, 0, *(p.row + (p.taps - 1) * p.rows for p in part))
    steps = (*(1,) * (3 + rank), *(-p.rows for p in part))
    w = n.add("slice", folded, starts=starts, steps=steps, shape=shape)
    if not phases_first:
        w = n.transpose(w, (0, 1 + rank, *range(1, 1 + rank), *range(2 + rank, len(shape))))
    return n.reshape(w, (prod(shape[: 2 + rank]), depth, *shape[3 + rank :]))


def _spread(n: Node, x: TensorId, axis: int, step: int) -> TensorId:
    """Insert step - 1 zeros between the elements along an axis."""
    shape = n.type(x).shape
    x = n.reshape(x, (*shape[: axis + 1], 1, *shape[axis + 1 :]))
    x = n.add("pad", x, pads=_one_pad(len(shape) + 1, axis + 1, step - 1), mode="constant", value=0.0)
    x = n.reshape(x, (*shape[:axis], shape[axis] * step, *shape[axis + 1 :]))
    return n.cut(x, axis, 0, (shape[axis] - 1) * step + 1)


def _transpose_pads(
    n: Node, spatial: Sequence[int], strides: Shape, reach: Sequence[int], output_padding: Shape
) -> list[int]:
    rank = len(spatial)
    pads = list(n.attrs.get("pads") or (0,) * (2 * rank))
    if len(pads) != 2 * rank:
        raise n.fail(f"pads is {pads}", hint=f"{2 * rank} numbers are needed")
    wanted = n.attrs.get("output_shape")
    mode = n.attrs.get("auto_pad", "NOTSET")
    if not wanted and mode not in ("SAME_UPPER", "SAME_LOWER"):
        return pads if mode == "NOTSET" else [0] * (2 * rank)
    wanted = tuple(wanted or (e * s for e, s in zip(spatial, strides, strict=True)))[-rank:]
    for d in range(rank):
        total = strides[d] * (spatial[d] - 1) + output_padding[d] + reach[d] - wanted[d]
        small, large = total // 2, total - total // 2
        pads[d], pads[rank + d] = (small, large) if mode == "SAME_UPPER" else (large, small)
    return pads


def _one_pad(rank: int, axis: int, amount: int) -> Shape:
    return (0,) * (rank + axis) + (amount,) + (0,) * (rank - axis - 1)
