"""What passes do that move less: slices, concats, views, blocks of channels, and what is repeated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from pass_models import SPEC, Net, after, assert_same, model

from rammer.ir.tensor import TensorId, channel_blocked
from rammer.passes import optimize
from rammer.passes.clean.convolve_first import convolve_first
from rammer.passes.fusion.regions import fuse
from rammer.passes.layout.moves import merge_slices, split_activations
from rammer.passes.layout.place import place


def piece(b: Net, x: TensorId, starts: tuple[int, ...], steps: tuple[int, ...], shape: tuple[int, ...]) -> TensorId:
    return b.add("slice", x, starts=(0, 0, *starts), steps=(1, 1, *steps), shape=(2, 16, *shape))


@pytest.mark.parametrize(
    ("size", "left"),
    [(4, {"slice": 1}), (5, {"slice": 1, "pad": 1})],  # at odd sizes the last element is padding
)
def test_shifted_pooling_of_one_element_is_a_slice(size: int, left: dict[str, int]) -> None:
    def build(b: Net, x: TensorId) -> TensorId:
        x = b.add("pad", x, pads=(0, 0, 0, 0, 0, 0, 1, 1))
        x = piece(b, x, (1, 0), (1, 1), (size, size + 1))
        x = piece(b, x, (0, 1), (1, 1), (size, size))
        return b.add("average_pool", x, kernel=(1, 1), strides=(2, 2))

    assert after(model(build, (2, 16, size, size)), merge_slices) == left


def test_slices_of_what_others_read_stay() -> None:
    def build(b: Net, x: TensorId) -> tuple[TensorId, ...]:
        first = piece(b, x, (1, 1), (1, 2), (3, 2))
        return piece(b, first, (2, 0), (-1, 1), (3, 2)), b.add("relu", first)

    assert after(model(build), merge_slices) == {"slice": 2, "relu": 1}


@pytest.mark.parametrize(("first", "rows", "left"), [(3, 3, 0), (0, 3, 0), (2, 3, 1), (3, 2, 1)])
def test_a_slice_that_is_a_part_of_a_concat_is_that_part(first: int, rows: int, left: int) -> None:
    def build(b: Net, x: TensorId) -> TensorId:
        whole = b.add("concat", b.add("tanh", x), b.add("exp", x), axis=0)
        whole = b.add("reshape", whole, shape=(6, 1, 4))
        return b.add("slice", whole, starts=(first, 0, 0), steps=(1, 1, 1), shape=(rows, 1, 4))

    assert after(model(build, (3, 4)), merge_slices)["slice"] == left


def test_a_concat_of_all_slices_takes_what_they_are_of() -> None:
    """Halves of an image that go on beside what is computed of one of them: the image lies in the concat."""

    def cut(b: Net, x: TensorId, first: int, count: int) -> TensorId:
        return b.add("slice", x, starts=(0, first, 0, 0), steps=(1,) * 4, shape=(2, count, 4, 4))

    def joined(order: tuple[int, ...], sizes: tuple[int, ...] = (8, 8)) -> Callable[[Net, TensorId], TensorId]:
        def build(b: Net, x: TensorId) -> TensorId:
            y = b.add("tanh", x)
            pieces = [cut(b, y, sum(sizes[:n]), size) for n, size in enumerate(sizes)]
            return b.add("concat", *(pieces[n] for n in order), b.add("exp", pieces[-1]), axis=1)

        return build

    assert after(model(joined((0, 1))), merge_slices) == {"tanh": 1, "slice": 1, "exp": 1, "concat": 1}
    assert after(model(joined((0, 1, 0, 1))), merge_slices)["slice"] == 1
    assert after(model(joined((0, 1, 2), (8, 4, 4))), merge_slices)["slice"] == 1
    assert after(model(joined((1, 0))), merge_slices)["slice"] == 2
    assert after(model(joined((2, 0, 1), (8, 4, 4))), merge_slices)["slice"] == 3
    beside = model(lambda b, x: b.add("concat", cut(b, x, 4, 4), cut(b, x, 0, 8), cut(b, x, 8, 8), axis=1))
    assert after(beside, merge_slices) == {"slice": 1, "concat": 1}  # 4 channels, and then all of them
    assert after(model(joined((0, 1), (8, 7))), merge_slices)["slice"] == 2  # the last channel is left out
    assert after(model(lambda b, x: b.add("concat", cut(b, x, 0, 5), cut(b, x, 5, 11), axis=1)), merge_slices) == {
        "copy": 1
    }


@pytest.mark.parametrize(
    ("extent", "pad", "stride", "dilation", "start", "step", "count", "left"),
    [
        (29, 4, 1, 2, 0, 1, 29, 0),  # causal: what stands too far to the right is trimmed
        (29, 4, 1, 2, 4, 1, 29, 0),  # the same from the left
        (75, 6, 1, 1, 2, 3, 27, 0),  # every third position is a stride
        (75, 3, 2, 1, 1, 1, 30, 1),  # the end would have to be cut off x
        (75, 2, 2, 1, 1, 1, 37, 0),
        (75, 0, 1, 1, 3, 1, 70, 1),  # nothing was padded
        (29, 2, 1, 1, 30, -1, 31, 1),
    ],
)
def test_a_convolution_computes_only_what_a_slice_takes(
    extent: int, pad: int, stride: int, dilation: int, start: int, step: int, count: int, left: int
) -> None:
    def build(b: Net, x: TensorId) -> TensorId:
        w = b.constant(np.random.default_rng(0).standard_normal((20, 16, 3)).astype(np.float32))
        y = b.add("conv", x, w, pads=(pad, pad), strides=(stride,), dilations=(dilation,))
        return b.add("relu", b.add("slice", y, starts=(0, 0, start), steps=(1, 1, step), shape=(2, 20, count)))

    assert after(model(build, (2, 16, extent)), merge_slices)["slice"] == left


def enlarged(b: Net, x: TensorId, *places: tuple[int, ...]) -> TensorId:
    for axis, rows in enumerate(places, 2):
        x = b.add("gather", x, b.constant(np.array(rows)), axis=axis)
    return x


def pooled(b: Net, x: TensorId, fn: str = "mean") -> TensorId:
    return b.add("reduce", x, fn=fn, axes=(2, 3), keepdims=True)


def spread(b: Net, x: TensorId, fn: str = "mean") -> TensorId:
    return b.add("expand", pooled(b, x, fn), shape=(2, 48, 4, 4))


TWICE = (0, 0, 1, 1, 2, 2, 3, 3)


@pytest.mark.parametrize(
    ("build", "convolved"),
    [
        (lambda b, x: b.conv(b.add("concat", x, spread(b, x), axis=1), 20, 1), [(4, 4, 48), (1, 1, 48)]),
        (
            lambda b, x: b.conv(b.add("concat", spread(b, x), x, spread(b, x, "max"), b.add("exp", x), axis=1), 50, 1),
            [(4, 4, 96), (1, 1, 96)],
        ),
        (lambda b, x: b.conv(spread(b, x), 24, 1), [(1, 1, 48)]),
        (lambda b, x: b.conv(enlarged(b, x, TWICE, TWICE), 48, 1), [(4, 4, 48)]),
        (
            lambda b, x: b.conv(
                b.add("concat", enlarged(b, x, TWICE, TWICE), enlarged(b, spread(b, x), TWICE, TWICE), axis=1), 16, 1
            ),
            [(4, 4, 48), (1, 1, 48)],
        ),
        # more channels to enlarge than before; fewer places than there were; 3x3; few channels; parts others join, too
        (lambda b, x: b.conv(enlarged(b, x, TWICE, TWICE), 49, 1), [(8, 8, 48)]),
        (lambda b, x: b.conv(enlarged(b, x, (0, 3)), 24, 1), [(2, 4, 48)]),
        (lambda b, x: b.conv(enlarged(b, x, TWICE, TWICE), 24, 3), [(8, 8, 48)]),
        (lambda b, x: b.conv(enlarged(b, x, (0, 0, 1, 1, 2, 3)), 24, 1), [(6, 4, 48)]),
        (
            lambda b, x: b.add(
                "add",
                b.conv(whole := b.add("concat", x, b.add("exp", x), spread(b, x), axis=1), 144, 1),
                b.add("tanh", whole),
            ),
            [(4, 4, 144)],
        ),
    ],
)
def test_what_is_repeated_is_convolved_first(
    build: Callable[[Net, TensorId], TensorId], convolved: list[tuple[int, ...]]
) -> None:
    """By filters of one place; `convolved` are the heights, widths and channels that convolutions read."""
    graph = model(build, (2, 48, 4, 4))
    first = convolve_first(graph)
    assert_same(graph, first)
    read = [op.operation.inputs[0].shape for op in first.operators if op.kind == "conv"]
    assert [(*shape[2:], shape[1]) for shape in read] == convolved
    assert_same(graph, optimize(graph, SPEC))


def test_activations_come_before_concatenation() -> None:
    def build(b: Net, x: TensorId) -> TensorId:
        return b.add("relu", b.add("concat", b.add("tanh", x), b.add("exp", x), axis=1))

    assert after(model(build), split_activations) == {"tanh": 1, "exp": 1, "relu": 2, "concat": 1}
    assert after(model(build), split_activations, fuse) == {"tanh+relu": 1, "exp+relu": 1, "concat": 1}


def test_places() -> None:
    b = Net()
    x = b.input("x", (4, 8))
    rows = b.add("slice", x, starts=(1, 0), steps=(1, 1), shape=(2, 8))
    columns = b.add("slice", x, starts=(0, 2), steps=(1, 1), shape=(4, 4))
    y = b.add("tanh", b.add("reshape", rows, shape=(16,)))
    z = b.add("concat", y, b.add("exp", y), y, b.constant(np.ones(3, np.float32)), axis=0)
    b.output(b.add("neg", z), "neg")
    b.output(b.add("concat", columns, columns, axis=1), "columns")
    b.output(b.add("reshape", z, shape=(3, 17)), "z")
    graph = b.build()
    placed = place(graph)
    assert_same(graph, placed)
    assert Counter(op.kind for op in placed.operators) == {
        "tanh": 1,
        "exp": 1,
        "neg": 1,
        "copy": 2,
        "slice": 1,
        "concat": 1,
    }
    assert {t for t in placed.views if placed.storage(t).root == "z"} >= {y}


def test_an_output_that_is_a_piece_of_a_tensor_is_a_copy() -> None:
    def build(b: Net, x: TensorId) -> tuple[TensorId, ...]:
        y = b.add("tanh", x)
        return b.add("neg", y), b.add("slice", y, starts=(0, 0), steps=(1, 1), shape=(2, 6))

    assert after(model(build, (4, 6)), place) == {"tanh": 1, "neg": 1, "slice": 1}


@pytest.mark.parametrize("batch", [1, 3])
def test_channels_are_blocked_between_convolutions(batch: int) -> None:
    def build(b: Net, x: TensorId) -> TensorId:
        y = b.add("relu", b.conv(x, 24))  # the second block is partly padding
        y = b.add("add", b.pool(b.conv(y, 32), 3, 1), b.conv(y, 32, 1))
        y = b.add("concat", y, b.conv(y, 20), axis=1)
        return b.add("reduce", b.conv(y, 16), fn="mean", axes=(2, 3), keepdims=False)

    graph = model(build, (batch, 3, 8, 8))
    optimized = optimize(graph, SPEC)
    assert_same(graph, optimized)
    blocked = channel_blocked(4, SPEC.lanes)
    for op in optimized.operators:
        assert op.kind != "convert"
        assert all(optimized.types[t].layout == blocked for t in op.outputs if optimized.types[t].rank == 4), op.kind
    assert sum(op.kind == "concat" for op in optimized.operators) == 0


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize(
    ("first", "channels", "view"),
    [(0, 16, True), (16, 32, True), (32, 21, True), (16, 20, False), (8, 16, False), (33, 20, False)],
)
def test_whole_blocks_of_channels_are_views(batch: int, apart: bool, first: int, channels: int, view: bool) -> None:
    """Of 53 channels: blocks from their first channel on, and the last one with its padding; also where images lie
    outside of blocks."""

    def build(b: Net, x: TensorId) -> TensorId:
        y = b.conv(x, 53)
        piece = b.add("slice", y, starts=(0, first, 0, 0), steps=(1,) * 4, shape=(batch, channels, 8, 8))
        return b.add("mul", b.conv(piece, 16), b.conv(y, 16))

    graph = model(build, (batch, 20, 8, 8))
    optimized = optimize(graph, SPEC, per_image=apart)
    assert_same(graph, optimized)
    moves = Counter(op.kind for op in optimized.operators if op.kind in ("slice", "convert"))
    assert (moves == {"convert": 2}) == view, moves  # of the input and of the output


@pytest.mark.parametrize(
    ("channels", "group", "blocked"),
    [(64, 16, True), (32, 4, True), (64, 2, True), (32, 32, True), (48, 2, False), (24, 4, False)],
)
def test_groups_that_straddle_blocks_stay_row_major(channels: int, group: int, blocked: bool) -> None:
    graph = model(lambda b, x: b.conv(b.conv(x, channels, group=group), channels, group=group), (1, channels, 4, 4))
    optimized = optimize(graph, SPEC)
    assert_same(graph, optimized)
    layout = channel_blocked(4, SPEC.lanes) if blocked else None
    inner = next(op for op in optimized.operators if "conv" in op.kind and "convert" not in op.kind)
    assert optimized.types[inner.outputs[0]].layout == layout


@pytest.mark.parametrize(
    ("size", "stride", "group", "masks", "rows"),
    [
        (14, 1, 4, True, True),
        (14, 1, 4, False, False),  # parts of vectors take several loads
        (20, 2, 4, True, True),
        (7, 2, 4, True, False),  # rows of four
        (20, 3, 4, True, False),
        (14, 1, 1, True, False),  # what reads it is blocked
    ],
)
def test_a_depthwise_convolution_between_rows_stays_in_rows(
    size: int, stride: int, group: int, masks: bool, rows: bool
) -> None:
    def build(b: Net, x: TensorId) -> TensorId:
        y = b.conv(x, 24, group=4)
        return b.conv(b.conv(y, 24, 3, stride=stride, group=24), 24, group=group)

    graph = model(build, (1, 24, size, size))
    spec = replace(SPEC, masks=masks)
    optimized = optimize(graph, spec)
    assert_same(graph, optimized)
    convs = [op for op in optimized.operators if "conv" in op.kind.split("+")]
    layouts = [optimized.types[op.outputs[0]].layout for op in convs]
    blocked = channel_blocked(4, SPEC.lanes)
    assert layouts == [None, None if rows else blocked, None if group > 1 else blocked]
    assert any("convert" in op.kind for op in optimized.operators) == (not rows)


def test_convolutions_of_sequences_have_blocked_channels() -> None:
    def build(b: Net, x: TensorId) -> TensorId:
        y = b.conv1d(x, 48, 5)
        return b.add("add", b.add("relu", b.conv1d(y, 48, 3)), y)

    graph = model(build, (3, 20, 75))
    optimized = optimize(graph, SPEC)
    assert_same(graph, optimized)
    blocked = channel_blocked(3, SPEC.lanes)
    convs = [op for op in optimized.operators if "conv" in op.kind.split("+")]
    assert len(convs) == 2 and all(optimized.types[op.outputs[0]].layout == blocked for op in convs)


def test_odd_channels_are_converted_at_the_edges() -> None:
    def build(b: Net, x: TensorId) -> TensorId:
        y = b.add("concat", b.conv(x, 20), b.conv(x, 20), axis=1)
        return b.add("softmax", b.conv(y, 20), axis=1)

    graph = model(build, (1, 16, 4, 4))
    optimized = optimize(graph, SPEC)
    assert_same(graph, optimized)
    assert Counter(op.kind for op in optimized.operators)["convert"] == 5
