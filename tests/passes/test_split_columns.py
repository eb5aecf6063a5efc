"""Products whose columns are read in slices are split, however the network cuts queries, keys and values."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from pass_models import SPEC, Net, assert_same, model, random_inputs

import rammer
from rammer.ir.graph import Graph
from rammer.ir.semantics.evaluate import evaluate_graph
from rammer.ir.tensor import TensorId
from rammer.passes import optimize
from rammer.passes.clean.split_columns import split_columns

Cut = Callable[[Net, TensorId, int], list[TensorId]]


def in_slices(b: Net, x: TensorId, heads: int) -> list[TensorId]:
    """Columns are sliced, then cut into heads: GPT-2."""
    n, rows, width = b.types[x].shape
    third = width // 3
    parts = (b.add("slice", x, starts=(0, 0, k * third), steps=(1, 1, 1), shape=(n, rows, third)) for k in range(3))
    apart = (b.add("reshape", p, shape=(n, rows, heads, third // heads)) for p in parts)
    return [b.add("transpose", p, perm=(0, 2, 1, 3)) for p in apart]


def in_front(b: Net, x: TensorId, heads: int) -> list[TensorId]:
    """An axis of three goes to the front, and is sliced: timm's vision transformers."""
    n, rows, width = b.types[x].shape
    head = width // 3 // heads
    y = b.add("transpose", b.add("reshape", x, shape=(n, rows, 3, heads, head)), perm=(2, 0, 3, 1, 4))
    shape = (1, n, heads, rows, head)
    parts = (b.add("slice", y, starts=(k, 0, 0, 0, 0), steps=(1,) * 5, shape=shape) for k in range(3))
    return [b.add("reshape", p, shape=shape[1:]) for p in parts]


def by_heads(b: Net, x: TensorId, heads: int) -> list[TensorId]:
    """Each head has its query, key and value side by side, so columns are not adjacent: BLOOM, GPT-NeoX."""
    n, rows, width = b.types[x].shape
    head = width // 3 // heads
    y = b.add("reshape", x, shape=(n, rows, heads, 3, head))
    shape = (n, rows, heads, 1, head)
    parts = (b.add("slice", y, starts=(0, 0, 0, k, 0), steps=(1,) * 5, shape=shape) for k in range(3))
    apart = (b.add("reshape", p, shape=(n, rows, heads, head)) for p in parts)
    return [b.add("transpose", p, perm=(0, 2, 1, 3)) for p in apart]


def attention(cut: Cut, rows: int, width: int, heads: int, batch: int = 1, *, trans_b: bool = False) -> Graph:
    def build(b: Net, x: TensorId) -> TensorId:
        random = np.random.default_rng(1)
        w = b.constant((random.standard_normal((width, 3 * width)) / width**0.5).astype(np.float32))
        if trans_b:
            w = b.constant((random.standard_normal((3 * width, width)) / width**0.5).astype(np.float32))
        bias = b.constant(random.standard_normal(3 * width).astype(np.float32))
        y = b.add("add", bias, b.add("matmul", b.add("tanh", x), w, trans_b=trans_b))
        q, k, v = cut(b, y, heads)
        scores = b.add("matmul", b.add("mul", q, b.constant(np.float32(0.125))), k, trans_b=True)
        mixed = b.add("transpose", b.add("matmul", b.add("softmax", scores, axis=-1), v), perm=(0, 2, 1, 3))
        return b.add("reshape", mixed, shape=(batch, rows, width))

    return model(build, (batch, rows, width))


