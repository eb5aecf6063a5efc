"""Copies of what stays in scratch: rTasks like all others, where a result has no room until its last reader."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import rammer
from rammer.cost.price import fit
from rammer.errors import VerificationError
from rammer.ir.device import VDeviceSpec
from rammer.ir.evaluate import evaluate_graph
from rammer.ir.graph import Graph
from rammer.ir.kernel import RKernel
from rammer.ir.operator import Operation
from rammer.ir.plan import ExecutionPlan
from rammer.ir.program import RTask
from rammer.ir.verify import verify_graph, verify_plan
from rammer.kernels import candidates
from rammer.kernels.problem import Tuning
from rammer.passes import optimize
from rammer.scheduler.graphturbo.copies import with_copies, worth_copying
from rammer.scheduler.graphturbo.policy import GraphTurboPolicy
from rammer.scheduler.policy import Problem
from rammer.scheduler.profiler import EstimatingProfiler
from rammer.scheduler.timeline import simulate
from rammer.vdevice.cuda.spec import choose_gpu, make_spec
from rammer.vdevice.interpreter import run_plan

KIB = 1 << 10
node = helper.make_node


def spec(kib: int) -> VDeviceSpec:
    """Four vEUs with so much scratch each, and a slow memory between them."""
    device = make_spec(choose_gpu("orin"), 4)
    slow = tuple(replace(m, read_gbps=m.read_gbps / 40) if m.name == "L2" else m for m in device.memory)
    return replace(device, scratch_bytes=kib * KIB, memory=slow)


def network(images: int, size: int, device: VDeviceSpec) -> Graph:
    """A result that is expanded at once, and added to what becomes of that; and wide ones between."""
    random = np.random.default_rng(0)
    shapes = {"s": (8, 4, 1, 1), "e": (32, 8, 1, 1), "d": (32, 1, 3, 3), "p": (8, 32, 1, 1), "l": (4, 8, 1, 1)}
    weights = [numpy_helper.from_array(random.standard_normal(s).astype(np.float32) / 3, n) for n, s in shapes.items()]
    nodes = [
        node("Conv", ["x", "s"], ["t"]),
        node("Conv", ["t", "e"], ["a"]),
        node("Conv", ["a", "d"], ["b"], group=32, pads=[1] * 4),
        node("Conv", ["b", "p"], ["c"]),
        node("Add", ["t", "c"], ["u"]),
        node("Conv", ["u", "l"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, (images, 4, size, size))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", [x], [y], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    return optimize(rammer.load(model), device, images_apart=True)


def planned(graph: Graph, device: VDeviceSpec, *, offers: bool = True) -> ExecutionPlan:
    def offer(other: Graph, veus: int) -> Mapping[Operation, list[RKernel]]:
        assert veus == 4
        return {
            op.operation: [
                *candidates(op.operation, device),
                *candidates(op.operation, device, Tuning(every_axis=True)),
            ]
            for op in other.operators
        }

    given = Problem(graph, device, offer(graph, 4), EstimatingProfiler(device), offer=offer if offers else None)
    return GraphTurboPolicy(uncut=False).schedule(given)


def moved(plan: ExecutionPlan) -> Mapping[str, int]:
    prices = {k: fit(k, plan.spec, us, None) for k, us in plan.rtask_us.items()}
    return simulate(replace(plan, prices=prices)).moved


def copies_of(plan: ExecutionPlan) -> list[int]:
    return [n for n, op in enumerate(plan.graph.operators) if op.name.startswith("copy of ")]


@pytest.mark.parametrize(("size", "kib"), [(13, 48), (16, 70)])
def test_what_has_no_room_until_its_last_reader_is_copied(size: int, kib: int) -> None:
    """It then stays for the first one; the copy is an rTask of the same vEU, and the plan is right and moves less."""
    device = spec(kib)
    graph = network(4, size, device)
    plan = planned(graph, device)
    verify_plan(plan)
    (copy,) = copies_of(plan)
    (kept,) = plan.graph.operators[copy].inputs
    assert plan.memory is not None and kept in plan.memory.near
    (written,) = plan.graph.operators[copy].outputs
    assert written not in plan.memory.near and len(plan.graph.consumers[written]) == 1
    without = planned(graph, device, offers=False)
    assert not copies_of(without) and without.memory is not None and kept not in without.memory.near
    assert moved(plan)["L2"] < moved(without)["L2"]
    veus = {
        veu: {slot.uid.operator_id for slot in lane if isinstance(slot, RTask)}
        for program in plan.programs
        for veu, lane in enumerate(program.lanes)
    }
    assert all(copy in some for some in veus.values())  # each has an image, and copies its part
    x = {"x": np.random.default_rng(1).standard_normal((4, 4, size, size), np.float32)}
    wanted = evaluate_graph(graph, x)["y"]
    for seed in range(2):
        np.testing.assert_allclose(run_plan(plan, x, seed=seed)["y"], wanted, rtol=1e-4, atol=1e-4)
    there = plan.memory.near[kept]
    for n in range(len(there.offsets)):
        elsewhere = tuple((veu + 1) % 4 if at == n else veu for at, veu in enumerate(there.veus))
        broken = replace(plan.memory, near={**plan.memory.near, kept: replace(there, veus=elsewhere)})
        with pytest.raises(VerificationError):
            verify_plan(replace(plan, memory=broken))


@pytest.mark.parametrize("kib", [42, 66])
def test_nothing_is_copied_that_has_room_or_finds_none(kib: int) -> None:
    """Between all of it, and too little for the first reader, there is a window in which a copy helps."""
    device = spec(kib)
    plan = planned(network(4, 13, device), device)
    assert not copies_of(plan) and plan.memory is not None and plan.memory.near


def test_a_graph_with_copies_means_the_same() -> None:
    device = spec(64)
    graph = network(2, 9, device)
    kernels = {n: candidates(op.operation, device)[0] for n, op in enumerate(graph.operators)}
    (tensor,) = worth_copying(graph, kernels, ())
    assert worth_copying(graph, kernels, {tensor}) == []
    found = with_copies(graph, [tensor])
    verify_graph(found.graph, graph)
    assert len(found.graph.operators) == len(graph.operators) + 1
    assert [found.graph.operators[n].name for n in found.numbers] == [op.name for op in graph.operators]
    copy = found.graph.operators[found.copies[tensor]]
    assert copy.kind == "copy" and len(found.graph.consumers[tensor]) == 2  # its first reader, and the copy
    x = {"x": np.random.default_rng(1).standard_normal((2, 4, 9, 9), np.float32)}
    np.testing.assert_array_equal(evaluate_graph(found.graph, x)["y"], evaluate_graph(graph, x)["y"])
