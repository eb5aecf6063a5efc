"""Every candidate of many operations on an NVIDIA GPU, each against the expression's meaning, and random plans.

A program has all candidates of an operation, one after the other. Random plans keep results in shared memory wherever
they may. Without a GPU they are skipped; what tries the tests themselves is the emulator.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

sys.path.append(str(Path(__file__).parents[1] / "kernels"))
sys.path.append(str(Path(__file__).parents[1] / "passes"))
from kernel_harness import compare, random_inputs
from rammer_testing.generate import random_graph, random_plan
from test_every_operator import CASES
from test_threads import WIDE
from test_threads_chain import CASES as ATTENTION
from test_threads_fused import OPERATIONS as FUSED
from test_threads_group import OPERATIONS as FOUR_WAVES
from test_threads_norms import CASES as NORMS
from test_threads_tensor import OPERATIONS as ON_UNITS
from test_threads_tensor import rounded
from test_threads_tiles import OPERATIONS as LARGE

import rammer
from rammer.ir.analysis.dependency import Dependencies
from rammer.ir.device import VDeviceSpec
from rammer.ir.graph import Graph, View
from rammer.ir.kernel import RKernel
from rammer.ir.operator import Operation, Operations, ROperator
from rammer.ir.ops import OPS
from rammer.ir.plan import ExecutionPlan
from rammer.ir.program import RProgramBuilder, TaskUid
from rammer.ir.semantics.evaluate import evaluate_expr, evaluate_graph
from rammer.ir.tensor import Array, TensorType
from rammer.ir.verify import verify_plan
from rammer.kernels import candidates
from rammer.kernels.problem import KernelProblem
from rammer.kernels.threads import candidates as threads
from rammer.kernels.threads import group as threads_group
from rammer.planner.memory import plan_memory
from rammer.vdevice.base import VDevice
from rammer.vdevice.cuda.device import open_cuda
from rammer.vdevice.cuda.driver import find_gpu, probe
from rammer.vdevice.simt.runtime.streams import SOURCE
from rammer_viz.demo import lstm_stack

EMULATED = "emulator:3"
PRECISIONS = "fp32", "tf32", "bf16"
MOST = 24  # candidates of a program
GPU = probe()

# group -> name -> operation, the largest relative error, precisions
GROUPED: dict[str, tuple[dict[str, Operation], float, Sequence[str]]] = {
    "operators": (CASES, 2e-5, ("fp32",)),
    "ordinary": ({**WIDE, **LARGE}, 2e-5, ("fp32",)),
    "fused": (FUSED, 1e-4, ("fp32",)),
    "attention": ({name: op for name, (op, _) in ATTENTION.items()}, 1e-4, ("fp32",)),
    "norms": ({name: op for name, (op, _) in NORMS.items()}, 1e-4, ("fp32",)),
    "units": (ON_UNITS, 2e-5, PRECISIONS),
    "waves": (FOUR_WAVES, 2e-5, PRECISIONS),  # what descriptors mean to the hardware
}
EMULATED_ONES = {  # the emulator's other tests have all of them
    ("operators", "softmax", "fp32"),
    ("operators", "update-rows", "fp32"),
    ("ordinary", "matmul-odd", "fp32"),
    ("attention", "heads that share matrices", "fp32"),
    ("norms", "odd gpu 0", "fp32"),
    ("units", "matmul-odd", "tf32"),
    ("waves", "odd", "bf16"),
}


def cases() -> Iterator[tuple[str, str, str]]:
    """Group, name and precision of what a GPU may see: tensors of models, in rows."""
    for group, (operations, _, precisions) in GROUPED.items():
        for name, op in operations.items():
            if not any(kind.layout for kind in (*op.inputs, *op.outputs)):
                yield from ((group, name, precision) for precision in precisions)


def found(group: str, op: Operation, spec: VDeviceSpec) -> list[RKernel]:
    """All candidates; of `waves` all tiles, whether they are worth it or not."""
    if group != "waves":
        return list(candidates(op, spec))
    product = threads_group.product(KernelProblem.of(op, spec, flat=False))
    assert product is not None
    own = [tile for tile in threads_group.tiles(product) if tile.unit.precision == spec.precision]
    return threads.fitting(product.problem, (threads_group.schedule(product, tile) for tile in own))


def together(
    op: Operation, kernels: Sequence[RKernel], inputs: dict[str, Array], device: VDevice
) -> tuple[ExecutionPlan, dict[str, Array]]:
    """All kernels of an operation on the same inputs, their rTasks dealt out to the vEUs; and what a run is given."""
    names = list(inputs)
    static = {n for n, known in zip(names, op.static, strict=True) if known}
    own = names[:1] if op.expr.into else []  # an update's result is the memory of what it updates
    operators = tuple(
        ROperator(
            f"op{k}",
            kernel.operation,
            tuple(f"{n}_{k}" if n in own else n for n in names),
            tuple(f"y{k}_{n}" for n in range(len(op.outputs))),
        )
        for k, kernel in enumerate(kernels)
    )
    types: dict[str, TensorType] = {}
    known: dict[str, Array] = {}
    for one in operators:
        types |= dict(zip((*one.inputs, *one.outputs), (*op.inputs, *op.outputs), strict=True))
        known |= {t: inputs[n] for t, n in zip(one.inputs, names, strict=True)}
    outputs = tuple(t for one in operators for t in one.outputs)
    views = {one.outputs[0]: View(one.inputs[0], 0) for one in operators if own}
    constants = {n: known.pop(n) for n in static}
    graph = Graph("all", tuple(known), outputs, operators, types, constants, Operations(OPS), views)
    needed, builder, number = Dependencies(graph, kernels), RProgramBuilder(device.spec.num_veus), 0
    for operator in range(len(operators)):
        for rtask, waits in enumerate(needed.of(operator)):
            builder.wait(task := TaskUid(operator, rtask), list(waits))
            builder.append(task, number % device.spec.num_veus)
            number += 1
    plan = ExecutionPlan(graph, device.spec, tuple(kernels), (builder.build(),), policy="by hand")
    return replace(plan, memory=plan_memory(plan)), known


def check(
    device: VDevice, op: Operation, kernels: Sequence[RKernel], rtol: float, precision: str = "fp32", seed: int = 0
) -> None:
    """Each kernel's results, of operands rounded as the precision says, run twice."""
    inputs = {n: rounded(a, precision) if a.dtype == np.float32 else a for n, a in random_inputs(op, seed).items()}
    wanted = evaluate_expr(op.expr, inputs)
    faults = []
    for first in range(0, len(kernels), MOST):
        some = kernels[first : first + MOST]
        plan, given = together(op, some, inputs, device)
        with closing(device.load(device.build(plan))) as program:
            for _ in range(2):
                found = program.run(given)
                for k, kernel in enumerate(some):
                    for n, want in enumerate(wanted):
                        try:
                            compare(found[f"y{k}_{n}"], want, rtol, kernel.name)
                        except AssertionError as fault:
                            faults.append(str(fault).strip().splitlines()[0])
    assert not faults, "\n".join(dict.fromkeys(faults))


