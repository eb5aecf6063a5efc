"""Every pass keeps the meaning of every graph; and the results have the shape that the passes promise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import onnx
import pytest
from pass_models import (
    SPEC,
    assert_same,
    attention,
    densenet_block,
    fed_back_cells,
    grouped_block,
    inception_block,
    lstm,
    lstm_cells,
    random_cells,
    random_dfg,
    resnet_block,
)

from rammer.compiler import from_onnx
from rammer.frontend.builder import GraphBuilder
from rammer.ir.device import Execution, VDeviceSpec
from rammer.ir.graph import Graph
from rammer.passes import optimize, passes
from rammer.passes.in_place import update_in_place

MODELS: dict[str, Callable[[], Graph]] = {
    "resnet": resnet_block,
    "densenet": densenet_block,
    "inception": inception_block,
    "grouped": grouped_block,
    "attention": attention,
    "lstm": lstm,
    "lstm batch 3": lambda: lstm(batch=3),
    "lstm concat": lambda: lstm(style="concat"),
    "lstm concat batch 2": lambda: lstm(style="concat", batch=2),
    "decoder": lambda: lstm(feedback=True, style="concat"),
    "decoder separate": lambda: lstm(feedback=True),
    "lstm cells": lstm_cells,
    "lstm cells batch 1": lambda: lstm_cells(batch=1),
    "fed-back cells": fed_back_cells,
    "fed-back cells, weights turned": lambda: fed_back_cells(transposed=False),
}


def check_placement(graph: Graph) -> None:
    """Inputs and outputs own their memory, every written element has one writer, and the graph is acyclic."""
    assert not {*graph.inputs, *graph.outputs, *graph.constants} & set(graph.views)
    for tensor in graph.views:
        root, low, high = graph.extent(tensor)
        assert 0 <= low <= high <= graph.extent(root)[2]
    for root, pieces in written(graph).items():
        for (_, high), (low, _) in pairwise(pieces):
            assert high <= low, root
    assert sum(len(w) for w in graph.wavefronts()) == len(graph.operators)


def written(graph: Graph) -> dict[str, list[tuple[int, int]]]:
    found: dict[str, list[tuple[int, int]]] = {}
    for op in graph.operators:
        for tensor in op.outputs:
            root, first = graph.storage(tensor)
            found.setdefault(root, []).extend(map(tuple, (graph.types[tensor].runs + first).tolist()))
    return {root: sorted(pieces) for root, pieces in found.items()}


@pytest.mark.parametrize("name", MODELS)
def test_each_pass_keeps_the_meaning(name: str) -> None:
    graph = before = MODELS[name]()
    for run in passes(SPEC):
        graph = run(graph)
        assert_same(before, graph)
    check_placement(graph)


@pytest.mark.parametrize("joined", [False, True])
def test_images_lie_apart_where_a_policy_wants_it(joined: bool) -> None:
    """Blocks of channels inside of images, also where channels are joined in place."""
    builder = GraphBuilder("images")
    x = builder.input("x", (3, 17, 9, 11))
    rng = np.random.default_rng(0)
    one, other = (builder.constant(rng.standard_normal((33, 17, 3, 3)).astype(np.float32)) for _ in range(2))
    first = builder.add("conv", x, one, pads=(1, 1, 1, 1))
    if joined:
        first = builder.add("concat", first, builder.add("conv", x, other, pads=(1, 1, 1, 1)), axis=1)
    builder.output(builder.add("max_pool", first, kernel=(2, 2)), "y")
    before = builder.build()
    for apart in (False, True):
        after = optimize(before, SPEC, per_image=apart)
        assert_same(before, after)
        blocked = {t: kind.layout for t, kind in after.types.items() if kind.layout}
        assert blocked and {layout.digits[0].dim for layout in blocked.values()} == {0 if apart else 1}
        moved = sum(op.kind in ("concat", "copy") for op in after.operators)
        assert moved == joined  # 33 channels end amid a block: the other 33 are copied, into rows


def test_sums_over_neighbouring_channels_keep_the_blocks() -> None:
    """Nothing is converted between a convolution, the normalisation of its channels, and what pools them."""
    builder = GraphBuilder("normalised")
    x = builder.input("x", (1, 17, 29, 31))
    weights = builder.constant(np.random.default_rng(0).standard_normal((40, 17, 3, 3)).astype(np.float32))
    first = builder.add("conv", x, weights, pads=(1, 1, 1, 1))
    normal = builder.add("lrn", first, size=5)
    builder.output(builder.add("max_pool", normal, kernel=(3, 3), strides=(2, 2)), "y")
    before = builder.build()
    after = optimize(before, SPEC)
    assert_same(before, after)
    assert after.types[next(op for op in after.operators if op.kind == "lrn").outputs[0]].layout
    assert sum("convert" in op.name for op in after.operators) == 2  # of the input and of the result


def joined_channels(batch: int, twice: bool) -> Graph:
    """Dense blocks of odd images: channels joined with all before, halves of them, and a tensor joined twice."""
    builder = GraphBuilder("joined")
    rng = np.random.default_rng(1)

    def conv(x: str, channels: int, taps: int = 3) -> str:
        shape = channels, builder.types[x].shape[1], taps, taps
        weights = builder.constant(rng.standard_normal(shape).astype(np.float32) / 8)
        return builder.add("conv", x, weights, pads=(taps // 2,) * 4)

    x = conv(builder.input("x", (batch, 5, 7, 9)), 32)
    for _ in range(2):
        x = builder.add("concat", x, builder.add("relu", conv(x, 16)), axis=1)
    half = builder.add("slice", x, starts=(0, 16, 0, 0), steps=(1,) * 4, shape=(batch, 32, 7, 9))
    other = builder.add("concat", conv(half, 16), x, axis=1)
    if twice:
        other = builder.add("concat", builder.add("concat", conv(other, 16), x, axis=1), other, axis=1)
    builder.output(conv(other, 21, 1), "y")
    return builder.build()


@pytest.mark.parametrize("batch", [1, 2, 3])
@pytest.mark.parametrize("twice", [False, True])
def test_channels_are_joined_where_they_lie(batch: int, twice: bool) -> None:
    """Views of views, with the pitch of the outermost; what is joined twice is copied the second time."""
    before = joined_channels(batch, twice)
    after = optimize(before, SPEC, per_image=True)
    assert_same(before, after)
    check_placement(after)
    copies = [op for op in after.operators if op.kind in ("concat", "copy", "slice")]
    assert len(copies) == twice
    pitched = {t for t, kind in after.types.items() if kind.layout and kind.layout.pitched}
    assert bool(pitched) == (batch > 1)
    for tensor in pitched:
        root = after.types[after.storage(tensor).root]
        assert after.types[tensor].strides == root.strides and tensor in after.views


def test_channels_joined_very_often() -> None:
    """As deep as no stack is: a model may not say how deep the compiler goes."""
    builder = GraphBuilder("deep")
    x = builder.input("x", (2, 16, 2, 2))
    weights = builder.constant(np.ones((16, 16, 1, 1), np.float32))
    y = part = builder.add("conv", x, weights)
    for _ in range(1100):
        y = builder.add("concat", y, builder.add("abs", part), axis=1)
    builder.output(builder.add("max_pool", y, kernel=(2, 2)), "y")
    graph = optimize(builder.build(), SPEC, per_image=True)
    assert sum(bool(kind.layout and kind.layout.pitched) for kind in graph.types.values()) > 1000


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("draw", [random_dfg, random_cells])
def test_random_graphs_keep_their_meaning(draw: Callable[[int], Graph], seed: int) -> None:
    before = draw(seed)
    after = optimize(before, SPEC)
    assert_same(before, after)
    check_placement(after)


def kinds(graph: Graph) -> Counter[str]:
    return Counter(op.kind for op in graph.operators)


@pytest.mark.parametrize(("style", "batch"), [("separate", 1), ("separate", 3), ("concat", 1), ("concat", 2)])
def test_unrolled_lstm_is_one_projection_and_one_operator_per_cell(style: str, batch: int) -> None:
    graph = optimize(lstm(steps=6, layers=2, style=style, batch=batch), SPEC)
    assert len(graph.operators) == 2 * (1 + 6)
    assert len({op.operation for op in graph.operators if op.kind == "matmul"}) == 1
    cells = [op for op in graph.operators if "tanh" in op.kind]
    assert len({op.operation for op in cells}) <= 3  # the first step, where the state is zero, the last one, the others


def test_products_of_a_decoder_stay_in_their_steps() -> None:
    graph = optimize(lstm(steps=6, layers=2, style="concat", feedback=True), SPEC)
    assert sorted(kinds(graph).values()) == [12, 12]


def test_convolutions_take_norms_activations_and_residuals() -> None:
    assert kinds(optimize(resnet_block(), SPEC)) == {
        "conv+relu": 2,
        "conv+add+relu": 1,
        "reduce": 1,
        "matmul+add": 1,
        "softmax": 1,
    }


def deviation(channels: int, shown: bool) -> Graph:
    """The mean square of x less its mean; `shown`: what is squared is a result, too."""
    builder = GraphBuilder("deviation")
    x = builder.input("x", (2, channels, 75))
    mean = builder.add("reduce", x, fn="mean", axes=(2,), keepdims=True)
    apart = builder.add("sub", x, mean)
    square = builder.add("mul", apart, apart)
    builder.output(builder.add("sqrt", builder.add("reduce", square, fn="mean", axes=(2,), keepdims=True)), "y")
    if shown:
        builder.output(square, "square")
    return builder.build()


@pytest.mark.parametrize(
    ("channels", "shown", "last"),
    [(29, False, "sub+mul+reduce+sqrt"), (29, True, "reduce+sqrt"), (3, False, "reduce+sqrt")],
)
def test_reductions_compute_their_operand(channels: int, shown: bool, last: str) -> None:
    """Unless others read it, or there are too few results for all vEUs to sum."""
    before = deviation(channels, shown)
    graph = optimize(before, SPEC)
    assert_same(before, graph)
    assert last in kinds(graph), kinds(graph)


@pytest.mark.parametrize(
    ("channels", "axes", "wanted"),
    [
        (29, (2, 2, 2), {"reduce+add+tanh": 1}),
        (29, (2, 1, 2), {"reduce+add": 1, "reduce+tanh": 1}),
        (3, (2, 2, 2), {"reduce": 1, "reduce+add": 1, "reduce+tanh": 1}),
    ],
    ids=["all", "two", "too few results for all vEUs"],
)
def test_reductions_of_one_operand_read_it_once(channels: int, axes: tuple[int, ...], wanted: dict[str, int]) -> None:
    builder = GraphBuilder("siblings")
    x = builder.input("x", (2, channels, 75))
    low, high, mean = (
        builder.add("reduce", x, fn=fn, axes=(axis,), keepdims=True)
        for fn, axis in zip(("min", "max", "mean"), axes, strict=True)
    )
    builder.output(builder.add("tanh", high), "t")
    builder.output(builder.add("add", low, mean), "y")
    graph = builder.build()
    found = optimize(graph, SPEC)
    assert_same(graph, found)
    assert kinds(found) == wanted


def test_many_steps_take_little_time() -> None:
    watched = []
    graph = optimize(lstm(steps=50, layers=4, width=16), SPEC, watch=lambda name, after: watched.append(name))
    assert len(graph.operators) == 4 * (1 + 50)
    assert len({op.operation for op in graph.operators}) == 4
    assert watched == [run.__name__ for run in passes(SPEC)]


def cache_step() -> Graph:
    """Two rows of a cache of keys are replaced where data say, next to layers that every pass finds something in."""
    text = """<ir_version: 8, opset_import: ["" : 18]>
    step (float[B,T,24] x, float[B,T,24] cache, int64[B,T,24] at) => (float[B,T,24] y, float[B,T,24] new)
    <float[24,24] w = {%s}, float[24] bias = {%s}> {
        projected = MatMul(x, w) rows = Add(projected, bias) same = Add(projected, bias)
        new = ScatterElements<axis = 1>(cache, at, rows)
        both = Concat<axis = 1>(new, same) scores = Softmax(both) turned = Transpose<perm = [0, 2, 1]>(scores)
        product = MatMul(turned, both) sums = ReduceSum<keepdims = 1>(product) y = Mul(rows, sums)
    }"""
    numbers = ", ".join(str(n % 7 / 8) for n in range(24 * 24)), ", ".join(str(n / 8) for n in range(24))
    return from_onnx(onnx.parser.parse_model(text % numbers), dims={"B": 2, "T": 5})


@pytest.mark.parametrize("spec", [SPEC, replace(SPEC, execution=Execution.SIMT)], ids=["vectors", "threads"])
def test_each_pass_keeps_symbols_and_updates(spec: VDeviceSpec) -> None:
    """What the model calls its dimensions, and what could be made in place, as long as its tensors are there."""
    graph = before = cache_step()
    assert before.symbols and before.updates
    carried = 0
    for run in passes(spec):
        last, graph = graph, run(graph)
        carried += graph is not last and len(graph.updates)
        assert graph.symbols == before.symbols
        left = {t: u for t, u in last.updates.items() if graph.types.keys() >= {t, *u.inputs}}
        assert graph.updates == left, run
    assert carried >= 2
    taken, in_place = update_in_place(before, {"new": "cache"})
    assert in_place == {"new"} and taken.symbols == before.symbols