@pytest.mark.parametrize("trans_b", [False, True])
@pytest.mark.parametrize(("rows", "width", "heads", "batch"), [(75, 96, 3, 1), (28, 192, 4, 3)])
@pytest.mark.parametrize("cut", [in_slices, in_front, by_heads])
def test_nothing_is_copied(cut: Cut, rows: int, width: int, heads: int, batch: int, trans_b: bool) -> None:
    graph = attention(cut, rows, width, heads, batch, trans_b=trans_b)
    made = optimize(graph, SPEC)
    kinds = [op.kind for op in made.operators]
    assert len(kinds) == 5 and kinds.count("matmul+add") == 3, kinds
    inputs = random_inputs(graph)
    for name, wanted in evaluate_graph(graph, inputs).items():
        np.testing.assert_allclose(evaluate_graph(made, inputs)[name], wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("cut", [in_slices, in_front, by_heads])
@pytest.mark.parametrize(("target", "device"), [("cpu", 2), ("cuda", "emulator:4")])
def test_programs_agree(cut: Cut, target: str, device: int | str) -> None:
    graph = attention(cut, 28, 96, 3)
    inputs = random_inputs(graph)
    with rammer.compile(graph, target, device=device, tune_seconds=0) as program:
        for name, found in program.run(inputs).items():
            np.testing.assert_allclose(found, evaluate_graph(graph, inputs)[name], rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(
    ("rows", "uneven", "also", "result", "split"),
    [
        (1, False, "", False, False),  # slices of a row are views
        (28, False, "", False, True),
        (28, True, "", False, True),
        (28, False, "tanh", False, False),  # something reads all columns
        (28, False, "", True, False),  # all columns are an output
    ],
)
def test_what_is_split(rows: int, uneven: bool, also: str, result: bool, split: bool) -> None:
    def build(b: Net, x: TensorId) -> TensorId:
        y = b.add("matmul", x, b.constant(np.ones((24, 96), np.float32)))
        cuts = (0, 16, 96) if uneven else (0, 48, 96)
        parts = [
            b.add("slice", y, starts=(0, low), steps=(1, 1), shape=(rows, high - low)) for low, high in pairwise(cuts)
        ]
        if also:
            b.output(b.add(also, y), "all")
        if result:
            b.output(y, "whole")
        return b.add("matmul", b.add("transpose", parts[0], perm=(1, 0)), parts[1])

    graph = model(build, (rows, 24))
    made = split_columns(graph)
    assert (made is not graph) == split
    assert_same(graph, made)


@pytest.mark.parametrize(("shape", "split"), [((28,), True), ((1, 28), True), ((28, 1), False), ((28, 28), False)])
def test_what_is_added_may_be_a_row(shape: tuple[int, ...], split: bool) -> None:
    def build(b: Net, x: TensorId) -> TensorId:
        y = b.add("matmul", x, b.weight(24, 28))
        y = b.add("add", y, b.weight(*shape))
        parts = [b.add("slice", y, starts=(0, at), steps=(1, 1), shape=(28, 14)) for at in (0, 14)]
        return b.add("matmul", b.add("transpose", parts[0], perm=(1, 0)), parts[1])

    graph = model(build, (28, 24))
    made = split_columns(graph)
    assert (made is not graph) == split
    assert_same(graph, made)


@pytest.mark.parametrize("twice", ["sum", "slices", "outputs"])
def test_what_is_read_twice(twice: str) -> None:
    """The sum of a product and itself, a slice that is read as two, and one that is two outputs."""

    def build(b: Net, x: TensorId) -> TensorId:
        y = b.add("matmul", x, b.weight(24, 96))
        y = b.add("add", y, y) if twice == "sum" else y
        starts = (0, 48) if twice == "sum" else (0, 48, 48)
        parts = [b.add("slice", y, starts=(0, at), steps=(1, 1), shape=(28, 48)) for at in starts]
        if twice == "outputs":
            b.output(parts[1], "one")
            b.output(parts[2], "other")
        return b.add("matmul", b.add("transpose", parts[0], perm=(1, 0)), parts[-1])

    graph = model(build, (28, 24))
    assert_same(graph, split_columns(graph))
    assert_same(graph, optimize(graph, SPEC))


def test_gates_are_no_copies() -> None:
    """Element-wise operators read slices in place, as gated units and recurrent cells do."""

    def build(b: Net, x: TensorId) -> TensorId:
        y = b.add("matmul", x, b.constant(np.ones((24, 96), np.float32)))
        a, gate = (b.add("slice", y, starts=(0, at), steps=(1, 1), shape=(28, 48)) for at in (0, 48))
        return b.add("mul", a, b.add("sigmoid", gate))

    graph = model(build, (28, 24))
    assert split_columns(graph) is graph
