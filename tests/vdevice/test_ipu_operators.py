"""Every operator on the IPU's emulator: all candidate kernels in one program, and ONNX's own cases."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import rammer
from rammer.ir.graph import Graph
from rammer.ir.operator import Operations, ROperator
from rammer.ir.ops import OPS
from rammer.ir.plan import ExecutionPlan
from rammer.ir.program import RProgramBuilder, TaskUid
from rammer.ir.semantics.evaluate import evaluate_graph
from rammer.ir.tensor import Array, DType, TensorId, TensorType
from rammer.planner.memory import plan_memory
from rammer.plugins import PluginRegistry
from rammer.vdevice.ipu.codegen.narrow import NARROWED

TESTS = Path(__file__).parents[1]
REFUSED = Path(__file__).with_name("ipu_refused.txt")
NO_TYPE = (DType.U64, DType.C64, DType.C128)  # that a tile could hold
pytestmark = pytest.mark.slow


def values(kind: TensorType, random: np.random.Generator, index: bool) -> Array:
    """Numbers that every operator takes: positive, small, and 0 for indices."""
    if index:
        return np.zeros(kind.shape, kind.dtype.numpy)
    if kind.dtype is DType.BOOL:
        return random.integers(0, 2, kind.shape).astype(bool)
    if kind.dtype.is_float:
        return random.uniform(0.1, 2, kind.shape).astype(kind.dtype.numpy)
    return random.integers(1, 4, kind.shape).astype(kind.dtype.numpy)


def test_every_kernel_of_every_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(TESTS / "kernels"))
    from test_every_operator import cases  # type: ignore[import-not-found]

    registry, random = PluginRegistry(), np.random.default_rng(0)
    vdevice = registry.open("ipu", arch="gc200:64", device="emulator")
    spec = replace(vdevice.spec, clock_ghz=1e-3)  # nothing is too small to be cut
    types: dict[TensorId, TensorType] = {}
    inputs: dict[TensorId, Array] = {}
    constants: dict[TensorId, Array] = {}
    operators, kernels = [], []
    for case, operation in cases(4).items():
        if any(kind.layout for kind in (*operation.inputs, *operation.outputs)):
            continue  # the IPU's graphs have no blocked tensors
        if operation.kind == "bit_cast" and operation.outputs[0].dtype in NARROWED:
            continue  # refused: a tile has no bits beyond 32
        if any(kind.dtype in NO_TYPE for kind in (*operation.inputs, *operation.outputs)):
            continue  # refused, too
        if operation.expr.into:
            continue  # changes an operand in place: state of steps and caches, which have tests of their own
        for kernel in registry.rkernels(operation, spec):
            name = f"{case}_{len(operators)}"
            taken = [f"{name}_i{n}" for n in range(len(operation.inputs))]
            made = [f"{name}_o{n}" for n in range(len(operation.outputs))]
            types.update(zip((*taken, *made), (*operation.inputs, *operation.outputs), strict=True))
            for n, (tensor, static) in enumerate(zip(taken, operation.static, strict=True)):
                index = operation.kind == "gather" and n == 1
                (constants if static else inputs)[tensor] = values(types[tensor], random, index)
            operators.append(ROperator(name, operation, tuple(taken), tuple(made)))
            kernels.append(kernel)
    outputs = tuple(t for op in operators for t in op.outputs)
    graph = Graph("every", tuple(inputs), outputs, tuple(operators), types, constants, Operations(OPS))
    builder = RProgramBuilder(spec.num_veus)
    tasks = [TaskUid(n, r) for n, k in enumerate(kernels) for r in range(k.num_rtasks)]
    for number, task in enumerate(tasks):
        builder.append(task, number % spec.num_veus)
    plan = ExecutionPlan(graph, vdevice.spec, tuple(kernels), (builder.build(),))
    executable = vdevice.load(vdevice.build(replace(plan, memory=plan_memory(plan))))
    found, wanted = executable.run(inputs), evaluate_graph(graph, inputs)
    executable.close()
    for name, value in wanted.items():
        near = 2e-2 if value.dtype.itemsize == 2 else 1e-4
        seen, value = (a.astype(np.float64) for a in (found[name], value))
        np.testing.assert_allclose(seen, value, rtol=near, atol=near, err_msg=name)


@pytest.mark.parametrize("policy", ["sequential", "round_robin", "wavefront"])  # list needs finer barriers
def test_cases_of_onnx(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every first-tier case on 16 tiles, but for those that the importer or the machine has no types for."""
    monkeypatch.syspath_prepend(str(TESTS / "frontend"))
    from backend_suite import cases, outcome  # type: ignore[import-not-found]
    from test_backend_suite import expected_failures  # type: ignore[import-not-found]

    def execute(graph: Graph, inputs: dict[str, Array]) -> dict[str, Array]:
        with rammer.compile(graph, "ipu", device="emulator", arch="gc200:16", policy=policy, tune_seconds=1) as program:
            return program.run(inputs)

    refused = dict(line.split(": ", 1) for line in REFUSED.read_text().splitlines() if not line.startswith("#"))
    results = {c.name: outcome(c, execute) for c in cases() if c.tier_1 and c.name not in expected_failures()}
    assert len(results) > 550
    failed = {name: why for name, why in results.items() if why and name not in refused}
    assert not failed, "\n".join(f"{name}: {why}" for name, why in failed.items())
    for name in refused:
        named = any(what in results[name] for what in ("beyond float32", "no type for uint64"))
        assert results[name].startswith("DeviceError") and named, name
