"""The ONNX backend suite as HIP: run by the emulator, and compiled for one AMD GPU after the other."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from itertools import cycle
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "frontend"))

from test_backend_suite import check_in_scope

import rammer
from rammer.ir.graph import Graph
from rammer.ir.tensor import Array
from rammer.vdevice.rocm.build import compile_code_object
from rammer.vdevice.rocm.spec import FAMILIES
from rammer.vdevice.simt.image import SOURCE


@pytest.mark.slow
def test_first_tier_cases_pass_on_rocm() -> None:
    """Right results with waves of 64 and 32, and a code object without spills for every arch in turn."""
    archs = cycle(FAMILIES)

    def execute(graph: Graph, inputs: Mapping[str, Array]) -> dict[str, Array]:
        arch = next(archs)
        with rammer.compile(graph, "rocm", device="emulator:2", arch=arch, tune_seconds=0) as program:
            compile_code_object(program._image.files[SOURCE].decode(), arch)
            return program.run(inputs)

    check_in_scope(execute)
