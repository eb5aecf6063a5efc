"""How far rounding may move outputs: more than programs are off, far less than bounds through all operators allow."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

import rammer
from rammer.demo import lstm_stack
from rammer.frontend.builder import GraphBuilder
from rammer.ir.evaluate import evaluate_graph
from rammer.ir.expected import Expected, expected
from rammer.ir.graph import Graph
from rammer.ir.operator import ROperator
from rammer.ir.rounding import Bounded, bounded
from rammer.ir.tensor import Array


def of(graph: Graph, inputs: Mapping[str, Array]) -> Expected:
    def local(_: int, op: ROperator, given: Mapping[str, Array]) -> list[Bounded]:
        return bounded(op.operation.expr, given)

    return expected(graph, inputs, local)


def test_values_are_the_meaning_and_bounds_stay_small() -> None:
    graph = rammer.load(lstm_stack(layers=2, steps=12, hidden=96))
    random = np.random.default_rng(0)
    inputs = {t: random.standard_normal(graph.types[t].shape).astype(np.float32) for t in graph.inputs}
    found, wanted = of(graph, inputs), evaluate_graph(graph, inputs)
    for tensor, (value, error) in found.items():
        np.testing.assert_array_equal(value, wanted[tensor])
        assert 5e-7 < error.max() / np.abs(value).max() < 2e-4


@pytest.mark.parametrize("scale", [0.02, 0.25])
def test_a_step_is_uncertain_where_rounding_may_cross_it(scale: float) -> None:
    """Quotients of a scale that float32 holds are exact; those of another may be on either side of a step."""
    b = GraphBuilder("steps")
    x = b.input("x", (28,))
    b.output(b.add("round", b.add("div", x, b.constant(np.float32(scale)))), "y")
    x_values = np.arange(28, dtype=np.float32) * np.float32(scale)
    sure = of(b.build(), {"x": x_values})["y"]
    assert not sure.error.any()  # all quotients are whole, far from a step
    halves = x_values.copy()
    halves[5] += np.float32(scale / 2)
    assert of(b.build(), {"x": halves})["y"].error.max() >= 1


def test_what_is_only_moved_is_exact() -> None:
    b = GraphBuilder("moved")
    b.output(b.add("transpose", b.input("x", (3, 75)), perm=(1, 0)), "y")
    x = np.random.default_rng(0).standard_normal((3, 75)).astype(np.float32)
    assert not of(b.build(), {"x": x})["y"].error.any()
