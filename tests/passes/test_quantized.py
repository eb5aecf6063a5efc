"""What passes make of quantised graphs: their meaning stays, and bytes stay bytes."""

from __future__ import annotations

import numpy as np
import pytest
from pass_models import SPEC, Net

from rammer.ir.evaluate import evaluate_graph
from rammer.ir.graph import Graph
from rammer.ir.tensor import DType, TensorId, channel_blocked
from rammer.passes.fusion.regions import fuse
from rammer.passes.layout.channels import choose_layouts
from rammer.passes.quantized.dequantize_apart import dequantize_apart
from rammer.passes.quantized.requantize import requantize


def values(graph: Graph, seed: int = 3) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    given = {t: rng.integers(0, 256, graph.types[t].shape).astype(np.uint8) for t in graph.inputs}
    return list(evaluate_graph(graph, given).values())


def dequantised(b: Net, x: TensorId, scale: float = 0.02, zero: int = 120) -> TensorId:
    whole = b.add("sub", b.add("cast", x, dtype=DType.I32), b.constant(np.array(zero, np.int32)))
    return b.add("mul", b.add("cast", whole, dtype=DType.F32), b.constant(np.array(scale, np.float32)))


def quantised(b: Net, x: TensorId, scale: float = 0.05) -> TensorId:
    divided = b.add("round", b.add("div", x, b.constant(np.array(scale, np.float32))))
    return b.add("cast", b.add("clip", divided, low=0.0, high=255.0), dtype=DType.U8)


def sums(b: Net, x: TensorId, out: int, kernel: int = 1) -> TensorId:
    shape = (out, b.types[x].shape[1], kernel, kernel)
    weights = b.constant(b.rng.integers(-9, 10, shape).astype(np.int8))
    return b.add("conv", x, weights, dtype=DType.I32, pads=(kernel // 2,) * 4)


@pytest.mark.parametrize("shift", [False, True])
def test_sums_are_scaled_once(shift: bool) -> None:
    b = Net()
    x = b.add("cast", sums(b, b.input("x", (2, 24, 5, 7), DType.U8), 33), dtype=DType.F32)
    x = b.add("mul", x, b.constant(b.rng.uniform(0.001, 0.002, (33, 1, 1)).astype(np.float32)))
    x = b.add("mul", x, b.constant(np.array(0.7, np.float32)))
    x = b.add("add", b.weight(33, 1, 1), x) if shift else x
    b.output(quantised(b, x), "y")
    before = b.build()
    after = requantize(before)
    assert "div" not in {op.kind for op in after.operators}
    ((old,), (new,)) = values(before), values(after)
    off = np.abs(old.astype(int) - new)
    assert off.max() <= 1 and (off > 0).mean() < 0.01 and len(np.unique(old)) > 9


def test_dequantised_numbers_are_divided_as_they_are() -> None:
    """They often lie between two numbers: a rounding less would be another result."""
    b = Net()
    b.output(quantised(b, b.add("add", dequantised(b, b.input("x", (3, 5), DType.U8)), b.weight(5))), "y")
    graph = b.build()
    assert requantize(graph) is graph


def residual() -> Graph:
    """Bytes that a convolution reads, and what is added to its result, after an activation, too."""
    b = Net()
    x = quantised(b, b.add("cast", sums(b, b.input("x", (1, 32, 24, 24), DType.U8), 32), dtype=DType.F32))
    y, z = b.add("cast", sums(b, x, 32, 3), dtype=DType.F32), dequantised(b, x)
    b.output(quantised(b, b.add("add", y, z)), "y")
    b.output(b.add("leaky_relu", z), "z")
    return b.build()


def test_who_reads_dequantised_numbers_reads_bytes() -> None:
    before = residual()
    after = fuse(dequantize_apart(before))
    for old, new in zip(values(before), values(after), strict=True):
        np.testing.assert_array_equal(old, new)
    between = {t for op in after.operators for t in op.outputs} - set(after.outputs)
    assert {after.types[t].dtype for t in between} == {DType.U8}
    assert len(after.operators) == 3


def test_bytes_have_blocked_channels() -> None:
    graph = choose_layouts(fuse(dequantize_apart(residual())), SPEC)
    blocked = channel_blocked(4, SPEC.lanes)
    between = [t for op in graph.operators for t in op.outputs if graph.types[t].dtype is DType.U8]
    assert [graph.types[t].layout for t in between if t not in graph.outputs] == [blocked] * 3  # x, its sums, and y


@pytest.mark.parametrize(("channels", "out"), [(32, 32), (24, 32), (3, 32), (32, 8)])
def test_windows_are_blocked_for_products_that_are(channels: int, out: int) -> None:
    b = Net()
    x = b.add("add", b.input("x", (1, channels, 9, 9), DType.U8), b.constant(np.array(1, np.uint8)))
    windows = b.add("unfold", x, kernel=(3, 3), pads=(1, 1, 1, 1), value=7)
    b.output(sums(b, windows, out), "y")
    before = b.build()
    after = choose_layouts(before, SPEC)
    for old, new in zip(values(before), values(after), strict=True):
        np.testing.assert_array_equal(old, new)
    unfolded = next(op for op in after.operators if op.kind == "unfold")
    kinds = (*unfolded.operation.inputs, *unfolded.operation.outputs)
    assert [kind.layout is not None for kind in kinds] == [
        channels == 32 and out == 32,
        channels != 24 and out == 32,
    ]
