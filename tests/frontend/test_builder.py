"""The graph builder."""

from __future__ import annotations

import numpy as np
import pytest

from rammer.errors import ModelError, RammerError, TypeMismatch
from rammer.frontend.builder import GraphBuilder
from rammer.ir.semantics.evaluate import evaluate_graph
from rammer.ir.tensor import DType


def test_a_small_network() -> None:
    b = GraphBuilder("mlp")
    x = b.input("x", (2, 3))
    hidden = b.add("relu", b.add("matmul", x, b.constant(np.eye(3, dtype=np.float32))), name="hidden")
    b.output(b.add("softmax", hidden, axis=-1), "p")
    graph = b.build()
    assert (graph.name, graph.inputs, graph.outputs) == ("mlp", ("x",), ("p",))
    seen = evaluate_graph(graph, {"x": np.zeros((2, 3), np.float32)})
    np.testing.assert_allclose(seen["p"], np.full((2, 3), 1 / 3), rtol=1e-6)


def test_equal_operations_are_one_object() -> None:
    b = GraphBuilder()
    x = b.input("x", (4,))
    first = b.add("relu", x)
    b.output(b.add("add", first, b.add("relu", first)), "y")
    one, two, _ = b.build().operators
    assert one.operation is two.operation and one is not two


def test_constants_fold_within_the_budget() -> None:
    def count(**limits: int) -> int:
        b = GraphBuilder(**limits)
        big = b.constant(np.ones((64, 64), np.float32))
        b.output(b.add("add", b.input("x", (64, 64)), b.add("mul", big, big)), "y")
        return len(b.build().operators)

    assert count() == 1
    assert count(fold_bytes=100) == count(fold_flops=100) == 2


def test_moves_of_constants_share_memory() -> None:
    b = GraphBuilder(fold_bytes=0)
    weight = np.ones((300, 400), np.float32)
    turned = b.value(b.add("transpose", b.constant(weight), perm=(1, 0)))
    assert turned is not None and np.shares_memory(turned, weight)


def test_small_constants_are_shared() -> None:
    b = GraphBuilder()
    assert b.constant(np.float32(1)) == b.constant(np.float32(1)) != b.constant(np.int64(1))


def test_several_outputs_of_an_operator() -> None:
    b = GraphBuilder()
    values, places = b.add("max_pool", b.input("x", (1, 1, 4)), kernel=(2,), indices=True)
    b.output(values, "values")
    b.output(places, "places")
    graph = b.build()
    assert graph.types["places"].dtype is DType.I64 and graph.producers["values"] == graph.producers["places"]


def test_an_output_may_take_the_name_of_another_tensor() -> None:
    b = GraphBuilder()
    first = b.add("relu", b.input("x", (2,)), name="a")
    second = b.add("neg", first, name="b")
    b.output(second, "a")
    b.output(first, "b")
    seen = evaluate_graph(b.build(), {"x": np.array([-1, 3], np.float32)})
    assert seen["a"].tolist() == [0, -3] and seen["b"].tolist() == [0, 3]


def test_mistakes_are_explained() -> None:
    b = GraphBuilder()
    x = b.input("x", (2, 3))
    with pytest.raises(ModelError, match="two tensors are named 'x'"):
        b.input("x", (2,))
    with pytest.raises(RammerError, match="no operator 'rellu'"):
        b.add("rellu", x)
    with pytest.raises(TypeMismatch, match="matmul"):
        b.add("matmul", x, x)
    with pytest.raises(ModelError, match="element type"):
        b.constant(np.array(["text"]))
    b.output(x, "x2")
    with pytest.raises(ModelError, match="two outputs are named 'x2'"):
        b.output(x, "x2")
