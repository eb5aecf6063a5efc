"""What passes make of quantised graphs: their meaning stays, and bytes stay bytes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from pass_models import SPEC, Net

from rammer.ir.graph import Graph
from rammer.ir.semantics.evaluate import evaluate_graph
from rammer.ir.tensor import DType, TensorId, channel_blocked
from rammer.passes.clean.move_first import move_first
from rammer.passes.fusion.regions import fuse
from rammer.passes.layout.channels import choose_layouts
from rammer.passes.quantized.duplicate_dequantize import duplicate_dequantize
from rammer.passes.quantized.quantize_first import quantize_first
from rammer.passes.quantized.requantize import requantize
from rammer.passes.quantized.widen_halves import widen_halves


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


def test_sums_of_two_scaled_numbers_are_scaled_once() -> None:
    """As ONNX Runtime adds bytes. One of the two may be a sum of products."""
    b = Net()
    x = b.input("x", (1, 32, 5, 7), DType.U8)
    total = b.add("mul", b.add("cast", sums(b, x, 32), dtype=DType.F32), b.constant(np.array(0.002, np.float32)))
    b.output(quantised(b, b.add("add", total, dequantised(b, x)), 0.03), "y")
    b.output(quantised(b, b.add("add", dequantised(b, x, 0.01), dequantised(b, x)), 0.03), "z")
    before = b.build()
    after = requantize(before)
    assert "div" not in {op.kind for op in after.operators}
    for old, new in zip(values(before), values(after), strict=True):
        off = np.abs(old.astype(int) - new)
        assert off.max() <= 1 and (off > 0).mean() < 0.01 and len(np.unique(old)) > 9


def test_long_chains_are_looked_at_once() -> None:
    """Of numbers that are added to themselves, and of constants: models are untrusted."""
    b = Net()
    doubled = chain = dequantised(b, b.input("x", (3, 5), DType.U8))
    for n in range(3000):
        doubled = b.add("add", doubled, doubled)
        chain = b.add("mul" if n % 2 else "add", chain, b.weight(5))
    b.output(quantised(b, doubled), "y")
    b.output(quantised(b, chain), "z")
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
    after = fuse(duplicate_dequantize(before))
    for old, new in zip(values(before), values(after), strict=True):
        np.testing.assert_array_equal(old, new)
    between = {t for op in after.operators for t in op.outputs} - set(after.outputs)
    assert {after.types[t].dtype for t in between} == {DType.U8}
    assert len(after.operators) == 3


def test_bytes_have_blocked_channels() -> None:
    graph = choose_layouts(fuse(duplicate_dequantize(residual())), SPEC)
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


MOVES: dict[str, Callable[[Net, TensorId, TensorId], TensorId]] = {
    "rows": lambda b, t, x: b.add("gather", t, x, axis=0),
    "columns, some of them twice": lambda b, t, x: b.add("gather", t, b.add("reshape", x, shape=(2, 3)), axis=-1),
    "a piece": lambda b, t, x: b.add("slice", t, starts=(8, 1), steps=(-2, 1), shape=(4, 5)),
    "turned": lambda b, t, x: b.add("transpose", t, perm=(1, 0)),
}


@pytest.mark.parametrize("params", [(), (1,), (1, 6), (9, 1), (6,)], ids=str)
@pytest.mark.parametrize("move", MOVES)
def test_a_table_of_bytes_is_dequantised_after_what_moves_it(move: str, params: tuple[int, ...]) -> None:
    """With parameters for all of it, and for each row or column."""
    b = Net()
    x = b.input("x", (6,), DType.I32)
    table = b.constant(b.rng.integers(0, 256, (9, 6)).astype(np.uint8))
    b.keep(table)
    zero, scale = b.constant(b.rng.integers(0, 256, params).astype(np.int32)), b.weight(*params, scale=1)
    shifted = b.add("sub", b.add("cast", table, dtype=DType.I32), zero)
    b.output(MOVES[move](b, b.add("mul", b.add("cast", shifted, dtype=DType.F32), scale), x), "y")
    before = b.build()
    graph = move_first(before)
    places = np.array([0, 5, -1, 3, 3, -6], np.int32)
    for (old,), (new,) in [[evaluate_graph(g, {"x": places}).values() for g in (before, graph)]]:
        np.testing.assert_array_equal(old, new)
    moved = next(op for op in graph.operators if op.kind in ("gather", "slice", "transpose"))
    assert moved.operation.inputs[0].dtype is DType.U8


def test_a_gather_of_more_than_there_is_comes_after_what_is_computed() -> None:
    b = Net()
    x, table = b.input("x", (20,), DType.I32), b.constant(np.arange(9, dtype=np.uint8))
    b.keep(table)
    b.output(b.add("gather", b.add("cast", table, dtype=DType.F32), x), "y")
    graph = b.build()
    assert move_first(graph) is graph


@pytest.mark.parametrize(
    ("kind", "x", "weights", "widened"),
    [
        ("matmul", (3, 40), (40, 24), True),
        ("matmul", (2, 40), (40, 24), False),
        ("matmul", (2, 5, 40), (40, 7), True),
        ("conv", (1, 24, 5, 7), (8, 24, 3, 3), True),
        ("conv", (1, 24, 5, 7), (24, 1, 3, 3), True),
    ],
)
@pytest.mark.parametrize("half", [DType.F16, DType.BF16])
def test_halves_are_multiplied_as_floats(
    half: DType, kind: str, x: tuple[int, ...], weights: tuple[int, ...], widened: bool
) -> None:
    """Where few operands are converted often: numbers stay the same."""
    b = Net()
    known = b.constant(b.rng.standard_normal(weights).astype(half.numpy))
    more = {"group": 24} if weights[1:2] == (1,) else {}
    b.output(b.add("relu", b.add(kind, b.input("x", x, half), known, **more)), "y")
    before = b.build()
    after = widen_halves(before)
    assert (DType.F32 in {t.dtype for t in after.types.values()}) is widened
    given = {"x": np.random.default_rng(1).standard_normal(x).astype(half.numpy)}
    (old,), (new,) = (list(evaluate_graph(graph, given).values()) for graph in (before, after))
    assert new.dtype == half.numpy
    np.testing.assert_array_equal(old, new)


@pytest.mark.parametrize("kind", [DType.U8, DType.I8])
def test_costly_functions_of_bytes_are_looked_up(kind: DType) -> None:
    """Also where bytes are moved in between, and where they are negative; not what costs little."""
    b = Net()
    x = b.input("x", (2, 3, 5, 7), kind)
    for name, steps in (("y", ("sigmoid",)), ("moved", ("mish", "transposed")), ("cheap", ("relu",))):
        found = b.add("mul", b.add("cast", x, dtype=DType.F32), b.constant(np.array(0.03, np.float32)))
        for step in steps:
            found = REARRANGED[step](b, found) if step in REARRANGED else b.add(step, found)
        b.output(
            b.add(
                "cast",
                b.add("clip", b.add("div", found, b.constant(np.array(0.02, np.float32))), low=-100.0, high=120.0),
                dtype=kind,
            ),
            name,
        )
    graph = b.build()
    after = quantize_first(graph, tables=True)
    assert sorted(op.kind for op in after.operators if op.kind in ("sigmoid", "mish", "relu", "gather")) == [
        "gather",
        "gather",
        "relu",
    ]
    assert quantize_first(graph, tables=False) is graph
    given = {"x": np.arange(-105, 105).astype(kind.numpy).reshape(2, 3, 5, 7)}
    old, new = evaluate_graph(graph, given), evaluate_graph(after, given)
    for name, values in old.items():
        np.testing.assert_array_equal(new[name], values)


REARRANGED: dict[str, Callable[[Net, TensorId], TensorId]] = {
    "transposed": lambda b, x: b.add("transpose", x, perm=(0, 2, 3, 1)),
    "pooled": lambda b, x: b.add("max_pool", x, kernel=(2, 2), pads=(1, 0, 0, 1)),
    "cut": lambda b, x: b.add("slice", b.add("reshape", x, shape=(2, 105)), starts=(0, 3), steps=(1, 4), shape=(2, 9)),
    "gathered": lambda b, x: b.add("gather", x, b.constant(np.array([2, 0, -1, 2])), axis=1),
}


@pytest.mark.parametrize("move", REARRANGED)
def test_bytes_are_moved_as_bytes(move: str) -> None:
    """If they are dequantised and quantised alike."""
    b = Net()
    b.output(quantised(b, REARRANGED[move](b, dequantised(b, b.input("x", (2, 3, 5, 7), DType.U8), 0.05, 0))), "y")
    before = b.build()
    after = quantize_first(before, tables=True)
    assert not {op.kind for op in after.operators} & {"div", "mul", "round"}
    ((old,), (new,)) = values(before), values(after)
    np.testing.assert_array_equal(old, new)


@pytest.mark.parametrize("scales", [(0.05, 0.05), (0.05, 0.02), (0.02, 0.07)])
def test_parts_are_quantised_before_they_are_joined(scales: tuple[float, float]) -> None:
    b = Net()
    parts = [dequantised(b, b.input(f"x{n}", (2, 3 + n, 5), DType.U8), scale, 0) for n, scale in enumerate(scales)]
    b.output(quantised(b, b.add("transpose", b.add("concat", *parts, axis=1), perm=(1, 0, 2))), "y")
    before = b.build()
    after = quantize_first(before, tables=True)
    (joined,) = (op for op in after.operators if op.kind == "concat")
    assert {kind.dtype for kind in joined.operation.inputs} == {DType.U8}
    assert sum(op.kind == "div" for op in after.operators) == sum(scale != 0.05 for scale in scales)
    ((old,), (new,)) = values(before), values(after)
    np.testing.assert_array_equal(old, new)


def test_numbers_that_others_read_are_quantised_where_they_are() -> None:
    """Also those that change: with another zero point, or through a function."""
    b = Net()
    shifted = dequantised(b, b.input("x", (2, 3, 5, 7), DType.U8), 0.05, 1)
    b.output(quantised(b, REARRANGED["transposed"](b, shifted)), "y")
    rooted = b.add("sqrt", dequantised(b, b.input("z", (2, 3, 5, 7), DType.U8), 0.05, 0))
    b.output(quantised(b, REARRANGED["pooled"](b, rooted)), "root")
    moved = REARRANGED["transposed"](b, dequantised(b, b.input("u", (2, 3, 5, 7), DType.U8), 0.05, 0))
    b.output(quantised(b, moved), "bytes")
    b.output(moved, "numbers")
    graph = b.build()
    assert quantize_first(graph, tables=True) is graph
