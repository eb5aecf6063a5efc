"""Reductions of rows are fused with the operator that reads the rows again, where x does not stay in private caches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
from pass_models import SPEC, Net, after, assert_same

from rammer.ir.device import MemoryLevel
from rammer.ir.graph import Graph
from rammer.ir.tensor import DType, Shape, TensorId
from rammer.passes import optimize
from rammer.passes.fusion.regions import fuse
from rammer.passes.fusion.rows import fuse_rows

SMALL = replace(SPEC, lanes=8, memory=(MemoryLevel("L2", 4 << 10, "veu", 50.0),))
WIDE = replace(SMALL, memory=(MemoryLevel("L2", 1 << 20, "veu", 50.0),))


def mean_square(b: Net, x: TensorId) -> TensorId:
    axis = b.types[x].rank - 1
    mean = b.add("reduce", b.add("mul", x, x), fn="mean", axes=(axis,), keepdims=True)
    return b.add("div", x, b.add("sqrt", mean))


def less_mean(b: Net, x: TensorId) -> TensorId:
    return b.add("sub", x, b.add("reduce", x, fn="mean", axes=(b.types[x].rank - 1,), keepdims=True))


def over_sum(b: Net, x: TensorId) -> TensorId:
    total = b.add("reduce", b.add("abs", x), fn="sum", axes=(b.types[x].rank - 1,), keepdims=True)
    return b.add("relu", b.add("div", x, total))


def of_columns(b: Net, x: TensorId) -> TensorId:
    return b.add("sub", x, b.add("reduce", x, fn="max", axes=(0,), keepdims=True))


def read_twice(b: Net, x: TensorId) -> tuple[TensorId, ...]:
    most = b.add("reduce", x, fn="max", axes=(b.types[x].rank - 1,), keepdims=True)
    return b.add("sub", x, most), most


def of_another(b: Net, x: TensorId) -> TensorId:
    other = b.input("other", b.types[x].shape, b.types[x].dtype)
    return b.add("sub", other, b.add("reduce", x, fn="max", axes=(b.types[x].rank - 1,), keepdims=True))


def graph(layer: Callable[[Net, TensorId], TensorId | tuple[TensorId, ...]], shape: Shape, dtype: DType) -> Graph:
    b = Net()
    made = layer(b, b.input("x", shape, dtype))
    for n, result in enumerate(made if isinstance(made, tuple) else (made,)):
        b.output(result, f"y{n}")
    return b.build()


@pytest.mark.parametrize("dtype", [DType.F32, DType.F16, DType.F64], ids=lambda d: d.value)
@pytest.mark.parametrize("shape", [(75, 96), (3, 28, 130), (200, 1, 33)], ids=str)
@pytest.mark.parametrize("layer", [mean_square, less_mean, over_sum], ids=lambda f: f.__name__)
def test_rows_are_read_again_while_they_are_resident(
    layer: Callable[[Net, TensorId], TensorId], shape: Shape, dtype: DType
) -> None:
    before = graph(layer, shape, dtype)
    fused = fuse(before, SMALL.num_veus * SMALL.lanes)
    assert len(fused.operators) == 2 and after(fused, partial(fuse_rows, spec=SMALL)).total() == 1
    assert_same(before, fuse_rows(fused, SMALL))
    assert_same(before, optimize(before, SMALL))


@pytest.mark.parametrize("layer", [of_columns, read_twice, of_another], ids=lambda f: f.__name__)
def test_other_reductions_stay(layer: Callable[[Net, TensorId], TensorId]) -> None:
    fused = fuse(graph(layer, (75, 96), DType.F32), SMALL.num_veus * SMALL.lanes)
    assert fuse_rows(fused, SMALL).operators == fused.operators


@pytest.mark.parametrize(("shape", "spec"), [((75, 96), WIDE), ((20, 700), SMALL)], ids=["x stays", "rows are long"])
def test_rows_are_fused_only_between_the_two_sizes(shape: Shape, spec: object) -> None:
    fused = fuse(graph(mean_square, shape, DType.F32), SMALL.num_veus * SMALL.lanes)
    assert fuse_rows(fused, spec).operators == fused.operators
