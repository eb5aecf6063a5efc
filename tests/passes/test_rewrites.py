"""What single passes do to small graphs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
from pass_models import SPEC, Net, after, assert_same, fed_back_cells, lstm_cells, lstm_layers, model

from rammer.ir.graph import Graph, View
from rammer.ir.tensor import DType, TensorId
from rammer.ir.verify import verify_graph
from rammer.passes import optimize
from rammer.passes.clean.eliminate_common import eliminate_common
from rammer.passes.clean.fold_constants import fold_constants
from rammer.passes.clean.fold_norms import fold_norms
from rammer.passes.clean.products import simplify_products
from rammer.passes.clean.simplify import simplify
from rammer.passes.clusters import Clusters
from rammer.passes.fusion.regions import fuse
from rammer.passes.recurrent.cut_rows import cut_rows
from rammer.passes.recurrent.gates import gather_gates
from rammer.passes.recurrent.projections import join_projections
from rammer.passes.recurrent.stack_rows import stack_rows


def full(b: Net, value: float, *shape: int) -> TensorId:
    return b.constant(np.full(shape, value, np.float32))


NEUTRAL: dict[str, Callable[[Net, TensorId], TensorId]] = {
    "x * 1": lambda b, x: b.add("mul", x, full(b, 1, 1)),
    "1 * x": lambda b, x: b.add("mul", full(b, 1, 4), x),
    "x + 0": lambda b, x: b.add("add", x, full(b, 0, 16, 1, 1)),
    "x / 1": lambda b, x: b.add("div", x, full(b, 1)),
    "x - 0": lambda b, x: b.add("sub", x, full(b, 0)),
    "cast": lambda b, x: b.add("cast", x, dtype=DType.F32),
    "transpose": lambda b, x: b.add("transpose", x, perm=(0, 1, 2, 3)),
    "expand": lambda b, x: b.add("expand", x, shape=(16, 4, 1)),
    "slice": lambda b, x: b.add("slice", x, starts=(0,) * 4, steps=(1,) * 4, shape=(2, 16, 4, 4)),
    "there and back": lambda b, x: b.add("reshape", b.add("reshape", x, shape=(32, 16)), shape=(2, 16, 4, 4)),
    "where, never": lambda b, x: b.add("where", b.constant(np.zeros((4, 1), np.bool_)), full(b, 0, 1), x),
    "where, always": lambda b, x: b.add("where", b.constant(np.ones(1, np.bool_)), x, full(b, 0, 1)),
}


@pytest.mark.parametrize("name", NEUTRAL)
def test_neutral_operators_disappear(name: str) -> None:
    graph = model(lambda b, x: b.add("relu", NEUTRAL[name](b, b.add("tanh", x))))
    assert after(graph, simplify) == {"tanh": 1, "relu": 1}


@pytest.mark.parametrize("name", NEUTRAL)
def test_an_output_keeps_a_copy_of_an_input(name: str) -> None:
    graph = model(NEUTRAL[name])
    optimized = optimize(graph, SPEC)
    assert_same(graph, optimized)
    assert len(optimized.operators) == 1


def test_growing_operators_stay() -> None:
    graph = model(lambda b, x: b.add("add", x, full(b, 0, 3, 1, 1, 1, 1)))
    assert after(graph, simplify) == {"add": 1}


def test_choices_that_differ_or_grow_stay() -> None:
    def build(b: Net, x: TensorId) -> tuple[TensorId, ...]:
        some, none = (b.constant(np.array(c)) for c in ([True, False, True, True], [[[[[False]]]]] * 3))
        return b.add("where", some, x, full(b, 0, 1)), b.add("where", none, x, full(b, 0, 1))

    assert after(model(build), simplify) == {"where": 2}


def test_gather_of_constant_places_is_a_slice() -> None:
    def build(b: Net, x: TensorId) -> tuple[TensorId, ...]:
        places = [np.int64(3), np.array([-1]), np.array([1, 3, 5]), np.array([[4], [2]]), np.array([0, 1, 1])]
        return tuple(b.add("gather", x, b.constant(p), axis=1) for p in places)

    assert after(model(build), simplify) == {"slice": 4, "reshape": 2, "gather": 1}


def test_equal_work_is_done_once() -> None:
    def build(b: Net, x: TensorId) -> TensorId:
        same = [b.constant(np.arange(64, dtype=np.float32).reshape(16, 4, 1), name) for name in "pq"]
        left, right = (b.add("relu", b.add("add", x, c)) for c in same)
        return b.add("mul", left, right)

    assert after(model(build), eliminate_common) == {"add": 1, "relu": 1, "mul": 1}


def test_constants_are_computed_once() -> None:
    b = Net()
    b._fold_flops = b._fold_bytes = 0  # leave folding to the pass
    c = b.add("exp", b.add("tanh", b.constant(np.ones((64, 64), np.float32))))
    b.output(b.add("add", b.input("x", (64, 64)), c), "y")
    b.output(b.add("relu", c), "z")
    graph = b.build()
    assert sum(op.kind in ("tanh", "exp") for op in graph.operators) == 2
    assert after(graph, fold_constants) == {"add": 1, "copy": 1}


@pytest.mark.parametrize(("size", "left"), [(300, 0), (1024, 1)])
def test_products_of_constants_are_computed_up_to_a_limit(size: int, left: int) -> None:
    b = Net()
    b._fold_flops = b._fold_bytes = 0
    product = b.add("matmul", b.weight(size, size), b.weight(size, size), trans_a=False, trans_b=False)
    b.output(b.add("add", b.input("x", (size, size)), product), "y")
    graph = fold_constants(b.build())
    assert sum(op.kind == "matmul" for op in graph.operators) == left


def test_constants_that_nothing_reads_afterwards_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights that are standardized, as in BiT: at most two results of one at a time are beside them."""
    monkeypatch.setattr("rammer.passes.clean.fold_constants.MAX_BYTES", 2 * 96 * 96 * 4 + 100)

    def build(kept: bool) -> Graph:
        b = Net()
        b._fold_flops = b._fold_bytes = 0
        x = b.input("x", (3, 96))
        for _ in range(3):
            w = b.weight(96, 96)
            centred = b.add("sub", w, full(b, 0.5))
            scaled = b.add("div", centred, b.add("sqrt", b.add("mul", centred, centred)))
            x = b.add("matmul", x, scaled, trans_a=False, trans_b=False)
            x = b.add("matmul", x, w, trans_a=False, trans_b=False) if kept else x
        b.output(x, "y")
        return b.build()

    assert after(build(False), fold_constants) == {"matmul": 3}
    left = after(build(True), fold_constants)  # the weights stay, too: one result has room, and the start of another
    assert left == {"matmul": 6, "div": 2, "sqrt": 2, "mul": 2, "sub": 1}