def check_case(device: str | int, group: str, name: str, precision: str) -> None:
    operations, rtol, _ = GROUPED[group]
    with closing(open_cuda(device=device, arch="sm_90" if device == EMULATED else None)) as opened:
        kernels = found(group, operations[name], replace(opened.spec, precision=precision))
        if not kernels:
            pytest.skip(f"{opened.spec.arch} has no unit for it")
        check(opened, operations[name], kernels, rtol, precision)


def check_random(device: str | int, seed: int) -> int:
    """A random plan for a few vEUs, run three times; how many of its results stay in shared memory."""
    graph, veus = random_graph(seed, 8), 1 + seed % 4
    inputs = {
        t: np.random.default_rng(seed).standard_normal(graph.types[t].shape).astype(graph.types[t].dtype.numpy)
        for t in graph.inputs
    }
    wanted = evaluate_graph(graph, inputs)
    with closing(open_cuda(device=device, arch="sm_90" if device == EMULATED else None)) as opened:
        spec = replace(opened.spec, num_veus=veus)
        plan = random_plan(graph, seed, veus, spec=spec, candidates=candidates)
        plan = replace(plan, memory=(memory := plan_memory(plan, scratch=True)))
        verify_plan(plan)
        with closing(opened.load(opened.build(plan))) as program:
            for _ in range(3):
                for name, value in program.run(inputs).items():
                    np.testing.assert_allclose(value, wanted[name], rtol=1e-4, atol=1e-5)
    return len(memory.in_scratch)


def check_clusters(device: str | int, arch: str, layers: int, steps: int, hidden: int) -> None:
    """A recurrent network whose cells send messages inside clusters, run ten times."""
    model = lstm_stack(layers, steps, hidden)
    model.ir_version = 10  # of an older ONNX Runtime
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(hidden)
    with rammer.compile(model, "cuda", arch=arch, device=device, policy="stationary", tune_seconds=0) as program:
        assert "mk_send(" in program.image.file(SOURCE).decode()
        for _ in range(10):
            inputs = {p.name: rng.standard_normal(p.type.shape).astype(np.float32) for p in program.inputs}
            (wanted,) = session.run(None, inputs)
            (found,) = program.run(inputs).values()
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


needs_gpu = pytest.mark.skipif(not GPU.ok, reason=f"{GPU.reason} ({GPU.hint})")


@needs_gpu
@pytest.mark.parametrize("seed", range(48))
def test_random_plans(seed: int) -> None:
    check_random(0, seed)


def test_random_plans_on_the_emulator() -> None:
    """The test itself: some results do stay in shared memory."""
    assert sum(check_random(EMULATED, seed) for seed in range(4))


@needs_gpu
@pytest.mark.parametrize(("group", "name", "precision"), list(cases()) if GPU.ok else [("all", "of them", "there")])
def test_every_candidate(group: str, name: str, precision: str) -> None:
    check_case(0, group, name, precision)


@pytest.mark.parametrize(("group", "name", "precision"), sorted(EMULATED_ONES))
def test_on_the_emulator(group: str, name: str, precision: str) -> None:
    """The test itself."""
    assert (group, name, precision) in set(cases())
    check_case(EMULATED, group, name, precision)


@needs_gpu
@pytest.mark.parametrize(
    ("arch", "layers", "steps", "hidden"),
    [
        ("h200:c4", 2, 5, 64),
        ("h200:c4", 3, 40, 96),
        ("h200:c8", 2, 5, 64),
        ("h200:c8", 3, 40, 96),
        ("h200:c8", 4, 30, 256),  # these weights do not fit in four blocks
    ],
)
def test_clusters(arch: str, layers: int, steps: int, hidden: int) -> None:
    if find_gpu(0).arch != "sm_90":
        pytest.skip("this GPU's clusters are not known")
    check_clusters(0, arch, layers, steps, hidden)


def test_clusters_on_the_emulator() -> None:
    """The test itself."""
    check_clusters("emulator:8", "h200:c4", 2, 5, 64)
