"""Ordinary layers at their real sizes as programs, for CPUs that are made up."""

from __future__ import annotations

import numpy as np
import pytest
from cpus import CPUS, MadeUp, on_some_cpu
from layers import LAYERS, layer

import rammer
from rammer.ir.semantics.evaluate import evaluate_graph
from rammer.plugins import PluginRegistry
from rammer.runtime import measure
from rammer.vdevice.cpu import host as cpu_host

POLICIES = sorted(PluginRegistry(third_party=False).policies())


@pytest.mark.parametrize(("name", "cpu"), on_some_cpu(LAYERS), ids=str)
def test_programs_compute_their_graph(name: str, cpu: MadeUp, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, policy = layer(name), POLICIES[(list(LAYERS).index(name) + CPUS.index(cpu)) % len(POLICIES)]
    monkeypatch.setattr(cpu_host, "_caches", lambda: cpu.caches)
    made = {"arch": f"{cpu.arch}@here", "device": cpu.num_veus, "policy": policy}
    with rammer.compile(graph, "cpu", tune_seconds=0, **made) as program:
        inputs = measure.random_inputs(program.inputs, 1)
        for output, wanted in evaluate_graph(graph, inputs).items():
            scale = np.abs(wanted).max()
            np.testing.assert_allclose(program.run(inputs)[output], wanted, rtol=1e-4, atol=2e-5 * scale)
