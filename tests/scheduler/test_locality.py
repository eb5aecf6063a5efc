"""Between global barriers rTasks go where operands lie: what is sent, by definition and as an emulator counts it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from rammer_testing.generate import random_graph

import rammer
from rammer.compiler import Compilation, CompileOptions
from rammer.ir.analysis.dependency import read_elements, reads, writes
from rammer.ir.analysis.intervals import expand
from rammer.ir.analysis.storage import constant_key
from rammer.ir.device import SyncModel
from rammer.ir.plan import ExecutionPlan
from rammer.ir.program import RTask
from rammer.ir.semantics.evaluate import evaluate_graph
from rammer.ir.tensor import Array
from rammer.ir.verify import verify_plan
from rammer.plugins import PluginRegistry
from rammer.scheduler.policies import locality, wavefront
from rammer.scheduler.policies.locality import place_by_owner
from rammer.vdevice.interpreter import run_plan
from rammer_viz.demo import lstm_stack

node = helper.make_node


def bottleneck(size: tuple[int, int], channels: int) -> onnx.ModelProto:
    """MobileNet's: more channels, each for itself in a window, and fewer again, twice."""
    rng, nodes, weights, x, deep = np.random.default_rng(0), [], [], "x", 4 * channels

    def weight(name: str, *shape: int) -> str:
        weights.append(numpy_helper.from_array((rng.standard_normal(shape) / 4).astype(np.float32), name))
        return name

    for n, out in enumerate(("m", "y")):
        nodes += [
            node("Conv", [x, weight(f"e{n}", deep, channels, 1, 1)], [f"a{n}"]),
            node("Relu", [f"a{n}"], [f"b{n}"]),
            node(
                "Conv", [f"b{n}", weight(f"d{n}", 4 * channels, 1, 3, 3)], [f"c{n}"], group=4 * channels, pads=[1] * 4
            ),
            node("Conv", [f"c{n}", weight(f"p{n}", channels, deep, 1, 1)], [f"s{n}"]),
            node("Add", [f"s{n}", x], [out]),
        ]
        x = out
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, (1, channels, *size)) for n in "xy"]
    graph = helper.make_graph(nodes, "bottleneck", ports[:1], ports[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    "lstm": lambda: lstm_stack(2, 5, 64),
    "bottleneck": lambda: bottleneck((7, 9), 16),
}


def planned(graph: rammer.Graph, arch: str, monkeypatch: pytest.MonkeyPatch) -> ExecutionPlan:
    """Wavefront's plan with rTasks in order."""
    monkeypatch.setattr(wavefront, "place_by_owner", lambda plan: plan)
    how = CompileOptions(target="ipu", arch=arch, device="emulator", policy="wavefront", tune_seconds=0)
    with Compilation.of(graph, how, registry=PluginRegistry(third_party=False)) as compilation:
        return compilation.planned.plan


def inputs_of(graph: rammer.Graph) -> dict[str, Array]:
    rng = np.random.default_rng(1)
    return {t: rng.standard_normal(graph.types[t].shape).astype(graph.types[t].dtype.numpy) for t in graph.inputs}


def steps(plan: ExecutionPlan) -> list[dict[int, dict[int, list[int]]]]:
    """Between global barriers, by vEU and operator the rTasks; of all rPrograms."""
    found = []
    for program in plan.programs:
        mine: dict[int, dict[int, dict[int, list[int]]]] = {}
        for veu, lane in enumerate(program.lanes):
            barriers = 0
            for slot in lane:
                barriers += not isinstance(slot, RTask)
                if isinstance(slot, RTask):
                    there = mine.setdefault(barriers, {}).setdefault(veu, {})
                    there.setdefault(slot.uid.operator_id, []).append(slot.uid.rtask_id)
        found += [mine[n] for n in sorted(mine)]
    return found


def by_definition(plan: ExecutionPlan) -> int:
    """Element by element of what rTasks read: the bytes that live on no vEU, or on another one than the reader's."""
    graph, homes, sent = plan.graph, dict[tuple[object, int], int](), 0
    for step in steps(plan):
        for op in sorted({op for there in step.values() for op in there}):
            operator, kernel = graph.operators[op], plan.kernels[op]
            for position, (tensor, kind) in enumerate(zip(operator.inputs, kernel.input_types(), strict=True)):
                root, shift = graph.storage(tensor)
                key: object = root
                if root in graph.constants:
                    key, shift = constant_key(graph, tensor, kind.layout)
                readers: dict[tuple[int, ...], set[int]] = {}
                for veu, there in step.items():
                    for rtask in there.get(op, ()):
                        some = expand(reads(kernel, position, rtask)) + shift
                        readers.setdefault(tuple(some.tolist()), set()).add(veu)
                before = dict(homes)
                order = list(
                    dict.fromkeys(tuple((expand(s) + shift).tolist()) for s in read_elements(kernel, position).sets)
                )
                for elements in sorted(readers, key=order.index):  # what is in several sets is sent once for each
                    veus = readers[elements]
                    for element in elements:
                        home = before.get((key, element), min(veus) if len(veus) == 1 else -1)
                        sent += len(veus - {home}) * kind.element_bytes
                        if home >= 0:
                            homes.setdefault((key, element), home)
            for position, tensor in enumerate(operator.outputs):
                root, shift = graph.storage(tensor)
                for veu, there in step.items():
                    for rtask in there.get(op, ()):
                        homes |= {(root, e + shift): veu for e in expand(writes(kernel, position, rtask)).tolist()}
    return sent


def sent(plan: ExecutionPlan) -> int:
    homes = locality._Homes(plan)
    return sum(homes.run(step) for program in plan.programs for step in locality._steps(program))


def check_moved(plan: ExecutionPlan, moved: ExecutionPlan) -> None:
    """The same rTasks between the same barriers, no vEU longer at work than some vEU was, and less is sent."""
    verify_plan(moved)
    before, after = steps(plan), steps(moved)
    assert len(before) == len(after)
    for old, new in zip(before, after, strict=True):
        rtasks, us = [], []
        for step in (old, new):
            rtasks.append(sorted((op, r) for there in step.values() for op, some in there.items() for r in some))
            us.append(
                max(sum(plan.rtask_us[plan.kernels[o]] * len(s) for o, s in there.items()) for there in step.values())
            )
        assert rtasks[0] == rtasks[1]
        assert us[1] <= us[0] * (1 + 1e-6)
    assert by_definition(moved) < by_definition(plan)


@pytest.mark.parametrize("seed", range(16))
def test_what_is_sent_is_what_the_definition_says(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locality, "WORTH_MOVING", 1 - 1e-9)
    graph = random_graph(seed, 8, placed=False)
    plan = planned(graph, f"gc2:{2 + seed % 5}", monkeypatch)
    moved = place_by_owner(plan)
    for one in (plan, moved):
        assert sent(one) == by_definition(one)
    if moved is not plan:
        check_moved(plan, moved)
    inputs = inputs_of(graph)
    wanted = evaluate_graph(graph, inputs)
    for output, value in run_plan(moved, inputs, seed=seed).items():
        np.testing.assert_allclose(value, wanted[output], rtol=1e-4, atol=1e-5)


def test_nothing_is_moved_on_one_tile_or_where_too_much_is_to_be_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = rammer.from_onnx(MODELS["bottleneck"]())
    for arch, most in (("gc2:1", 1 << 23), ("gc2:12", 0)):
        monkeypatch.setattr(locality, "MOST_LOOKED", most)
        plan = planned(graph, arch, monkeypatch)
        assert place_by_owner(plan) is plan


@pytest.mark.parametrize("name", MODELS)
def test_an_emulator_counts_less(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fifth less at least."""
    graph = rammer.from_onnx(MODELS[name]())
    plan = planned(graph, "gc2:12", monkeypatch)
    moved = place_by_owner(plan)
    check_moved(plan, moved)
    assert any(note.startswith("sent to vEUs: ") for note in moved.notes)
    inputs = inputs_of(graph)
    wanted = evaluate_graph(graph, inputs)
    vdevice = PluginRegistry(third_party=False).open("ipu", arch="gc2:12", device="emulator")
    nbytes = []
    for one in (plan, moved):
        with closing(vdevice.load(vdevice.build(one))) as program:
            for output, value in program.run(inputs).items():
                np.testing.assert_allclose(value, wanted[output], rtol=1e-3, atol=1e-4)
            nbytes.append(program.profile().totals["exchange_bytes"])  # type: ignore[attr-defined]
    assert nbytes[1] < 0.8 * nbytes[0]


def test_policies_of_tiles_do_it_and_others_do_not() -> None:
    graph = rammer.from_onnx(MODELS["lstm"]())
    for policy in ("wavefront", "graphturbo", "auto"):
        with rammer.compile(graph, "ipu", arch="gc2:12", device="emulator", policy=policy, tune_seconds=0) as program:
            assert any(note.startswith("sent to vEUs: ") for note in program.report().notes), policy
    for policy in ("sequential", "wavefront:beyond=off"):
        with rammer.compile(graph, "ipu", arch="gc2:12", device="emulator", policy=policy, tune_seconds=0) as program:
            assert not any(note.startswith("sent to vEUs: ") for note in program.report().notes), policy


def test_only_between_global_barriers_and_without_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(rammer.from_onnx(MODELS["lstm"]()), "gc2:12", monkeypatch)
    assert place_by_owner(plan) is not plan
    for spec in (replace(plan.spec, sync=SyncModel.FINE), replace(plan.spec, memory=())):
        other = replace(plan, spec=spec)
        assert place_by_owner(other) is other


@pytest.mark.parametrize("seed", range(20))
def test_places_are_there_and_near(seed: int) -> None:
    """No vEU more often than it is free, and at least half of what is possible (as greedy choices find)."""
    rng = np.random.default_rng(seed)
    rtasks, veus = int(rng.integers(1, 6)), int(rng.integers(1, 5))
    there = rng.integers(0, 9, (rtasks, veus)) * rng.integers(0, 2, (rtasks, veus))
    free = rng.integers(0, 4, veus)
    before = rng.integers(0, veus, rtasks).tolist()
    found = locality._assigned(there, free, before)
    every = [places for places in np.ndindex(*(veus,) * rtasks) if (np.bincount(places, minlength=veus) <= free).all()]
    assert (found is None) == (not every)
    if found is not None:
        assert tuple(found) in every
        gain = there - there.min(axis=0)
        best = max(sum(gain[n, veu] for n, veu in enumerate(places)) for places in every)
        assert 2 * sum(gain[n, veu] for n, veu in enumerate(found)) >= best
