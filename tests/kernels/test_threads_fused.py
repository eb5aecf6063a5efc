"""Kernels of many threads for what the passes make: every distinct operation of optimized graphs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import stages
from rammer_testing.generate import random_graph
from simt_harness import GPU, SMALL, build, check

from rammer.ir.graph import Graph
from rammer.ir.operator import Operation
from rammer.kernels import candidates

sys.path.append(str(Path(__file__).parents[1] / "passes"))
import pass_models as models


def graphs() -> Iterator[Graph]:
    for make in (models.resnet_block, models.densenet_block, models.inception_block, models.grouped_block):
        yield make()
    yield models.attention()
    yield models.lstm_cells()
    yield from (models.random_dfg(seed) for seed in range(6))
    yield from (models.random_cells(seed) for seed in range(4))
    yield from (random_graph(seed, placed=False) for seed in range(6))


def operations() -> dict[str, Operation]:
    found: dict[object, Operation] = {}
    for graph in graphs():
        for op in stages.operations(graph, SMALL):
            if op.kind != "gather":  # random indices would be wrong ones; tested elsewhere
                found.setdefault((op.expr, op.static), op)
    return {f"{n}-{op.kind[:40]}": op for n, op in enumerate(found.values())}


OPERATIONS = operations()
SPECS = {"small": SMALL, "gpu": replace(GPU, num_veus=7)}


@pytest.fixture(scope="module", params=["small", pytest.param("gpu", marks=pytest.mark.slow)])
def built(request: pytest.FixtureRequest):
    spec = SPECS[request.param]
    return build({name: (op, candidates(op, spec)[:3]) for name, op in OPERATIONS.items()})


@pytest.mark.parametrize("name", OPERATIONS)
def test_fused_operations(built, name: str) -> None:
    check(built, name, rtol=1e-4)
