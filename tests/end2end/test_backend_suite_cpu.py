"""The ONNX backend suite, compiled for the CPU."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from cpus import ARCHS

sys.path.insert(0, str(Path(__file__).parents[1] / "frontend"))

from test_backend_suite import check_in_scope

import rammer
from rammer.ir.graph import Graph
from rammer.ir.tensor import Array


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHS)
def test_first_tier_cases_pass_on_the_cpu(arch: str) -> None:
    def execute(graph: Graph, inputs: Mapping[str, Array]) -> dict[str, Array]:
        with rammer.compile(graph, "cpu", arch=f"{arch}@here", device=2, tune_seconds=0) as program:
            return program.run(inputs)

    check_in_scope(execute)