def test_a_constant_that_a_view_has_stays() -> None:
    b = Net()
    b._fold_flops = b._fold_bytes = 0
    x, whole, row = b.input("x", (96,)), b.weight(2, 96), b.weight(96)
    b.output(b.add("add", b.add("add", x, row), b.add("reduce", whole, fn="max", axes=(0,), keepdims=False)), "y")
    made = b.build()
    constants = {t: value for t, value in made.constants.items() if t != row}
    graph = replace(made, constants=constants, views={row: View(whole, 96)})
    folded = fold_constants(graph)
    assert after(graph, fold_constants) == {"add": 2} and folded.views == graph.views
    verify_graph(folded, graph)


@pytest.mark.parametrize(
    ("rows", "as_it_lies", "left"),
    [
        (1, True, {"matmul": 1, "mul": 1}),
        (1, False, {"matmul": 1, "mul": 1, "transpose": 1, "reshape": 2}),
        (5, True, {"matmul": 1, "mul": 1, "transpose": 1, "reshape": 2}),
    ],
)
def test_attention_as_exporters_write_it_scales_its_product(rows: int, as_it_lies: bool, left: dict[str, int]) -> None:
    def build(b: Net, x: TensorId) -> TensorId:
        stacked = b.add("reshape", b.input("keys", (1, 6, 75, 20)), shape=(6, 75, 20))
        turned = b.add("reshape", b.add("transpose", stacked, perm=(0, 2, 1)), shape=(1, 6, 20, 75))
        scaled = b.add("div", turned, full(b, 3.0, 1))
        return b.add("matmul", b.add("mul", x, full(b, 0.5)), scaled, trans_a=False, trans_b=False)

    graph = model(build, (1, 6, rows, 20))
    assert after(graph, lambda g: simplify_products(g, as_it_lies)) == left


