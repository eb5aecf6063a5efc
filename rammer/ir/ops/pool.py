"""Define pooling, and local response normalization."""

from __future__ import annotations

from itertools import groupby
from math import prod

import numpy as np

from rammer.ir.expr import Const, Iota, Load, Range, Scalar, Select, Stage, TensorExpr
from rammer.ir.index import Index, var
from rammer.ir.operator import OpDef
from rammer.ir.ops import scalars
from rammer.ir.ops.operands import (
    call,
    expression,
    float_only,
    narrowed,
    numbers_only,
    require,
    variables_of,
    widened,
    within,
)
from rammer.ir.ops.window import Window, padded, spatial_names, window
from rammer.ir.tensor import DType, Shape, TensorType, row_major


def _max_pool(
    x: TensorType,
    *,
    kernel: Shape,
    strides: Shape = (),
    pads: Shape = (),
    dilations: Shape = (),
    indices: bool = False,
    storage_order: int = 0,
) -> TensorExpr:
    """Build the maximum of each window; padding never wins, NaN does.

    With `indices`, there is a second output: the flat place of the maximum in x (storage_order 1: spatial part
    column-major). Of several maxima it is the first one in row-major order of the window.
    """
    dtype = numbers_only("max_pool", [x])
    require(storage_order in (0, 1), f"max_pool: storage_order={storage_order} of {x}", "it must be 0 or 1")
    view = window("max_pool", x, kernel, strides, pads, dilations, rank=x.rank - 2)
    fill = Const(float("-inf") if dtype.is_float else int(np.iinfo(dtype.value).min))
    source, stages = padded(x, view.begin, view.end, fill)
    axes = (("n", x.shape[0]), ("c", x.shape[1]), *view.spatial)
    value = Load(source, (var("n"), var("c"), *view.index))
    stages = (*stages, Stage("out", axes, value, view.reduce, "max", dtype))
    if not indices:
        return expression("max_pool", [("x", x)], stages)
    found = Stage("indices", axes, _place(x, view, axes, storage_order), view.reduce, "min", DType.I64)
    return expression("max_pool", [("x", x)], [*stages, found], ("out", "indices"))


def _place(x: TensorType, view: Window, axes: tuple[tuple[str, int], ...], storage_order: int) -> Scalar:
    """Return the flat index of the window's element if it is the maximum, otherwise the largest integer."""
    at = [i - b for i, b in zip(view.index, view.begin, strict=True)]
    spatial = x.shape[2:]
    strides = [prod(spatial[:p]) for p in range(len(spatial))] if storage_order else row_major(spatial)
    flat = (var("n") * x.shape[1] + var("c")) * prod(spatial)
    for place, stride in zip(at, strides, strict=True):
        flat = flat + place * stride
    value = Load("x", (var("n"), var("c"), *at))
    hit: Scalar = call("equal", value, Load("out", variables_of(axes)))
    if x.dtype.is_float:
        hit = call("or", hit, call("is_nan", value))
    never = Const(2**63 - 1, DType.I64)
    return within(at, spatial, view.begin, view.end, call("where", hit, Iota(flat), never), never)


