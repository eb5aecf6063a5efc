"""Dependencies against the meaning: NaN in one producer tile, and see which consumer tiles turn NaN."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import prod
from typing import Any

import numpy as np
import pytest
from rammer_testing.generate import random_graph, random_plan

from rammer.errors import RammerError
from rammer.ir.analysis import dependency
from rammer.ir.analysis.dependency import (
    BoxReader,
    Dependencies,
    logical_elements,
    overlaps,
    place_of,
    read_elements,
    surely_follows,
    writers,
    writes,
)
from rammer.ir.analysis.intervals import Intervals, expand, merged, missing, union
from rammer.ir.expr import Call, Load, Stage, TensorExpr
from rammer.ir.graph import Graph, ProducerOutput, View
from rammer.ir.index import Index, evaluate, var
from rammer.ir.kernel import ForeignSource, RKernel
from rammer.ir.operator import Operation, Operations, ROperator, attributes
from rammer.ir.ops import OPS
from rammer.ir.program import TaskUid
from rammer.ir.semantics.evaluate import evaluate_expr, logical, put_box
from rammer.ir.tensor import DType, Layout, TensorType, channel_blocked
from rammer.ir.tile import TaskDigit
from rammer.vdevice.interpreter import numpy_kernel

F32 = DType.F32


def define(kind: str, *shapes: tuple[int, ...], **attrs: Any) -> Operation:
    return Operations(OPS).define(kind, tuple(TensorType(s) for s in shapes), attributes(**attrs))


def tiles(shape: tuple[int, ...], steps: tuple[int, ...]) -> RKernel:
    """A producer of a tensor, in boxes of `steps`."""
    operation = define("abs", shape)
    return numpy_kernel(operation, dict(zip((a for a, _ in operation.expr.root.axes), steps, strict=True)))


def poisoned(consumer: RKernel, position: int, producer: RKernel) -> set[tuple[int, int]]:
    """(consumer rTask, producer rTask) by evaluation: whose NaN turns up where."""
    expr = consumer.operation.expr
    found = set()
    for other in range(producer.num_rtasks):
        inputs = {n: np.full(t.shape, 0.5, t.dtype.numpy) for n, t in expr.inputs}
        inputs[expr.inputs[position][0]][tuple(slice(*s) for s in producer.box(other).values())] = np.nan
        outputs = evaluate_expr(expr, inputs)
        for rtask in range(consumer.num_rtasks):
            box = tuple(slice(*s) for s in consumer.box(rtask).values())
            if any(np.isnan(o[box]).any() for o in outputs):
                found.add((rtask, other))
    return found


CASES: dict[str, tuple[Operation, int, tuple[int, ...], tuple[int, ...]]] = {
    "matmul A": (define("matmul", (64, 48), (48, 32)), 0, (16, 16), (8, 32)),
    "matmul B transposed": (define("matmul", (6, 48), (32, 48), trans_b=True), 1, (6, 5), (7, 48)),
    "matmul batch": (define("matmul", (3, 8, 6), (6, 10)), 0, (1, 4, 10), (2, 3, 6)),
    "conv 3x3 s1 p1": (define("conv", (1, 8, 16, 16), (8, 8, 3, 3), pads=(1,) * 4), 0, (1, 8, 4, 16), (1, 8, 4, 16)),
    "conv 3x3 s2 p1, odd tiles": (
        define("conv", (1, 8, 17, 17), (8, 8, 3, 3), pads=(1,) * 4, strides=(2, 2)),
        0,
        (1, 4, 3, 5),
        (1, 4, 4, 6),
    ),
    "conv 1x1 s2, rows": (define("conv", (1, 8, 16, 16), (8, 8, 1, 1), strides=(2, 2)), 0, (1, 8, 2, 8), (1, 8, 1, 16)),
    "conv 3x3 groups": (
        define("conv", (1, 16, 8, 8), (16, 4, 3, 3), pads=(1,) * 4, group=4),
        0,
        (1, 4, 4, 8),
        (1, 2, 4, 8),
    ),
    "conv dilated": (define("conv", (1, 2, 20), (3, 2, 3), dilations=(4,), strides=(3,)), 0, (1, 3, 1), (1, 1, 1)),
    "max pool 3x3 s2 p1": (
        define("max_pool", (1, 4, 17, 17), kernel=(3, 3), strides=(2, 2), pads=(1,) * 4),
        0,
        (1, 2, 2, 9),
        (1, 2, 3, 17),
    ),
    "average pool 3x3 s2 p1": (
        define("average_pool", (1, 4, 17, 17), kernel=(3, 3), strides=(2, 2), pads=(1,) * 4),
        0,
        (1, 2, 2, 9),
        (1, 2, 3, 17),
    ),
    "lrn": (define("lrn", (1, 12, 3, 3), size=5), 0, (1, 1, 3, 3), (1, 1, 1, 3)),
    "softmax": (define("softmax", (32, 40), axis=1), 0, (4, 40), (8, 10)),
    "softmax over rows": (define("softmax", (12, 10), axis=0), 0, (12, 3), (5, 2)),
    "layer norm": (define("layer_norm", (6, 10), (10,), (10,), axis=1), 0, (2, 10), (1, 5)),
    "reduce": (define("reduce", (6, 10, 4), fn="sum", axes=(1,), keepdims=False), 0, (2, 3), (1, 5, 2)),
    "transpose": (define("transpose", (24, 36), perm=(1, 0)), 0, (9, 8), (5, 7)),
    "concat, middle": (define("concat", (8, 10), (8, 7), (8, 13), axis=1), 1, (4, 6), (8, 3)),
    "concat, last": (define("concat", (8, 10), (8, 7), (8, 13), axis=1), 2, (4, 6), (8, 3)),
    "slice, steps 4 and 3": (
        define("slice", (130, 122), starts=(1, 2), steps=(4, 3), shape=(32, 40)),
        0,
        (2, 4),
        (2, 5),
    ),
    "slice backwards": (define("slice", (20,), starts=(19,), steps=(-2,), shape=(10,)), 0, (3,), (1,)),
    "pad": (define("pad", (5, 6), pads=(2, 1, 0, 3), mode="constant", value=0.0), 0, (1, 2), (1, 2)),
    "pad, reflected": (define("pad", (5, 6), pads=(2, 1, 2, 3), mode="reflect", value=0.0), 0, (1, 2), (1, 2)),
    "reshape 12x48 -> 12x4x12": (define("reshape", (12, 48), shape=(12, 4, 12)), 0, (3, 1, 12), (2, 10)),
    "reshape 64x30x8 -> 60x256": (define("reshape", (64, 30, 8), shape=(60, 256)), 0, (6, 256), (7, 10, 8)),
    "broadcast add": (define("add", (4, 1, 6), (5, 1)), 0, (2, 5, 2), (1, 1, 3)),
    "LSTM cell, h": (define("lstm_cell", (2, 4, 16), (2, 16), (2, 16), (4, 16, 16)), 1, (1, 8), (1, 8)),
    "LSTM cell, gx": (define("lstm_cell", (2, 4, 16), (2, 16), (2, 16), (4, 16, 16)), 0, (1, 8), (1, 2, 4)),
    "GRU cell, h": (define("gru_cell", (2, 3, 8), (2, 8), (3, 8, 8), linear_before_reset=False), 1, (1, 4), (1, 2)),
}


@pytest.mark.parametrize("label", CASES)
def test_exact(label: str) -> None:
    operation, position, tile, producer_tile = CASES[label]
    consumer = numpy_kernel(operation, dict(zip((a for a, _ in operation.expr.root.axes), tile, strict=True)))
    producer = tiles(operation.inputs[position].shape, producer_tile)
    found = overlaps(consumer, position, producer, 0, 0)
    assert set(map(tuple, found.tolist())) == poisoned(consumer, position, producer)
    assert read_elements(consumer, position).exact
    size = prod(operation.inputs[position].shape)
    for shift in (0, 1, size // 2, size - 1, size, -1, -size // 2, 1 - size, -size):
        first = 0 in overlaps(consumer, position, producer, 0, shift)[:, 0]
        assert surely_follows(consumer, position, producer, 0, shift) == first


def test_layouts_change_addresses_not_dependencies() -> None:
    """Blocked channels on both sides give the same pairs as row-major ones; padding belongs to the edge tile."""
    interner = Operations(OPS)
    blocked = channel_blocked(4, 16)
    plain = TensorType((1, 40, 6, 6))
    packed = replace(plain, layout=blocked)
    tile = {"d0": 1, "d1": 16, "d2": 2, "d3": 6}
    abs_op = interner.define("abs", (plain,))
    axes = [a for a, _ in abs_op.expr.root.axes]
    tile = dict(zip(axes, tile.values(), strict=True))
    pool = interner.define("max_pool", (plain,), attributes(kernel=(3, 3), pads=(1,) * 4))
    steps = dict(zip((a for a, _ in pool.expr.root.axes), (1, 16, 3, 6), strict=True))
    found = [
        overlaps(
            numpy_kernel(interner.retype(pool, (kind,), pool.outputs, (False,)), steps),
            0,
            numpy_kernel(interner.retype(abs_op, (plain,), (kind,), (False,)), tile),
            0,
            0,
        ).tolist()
        for kind in (plain, packed)
    ]
    assert found[0] == found[1]
    producer = numpy_kernel(interner.retype(abs_op, (plain,), (packed,), (False,)), tile)
    assert packed.nbytes == 48 * 36 * 4
    assert union(written_sets(producer)).tolist() == [[0, 48 * 36]]


@pytest.mark.parametrize(("batch", "channels", "block"), [(1, 16, 16), (2, 40, 16), (3, 21, 8), (5, 64, 16)])
def test_a_pitch_leaves_room_for_others(batch: int, channels: int, block: int) -> None:
    """Elements of a tensor with a pitch, by index and by run, are those of a slice of NumPy's."""
    whole = channel_blocked(4, block, batch_first=True)
    outer = TensorType((batch, (-(-channels // block) + 2) * block, 3, 7), layout=whole)

    def part(channels: int) -> TensorType:
        shape = batch, channels, 3, 7
        return TensorType(shape, layout=whole.with_strides(shape, outer.strides))

    def kernel_of(kind: TensorType) -> RKernel:
        unary = Operations(OPS).retype(define("abs", kind.shape), (kind,), (kind,), (False,))
        return numpy_kernel(unary, dict(zip((a for a, _ in unary.expr.root.axes), (1, block, 2, 7), strict=True)))

    kind = part(channels)
    assert kind.layout is not None and kind.layout.pitched == (batch > 1)
    own = np.arange(np.prod(outer.physical_shape)).reshape(outer.physical_shape)[:, : -(-channels // block)]
    assert expand(kind.runs).tolist() == own.ravel().tolist() and kind.span == own.max() + 1
    assert kind.filled_bytes == 4 * own.size and kind.nbytes == 4 * kind.span
    value = np.random.default_rng(0).standard_normal(kind.shape).astype(np.float32)
    flat = np.full(kind.span, np.nan, np.float32)
    put_box(flat, kind, {str(d): (0, e) for d, e in enumerate(kind.shape)}, value)
    np.testing.assert_array_equal(logical(flat, kind), value)
    assert expand(logical_elements(kind)).tolist() == np.flatnonzero(~np.isnan(flat)).tolist()
    for element in [*range(min(kind.span, 999)), kind.span - 1]:
        place = place_of(kind, element)
        assert np.isnan(flat[element]) if place is None else value[place] == flat[element]
    kernel, other = kernel_of(kind), kernel_of(part(2 * block))
    assert np.array_equal(union(written_sets(kernel)), merged(*kind.runs.T))
    assert overlaps(kernel, 0, kernel, 0, 0).tolist() == [[n, n] for n in range(kernel.num_rtasks)]
    behind = own.shape[1] * block * 21  # where the other one begins, and lies in between
    both = union([*written_sets(kernel), *(s + behind for s in written_sets(other))])
    assert both.tolist() == [[0, np.prod(outer.physical_shape)]]
    assert not len(overlaps(kernel, 0, other, 0, -behind)) and not len(overlaps(other, 0, kernel, 0, behind))
    assert len(overlaps(kernel, 0, other, 0, block * 21 - behind))


def written_sets(kernel: RKernel) -> list[Intervals]:
    return [writes(kernel, 0, r) for r in range(kernel.num_rtasks)]


def graph_of(
    operators: list[tuple[Operation, tuple[str, ...], str]],
    types: dict[str, TensorType],
    views: dict[str, View],
    outputs: tuple[str, ...],
) -> Graph:
    made = {out for _, _, out in operators}
    inputs = tuple(t for _, ins, _ in operators for t in ins if t not in made and t not in views)
    nodes = tuple(ROperator(f"n{i}", op, ins, (out,)) for i, (op, ins, out) in enumerate(operators))
    return Graph("g", inputs, outputs, nodes, types, {}, Operations(OPS), views)


def test_views_see_only_their_part() -> None:
    """Two producers side by side in one tensor (a concat without copies), and a reader of a slice across the seam."""
    row = TensorType((2, 8))
    types = {"x": row, "a": row, "b": row, "both": TensorType((4, 8)), "middle": row, "y": row}
    views = {"a": View("both", 0), "b": View("both", 16), "middle": View("both", 8)}
    unary = define("abs", (2, 8))
    graph = graph_of([(unary, ("x",), "a"), (unary, ("x",), "b"), (unary, ("middle",), "y")], types, views, ("y",))
    kernel = numpy_kernel(unary, {unary.expr.root.axes[0][0]: 1})
    needed = Dependencies(graph, [kernel] * 3).of(2)
    assert needed == [(TaskUid(0, 1),), (TaskUid(1, 0),)]


def test_dynamic_index_reads_the_whole_dimension() -> None:
    operation = Operations(OPS).define("gather", (TensorType((6, 4)), TensorType((3,), DType.I64)), attributes(axis=0))
    axes = [a for a, _ in operation.expr.root.axes]
    kernel = numpy_kernel(operation, {axes[0]: 1, axes[1]: 2})
    assert overlaps(kernel, 0, tiles((6, 4), (1, 2)), 0, 0).tolist() == [
        [task, row * 2 + task % 2] for task in range(6) for row in range(6)
    ]
    index = numpy_kernel(define("abs", (3,)), {})
    assert expand(dependency.reads(kernel, 1, 2)).tolist() == [1]
    assert len(overlaps(kernel, 1, index, 0, 0)) == 6


def test_too_many_points_fall_back_to_a_box_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    operation = define("reshape", (30, 8), shape=(20, 12))
    consumer = numpy_kernel(operation, {operation.expr.root.axes[0][0]: 3})
    exact = overlaps(consumer, 0, tiles((30, 8), (2, 8)), 0, 0)
    assert read_elements(consumer, 0).exact
    monkeypatch.setattr(dependency, "MAX_POINTS", 8)
    again = numpy_kernel(operation, {operation.expr.root.axes[0][0]: 3})
    bounded = overlaps(again, 0, tiles((30, 8), (2, 8)), 0, 0)
    assert not read_elements(again, 0).exact
    assert set(map(tuple, exact.tolist())) <= set(map(tuple, bounded.tolist()))


def test_stages_that_load_each_other_twice_stay_cheap() -> None:
    """A chain of stages, each loading the one before it three times, has 3**40 paths but 40 distinct loads."""
    stages = []
    previous = "x"
    for n in range(40):
        load = Load(previous, (var("i"),))
        stages.append(Stage(f"s{n}", (("i", 8),), Call("where", (load, load, load))))
        previous = f"s{n}"
    expr = TensorExpr("chain", (("x", TensorType((8,))),), tuple(stages), ((previous, TensorType((8,))),))
    operation = Operations(OPS).wrap("chain", "chain", lambda: expr)
    assert dependency.reads(numpy_kernel(operation, {"i": 2}), 0, 1).tolist() == [[2, 4]]


def test_overlapping_tiles_are_refused() -> None:
    operation = define("abs", (10,))
    axis = operation.expr.root.axes[0][0]
    digits = (TaskDigit(axis, 5, 2, 2), TaskDigit(axis, 3, 2, 1))
    kernel = RKernel("odd", operation, ForeignSource("numpy", "", "", digits))
    with pytest.raises(RammerError, match="rTasks 1 and 2 both write element 5"):
        writers(kernel, 0)


def test_interval_sets_against_sets() -> None:
    random = np.random.default_rng(3)
    for _ in range(50):
        a, b = (np.unique(random.integers(0, 60, random.integers(0, 40))) for _ in range(2))
        left, right = (union([np.array([[p, p + 1]]) for p in points]) for points in (a, b))
        assert expand(union([left, right])).tolist() == sorted({*a.tolist(), *b.tolist()})
        assert expand(missing(left, right)).tolist() == sorted({*a.tolist()} - {*b.tolist()})
        assert (left[1:, 0] > left[:-1, 1]).all()


@pytest.mark.parametrize("seed", range(30))
def test_random_loads_against_enumeration(seed: int) -> None:
    """Random affine, divided and remaindered indices into random layouts, point by point."""
    random = np.random.default_rng(seed)
    shape = tuple(int(n) for n in random.integers(2, 9, 2))
    extents = tuple(int(n) for n in random.integers(1, 7, 3))
    names = ("i", "j", "k")

    def index(extent: int) -> Index:
        total = Index(int(random.integers(0, 3)))
        for name in names:
            total = total + var(name) * int(random.integers(-2, 4))
        total = [total, total // int(random.integers(2, 4)), var("i") // 2 * 3 + var("k")][random.integers(3)]
        return total % extent

    places = tuple(index(e) for e in shape)
    layout = Layout((*(d for d in channel_blocked(2, 3).digits),)) if random.random() < 0.5 else None
    x = TensorType(shape, F32, layout)
    body = Load("x", places)
    axes = tuple(zip(names[:2], extents[:2], strict=True))
    stage = Stage("out", axes, body, (("k", extents[2]),))
    expr = TensorExpr("random", (("x", x),), (stage,), (("out", TensorType(extents[:2])),))
    kernel = numpy_kernel(Operations(OPS).wrap("random", seed, lambda: expr), {"i": 2, "j": 3})
    order = np.zeros(shape, np.int64)
    if layout is None:
        order = np.arange(order.size).reshape(shape)
    else:
        blocks = layout.physical_shape(shape)
        for point in product(*map(range, shape)):
            digits = [point[d.dim] // d.div % d.mod if d.mod else point[d.dim] // d.div for d in layout.digits]
            order[point] = np.ravel_multi_index(digits, blocks)
    for rtask in range(kernel.num_rtasks):
        box = kernel.box(rtask)
        wanted = set()
        for i, j, k in product(range(*box["i"]), range(*box["j"]), range(extents[2])):
            wanted.add(int(order[tuple(evaluate(p, {"i": i, "j": j, "k": k}) for p in places)]))
        assert expand(dependency.reads(kernel, 0, rtask)).tolist() == sorted(wanted)


@pytest.mark.parametrize("seed", range(6))
def test_what_operators_read_of_others_by_definition(seed: int) -> None:
    graph = random_graph(seed, 12)
    for n, op in enumerate(graph.operators):
        wanted = [
            ProducerOutput(position, m, output, graph.storage(tensor).offset - graph.storage(written).offset)
            for position, tensor in enumerate(op.inputs)
            for m, other in enumerate(graph.operators)
            for output, written in enumerate(other.outputs)
            for (root, low, high), (owner, first, end) in [(graph.extent(tensor), graph.extent(written))]
            if m != n and root == owner and first < high and end > low
        ]
        assert list(graph.sources[n]) == wanted
        assert graph.before[n] == {source.producer for source in wanted}
        assert graph.after[n] == tuple(m for m in range(len(graph.operators)) if n in graph.before[m])


def test_writers_of_places_that_overlap() -> None:
    """Find all accesses to a tensor: updates write into the same memory again, and views lie inside of it."""
    views = {"x": View("all", 0), "y": View("all", 8), "z": View("all", 0), "part": View("all", 6)}
    types = {"all": TensorType((16,)), "x": TensorType((4,)), "y": TensorType((8,)), "z": TensorType((16,))}
    operators = tuple(ROperator(t, define("abs", types[t].shape), ("in",), (t,)) for t in ("x", "y", "z"))
    types |= {"part": TensorType((4,)), "in": TensorType((16,))}
    graph = Graph("updates", ("in",), ("all",), operators, types, {}, Operations(OPS), views)
    assert graph.writers("part") == [(1, 0, 8), (2, 0, 0)]
    assert graph.writers("x") == [(0, 0, 0), (2, 0, 0)]
    assert graph.writers("all") == [(0, 0, 0), (1, 0, 8), (2, 0, 0)]
    assert graph.writers("in") == []


@pytest.mark.parametrize("seed", range(4))
def test_what_some_rtasks_need_of_each_producer(seed: int) -> None:
    graph = random_graph(seed, 8)
    kernels = random_plan(graph, seed, num_veus=2).kernels
    dependencies = Dependencies(graph, kernels)
    for n, kernel in enumerate(kernels):
        for some in (np.arange(kernel.num_rtasks), np.arange(0, kernel.num_rtasks, 2)):
            found: set[tuple[int, TaskUid]] = set()
            for producer, needed in dependencies.needed(n, some):
                mine = {(int(some[r]), needed.rtasks[w]) for r, w in zip(needed.readers, needed.which, strict=True)}
                assert needed.by_all == (len(mine) == len(some) * len(needed.rtasks))
                found |= {(reader, TaskUid(producer, rtask)) for reader, rtask in mine}
            every = dependencies.of(n)
            assert found == {(reader, task) for reader in some.tolist() for task in every[reader]}


@pytest.mark.parametrize("layout", [None, channel_blocked(4, 16)])
def test_what_each_place_reads_is_what_its_box_reads(layout: Layout | None) -> None:
    """All places enumerated together, and each by the intervals of its box; beside padding, and in every role."""
    kinds = TensorType((3, 20, 9, 7), layout=layout), TensorType((24, 20, 3, 3)), TensorType((24,))
    made = Operations(OPS)
    plain = made.define("conv", kinds, attributes(pads=(1, 1, 1, 1), strides=(2, 1)))
    conv = made.retype(plain, kinds, plain.outputs, (False, True, True))
    kernel = numpy_kernel(conv, dict(conv.expr.root.axes))
    axes = [a for a, _ in conv.expr.root.axes]
    rng = np.random.default_rng(0)
    at = {a: rng.integers(0, extent, 25) for a, extent in conv.expr.root.axes}
    for position in range(3):
        reader = BoxReader(kernel, position, most_roles=16)
        together = reader.of_each(at)
        assert together is not None
        for n in range(25):
            apart = reader.by_load({a: (int(at[a][n]), int(at[a][n]) + 1) for a in axes})
            for role in {role for _, role in apart}:
                wanted = expand(union([found for (_, r), found in apart.items() if r == role]))
                rows = together[role]
                assert np.array_equal(rows[rows[:, 0] == n, 1], wanted)