@pytest.mark.parametrize("as_it_lies", [True, False])
@pytest.mark.parametrize("turned", [True, False])
@pytest.mark.parametrize(
    ("batch", "groups", "heads", "rows"), [(1, 3, 3, 1), (3, 2, 4, 1), (2, 1, 5, 7), (1, 4, 2, 29)]
)
def test_heads_that_share_a_cache_do_not_repeat_it(
    batch: int, groups: int, heads: int, rows: int, turned: bool, as_it_lies: bool
) -> None:
    def build(b: Net, x: TensorId) -> TensorId:
        cache = b.input("cache", (batch, groups, 75, 20))
        each = b.add("reshape", cache, shape=(batch, groups, 1, 75, 20))
        each = b.add("expand", each, shape=(batch, groups, heads, 75, 20))
        if turned:  # as scaled_dot_product_attention is exported
            stacked = b.add("reshape", each, shape=(batch * groups * heads, 75, 20))
            stacked = b.add("transpose", stacked, perm=(0, 2, 1))
            keys = b.add("reshape", stacked, shape=(batch, groups * heads, 20, 75))
            return b.add(
                "matmul", b.add("mul", x, full(b, 0.5)), b.add("mul", keys, full(b, 0.5)), trans_a=False, trans_b=False
            )
        values = b.add("reshape", each, shape=(batch, groups * heads, 75, 20))
        return b.add("matmul", x, values, trans_a=False, trans_b=False)

    graph = model(build, (batch, groups * heads, rows, 20 if turned else 75))
    found = after(graph, lambda g: simplify_products(g, as_it_lies))
    read_as_it_lies = as_it_lies and rows == 1
    assert found["expand"] == (turned and not read_as_it_lies) and found["matmul"] == 1
    assert found["transpose"] == (turned and not read_as_it_lies)


LAST = (0, 2, 3, 1)


