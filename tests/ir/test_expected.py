"""How far rounding may move outputs: more than programs are off, far less than bounds through all operators allow."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

import rammer
from rammer.frontend.builder import GraphBuilder
from rammer.ir.graph import Graph
from rammer.ir.operator import ROperator
from rammer.ir.semantics.evaluate import evaluate_graph
from rammer.ir.semantics.expected import Expected, expected, rounded_once
from rammer.ir.semantics.rounding import Bounded, bounded
from rammer.ir.tensor import Array, DType
from rammer_viz.demo import lstm_stack


def of(graph: Graph, inputs: Mapping[str, Array]) -> Expected:
    def local(_: int, op: ROperator, given: Mapping[str, Array]) -> list[Bounded]:
        return bounded(op.operation.expr, given)

    return expected(graph, inputs, local)


def test_values_are_the_meaning_and_bounds_stay_small() -> None:
    graph = rammer.from_onnx(lstm_stack(layers=2, steps=12, hidden=96))
    random = np.random.default_rng(0)
    inputs = {t: random.standard_normal(graph.types[t].shape).astype(np.float32) for t in graph.inputs}
    found, wanted = of(graph, inputs), evaluate_graph(graph, inputs)
    for tensor, (value, error, *_) in found.items():
        np.testing.assert_array_equal(value, wanted[tensor])
        assert 5e-7 < error.max() / np.abs(value).max() < 2e-4


@pytest.mark.parametrize("hidden", [96, 200])
def test_single_roundings_explain_less_than_bounds(hidden: int) -> None:
    graph = rammer.from_onnx(lstm_stack(layers=2, steps=28, hidden=hidden))
    random = np.random.default_rng(0)
    inputs = {t: random.standard_normal(graph.types[t].shape).astype(np.float32) for t in graph.inputs}
    wanted = evaluate_graph(graph, inputs)
    once, bounds = rounded_once(graph, inputs, wanted), of(graph, inputs)
    for tensor, value in wanted.items():
        least = np.zeros(value.shape)
        assert 0 < once[tensor].error.max() < bounds[tensor].error.max()
        assert not once[tensor].unlike(value + once[tensor].usual / 2, least)
        assert once[tensor].unlike(value + 1e-4 * np.abs(value).max(), least)


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


def test_a_sum_of_all_elements_may_be_off() -> None:
    """A random half of one element is none, now and then."""
    b, random = GraphBuilder("sums"), np.random.default_rng(0)
    for name in "abcdefgh":
        b.output(b.add("reduce", b.input(name, (64, 75)), fn="sum", axes=(0, 1), keepdims=False), f"sum of {name}")
    found = of(b.build(), {name: random.standard_normal((64, 75)).astype(np.float32) for name in "abcdefgh"})
    assert all(meant.error > 0 for meant in found.values())


def test_an_integer_made_of_no_number_may_be_any() -> None:
    b = GraphBuilder("cast")
    b.output(b.add("cast", b.add("sqrt", b.input("x", (2,))), dtype=DType.I32), "y")
    with np.errstate(invalid="ignore"):
        meant = of(b.build(), {"x": np.array([4, -1], np.float32)})["y"]
    for number in (0, -(2**31), 2**31 - 1):
        assert not meant.unlike(np.array([2, number], np.int32), np.zeros(2))


def test_what_is_only_moved_is_exact() -> None:
    b = GraphBuilder("moved")
    b.output(b.add("transpose", b.input("x", (3, 75)), perm=(1, 0)), "y")
    x = np.random.default_rng(0).standard_normal((3, 75)).astype(np.float32)
    assert not of(b.build(), {"x": x})["y"].error.any()


def test_some_elements_may_cross_a_step_and_many_may_not() -> None:
    """Ties that rounding decides are on either side of a step. A scale that is a little too large moves others, too."""
    b = GraphBuilder("steps")
    scale = np.float32(0.02)
    x = b.input("x", (28, 75))
    b.output(b.add("round", b.add("div", x, b.constant(scale))), "y")
    values = np.random.default_rng(0).uniform(-100, 100, (28, 75))
    values.flat[:9] = np.arange(9) + 0.5
    x_values = (values * scale).astype(np.float32)
    meant = of(b.build(), {"x": x_values})["y"]
    assert 4 <= meant.jumps <= 20
    least = np.zeros(meant.value.shape)
    other_side = np.round(values)
    other_side.flat[:9] = np.arange(9) + (np.arange(9) + 1) % 2
    assert 0 < np.count_nonzero(other_side != meant.value) <= 9 and not meant.unlike(other_side, least)
    shifted = np.round(values * (1 + 1e-3))
    assert np.abs(shifted - meant.value).max() == 1  # no element alone is off by more than a tie may be
    assert f"{np.count_nonzero(shifted != meant.value)} of 2100 elements" in meant.unlike(shifted, least)
