"""The first tier of the ONNX backend suite as programs for GPUs, on the host."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from test_backend_suite import check_in_scope

import rammer
from rammer.ir.graph import Graph
from rammer.ir.tensor import Array
from rammer.vdevice.simt.emulator.runtime import EmulatorExecutable


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("policy", ["sequential", "wavefront", "list"])
def test_first_tier_cases_pass_under_the_emulator(policy: str) -> None:
    def execute(graph: Graph, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        with rammer.compile(graph, "cuda", device="emulator:3", policy=policy, tune_seconds=0) as program:
            assert isinstance(program.executable, EmulatorExecutable)
            program.executable.poison = True
            return program.run(inputs)

    check_in_scope(execute)
