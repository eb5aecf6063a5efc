"""Depthwise convolutions between transposes that keep channels last, as they lie."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from pass_models import SPEC, Net, after, model, random_inputs

import rammer
from rammer.ir.graph import Graph
from rammer.ir.semantics.evaluate import evaluate_graph
from rammer.ir.tensor import Shape, TensorId
from rammer.passes import optimize
from rammer.passes.clean.merge_transposes import merge_transposes


def image(b: Net, tokens: TensorId, places: Shape, cut_first: bool) -> TensorId:
    """Return [n, channels, *places] of [n, positions, channels]."""
    n, _, channels = b.types[tokens].shape
    if cut_first:
        x = b.add("reshape", tokens, shape=(n, *places, channels))
        made: TensorId = b.add("transpose", x, perm=(0, len(places) + 1, *range(1, len(places) + 1)))
        return made
    made = b.add("reshape", b.add("transpose", tokens, perm=(0, 2, 1)), shape=(n, channels, *places))
    return made


def tokens(b: Net, x: TensorId) -> TensorId:
    n, channels, *places = b.types[x].shape
    made: TensorId = b.add("transpose", b.add("reshape", x, shape=(n, channels, prod(places))), perm=(0, 2, 1))
    return made


def mix(
    places: Shape, channels: int, batch: int = 1, *, stride: int = 1, cut_first: bool = False, group: int = 0
) -> Graph:
    """What networks of images and tokens consist of: a depthwise convolution between products of tokens."""

    def build(b: Net, x: TensorId) -> TensorId:
        y = b.conv(image(b, b.add("tanh", x), places, cut_first), channels, 3, stride=stride, group=group or channels)
        return b.add("gelu", tokens(b, y))

    return model(build, (batch, prod(places), channels))


def check(graph: Graph) -> None:
    """Compare a program of this CPU with the evaluator: what is said to be a view has to lie as its readers want."""
    inputs = random_inputs(graph)
    wanted = evaluate_graph(graph, inputs)
    with rammer.compile(graph, "cpu", tune_seconds=0) as program:
        for name, found in program.run(inputs).items():
            np.testing.assert_allclose(found, wanted[name], rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("cut_first", [False, True])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(("places", "channels", "batch"), [((9, 7), 24, 1), ((5, 12), 75, 3), ((11, 11), 96, 2)])
def test_nothing_is_transposed(places: Shape, channels: int, batch: int, stride: int, cut_first: bool) -> None:
    graph = mix(places, channels, batch, stride=stride, cut_first=cut_first)
    assert after(graph, lambda graph: optimize(graph, SPEC)) == {"tanh": 1, "conv": 1, "gelu": 1}
    check(graph)


@pytest.mark.parametrize(("places", "channels", "batch"), [((8, 8), 32, 1), ((5, 12), 75, 3)])
def test_who_sums_all_channels_has_them_in_blocks(places: Shape, channels: int, batch: int) -> None:
    """Transposes write the blocks, and read them; nothing is converted."""

    def build(b: Net, x: TensorId) -> TensorId:
        y = b.conv(image(b, b.add("tanh", x), places, False), 40, 3)
        return b.add("matmul", tokens(b, y), b.weight(40, 24))

    graph = model(build, (batch, prod(places), channels))
    assert after(graph, lambda graph: optimize(graph, SPEC)) == {"tanh": 1, "transpose": 2, "conv": 1, "matmul": 1}
    check(graph)


@pytest.mark.parametrize("multiple", [1, 2])
def test_who_reads_both_channels_last_and_blocks_has_the_blocks_converted(multiple: int) -> None:
    """A residual beside a depthwise convolution comes from one with blocks. Filters may give two channels for each."""

    def build(b: Net, x: TensorId) -> TensorId:
        t = b.add("tanh", x)
        beside = b.conv(image(b, b.add("exp", x), (5, 7), True), 32 * multiple, 1)
        y = b.conv(image(b, t, (5, 7), False), 32 * multiple, 3, group=32)
        y, beside = (b.add("transpose", t, perm=(0, 2, 3, 1)) for t in (y, beside))
        return b.add("sigmoid", b.add("add", y, beside))

    check(model(build, (3, 35, 32)))


def test_a_transposed_image_is_also_there_for_others() -> None:
    def build(b: Net, x: TensorId) -> tuple[TensorId, ...]:
        y = image(b, b.add("tanh", x), (6, 6), True)
        z = b.conv(y, 32, 3)
        return b.add("matmul", tokens(b, z), b.weight(32, 24)), b.add("matmul", y, b.weight(6, 8)), b.add("exp", z)

    check(model(build, (2, 36, 32)))


def test_others_that_read_an_image_have_it() -> None:
    """A convolution's result that is also read with channels first, or returned, is transposed for the other reader."""

    def build(b: Net, x: TensorId) -> tuple[TensorId, ...]:
        y = b.conv(image(b, b.add("tanh", x), (6, 6), False), 32, 3, group=32)
        return b.add("gelu", tokens(b, y)), b.add("exp", y)

    found = after(model(build, (2, 36, 32)), lambda graph: optimize(graph, SPEC))
    assert found["transpose"] + found["transpose+gelu"] >= 1


def test_an_image_is_cut_before_it_is_transposed_for_convolutions_alone() -> None:
    def build(b: Net, x: TensorId) -> tuple[TensorId, ...]:
        y = image(b, b.add("tanh", x), (6, 6), False)
        return b.conv(y, 32, 3, group=32), b.add("exp", y)

    graph = model(build, (2, 36, 32))
    made = [op.operation.outputs[0].rank for op in merge_transposes(graph).operators if op.kind == "transpose"]
    assert made == [3]


class Walks:
    """Draws a network that walks between tokens, images with channels first, and images with channels last."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.b = Net(seed)

    def graph(self, steps: int = 9) -> Graph:
        n, channels = int(self.rng.integers(1, 3)), int(self.rng.choice([16, 24, 40, 75]))
        pool = [self.b.input("x", (n, channels, 8, 6))]
        for _ in range(steps):
            pool.append(self.step(pool[-1], pool))
        self.b.output(pool[-1], "y")
        if self.rng.random() < 0.3:
            self.b.output(self.b.add("tanh", pool[int(self.rng.integers(2, steps))]), "z")
        return self.b.build()

    def step(self, x: TensorId, pool: list[TensorId]) -> TensorId:
        b, shape, any_of = self.b, self.b.types[x].shape, self.rng.choice
        same = [t for t in pool[1:-1] if b.types[t].shape == shape]
        how = any_of(["unary", "add", "move", "move", "work", "work"])
        if how == "unary" or (how == "add" and not same):
            return str(b.add(str(any_of(["relu", "sigmoid", "gelu"])), x))
        if how == "add":
            return str(b.add("add", x, str(any_of(same))))
        first = len(shape) == 4 and shape[1] == b.types[pool[0]].shape[1]
        if how == "move":
            if not first:
                return image(b, x, (8, 6), True) if len(shape) == 3 else str(b.add("transpose", x, perm=(0, 3, 1, 2)))
            return tokens(b, x) if any_of(2) else str(b.add("transpose", x, perm=(0, 2, 3, 1)))
        channels = shape[1 if first else -1]
        if first:
            return b.conv(x, channels, int(any_of([1, 3])), group=channels if any_of(2) else 1)
        return str(b.add("matmul", x, b.weight(channels, channels)))


@pytest.mark.parametrize("seed", range(40))
def test_walks_between_layouts(seed: int) -> None:
    graph = Walks(seed).graph()
    after(graph, lambda graph: optimize(graph, SPEC))
    if seed % 4 == 0:
        check(graph)
