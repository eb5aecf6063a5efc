"""Convolutions that read shuffled channels where they lie."""

from __future__ import annotations

from collections import Counter

import pytest
from pass_models import SPEC, Net, after, model

from rammer.ir.graph import Graph
from rammer.ir.tensor import TensorId
from rammer.passes import optimize
from rammer.passes.layout.shuffles import read_shuffled


def shuffle(b: Net, x: TensorId, parts: int, perm: tuple[int, ...] = (0, 2, 1, 3, 4)) -> TensorId:
    n, c, *positions = b.types[x].shape
    turned = b.add("transpose", b.add("reshape", x, shape=(n, parts, c // parts, *positions)), perm=perm)
    made: TensorId = b.add("reshape", turned, shape=(n, c, *positions))
    return made


def block(parts: int, group: int, depthwise: bool, channels: int = 24, batch: int = 3) -> Graph:
    """What ShuffleNet consists of, at odd sizes."""

    def build(b: Net, x: TensorId) -> TensorId:
        y = shuffle(b, b.conv(x, channels, 1, group=parts), parts)
        if depthwise:
            y = b.conv(y, channels, 3, stride=2, group=channels)
        return b.conv(y, 18, 1, group=group)

    return model(build, (batch, channels, 9, 7))


MOVES = ("transpose", "reshape")


def moved(found: Counter[str]) -> int:
    return sum(found[kind] for kind in MOVES)


@pytest.mark.parametrize("depthwise", [True, False])
@pytest.mark.parametrize(("parts", "group"), [(2, 2), (3, 3), (4, 2), (8, 1), (12, 6), (2, 3)])
def test_nothing_is_shuffled(parts: int, group: int, depthwise: bool) -> None:
    """Also where a group begins in the middle of a turn (parts 4 of 24, 6 groups), or all channels are one group."""
    assert after(block(parts, group, depthwise), read_shuffled) == {"conv": 2 + depthwise}


def test_the_whole_way(channels: int = 40) -> None:
    """With layouts and fusion there are conversions around what goes by blocks of channels, and no transposition."""
    graph = block(4, 2, True, channels)
    found = after(graph, lambda graph: optimize(graph, SPEC))
    assert not moved(found), found


def test_others_get_what_is_shuffled() -> None:
    """Who reads the shuffled channels besides keeps the shuffle; the convolution does without it."""

    def build(b: Net, x: TensorId) -> tuple[TensorId, ...]:
        y = shuffle(b, b.add("tanh", x), 4)
        return b.conv(y, 8, 3, group=2), b.add("exp", y)

    found = after(model(build, (2, 16, 5, 4)), read_shuffled)
    assert moved(found) == 3 and found["conv"] == 1
    (conv,) = (op for op in read_shuffled(model(build, (2, 16, 5, 4))).operators if op.kind == "conv")
    assert conv.operation.attr("shuffled") == 4


def test_who_sums_all_channels_has_its_filters_in_their_order() -> None:
    """Then nothing is shuffled when it runs, and channels may lie in blocks."""

    def build(b: Net, x: TensorId) -> TensorId:
        return b.conv(shuffle(b, b.add("tanh", x), 4), 8, 3)

    graph = model(build, (2, 32, 5, 4))
    assert after(graph, read_shuffled) == {"tanh": 1, "conv": 1}
    (conv,) = (op for op in read_shuffled(graph).operators if op.kind == "conv")
    assert "shuffled" not in conv.operation.keywords


def test_what_is_no_shuffle_stays() -> None:
    """Positions that are turned, channels that move into positions, a depthwise convolution read by two."""

    def turned(b: Net, x: TensorId) -> TensorId:
        return b.conv(shuffle(b, x, 2, (0, 1, 2, 4, 3)), 8, 1)

    def moved_out(b: Net, x: TensorId) -> TensorId:
        y = b.add("transpose", b.add("reshape", x, shape=(2, 4, 4, 5, 5)), perm=(0, 2, 1, 3, 4))
        return b.conv(b.add("reshape", y, shape=(2, 4, 20, 5)), 8, 1)

    def read_twice(b: Net, x: TensorId) -> tuple[TensorId, ...]:
        y = b.conv(shuffle(b, x, 4), 16, 3, group=16)
        return b.conv(y, 8, 1), b.add("tanh", y)

    for build in (turned, moved_out, read_twice):
        graph = model(build, (2, 16, 5, 5))
        assert after(graph, read_shuffled) == Counter(op.kind for op in graph.operators)


def test_two_shuffles_in_a_row() -> None:
    """The second one is read where it lies; the first one moves, as before."""

    def build(b: Net, x: TensorId) -> TensorId:
        return b.conv(shuffle(b, shuffle(b, b.add("tanh", x), 2), 4), 8, 1)

    assert moved(after(model(build, (2, 16, 5, 4)), read_shuffled)) == 3


def test_a_depthwise_convolution_with_given_filters_stays() -> None:
    def build(b: Net, x: TensorId) -> TensorId:
        w = b.add("reduce", x, fn="mean", axes=(0, 2, 3), keepdims=True)
        return b.conv(b.add("conv", shuffle(b, x, 4), b.add("reshape", w, shape=(16, 1, 1, 1)), group=16), 8, 1)

    assert moved(after(model(build, (2, 16, 5, 4)), read_shuffled)) == 4
