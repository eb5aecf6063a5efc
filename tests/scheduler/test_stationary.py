"""Policy "stationary": every tile of recurrent weights has one vEU, for the whole program."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from itertools import product

import pytest
from jobs import Job
from test_policies import device, lanes_of, schedule

from rammer.errors import ScheduleError
from rammer.ir.analysis.dependency import Dependencies
from rammer.ir.device import Execution, MemoryLevel, SyncModel
from rammer.ir.program import BarrierRTask, Position, RTask, TaskUid
from rammer.ir.verify import verify_plan
from rammer.scheduler.assembly import Assembly
from rammer.scheduler.timeline import simulate


def layers(depth: int, steps: int, *tilings: tuple[int, float]) -> list[Job]:
    """A recurrent network of several layers: each cell needs its layer's last step and the layer below."""
    jobs = [Job("wide", ((512, 0.0),))]  # all tensors have as many elements as an operator has rTasks: 2 KiB
    for s, layer in product(range(steps), range(depth)):
        before = ([f"c{s - 1}.{layer}"] if s else []) + ([f"c{s}.{layer - 1}"] if layer else [])
        jobs.append(Job(f"c{s}.{layer}", tilings, tuple(before), weights=f"w{layer}", kind=f"cell{len(before)}"))
    return jobs


@pytest.mark.parametrize("num_veus", [2, 3, 6])
def test_tiles_never_move(num_veus: int) -> None:
    plan = schedule("stationary", layers(3, 8, (2, 4.0), (4, 2.5)), device(num_veus))
    verify_plan(plan)
    assert len(plan.programs) == 1
    for layer in range(3):
        counts = {len(lanes_of(plan, f"c{s}.{layer}")) for s in range(8)}
        assert len({tuple(lanes_of(plan, f"c{s}.{layer}")) for s in range(8)}) == len(counts) == 1


def test_the_whole_program_is_balanced() -> None:
    """Three layers of two tiles on six vEUs: one each, so that all layers work at once; not two layers on the same."""
    plan = schedule("stationary", layers(3, 8, (2, 4.0)), device(6, barrier_us=0.1))
    homes = [veu for layer in range(3) for veu in lanes_of(plan, f"c7.{layer}")]
    assert sorted(homes) == list(range(6))
    assert simulate(plan).total_us < 1.5 * (8 + 3 - 1) * 4.1 + 5.0


def test_the_number_of_tiles_suits_the_device() -> None:
    """Finer tiles where vEUs are many, coarser and cheaper ones where they are few."""
    many, few = (schedule("stationary", layers(2, 10, (2, 4.0), (8, 1.5)), device(n, barrier_us=0.1)) for n in (16, 2))
    assert {k.num_rtasks for k in many.kernels[1:]} == {8}
    assert {k.num_rtasks for k in few.kernels[1:]} == {2}


def test_what_is_not_recurrent_goes_where_it_starts_first() -> None:
    jobs = [*layers(1, 4, (2, 4.0)), Job("odd", ((4, 1.0),), weights="w9")]
    plan = schedule("stationary", jobs, device(4))
    assert len(set(lanes_of(plan, "odd"))) > 1
    assert plan.notes[0].startswith("recurrent weights: 1 sets in 2 tiles")
    assert plan.notes[1] == "rTasks at the vEU of their weights: 8 of 524"


def test_global_synchronisation_is_refused() -> None:
    with pytest.raises(ScheduleError, match=r"'stationary' needs rTask-level synchronisation.*\n.*use policy"):
        schedule("stationary", layers(1, 2, (2, 1.0)), device(2, sync=SyncModel.GLOBAL))


@pytest.mark.parametrize("policy", ["stationary", "wavefront"])
def test_a_lane_waits_once_and_publishes_once_in_a_wave(policy: str) -> None:
    """Each rTask waited for itself, and was waited for: where barriers are dear, those of one wave share both."""
    jobs = layers(3, 6, (12, 1.0))
    spec = replace(device(4, barrier_us=1.0), execution=Execution.SIMT)
    plan = schedule(policy, jobs, spec)
    verify_plan(plan)
    wave_of = {n: number for number, wave in enumerate(plan.graph.wavefronts()) for n in wave}
    for program in plan.programs:
        awaited = {w for lane in program.lanes for s in lane if isinstance(s, BarrierRTask) for w in s.waits}
        for veu, lane in enumerate(program.lanes):
            waits: Counter[int] = Counter()
            publishes: Counter[int] = Counter()
            for order, slot in enumerate(lane):
                if isinstance(slot, RTask):
                    wave = wave_of[slot.uid.operator_id]
                    publishes[wave] += Position(veu, order) in awaited
                    waits[wave] += order > 0 and isinstance(lane[order - 1], BarrierRTask)
            assert max(waits.values(), default=0) <= 1 and max(publishes.values(), default=0) <= 1
    apart = schedule(policy, jobs, replace(spec, execution=Execution.SIMD))
    assert simulate(plan).total_us <= simulate(apart).total_us


def test_sets_of_weights_go_to_groups_of_near_veus() -> None:
    cluster = MemoryLevel("cluster", 1 << 20, "group", 0.0, "scratch", group=4, handover_us=0.1)
    spec = replace(device(12, barrier_us=2.0), memory=(cluster,))
    plan = schedule("stationary", layers(3, 8, (4, 4.0)), spec)
    verify_plan(plan)
    groups = [{veu // 4 for veu in lanes_of(plan, f"c7.{layer}")} for layer in range(3)]
    assert sorted(map(tuple, groups)) == [(0,), (1,), (2,)]


@pytest.mark.parametrize("seed", range(8))
def test_an_assembly_and_a_timeline_agree_on_hand_overs_in_groups(seed: int) -> None:
    cluster = MemoryLevel("cluster", 1 << 20, "group", 0.0, "scratch", group=4, handover_us=0.1)
    rng = random.Random(seed)
    spec = replace(device(8, launch_us=0.0, barrier_us=2.0), memory=(cluster,), passed_us=0.05)
    jobs = layers(2, 6, (rng.choice([3, 8]), 2.0))
    plan = schedule("wavefront", jobs, spec)
    assembly = Assembly(spec)
    for wave in plan.graph.wavefronts():
        for n in wave:
            for r in range(plan.kernels[n].num_rtasks):
                before = Dependencies(plan.graph, plan.kernels).of(n)[r]
                needs = assembly.needs(before)
                starts = assembly.starts_us(needs)
                veu = rng.randrange(8)
                assert starts[veu] == pytest.approx(assembly.start_us(veu, needs))
                assembly.place(TaskUid(n, r), veu, 0.5, needs)
    made = replace(plan, programs=(assembly.build(),), rtask_us=dict.fromkeys(plan.rtask_us, 0.5))
    assert simulate(made, lambda _: 0.5).total_us == pytest.approx(assembly.time_us)
