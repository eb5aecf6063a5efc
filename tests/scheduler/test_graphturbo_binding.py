"""Instances that have a vEU each: images of a batch do not cross from one vEU to another."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
from cpus import MadeUp, runnable
from onnx import TensorProto, helper, numpy_helper
from stages import planned

import rammer
from rammer.cost.price import us_per_byte
from rammer.errors import VerificationError
from rammer.ir.device import MemoryLevel, VDeviceSpec
from rammer.ir.graph import Graph
from rammer.ir.plan import ExecutionPlan, Price
from rammer.ir.program import BarrierRTask, RTask
from rammer.ir.semantics.evaluate import evaluate_graph
from rammer.ir.verify import verify_plan
from rammer.passes import optimize
from rammer.scheduler.timeline import simulate
from rammer.vdevice.interpreter import run_plan

KIB = 1 << 10
IMAGES = "graphturbo:rules=images"
node = helper.make_node


def network(batch: int, size: int, joined: bool = False, channels: int = 16) -> Graph:
    """Convolutions, two of them side by side if they are joined, and a product that reads all images' means."""
    nodes = [
        node("Conv", ["x", "w0"], ["a"], pads=[1] * 4),
        node("Relu", ["a"], ["b"]),
        node("Conv", ["b", "w1"], ["c"], pads=[1] * 4, strides=[2, 2]),
        node("Conv", ["b", "w2"], ["d"], pads=[1] * 4, strides=[2, 2]),
        node("Concat", ["c", "d"], ["e"], axis=1) if joined else node("Add", ["c", "d"], ["e"]),
        node("Conv", ["e", "w3"], ["f"]),
        node("GlobalAveragePool", ["f"], ["g"]),
        node("Flatten", ["g"], ["h"]),
        node("Gemm", ["h", "w4"], ["y"], transB=1),
    ]
    wide = channels * (1 + joined)
    shapes = [(channels, 3, 3, 3), *[(channels, channels, 3, 3)] * 2, (40, wide, 1, 1), (10, 40)]
    rng = np.random.default_rng(1)
    weights = [
        numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32) / 8, f"w{n}")
        for n, shape in enumerate(shapes)
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, (batch, 3, size, size))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "network", [x], [y], weights)
    return rammer.from_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))


def spec_of(veus: int) -> VDeviceSpec:
    levels = (
        MemoryLevel("L2", 64 * KIB, "veu", 80.0),
        MemoryLevel("L3", 2048 * KIB, read_gbps=48.0),
        MemoryLevel("DRAM", 1 << 34, read_gbps=20.0),
    )
    return replace(MadeUp(runnable("x86-64-avx2"), veus, 512).spec, memory=levels)


def images_of(plan: ExecutionPlan) -> list[dict[int, set[int]]]:
    """For each operator whose rTasks have single images, on which vEUs each image is."""
    found: dict[int, dict[int, set[int]]] = {}
    for program in plan.programs:
        for veu, lane in enumerate(program.lanes):
            for slot in lane:
                if isinstance(slot, RTask):
                    kernel = plan.kernels[slot.uid.operator_id]
                    axis, _ = kernel.operation.expr.root.axes[0]
                    low, high = kernel.box(slot.uid.rtask_id)[axis]
                    if high - low == 1:
                        found.setdefault(slot.uid.operator_id, {}).setdefault(low, set()).add(veu)
    return list(found.values())


@pytest.mark.parametrize(
    ("batch", "size", "veus", "joined"),
    [(8, 32, 2, False), (8, 29, 2, True), (5, 45, 2, False), (3, 75, 2, True), (12, 33, 4, False), (6, 45, 3, True)],
)
def test_an_image_stays_on_one_veu(batch: int, size: int, veus: int, joined: bool) -> None:
    """In every operator on the same one; vEUs share images out, wait for each other only at the end, and are right."""
    spec = spec_of(veus)
    graph = optimize(network(batch, size, joined), spec, per_image=True)
    plan = planned(graph, spec, IMAGES)
    assert "each on a vEU" in plan.notes[0]
    first = plan.notes[1].removeprefix("instances by group: ").split(",")[0]
    assert int(first) % batch == 0  # as many, though the product is cut less
    assert int(plan.notes[0].split()[1].rstrip(",")) <= 3  # what an image passes is one group
    verify_plan(plan)
    where = images_of(plan)
    assert len(where) >= 4
    home = {image: veus for one in where for image, veus in one.items()}
    assert all(one[image] == home[image] and len(home[image]) == 1 for one in where for image in one)
    shares = [sum(1 for found in home.values() if found == {veu}) for veu in range(veus)]
    assert max(shares) - min(shares) <= 1 and sum(shares) == batch
    slots = list(chain.from_iterable(lane for program in plan.programs for lane in program.lanes))
    assert sum(isinstance(slot, BarrierRTask) for slot in slots) <= 4 * veus < len(slots) / 2
    x = {"x": np.random.default_rng(0).standard_normal((batch, 3, size, size), np.float32)}
    wanted = evaluate_graph(graph, x)["y"]
    for seed in range(3):
        np.testing.assert_allclose(run_plan(plan, x, seed=seed)["y"], wanted, rtol=1e-4, atol=1e-4)


def test_an_image_on_another_veu_is_found_out() -> None:
    """Moved there, an rTask waits for nothing, and nobody waits for it."""
    spec = spec_of(2)
    plan = planned(optimize(network(4, 33), spec, per_image=True), spec, IMAGES)
    (program,) = plan.programs
    first, second = program.lanes
    inner = [n for n, slot in enumerate(first) if isinstance(slot, RTask) and slot.uid.operator_id in (1, 2, 3)]
    assert len(inner) >= 6  # three operators of two images
    for order in inner[:: max(len(inner) // 12, 1)]:
        lanes = (first[:order] + first[order + 1 :], (first[order], *second))
        with pytest.raises(VerificationError):
            verify_plan(replace(plan, programs=(replace(program, lanes=lanes),)))


def test_binding_is_compared_or_left_out() -> None:
    """By `every`, which so never takes longer on paper; of a single image there is nothing to bind."""
    spec = spec_of(2)
    graph = optimize(network(8, 45), spec, per_image=True)
    plans = [planned(graph, spec, f"graphturbo:{how}") for how in ("binding=none", "rules=paper", "rules=every")]
    assert all("each on a vEU" not in plan.notes[0] for plan in plans[:2])
    rates = us_per_byte(spec, 2)[0].tolist()

    def moving_us(plan: ExecutionPlan) -> float:
        timeline = simulate(replace(plan, prices={k: Price(us, 0.0, 0.0) for k, us in plan.rtask_us.items()}))
        return sum(nbytes * us for nbytes, us in zip(timeline.moved.values(), rates, strict=True))

    assert moving_us(plans[2]) <= moving_us(plans[0])
    alone = planned(optimize(network(1, 45), spec, per_image=True), spec, IMAGES)
    verify_plan(alone)
    assert len(images_of(alone)) >= 4


def test_on_the_cpu() -> None:
    """Seven odd images, compiled and run: as this machine's caches have it, perhaps each on a vEU."""
    graph = network(7, 45, joined=True)
    x = np.random.default_rng(0).standard_normal((7, 3, 45, 45)).astype(np.float32)
    with rammer.compile(graph, "cpu", policy=IMAGES, device=2, tune_seconds=0) as program:
        wanted = evaluate_graph(graph, {"x": x})["y"]
        for _ in range(5):
            np.testing.assert_allclose(program(x), wanted, rtol=1e-4, atol=1e-4)
