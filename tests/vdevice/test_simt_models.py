"""Whole models as programs for GPUs: right on the host, and their machine code without spills."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import rammer
from rammer.errors import ToolchainError
from rammer.ir.semantics.evaluate import evaluate_graph
from rammer.vdevice.cuda.build import nvrtc_version
from rammer.vdevice.simt.emulator.runtime import EmulatorExecutable
from rammer.vdevice.simt.runtime.streams import RESOURCES
from rammer_viz.demo import lstm_stack, squeezenet


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lstm_tc", "squeezenet"])
def test_a_model_at_full_size(name: str) -> None:
    """LSTM-TC of the paper: 10 layers, 100 steps, 256 hidden."""
    graph = rammer.from_onnx(lstm_stack(10, 100, 256) if name == "lstm_tc" else squeezenet())
    with rammer.compile(graph, "cuda", device="emulator:8", tune_seconds=0) as program:
        random = np.random.default_rng(0)
        inputs = {p.name: random.standard_normal(p.type.shape).astype(np.float32) for p in program.inputs}
        assert isinstance(program.executable, EmulatorExecutable)
        program.executable.poison = True
        found, wanted = program.run(inputs), evaluate_graph(graph, inputs)
        for output, value in wanted.items():
            np.testing.assert_allclose(found[output], value, rtol=1e-4, atol=1e-5)


def build(model: Any, arch: str) -> tuple[dict[str, int], int]:
    try:
        nvrtc_version()
    except ToolchainError as error:
        pytest.skip(str(error))
    with rammer.compile(model, "cuda", arch=arch, tune_seconds=0) as program:
        return json.loads(program.image.files[RESOURCES]), program.plan.num_rtasks


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_120"])
def test_code_of_a_recurrent_model(arch: str) -> None:
    few, tasks_few = build(lstm_stack(1, 4, 32), arch)
    many, tasks_many = build(lstm_stack(1, 16, 32), arch)
    assert few["spill_bytes"] == many["spill_bytes"] == 0
    assert tasks_many > 3 * tasks_few  # a cell a step, and one product before them
    assert many["code_bytes"] < 1.5 * few["code_bytes"] < 1 << 20


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_120"])
def test_code_of_a_convolutional_model(arch: str) -> None:
    resources, _ = build(squeezenet(), arch)
    assert resources["code_bytes"] < 1 << 20 and resources["spill_bytes"] == 0, json.dumps(resources)
