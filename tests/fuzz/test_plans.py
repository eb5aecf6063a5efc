"""Random graphs and plans: every legal plan verifies and computes the reference; every needed wait is needed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from plan_text import parse_programs
from rammer_testing.generate import random_graph, random_inputs, random_plan

from rammer.errors import VerificationError
from rammer.ir.analysis.storage import memory_owners
from rammer.ir.device import SyncModel, VDeviceSpec
from rammer.ir.plan import ExecutionPlan
from rammer.ir.program import BarrierRTask, RProgram, RProgramBuilder, TaskUid
from rammer.ir.semantics.evaluate import evaluate_graph
from rammer.ir.text import print_programs
from rammer.ir.verify import verify_plan
from rammer.planner.memory import plan_memory
from rammer.vdevice.interpreter import RaceError, run_plan

SEEDS = range(12)


def make(seed: int) -> ExecutionPlan:
    return random_plan(random_graph(seed), seed, num_veus=1 + seed % 4)


def without_one_wait(plan: ExecutionPlan) -> Iterator[ExecutionPlan]:
    """Every plan that lacks a single wait of a single barrier."""
    for number, program in enumerate(plan.programs):
        for veu, lane in enumerate(program.lanes):
            for order, slot in enumerate(lane):
                if isinstance(slot, BarrierRTask):
                    for wait in slot.waits:
                        kept = BarrierRTask(tuple(w for w in slot.waits if w != wait))
                        lanes = list(program.lanes)
                        lanes[veu] = (*lane[:order], kept, *lane[order + 1 :])
                        programs = list(plan.programs)
                        programs[number] = RProgram(tuple(lanes))
                        yield replace(plan, programs=tuple(programs))


@pytest.mark.parametrize("seed", SEEDS)
def test_interleavings_compute_the_reference(seed: int) -> None:
    plan = make(seed)
    verify_plan(plan)
    inputs = random_inputs(plan.graph, seed)
    wanted = evaluate_graph(plan.graph, inputs)
    for interleaving in range(20 if seed < 4 else 2):
        found = run_plan(plan, inputs, seed=interleaving)
        for name, value in wanted.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-5, err_msg=f"seed {seed}, {name}")


@pytest.mark.parametrize("seed", SEEDS)
def test_any_missing_wait_is_caught(seed: int) -> None:
    plan = make(seed)
    mutants = list(without_one_wait(plan))
    assert mutants or all(len(program.lanes) == 1 for program in plan.programs)
    for mutant in mutants:
        with pytest.raises(VerificationError) as caught:
            verify_plan(mutant)
        assert caught.value.rule in ("R104", "R107")
        verify_plan(plan)  # the verifier keeps nothing between plans


@pytest.mark.parametrize("seed", range(4))
def test_a_missing_wait_races(seed: int) -> None:
    """The interpreter, which shares no rule with the verifier, meets the race too."""
    plan = make(4 * seed + 3)
    inputs = random_inputs(plan.graph, seed)
    mutants = list(without_one_wait(replace(plan, memory=None)))[:8]
    assert mutants
    for mutant in mutants:
        with pytest.raises(RaceError, match=r"prog\[\d\]\[\d+\].*prog\[\d\]\[\d+\]"):
            for interleaving in range(20):
                run_plan(mutant, inputs, seed=interleaving)


@pytest.mark.parametrize("seed", range(4))
def test_overlapping_live_buffers_are_caught(seed: int) -> None:
    plan = make(seed)
    plan = replace(plan, memory=plan_memory(plan))
    assert plan.memory is not None
    offsets = plan.memory.offsets
    caught = 0
    for tensor in memory_owners(plan.graph):
        for other in memory_owners(plan.graph):
            if tensor != other and offsets[tensor] != offsets[other]:
                moved = replace(
                    plan.memory, offsets={**offsets, tensor: offsets[other]}, arena_bytes=2 * plan.memory.arena_bytes
                )
                try:
                    verify_plan(replace(plan, memory=moved))
                except VerificationError as error:
                    assert error.rule == "R107"
                    caught += 1
    assert caught


@pytest.mark.parametrize("seed", SEEDS)
def test_text_round_trip(seed: int) -> None:
    plan = make(seed)
    assert parse_programs(print_programs(plan.programs)) == plan.programs


@pytest.mark.parametrize("seed", range(4))
def test_global_barriers(seed: int) -> None:
    """Waves between global barriers are legal on a device that knows nothing finer; any wait less is not."""
    random = Random(seed)
    made = make(4 * seed + 1)
    builder = RProgramBuilder(3)
    for wave in made.graph.wavefronts():
        for n in wave:
            for rtask in range(made.kernels[n].num_rtasks):
                builder.append(TaskUid(n, rtask), random.randrange(3))
        builder.sync()
    spec = VDeviceSpec("bulk-synchronous", 3, sync=SyncModel.GLOBAL)
    plan = replace(made, spec=spec, programs=(builder.build(),), memory=None)
    plan = replace(plan, memory=plan_memory(plan))
    verify_plan(plan)
    inputs = random_inputs(plan.graph, seed)
    wanted = evaluate_graph(plan.graph, inputs)
    for name, value in run_plan(plan, inputs, seed=seed).items():
        np.testing.assert_allclose(value, wanted[name], rtol=1e-4, atol=1e-5, err_msg=name)
    for mutant in without_one_wait(plan):
        with pytest.raises(VerificationError, match="R105"):
            verify_plan(mutant)