def _average_pool(
    x: TensorType,
    *,
    kernel: Shape,
    strides: Shape = (),
    pads: Shape = (),
    dilations: Shape = (),
    count_include_pad: bool = False,
    ceil_extra: Shape = (),
) -> TensorExpr:
    """Build the mean of each window; 0 for a window with nothing to count.

    `ceil_extra`: the part of the end pads that never counts in the divisor.
    """
    dtype = float_only("average_pool", [x])
    wide = dtype.accumulator
    rank = x.rank - 2
    view = window("average_pool", x, kernel, strides, pads, dilations, rank=rank)
    extra = ceil_extra or (0,) * rank
    given = f"average_pool: {x} with ceil_extra {ceil_extra}, end pads {view.end}"
    fits = len(extra) == rank and all(0 <= e <= p for e, p in zip(extra, view.end, strict=True))
    require(fits, given, "ceil_extra is a part of the end pads")
    source, stages = padded(x, view.begin, view.end, Const(0.0))
    axes = (("n", x.shape[0]), ("c", x.shape[1]), *view.spatial)
    value = widened(Load(source, (var("n"), var("c"), *view.index)), dtype)
    total = Stage("sum", axes, value, view.reduce, dtype=wide)
    divisor: Scalar | None = None
    uniform = 1  # the product of the counts that are the same everywhere
    for p, (name, extent) in enumerate(view.spatial):
        low, high = (
            (-view.begin[p], x.shape[2 + p] + view.end[p] - extra[p]) if count_include_pad else (0, x.shape[2 + p])
        )
        stride, dilation = (strides or (1,) * rank)[p], (dilations or (1,) * rank)[p]
        starts = np.arange(extent)[:, None] * stride - view.begin[p] + np.arange(kernel[p]) * dilation
        counts = np.maximum(((starts >= low) & (starts < high)).sum(axis=1), 1).tolist()
        if len(set(counts)) == 1:
            uniform *= counts[0]
        else:
            factor = _runs(var(name), counts, wide)
            divisor = factor if divisor is None else divisor * factor
    if divisor is None:
        divisor = Const(float(uniform))
    elif uniform != 1:
        divisor = divisor * float(uniform)
    mean = Load("sum", variables_of(axes)) / divisor
    out = Stage("out", axes, narrowed(mean, dtype), dtype=dtype)
    return expression("average_pool", [("x", x)], [*stages, total, out])


def _runs(index: Index, values: list[int], dtype: DType) -> Scalar:
    """Return values[index] as a balanced tree of Selects between runs of equal values."""
    runs: list[tuple[int, int]] = []  # (first position, value)
    for value, group in groupby(range(len(values)), key=values.__getitem__):
        runs.append((next(group), value))

    def tree(part: list[tuple[int, int]]) -> Scalar:
        if len(part) == 1:
            return Const(float(part[0][1]), dtype)
        middle = len(part) // 2
        return Select((Range(index, 0, part[middle][0]),), tree(part[:middle]), tree(part[middle:]))

    return tree(runs)


def _lrn(x: TensorType, *, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0) -> TensorExpr:
    """Build x / (bias + alpha / size * sum of x² over `size` channels around)^beta, as ONNX's LRN."""
    dtype = float_only("lrn", [x])
    hint = "x needs a channel dimension, size must be positive"
    require(x.rank >= 2 and size > 0, f"lrn: {x} with size {size}", hint)
    names = ("n", "c", *spatial_names(x.rank - 2))
    axes = tuple(zip(names, x.shape, strict=True))
    before = (size - 1) // 2
    at = var("c") - before
    rest = variables_of(axes[2:])
    guarded = Select((Range(at, 0, x.shape[1]),), Load("x", (var("n"), at, *rest)), Const(0.0))
    wider = (axes[0], ("c", x.shape[1] + size - 1), *axes[2:])
    value = widened(Load("xp", (var("n"), var("c") + var("k"), *rest)), dtype)
    norm = Load("sum", variables_of(axes)) * (alpha / size) + bias
    root = call("sqrt", norm)
    power = root * call("sqrt", root) if beta == 0.75 else scalars.power(norm, beta)
    scaled = widened(Load("x", variables_of(axes)), dtype) / power
    return expression(
        "lrn",
        [("x", x)],
        [
            Stage("xp", wider, guarded, dtype=dtype),
            Stage("sum", axes, value * value, (("k", size),), dtype=dtype.accumulator),
            Stage("out", axes, narrowed(scaled, dtype), dtype=dtype),
        ],
    )


DEFINITIONS = (OpDef("max_pool", _max_pool), OpDef("average_pool", _average_pool), OpDef("lrn", _lrn))
