"""Windows are reduced by columns first, where that shares work between neighbours in a row."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pass_models import SPEC, Net, assert_same

from rammer.ir.graph import Graph
from rammer.ir.tensor import DType, Shape
from rammer.passes import optimize
from rammer.passes.layout.columns_first import columns_first

WINDOWS: dict[str, tuple[str, Shape, DType, dict[str, Any]]] = {
    "max, stride 2": ("max_pool", (1, 3, 21, 26), DType.F32, {"kernel": (3, 3), "strides": (2, 2)}),
    "max, padded": ("max_pool", (2, 3, 17, 20), DType.F32, {"kernel": (3, 3), "strides": (2, 2), "pads": (1,) * 4}),
    "max of bytes": ("max_pool", (1, 2, 14, 19), DType.I8, {"kernel": (2, 5), "pads": (0, 2, 1, 2)}),
    "mean, stride 1": ("average_pool", (1, 3, 12, 25), DType.F32, {"kernel": (3, 3), "pads": (1,) * 4}),
    "mean, dilated": ("average_pool", (1, 2, 15, 31), DType.F32, {"kernel": (3, 4), "dilations": (2, 1)}),
    "mean of halves": ("average_pool", (1, 2, 15, 31), DType.F16, {"kernel": (5, 3), "strides": (3, 2)}),
    "max, and its place": ("max_pool", (1, 3, 20, 20), DType.F32, {"kernel": (3, 3), "indices": True}),
    "mean, 3 dimensions": ("average_pool", (1, 2, 7, 8, 19), DType.F32, {"kernel": (3, 2, 3), "pads": (1, 0, 1) * 2}),
}
OTHERS: dict[str, tuple[str, Shape, DType, dict[str, Any]]] = {
    "nothing is shared": ("max_pool", (1, 3, 20, 20), DType.F32, {"kernel": (2, 2), "strides": (2, 2)}),
    "one row": ("max_pool", (1, 3, 20, 20), DType.F32, {"kernel": (1, 3)}),
    "one column": ("average_pool", (1, 3, 20, 20), DType.F32, {"kernel": (3, 1)}),
    "between elements": (
        "max_pool",
        (1, 3, 20, 30),
        DType.F32,
        {"kernel": (2, 2), "dilations": (1, 9), "strides": (1, 9)},
    ),
    "all": ("reduce", (3, 20, 20), DType.F32, {"fn": "sum", "axes": (1, 2)}),
}


def graph(kind: str, shape: Shape, dtype: DType, attrs: dict[str, Any]) -> Graph:
    b = Net()
    made = b.add(kind, b.input("x", shape, dtype), **attrs)
    for n, result in enumerate(made if isinstance(made, tuple) else (made,)):
        b.output(result, f"y{n}")
    return b.build()


@pytest.mark.parametrize("name", WINDOWS)
def test_columns_are_a_stage_of_their_own(name: str) -> None:
    before = graph(*WINDOWS[name])
    after = columns_first(before)
    stages = [[stage.name for stage in g.operators[0].operation.expr.stages] for g in (before, after)]
    assert len(stages[1]) == len(stages[0]) + 1
    assert_same(before, after)
    assert_same(before, optimize(before, replace(SPEC, lanes=8)))


@pytest.mark.parametrize("name", OTHERS)
def test_other_reductions_stay(name: str) -> None:
    before = graph(*OTHERS[name])
    assert columns_first(before).operators == before.operators


def test_blocks_of_channels_stay() -> None:
    """Vectors lie along the channels there: a window loads no strided ones."""
    b = Net()
    x = b.conv(b.input("x", (1, 32, 20, 20)), 32)
    x = b.add("max_pool", x, kernel=(3, 3), strides=(2, 2), pads=(1,) * 4)
    b.output(b.conv(x, 32), "y")
    graph = optimize(b.build(), SPEC)
    pools = [op for op in graph.operators if "max_pool" in op.kind]
    assert pools and all(kind.layout for op in pools for kind in op.operation.inputs[:1])
    assert not any(s.name.endswith("_columns") for op in pools for s in op.operation.expr.stages)