@pytest.mark.parametrize(
    ("shape", "perm", "back", "kept"),
    [
        ((2, 4, 14, 13), LAST, (0, 3, 1, 2), False),
        ((3, 28, 75), (0, 2, 1), (0, 2, 1), False),
        ((5, 6, 80), (1, 2, 0), (2, 0, 1), False),
        ((2, 4, 7, 9), LAST, (0, 3, 1, 2), True),  # 63 columns
        ((2, 4, 14, 13), LAST, (0, 3, 2, 1), True),
        ((2, 4, 14, 13), (0, 3, 2, 1), (0, 3, 2, 1), True),
    ],
)
@pytest.mark.parametrize("trans_b", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_a_product_along_a_dimension_that_moves_there_and_back_is_computed_where_it_lies(
    shape: tuple[int, ...], perm: tuple[int, ...], back: tuple[int, ...], kept: bool, trans_b: bool, bias: bool
) -> None:
    def build(b: Net, x: TensorId) -> TensorId:
        mixed, along = b.add("transpose", x, perm=perm), shape[perm[-1]]
        mixed = b.add("matmul", mixed, b.weight(*((9, along) if trans_b else (along, 9))), trans_b=trans_b)
        mixed = b.add("add", b.weight(9), mixed) if bias else mixed
        return b.add("transpose", mixed, perm=back)

    graph = model(build, shape)
    found = after(graph, lambda g: simplify_products(g, True))
    assert found["transpose"] == (2 if kept else 0) and found["matmul"] == 1
    assert after(graph, lambda g: simplify_products(g, False))["transpose"] == 2


@pytest.mark.parametrize("dtype", [DType.F32, DType.I32])
def test_a_product_of_bytes_that_moves_there_and_back_stays(dtype: DType) -> None:
    b = Net()
    moved = b.add("transpose", b.input("x", (2, 28, 75), DType.I8), perm=(0, 2, 1))
    weights = b.constant(np.arange(28 * 9, dtype=np.int8).reshape(28, 9))
    b.output(b.add("transpose", b.add("matmul", moved, weights, dtype=dtype), perm=(0, 2, 1)), "y")
    assert after(b.build(), lambda g: simplify_products(g, True)) == {"matmul": 1, "transpose": 2}


def test_a_product_that_others_read_transposed_stays() -> None:
    def build(b: Net, x: TensorId) -> tuple[TensorId, ...]:
        moved = b.add("transpose", x, perm=LAST)
        mixed = b.add("matmul", moved, b.weight(4, 4))
        return b.add("transpose", mixed, perm=(0, 3, 1, 2)), mixed

    assert after(model(build, (2, 4, 14, 13)), lambda g: simplify_products(g, True)) == {"matmul": 1, "transpose": 2}


def test_scales_that_others_read_or_that_overflow_stay() -> None:
    def build(b: Net, x: TensorId) -> tuple[TensorId, ...]:
        scaled = b.add("mul", x, full(b, 0.5))
        infinite = b.add("mul", x, full(b, np.inf))
        grown = b.add("mul", x, full(b, 0.5, 1, 1, 1))  # a shape of one element more broadcasts, this one as well
        products = [b.add("matmul", t, x, trans_a=False, trans_b=True) for t in (scaled, infinite, grown)]
        return (*products, scaled)

    assert after(model(build, (16, 4)), lambda g: simplify_products(g, True)) == {"matmul": 3, "mul": 3}


def test_products_of_half_precision_are_scaled_first() -> None:
    b = Net()
    x = b.input("x", (3, 75), DType.F16)
    scaled = b.add("mul", x, b.constant(np.array(0.01, np.float16)))
    b.output(b.add("matmul", scaled, x, trans_a=False, trans_b=True), "y")
    assert after(b.build(), lambda g: simplify_products(g, True)) == {"matmul": 1, "mul": 1}
    graph = simplify_products(b.build(), True)
    assert graph.operators[-1].kind == "matmul"


NORMS: dict[str, tuple[Callable[[Net, TensorId], TensorId], tuple[int, ...], dict[str, int]]] = {
    "conv": (lambda b, x: b.norm(b.conv(x, 8)), (2, 16, 4, 4), {"conv": 1}),
    "conv without bias": (lambda b, x: b.norm(b.conv(x, 8, bias=False)), (2, 16, 4, 4), {"conv": 1}),
    "grouped": (lambda b, x: b.norm(b.conv(x, 32, group=16, bias=False)), (2, 16, 4, 4), {"conv": 1}),
    "two norms": (lambda b, x: b.norm(b.norm(b.conv(x, 8))), (2, 16, 4, 4), {"conv": 1}),
    "matmul": (lambda b, x: b.norm(b.add("matmul", x, b.weight(16, 8))), (3, 16), {"matmul": 1, "add": 1}),
    "transposed": (
        lambda b, x: b.norm(b.add("matmul", x, b.weight(8, 16), trans_b=True)),
        (3, 16),
        {"matmul": 1, "add": 1},
    ),
    "alone": (lambda b, x: b.norm(x), (2, 16, 4, 4), {"mul": 1, "add": 1}),
    "scale after": (lambda b, x: b.add("mul", full(b, 3, 8, 1, 1), b.conv(x, 8)), (2, 16, 4, 4), {"conv": 1}),
    "scale of columns": (lambda b, x: b.add("mul", b.conv(x, 8), b.weight(4)), (2, 16, 4, 4), {"conv": 1, "mul": 1}),
    "scale of rows": (
        lambda b, x: b.add("mul", b.add("matmul", x, b.weight(16, 8)), b.weight(3, 1)),
        (3, 16),
        {"matmul": 1, "mul": 1},
    ),
    "pad": (
        lambda b, x: b.conv(b.add("pad", x, pads=(0, 0, 1, 0, 0, 0, 2, 1), mode="constant", value=0.0), 8, pad=1),
        (2, 16, 4, 4),
        {"conv": 1},
    ),
    "pad with ones": (
        lambda b, x: b.conv(b.add("pad", x, pads=(0, 0, 1, 1, 0, 0, 1, 1), mode="constant", value=1.0), 8),
        (2, 16, 4, 4),
        {"conv": 1, "pad": 1},
    ),
}


@pytest.mark.parametrize("name", NORMS)
def test_scales_go_into_weights(name: str) -> None:
    build, shape, wanted = NORMS[name]
    graph = model(build, shape)
    assert after(graph, simplify, fold_norms, fold_norms) == wanted


def test_a_shared_convolution_keeps_its_weights() -> None:
    def build(b: Net, x: TensorId) -> tuple[TensorId, ...]:
        y = b.conv(x, 8)
        return b.norm(y), b.add("relu", y)

    assert after(model(build), fold_norms)["mul"] == 1


def half(b: Net, x: TensorId, start: int) -> TensorId:
    return b.add("slice", x, shape=(2, 16, 4, 2), starts=(0, 0, 0, start), steps=(1, 1, 1, 1))


FUSED: dict[str, tuple[Callable[[Net, TensorId], TensorId], list[str]]] = {
    "swish": (lambda b, x: (lambda y: b.add("mul", y, b.add("sigmoid", y)))(b.conv(x, 16)), ["conv+sigmoid+mul"]),
    "residual": (lambda b, x: b.add("relu", b.add("add", b.conv(x, 16), x)), ["conv+add+relu"]),
    "two products": (lambda b, x: b.add("add", b.conv(x, 16), b.conv(x, 16)), ["conv", "conv+add"]),
    "softmax": (lambda b, x: b.add("neg", b.add("softmax", b.add("exp", x), axis=1)), ["exp", "softmax+neg"]),
    "gather": (
        lambda b, x: b.add("relu", b.add("gather", x, b.constant(np.array([2, 0, 0])), axis=1)),
        ["gather+relu"],
    ),
    "transposed operand": (
        lambda b, x: b.add("add", b.add("neg", x), b.add("transpose", x, perm=(0, 1, 3, 2))),
        ["neg+transpose+add"],
    ),
    "expanded operand": (
        lambda b, x: b.add(
            "mul", x, b.add("expand", b.add("reduce", x, fn="max", axes=(1,), keepdims=True), shape=(2, 16, 4, 4))
        ),
        ["reduce", "expand+mul"],
    ),
    "parts of rows": (
        lambda b, x: b.add("mul", b.add("sigmoid", half(b, x, 0)), b.add("tanh", half(b, x, 2))),
        ["slice+sigmoid+tanh+mul"],
    ),
    "parts that are whole rows": (
        lambda b, x: b.add("tanh", b.add("slice", x, shape=(1, 16, 4, 4), starts=(1, 0, 0, 0), steps=(1, 1, 1, 1))),
        ["slice", "tanh"],
    ),
    "depthwise after relu": (
        lambda b, x: b.add("add", b.conv(b.add("relu", x), 16, group=16), b.conv(b.add("relu", x), 16, 5, group=16)),
        ["relu+conv", "relu+conv+add"],
    ),
    "mixed types": (
        lambda b, x: b.add(
            "where", b.add("less", x, full(b, 0)), b.add("cast", b.add("cast", x, dtype=DType.I32), dtype=DType.F32), x
        ),
        ["less+cast+where"],
    ),
}


@pytest.mark.parametrize("name", FUSED)
def test_fusions(name: str) -> None:
    build, wanted = FUSED[name]
    assert sorted(after(model(build), eliminate_common, fuse).elements()) == sorted(wanted)


def test_equal_fusions_are_one_operation() -> None:
    def build(b: Net, x: TensorId) -> TensorId:
        for _ in range(4):
            x = b.add("relu", b.add("add", b.conv(x, 16), x))
        return x

    graph = optimize(model(build), SPEC)
    operations = [op.operation for op in graph.operators if op.kind == "conv+add+relu"]
    assert len(operations) == 4 and len(set(operations)) == 1


def test_large_tensors_are_not_outputs_of_several_operators() -> None:
    def build(b: Net, x: TensorId) -> tuple[TensorId, ...]:
        y = b.conv(x, 16)
        return b.add("relu", y), b.add("tanh", y)

    large = fuse(model(build, (1, 16, 64, 64)))
    small = fuse(model(build, (1, 16, 4, 4)))
    assert sorted(op.kind for op in large.operators) == ["conv", "relu", "tanh"]
    assert [op.kind for op in small.operators] == ["conv+tanh+relu"]
    assert [len(op.outputs) for op in small.operators] == [2]


def test_long_chains_are_cut() -> None:
    def build(b: Net, x: TensorId) -> TensorId:
        for _ in range(9):
            x = b.add("mul", x, b.add("tanh", x))  # doubles in size when substituted
        return x

    assert 1 < after(model(build, (2, 4)), fuse).total() < 9


def test_products_of_the_same_rows_are_one() -> None:
    def build(b: Net, x: TensorId) -> TensorId:
        y = [b.add("add", b.add("matmul", x, b.weight(16, 8)), b.weight(8)) for _ in range(3)]
        return b.add("mul", b.add("mul", y[0], y[1]), y[2])

    assert after(model(build, (5, 16)), gather_gates, fuse) == {"gate_matmul+gate+add+mul": 1}
    assert after(model(build, (500, 16)), gather_gates)["matmul"] == 3


def test_cells_project_what_only_they_read() -> None:
    kinds = after(fed_back_cells(), stack_rows, join_projections)
    assert kinds == {"matmul+lstm_cell": 3, "relu": 1}
    kinds = after(lstm_cells(), join_projections)
    assert kinds["matmul"] == 1 and kinds["lstm_cell"] == 4


def test_rows_are_stacked_unless_they_depend_on_each_other() -> None:
    def build(b: Net, x: TensorId, feedback: bool) -> TensorId:
        w = b.weight(16, 16)
        total = rows = b.add("slice", x, starts=(0, 0), steps=(1, 1), shape=(2, 16))
        for t in range(3):
            product = b.add("matmul", rows, w)
            total = b.add("tanh", b.add("add", total, product))
            rows = product if feedback else b.add("slice", x, starts=(2 * t, 0), steps=(1, 1), shape=(2, 16))
        return total

    free = model(lambda b, x: build(b, x, False), (6, 16))
    bound = model(lambda b, x: build(b, x, True), (6, 16))
    assert after(free, eliminate_common, stack_rows)["matmul"] == 1
    assert after(bound, stack_rows)["matmul"] == 3


def test_layers_run_side_by_side_where_vEUs_are_many() -> None:
    """A product of two layers' rows would wait for both; a device whose vEUs keep weights keeps them apart."""
    b = Net()
    x, w = b.input("x", (1, 16)), b.weight(16, 16)
    below = b.add("matmul", x, w)
    above = b.add("matmul", b.add("softmax", x, axis=1), w)
    b.output(b.add("softmax", below, axis=1), "y0")
    b.output(b.add("softmax", above, axis=1), "y1")
    counts = {
        many: sum("matmul" in op.kind for op in optimize(b.build(), replace(SPEC, kept_reads=5 * many)).operators)
        for many in (False, True)
    }
    assert counts == {False: 1, True: 2}


@pytest.mark.parametrize(("steps", "batch", "width"), [(6, 1, 8), (7, 3, 5), (29, 2, 9)])
def test_a_layer_need_not_wait_for_the_last_step_of_the_one_below(steps: int, batch: int, width: int) -> None:
    """The first layer's input is there as a whole; one that goes backwards waits for the last step in any case."""
    assert after(lstm_layers(steps, batch, width), cut_rows)["matmul"] == 1 + steps
    assert after(lstm_layers(steps, batch, width, backwards=True), cut_rows)["matmul"] == 2
    graph = lstm_layers(steps, batch, width)
    length = {many: len(optimize(graph, replace(SPEC, kept_reads=5 * many)).wavefronts()) for many in (False, True)}
    assert length[False] > 2 * steps and length[True] <= steps + 4


def test_two_groups_that_depend_on_each_other_are_not_both_stacked() -> None:
    b = Net()
    x = b.input("x", (1, 8))
    v, w = b.weight(8, 8), b.weight(8, 8)
    a1 = b.add("tanh", b.add("matmul", x, v))
    b1 = b.add("tanh", b.add("matmul", a1, w))
    b2 = b.add("neg", b.add("matmul", b.add("neg", x), w))
    a2 = b.add("matmul", b2, v)
    b.output(b.add("add", b1, a2), "y")
    assert after(b.build(), stack_rows)["matmul"] == 3


@pytest.mark.parametrize("seed", range(20))
def test_contraction_never_makes_a_cycle_and_refuses_only_cycles(seed: int) -> None:
    rng = np.random.default_rng(seed)
    b = Net(seed)
    tensors = [b.input("x", (2,))]
    for _ in range(30):
        left, right = (tensors[int(rng.integers(max(0, len(tensors) - 8), len(tensors)))] for _ in range(2))
        tensors.append(b.add("add", left, right))
    for n, t in enumerate(tensors[-5:]):
        b.output(t, f"y{n}")
    graph = b.build()
    clusters = Clusters(graph)
    count = len(graph.operators)
    for _ in range(60):
        groups = list(clusters.members)
        first, second = (groups[int(rng.integers(len(groups)))] for _ in range(2))
        if first == second:
            continue
        wanted = quotient(graph, clusters)
        merged = nx.contracted_nodes(wanted, first, second, self_loops=False)
        assert (clusters.contract(first, second) is None) == (not nx.is_directed_acyclic_graph(merged))
        assert nx.is_directed_acyclic_graph(quotient(graph, clusters))
        assert sorted(n for m in clusters.members.values() for n in m) == list(range(count))


def quotient(graph: Graph, clusters: Clusters) -> nx.DiGraph:
    result = nx.DiGraph()
    result.add_nodes_from(clusters.members)
    edges = ((clusters.group_of[a], clusters.group_of[b]) for b, before in enumerate(graph.before) for a in before)
    result.add_edges_from((a, b) for a, b in edges if a != b)
    return result
