"""Weights that stay on a vEU: what rTasks take by where they run, and which policy that makes the default."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest

import rammer
from rammer.cost.weights import by_weights, kept_operations, recurrent_operators, recurrent_us, static_bytes
from rammer.frontend.builder import GraphBuilder
from rammer.ir.plan import ExecutionPlan
from rammer.ir.program import RTask, TaskUid
from rammer.scheduler.select import PriceTable
from rammer.scheduler.timeline import simulate
from rammer_viz.demo import lstm_stack

STEPS = 9


def plan_of(policy: str, layers: int = 2, units: int = 64, veus: int = 6) -> ExecutionPlan:
    model, device = lstm_stack(layers, STEPS, units), f"emulator:{veus}"
    return rammer.compile(model, "cuda", policy=policy, device=device, arch="sm_90", tune_seconds=0).plan


def readers(plan: ExecutionPlan) -> dict[tuple[object, ...], list[TaskUid]]:
    """rTasks by vEU and part of weights that several operators have, in their order."""
    shared = {n for numbers in recurrent_operators(plan.graph).values() for n in numbers}
    assert {plan.graph.operators[n].kind.split("+")[0] for n in shared} == {"gate_matmul"}
    found = defaultdict(list)
    for veu, lane in enumerate(plan.programs[0].lanes):
        for slot in lane:
            if isinstance(slot, RTask) and (n := slot.uid.operator_id) in shared:
                found[veu, plan.kernels[n], plan.graph.operators[n].statics, slot.uid.rtask_id].append(slot.uid)
    return found


@pytest.mark.parametrize("policy", ["stationary", "wavefront"])
def test_who_comes_back_finds_them_there(policy: str) -> None:
    plan = plan_of(policy)
    us, parts = recurrent_us(plan), readers(plan)
    assert us.keys() == {uid for uids in parts.values() for uid in uids}
    kept = [uids for uids in parts.values() if len(uids) >= plan.spec.kept_reads]
    assert kept or policy == "wavefront"
    for uids in parts.values():
        kernel = plan.kernels[uids[0].operator_id]
        near_us, far_us = by_weights(kernel, plan.rtask_us[kernel], plan.spec)
        assert 0 < near_us <= plan.rtask_us[kernel] <= far_us and static_bytes(kernel) > 0
        assert [us[uid] for uid in uids] == [far_us, *[near_us if uids in kept else far_us] * (len(uids) - 1)]


def test_room_is_counted() -> None:
    plan = plan_of("stationary")
    large = max(static_bytes(k) for k in plan.kernels)
    little = replace(plan, spec=replace(plan.spec, scratch_bytes=int(large) - 1))
    none = replace(plan, spec=replace(plan.spec, kept_reads=0))
    biggest = {uid for uid in recurrent_us(plan) if static_bytes(plan.kernels[uid.operator_id]) == large}
    assert all(recurrent_us(little)[uid] >= recurrent_us(plan)[uid] for uid in biggest)
    assert sum(recurrent_us(little).values()) > sum(recurrent_us(plan).values())
    assert recurrent_us(none) == {}
    assert simulate(plan).total_us < simulate(little).total_us


def test_the_default_is_the_policy_that_lets_them_stay() -> None:
    """On GPUs, where steps read the same weights; a network without steps is wavefront's."""
    wide = 3, 128, 12  # smaller tasks read their weights in a round or two
    plan = plan_of("auto", *wide)
    assert plan.policy.startswith("stationary (chosen by auto")
    assert simulate(plan).total_us < simulate(plan_of("wavefront", *wide)).total_us
    assert any("sequential, stationary" in note for note in plan_of("auto:tries=all", *wide).notes)
    once = rammer.compile(lstm_stack(1, 2, 64), "cuda", device="emulator:6", arch="sm_90", tune_seconds=0).plan
    assert once.policy == "wavefront" and not any("stationary" in note for note in once.notes)


def test_policies_choose_rkernels_by_their_time_with_weights_that_stay() -> None:
    how = rammer.CompileOptions(target="cuda", arch="sm_90", device="emulator:6", tune_seconds=0)
    with rammer.Compilation.of(lstm_stack(2, STEPS, 128), how) as compilation:
        problem = compilation.problem
    kept, prices = kept_operations(problem.graph, problem.spec), PriceTable(problem)
    assert kept and kept_operations(problem.graph, replace(problem.spec, kept_reads=0)) == set()
    for operation in problem.candidates:
        options = [(option.rtask_us, prices.rtask_us(option.kernel)) for option in prices.fitting(operation)]
        assert all(near <= far for near, far in options)
        assert any(near < far for near, far in options) == (operation in kept)


def test_constants_beside_larger_operands_are_no_weights() -> None:
    """Norms and factors that many layers share: what their rTasks take is not what it takes to read those."""
    b = GraphBuilder("layers")
    scale, shift = b.constant(np.ones(384, np.float32)), b.constant(np.zeros(384, np.float32))
    x = b.input("x", (75, 384))
    for _ in range(8):
        x = b.add("layer_norm", x, scale, shift, axis=1, epsilon=1e-5)
        x = b.add("softmax", b.add("mul", x, b.constant(np.float32(0.125))), axis=1)
    b.output(x, "y")
    plan = rammer.compile(b.build(), "cuda", device="emulator:6", arch="sm_90", tune_seconds=0).plan
    statics = [op.statics for op in plan.graph.operators if op.statics]
    assert max(map(statics.count, statics)) >= plan.spec.kept_reads
    assert recurrent_operators(plan.graph) == {} == recurrent_us(plan)
    assert plan.policy == "wavefront" and not any("stationary" in note for note in plan.notes)
