"""Random graphs through passes and policies: plans verify, and compute what the graph means."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from rammer_testing.generate import random_graph, random_inputs
from stages import stages

from rammer.ir.device import MemoryLevel, VDeviceSpec
from rammer.ir.semantics.evaluate import evaluate_graph
from rammer.ir.verify import verify_plan
from rammer.passes import optimize
from rammer.planner.memory import plan_memory
from rammer.scheduler.plugin import rammer_policies
from rammer.vdevice.interpreter import run_plan


def spec(num_veus: int) -> VDeviceSpec:
    return VDeviceSpec("interpreter", num_veus, lanes=4, memory=(MemoryLevel("dram", 1 << 30, read_gbps=10.0),))


@pytest.mark.parametrize("seed", range(12))
def test_passes_keep_the_meaning(seed: int) -> None:
    graph = random_graph(seed, placed=False)
    inputs = random_inputs(graph, seed)
    found = evaluate_graph(optimize(graph, spec(2)), inputs)
    for name, value in evaluate_graph(graph, inputs).items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("policy", rammer_policies())
@pytest.mark.parametrize("seed", range(6))
def test_plans_verify_and_compute_the_graph(seed: int, policy: str) -> None:
    graph = random_graph(seed, placed=False)
    device = spec(1 + seed % 4)
    plan = stages(graph, device, policy).planned.plan
    plan = replace(plan, memory=plan_memory(plan))
    verify_plan(plan)
    inputs = random_inputs(graph, seed)
    wanted = evaluate_graph(graph, inputs)
    for interleaving in range(2):
        for name, value in run_plan(plan, inputs, seed=interleaving).items():
            np.testing.assert_allclose(value, wanted[name], rtol=1e-4, atol=1e-5, err_msg=name)
