"""Lay out sliding windows for convolution and pooling."""

from __future__ import annotations

from dataclasses import dataclass

from rammer.ir.expr import Axes, Const, Load, Stage
from rammer.ir.index import Index, var
from rammer.ir.ops.operands import require, within
from rammer.ir.tensor import Shape, TensorType


@dataclass(frozen=True, slots=True)
class Window:
    """A window that slides over the spatial dimensions of x[n, c, *spatial]."""

    spatial: Axes  # of the output
    steps: tuple[Index, ...]  # position inside the window, per spatial dimension
    reduce: Axes  # the steps' axes; those of extent 1 are left out
    index: tuple[Index, ...]  # what the window reads, in coordinates of the padded input
    begin: Shape
    end: Shape


def spatial_names(rank: int) -> tuple[str, ...]:
    return ("d", "h", "w")[3 - rank :] if rank <= 3 else tuple(f"d{p}" for p in range(rank))


def _step_names(rank: int) -> tuple[str, ...]:
    return ("q", "r", "s")[3 - rank :] if rank <= 3 else tuple(f"q{p}" for p in range(rank))


def window(
    kind: str, x: TensorType, kernel: Shape, strides: Shape, pads: Shape, dilations: Shape, *, rank: int
) -> Window:
    """Check the attributes (ONNX's; empty ones take their defaults) and lay the window out. Raises TypeMismatch."""
    strides, dilations, pads = strides or (1,) * rank, dilations or (1,) * rank, pads or (0,) * (2 * rank)
    given = f"{kind}: {x} with kernel {kernel}, strides {strides}, pads {pads}, dilations {dilations}"
    require(rank > 0 and x.rank == rank + 2, given, f"x needs a rank of {rank + 2}: batch, channels, spatial ones")
    fits = len(kernel) == len(strides) == len(dilations) == rank and len(pads) == 2 * rank
    hint = f"x has {rank} spatial dimensions: kernel, strides and dilations need {rank} numbers, pads twice as many"
    require(fits, given, hint)
    require(min((*kernel, *strides, *dilations)) > 0, given, "kernel, strides and dilations must be positive")
    require(min(pads) >= 0, given, "pads must not be negative; crop with slice")
    begin, end = pads[:rank], pads[rank:]
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    room = [e + b + f for e, b, f in zip(x.shape[2:], begin, end, strict=True)]
    out = [(r - need) // s + 1 for r, need, s in zip(room, reach, strides, strict=True)]
    require(min(out) > 0, given, "the window is larger than the padded input: no output is left")
    steps = tuple(var(a) if k > 1 else Index() for a, k in zip(_step_names(rank), kernel, strict=True))
    names = spatial_names(rank)
    return Window(
        spatial=tuple(zip(names, out, strict=True)),
        steps=steps,
        reduce=tuple((a, k) for a, k in zip(_step_names(rank), kernel, strict=True) if k > 1),
        index=tuple(var(a) * s + t * d for a, s, t, d in zip(names, strides, steps, dilations, strict=True)),
        begin=begin,
        end=end,
    )


def padded(x: TensorType, begin: Shape, end: Shape, fill: Const) -> tuple[str, tuple[Stage, ...]]:
    """Return what to read in padded coordinates instead of x[n, c, *spatial], and the stage that makes it, if any."""
    if not any((*begin, *end)):
        return "x", ()
    names = spatial_names(x.rank - 2)
    places = [var(a) - b for a, b in zip(names, begin, strict=True)]
    axes = (
        ("n", x.shape[0]),
        ("c", x.shape[1]),
        *((a, b + extent + e) for a, b, extent, e in zip(names, begin, x.shape[2:], end, strict=True)),
    )
    body = within(places, x.shape[2:], begin, end, Load("x", (var("n"), var("c"), *places)), fill)
    return "xp", (Stage("xp", axes, body, dtype=x.dtype),)
