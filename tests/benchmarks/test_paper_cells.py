"""Random cells: what NAS-Bench-101 allows, always the same ones, and priced without compiling anything."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest

from benchmarks.paper.experiments.cells import CHANNELS, EDGES, VERTICES, Cell, cell_graph, draw_cells
from benchmarks.paper.experiments.nasbench import is_irregular, simulate_cells, speedups
from benchmarks.paper.experiments.planner import RAMMER, planner
from benchmarks.paper.figure import Point, Source
from rammer.ir.semantics.evaluate import evaluate_graph

DIAMOND = Cell(((0, 1), (0, 2), (0, 4), (1, 3), (2, 3), (2, 4), (3, 4)), ("conv3x3", "maxpool3x3", "conv1x1"))


def test_cells_are_those_that_the_benchmark_allows() -> None:
    cells = draw_cells(400)
    assert len(set(cells)) == 400 and draw_cells(100) == cells[:100] and draw_cells(100, seed=1) != cells[:100]
    for cell in cells:
        graph = nx.DiGraph(cell.edges)
        assert set(graph) == set(range(cell.output + 1)) and cell.output < VERTICES and len(cell.edges) <= EDGES
        assert nx.descendants(graph, 0) | {0} == nx.ancestors(graph, cell.output) | {cell.output} == set(graph)
        channels = cell.channels()
        last = [v for v in cell.sources(cell.output) if v]
        assert sum(channels[v] for v in last) == CHANNELS
        assert all(0 <= channels[a] - channels[b] <= 1 for a, b in cell.edges if a and b != cell.output)


def test_channels_are_divided_among_what_the_output_reads() -> None:
    three = Cell(((0, 1), (0, 2), (0, 3), (1, 4), (2, 3), (2, 4), (3, 4)), ("conv1x1",) * 3)
    assert three.channels() == [128, 43, 43, 42, 128]
    assert DIAMOND.channels() == [128, 64, 64, 64, 128]


def test_a_cell_computes_what_its_picture_says() -> None:
    """Every weight of convolution n is n / 1000: projections are 1 and 2, then conv3x3, conv1x1, and the output's."""
    graph = cell_graph(DIAMOND, size=4, channels=6)
    x = np.random.default_rng(0).random((1, 6, 4, 4), np.float32)
    found = evaluate_graph(graph, {"input": x})["output"]

    def conv(x: np.ndarray, weight: int, outs: int, kernel: int = 1) -> np.ndarray:
        padded = np.pad(x.sum(axis=1), ((0, 0), (kernel // 2,) * 2, (kernel // 2,) * 2))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (kernel, kernel), (1, 2)).sum(axis=(-1, -2))
        return np.repeat(np.maximum(weight * 1e-3 * windows, 0)[:, None], outs, 1)

    first = conv(conv(x, 1, 3), 2, 3, 3)
    padded = np.pad(conv(x, 3, 3), ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=-np.inf)
    second = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3)).max(axis=(-1, -2))
    third = conv(first + second, 4, 3)
    expected = np.concatenate([second, third], 1) + conv(x, 5, 6)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_cells_share_what_is_known_of_their_operators() -> None:
    own = planner("v100")
    first, second = (own.optimized(cell_graph(DIAMOND, own.operations)) for _ in range(2))
    assert [op.operation for op in first.operators] == [op.operation for op in second.operators]
    assert own.plan(first, RAMMER).kernels == own.plan(second, RAMMER).kernels
    assert not is_irregular(first)  # its convolution adds what the pooling gives, after fusion, and waits for it
    side_by_side = Cell(((0, 1), (0, 2), (1, 3), (2, 3)), ("conv3x3", "maxpool3x3"))
    assert is_irregular(own.optimized(cell_graph(side_by_side, own.operations)))


@pytest.mark.parametrize("spec", ["v100", "mi50"])
def test_simulated_cells_are_the_same_every_time(spec: str) -> None:
    source, values = simulate_cells(spec, 0, 3)
    assert (source, values) == simulate_cells(spec, 0, 3)
    assert source.kind == "simulated" and spec in source.on and values["n"] == 3
    points = {f"{spec} 0000-0002": Point(source, "", "", values)}
    assert all(s >= 1 for s in speedups(points, spec, "base", "rammer"))
    assert len(speedups(points, spec, "global", "rammer", irregular=True)) == sum(values["irregular"])


def test_fine_and_global_are_of_cells_in_order() -> None:
    def point(**values: list[float]) -> Point:
        return Point(Source("simulated", "x"), "", "", {"n": 2, **values})

    points = {
        "x 0002-0003": point(base=[8.0, 9.0], rammer=[4.0, 3.0], irregular=[0, 1]),
        "x 0000-0001": point(base=[1.0, 4.0], rammer=[1.0, 2.0], irregular=[1, 0]),
        "y 0000-0001": point(base=[1.0, 4.0], rammer=[1.0, 2.0], irregular=[1, 0]),
    }
    assert speedups(points, "x", "base", "rammer") == [1.0, 2.0, 2.0, 3.0]
    assert speedups(points, "x", "base", "rammer", irregular=True) == [1.0, 3.0]
    assert speedups(points, "x", "global", "rammer") == []
