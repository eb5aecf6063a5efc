"""Time against memory where vEUs have nothing but their own: larger rTasks where there is room, smaller where not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import rammer
from rammer.compiler import Compilation, CompileOptions
from rammer.errors import DeviceError
from rammer.ir.graph import Graph
from rammer.ir.plan import ExecutionPlan
from rammer.ir.semantics.evaluate import evaluate_graph
from rammer.ir.verify import verify_plan
from rammer.plugins import PluginRegistry
from rammer.scheduler.graphturbo.tradeoffs import Tiles, held_bytes, rooms
from rammer.scheduler.timeline import simulate
from rammer.vdevice.interpreter import run_plan
from rammer.vdevice.ipu.codegen.access import working_sets
from rammer.vdevice.ipu.codegen.build import emit
from rammer.vdevice.ipu.spec import make_spec, parse_arch

node = helper.make_node


def network(channels: int, size: int, layers: int) -> Graph:
    """Convolutions one after the other, whose weights lie on the tiles all the time."""
    rng = np.random.default_rng(0)
    nodes, weights, last = [], [], "x"
    for n in range(layers):
        shape = (channels, channels if n else 4, 3, 3)
        weights.append(numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32) / 20, f"w{n}"))
        nodes += [node("Conv", [last, f"w{n}"], [f"t{n}"], pads=[1] * 4), node("Relu", [f"t{n}"], [f"r{n}"])]
        last = f"r{n}"
    weights.append(numpy_helper.from_array(rng.standard_normal((8, channels, 1, 1)).astype(np.float32) / 9, "p"))
    nodes.append(node("Conv", [last, "p"], ["y"]))
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 4, size, size))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "network", [x], [y], weights)
    return rammer.from_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))


def planned(graph: Graph, arch: str, policy: str, asks: bool = False) -> ExecutionPlan:
    """A plan by estimated times; with a device that says what it has room for, if the policy asks."""
    how = CompileOptions(target="ipu", arch=arch, device="emulator", policy=policy, tune_seconds=5)
    with Compilation.of(graph, how, registry=PluginRegistry(third_party=False)) as compilation:
        problem = replace(compilation.problem, offer=None)  # no layer is cut
        return compilation.policy.schedule(problem if asks else replace(problem, has_room=lambda _: None))


def fits(plan: ExecutionPlan, arch: str) -> bool:
    """Whether the account of every tile says so."""
    try:
        emit(plan, parse_arch(arch))
    except DeviceError:
        return False
    return True


def test_the_device_has_the_last_word_on_room() -> None:
    """Sixteen tiles just hold the largest rTasks beside the weights, for which the policy alone sees no room; eight do
    not.
    """
    graph = network(80, 16, 6)
    for arch, fit in (("gc2:16", True), ("gc2:8", False)):
        careful, plan = (planned(graph, arch, "graphturbo", asks) for asks in (False, True))
        assert fits(careful, arch) and fits(plan, arch)
        assert (2 * simulate(plan).total_us < simulate(careful).total_us) == fit
        assert fit or plan.programs == careful.programs


def test_auto_is_graphturbos_choice() -> None:
    with rammer.compile(network(80, 16, 2), "ipu", device="emulator", arch="gc2:8") as program:
        assert program.plan.policy.startswith("graphturbo") and program.plan.policy.endswith("(chosen by auto)")


@pytest.mark.parametrize(("layers", "times"), [(2, 2.0), (6, 1.5)])
def test_the_fastest_that_has_room(layers: int, times: float) -> None:
    """Of two layers tiles have room for the largest rTasks; beside the weights of six the next smaller ones fit."""
    graph = network(80, 16, layers)
    usual, plan = (planned(graph, "gc2:8", policy) for policy in ("wavefront", "graphturbo"))
    verify_plan(plan)
    assert fits(plan, "gc2:8")
    assert simulate(usual).total_us > times * simulate(plan).total_us
    tiles = Tiles.of(plan.spec)
    assert tiles is not None
    room = rooms(plan.graph, plan.kernels, tiles)
    assert all(held_bytes(kernel) <= left for kernel, left in zip(plan.kernels, room, strict=True))
    assert "rKernels without room: 0" in plan.notes[0]


def test_what_two_layers_take_has_no_room_beside_six() -> None:
    """So other rKernels are chosen for the same operation."""
    few, many = (planned(network(80, 16, layers), "gc2:8", "graphturbo") for layers in (2, 6))
    inner = few.kernels[1]
    largest = {
        k.schedule: k
        for n, op in enumerate(many.graph.operators)
        for k in [many.kernels[n]]
        if op.operation.outputs == few.graph.operators[1].operation.outputs
    }
    assert inner.schedule not in largest
    tiles = Tiles.of(many.spec)
    assert tiles is not None and held_bytes(inner) > max(rooms(many.graph, many.kernels, tiles)[1:-1])


def test_rooms_by_definition() -> None:
    """What a tile has, less its share of all weights and of what lives in a wave; nine tenths of that."""
    plan = planned(network(16, 8, 3), "gc2:4", "wavefront")
    tiles = Tiles(4, 200_000)
    graph = plan.graph
    weights = sum(graph.types[t].nbytes for op in graph.operators for t in op.inputs if t in graph.constants)
    sizes = [graph.types[op.outputs[0]].nbytes for op in graph.operators]
    sources = [graph.types["x"].nbytes, *sizes]
    for n, room in enumerate(rooms(graph, plan.kernels, tiles)):
        live = sources[n] + sizes[n]
        assert room == int((200_000 - (weights + live) / 4) * 0.9)


def test_what_rtasks_hold() -> None:
    """All that they touch, as the backend counts it, but for padding, and for weights that lie there anyway."""
    plan = planned(network(24, 9, 2), "gc2:4", "graphturbo")
    for kernel in plan.kernels:
        assert 0 < held_bytes(kernel) <= int(working_sets(kernel).max())


def test_only_where_vEUs_have_nothing_else() -> None:
    spec = make_spec(parse_arch("gc2:8"))
    assert Tiles.of(spec) == Tiles(8, (256 - 32) << 10)
    shared = replace(spec.memory[0], name="L2", owner="device", managed="cache")
    assert Tiles.of(replace(spec, memory=(*spec.memory, shared))) is None and Tiles.of(replace(spec, memory=())) is None


def test_right_in_any_interleaving() -> None:
    graph = network(20, 7, 2)
    plan = planned(graph, "gc2:4", "graphturbo")
    x = {"x": np.random.default_rng(1).standard_normal((1, 4, 7, 7), np.float32)}
    for seed in range(2):
        np.testing.assert_allclose(
            run_plan(plan, x, seed=seed)["y"], evaluate_graph(graph, x)["y"], rtol=1e-4, atol=1e-4
        )
