"""Random graphs under random legal plans on the CPU: views, blocked layouts, shared memory, any arch and vEUs."""

from __future__ import annotations

import numpy as np
import pytest
from cpus import ARCHS
from rammer_testing.generate import random_graph, random_inputs, random_plan

from rammer.ir.semantics.evaluate import evaluate_graph
from rammer.kernels import candidates
from rammer.vdevice.cpu.device import CpuVDevice

SEEDS = [*range(8), *(pytest.param(n, marks=pytest.mark.slow) for n in range(8, 80))]


@pytest.mark.parametrize("seed", SEEDS)
def test_random_plans_compute_their_graph(seed: int) -> None:
    """Every run begins with NaN in all memory, so a missing wait or a wrong place shows."""
    graph = random_graph(seed)
    device = CpuVDevice(arch=f"{ARCHS[seed % 3]}@here", device=(1, 2, 3, 5)[seed % 4])
    plan = random_plan(graph, seed, device.spec.num_veus, spec=device.spec, candidates=candidates)
    executable = device.load(device.build(plan))
    executable.poison = True
    try:
        for run in range(5):
            inputs = random_inputs(graph, run)
            wanted = evaluate_graph(graph, inputs)
            for name, found in executable.run(inputs).items():
                np.testing.assert_allclose(found, wanted[name], rtol=1e-3, atol=1e-4, err_msg=f"{name} of run {run}")
    finally:
        executable.close()
