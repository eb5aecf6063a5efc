"""Results in scratch: plans of images, and devices without a level where results may stay."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import rammer
from rammer.ir.analysis.order import HappensBefore
from rammer.ir.device import VDeviceSpec
from rammer.ir.graph import Graph
from rammer.ir.kernel import Tuning
from rammer.ir.program import RTask
from rammer.ir.verify import verify_plan
from rammer.ir.verify.kernel import prove
from rammer.kernels import candidates
from rammer.passes import optimize
from rammer.planner.memory import plan_memory
from rammer.planner.scratch_allocation import place_in_scratch
from rammer.scheduler.graphturbo.policy import GraphTurboPolicy
from rammer.scheduler.policy import Problem
from rammer.scheduler.profiler import EstimatingProfiler
from rammer.vdevice.cuda.spec import choose_gpu, make_spec

node = helper.make_node


def spec(veus: int) -> VDeviceSpec:
    return make_spec(choose_gpu("orin"), veus)


def network(images: int, size: tuple[int, int], device: VDeviceSpec) -> Graph:
    """An expansion, a depthwise convolution, and a projection."""
    random = np.random.default_rng(0)
    shapes = {"e": (32, 8, 1, 1), "d": (32, 1, 3, 3), "p": (8, 32, 1, 1)}
    weights = [numpy_helper.from_array(random.standard_normal(s).astype(np.float32), n) for n, s in shapes.items()]
    nodes = [
        node("Conv", ["x", "e"], ["a"]),
        node("Conv", ["a", "d"], ["b"], group=32, pads=[1] * 4),
        node("Conv", ["b", "p"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, (images, 8, *size))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    model = helper.make_model(
        helper.make_graph(nodes, "g", [x], [y], weights), opset_imports=[helper.make_opsetid("", 17)]
    )
    return optimize(rammer.from_onnx(model), device, per_image=True)


@pytest.mark.parametrize("size", [(8, 8), (7, 9)])
@pytest.mark.parametrize("images", [1, 3])
def test_further_rkernels_are_right_and_stay_inside_of_an_image(images: int, size: tuple[int, int]) -> None:
    device = spec(4)
    for op in network(images, size, device).operators:
        for kernel in candidates(op.operation, device, Tuning(every_axis=True)):
            assert not prove(kernel), kernel.name
            for rtask in range(kernel.num_rtasks):
                box = kernel.box(rtask)
                first = kernel.operation.expr.root.axes[0][0]
                assert box[first][1] - box[first][0] == 1, kernel.name


@pytest.mark.parametrize("near", ["scratch", "off"])
def test_a_plan_of_images_stays_in_scratch(near: str) -> None:
    """Four images for four vEUs: each has one, from its first to its last operator."""
    device = spec(4)
    graph = network(4, (8, 8), device)
    options = {
        op.operation: [
            *candidates(op.operation, device),
            *candidates(op.operation, device, Tuning(every_axis=True)),
        ]
        for op in graph.operators
    }
    policy = GraphTurboPolicy(results=near, uncut=False)  # type: ignore[arg-type]
    plan = policy.schedule(Problem(graph, device, options, EstimatingProfiler(device)))
    verify_plan(plan)
    assert plan.memory is not None
    assert len(plan.memory.in_scratch) == (2 if near == "scratch" else 0)
    if near == "scratch":
        homes = [
            {slot.uid.operator_id for slot in lane if isinstance(slot, RTask)}
            for program in plan.programs
            for lane in program.lanes
        ]
        assert homes == [{0, 1, 2}] * 4


def test_nothing_stays_where_the_device_does_not_say_so() -> None:
    device = spec(4)
    elsewhere = replace(device, resident="")
    graph = network(4, (8, 8), device)
    options = {op.operation: candidates(op.operation, device) for op in graph.operators}
    plan = GraphTurboPolicy().schedule(Problem(graph, elsewhere, options, EstimatingProfiler(elsewhere)))
    assert not place_in_scratch(plan, HappensBefore(plan.programs))
    assert not plan_memory(plan, scratch=True).in_scratch
