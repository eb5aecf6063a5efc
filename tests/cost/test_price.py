"""Prices from two measured times, and plans that are priced by where operands lie."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from jobs import Job, make_problem

from rammer.cost.pieces import PieceUse
from rammer.cost.price import MOST_FETCHING, MOST_STALL, Fetches, fit, us_per_byte
from rammer.cost.residency import Residency
from rammer.ir.device import MemoryLevel, VDeviceSpec
from rammer.ir.kernel import RKernel
from rammer.ir.plan import ExecutionPlan, Price, States
from rammer.ir.program import BarrierRTask, Position, RProgram, RTask, TaskUid
from rammer.scheduler.timeline import simulate

SPEC = VDeviceSpec(
    "made up",
    2,
    memory=(
        MemoryLevel("L2", 1 << 20, "veu", 100.0, written_gbps=4.0),
        MemoryLevel("DRAM", 1 << 30, "device", 16.0, veu_gbps=10.0),
    ),
    launch_us=1.0,
    barrier_us=0.5,
)

COUNT = 512  # rTasks, and elements of each tensor
OWN_LITTLE = MemoryLevel("L2", 1, "veu", 100.0, written_gbps=4.0)


@pytest.fixture(autouse=True)
def _pieces_of_one_element(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rammer.cost.pieces.LEAST_BYTES", 4)


def kernel_of(spec: VDeviceSpec = SPEC) -> tuple[ExecutionPlan, RKernel]:
    problem = make_problem([Job("a", ((COUNT, 4.0),)), Job("b", ((COUNT, 4.0),), near=("a",))], spec)
    kernels = tuple(problem.candidates[op.operation][0] for op in problem.graph.operators)
    half = COUNT // 2
    first, second = ([[RTask(TaskUid(n, v * half + r)) for r in range(half)] for v in range(2)] for n in range(2))
    lanes = tuple((*first[v], BarrierRTask((Position(1 - v, half - 1),)), *second[1 - v]) for v in range(2))
    plan = ExecutionPlan(problem.graph, spec, kernels, (RProgram(lanes),))
    return replace(plan, prices={k: Price(4.0) for k in kernels}), kernels[0]


def test_a_veu_alone_has_more_of_a_shared_level_than_many() -> None:
    assert us_per_byte(SPEC, 1)[0].tolist() == [0.0, 1e-3 / 4, 1e-3 / 10]
    assert us_per_byte(SPEC, 4)[0].tolist() == [0.0, 1e-3 / 4, 1e-3 / 4]
    plain = replace(SPEC, memory=(MemoryLevel("DRAM", 1 << 30, "device", 16.0),))
    assert us_per_byte(plain, 1)[0].tolist() == us_per_byte(plain, 2)[0].tolist() == [1e-3 / 8]


def test_stores_go_by_their_own_rate() -> None:
    slow = replace(SPEC, memory=(SPEC.memory[0], replace(SPEC.memory[1], write_gbps=8.0)))
    assert us_per_byte(slow, 1).tolist() == [[0.0, 1e-3 / 4, 1e-3 / 10], [0.0, 1e-3 / 4, 1e-3 / 5]]


@pytest.mark.parametrize("own", [1, 800, 1 << 20])
@pytest.mark.parametrize("stalls", [(1.0, 0.3), (0.5, 0.5), (1.0, 2.5)])
def test_stalls_explain_what_was_measured(stalls: tuple[float, float], own: int) -> None:
    """With operands in shared caches, and in main memory, before; whether or not the own cache would hold them.

    From times in turn alone, stalls of what nearly fits an own cache came out several times too long.
    """
    shared, memory = stalls
    spec = replace(
        SPEC,
        memory=(
            replace(OWN_LITTLE, nbytes=own),
            MemoryLevel("L3", 1 << 30, "device", 80.0, veu_gbps=40.0),
            SPEC.memory[1],
        ),
    )
    _, kernel = kernel_of(spec)
    per_rtask = sum(t.nbytes for t in (*kernel.input_types(), *kernel.operation.outputs)) / COUNT
    cold, warm = per_rtask * 1e-3 / 10, per_rtask * 1e-3 / 40
    price = fit(kernel, spec, 0.6 * warm, States(0.5 * warm, (0.5 + shared) * warm, 0.5 * warm + memory * cold))
    assert price == pytest.approx((0.5 * warm, shared, memory), rel=2e-2)


def test_disturbed_measurements_are_bounded() -> None:
    _, kernel = kernel_of()
    assert fit(kernel, SPEC, 5.0, States(9.0, 4.0, 4.0)) == (5.0, 0.0, 0.0)
    assert fit(kernel, SPEC, 5.0, States(5.0, 5.0, 1e9)).memory_stall == MOST_STALL


@pytest.mark.parametrize("in_turn", [1.0, 1e-5])
def test_where_states_are_not_measured_rates_are_believed(in_turn: float) -> None:
    """But never for more than a part of the time: price and fetching together are what is known."""
    _, kernel = kernel_of()
    assert fit(kernel, SPEC, 5.0, None) == pytest.approx((5.0, 1.0, 1.0))  # the own cache has all
    spec = replace(SPEC, memory=(OWN_LITTLE, SPEC.memory[1]))
    per_rtask = sum(t.nbytes for t in (*kernel.input_types(), *kernel.operation.outputs)) / COUNT
    near, shared, memory = fit(kernel_of(spec)[1], spec, in_turn, None)
    assert shared == memory <= 1.0 + 1e-9 and near >= (1 - MOST_FETCHING) * in_turn * (1 - 1e-9)
    assert near + memory * per_rtask * 1e-3 / 10 == pytest.approx(in_turn, rel=2e-2)


def test_a_plan_pays_for_what_another_veu_wrote() -> None:
    plan, _ = kernel_of()
    near = simulate(plan, lambda kernel: 4.0)
    far = simulate(plan)
    written = 4 * COUNT  # each vEU reads the other one's half
    assert far.moved["L2 of another vEU"] == pytest.approx(written, rel=1e-2) and far.moved["DRAM"] < 0.01 * written
    assert sum(far.busy_us) - sum(near.busy_us) == pytest.approx(written * 1e-3 / 4, rel=2e-2)
    assert near.moved == {}


def test_a_plan_larger_than_the_caches_pays_for_main_memory() -> None:
    spec = replace(SPEC, memory=(OWN_LITTLE, *SPEC.memory[1:]))
    plan, _ = kernel_of(spec)
    timeline = simulate(plan)
    assert timeline.moved["L2"] < 0.1 * timeline.moved["DRAM"]
    assert timeline.total_us > simulate(plan, lambda kernel: 4.0).total_us


def test_nothing_is_faster_than_all_veus_fetch() -> None:
    """Whatever a kernel hid when it had main memory for itself."""
    spec = replace(SPEC, memory=(OWN_LITTLE, *SPEC.memory[1:]))
    plan, _ = kernel_of(spec)
    hidden = replace(plan, prices=dict.fromkeys(plan.kernels, Price(1e-6, 0.0, 0.0)))
    timeline = simulate(hidden)
    from_memory, written = timeline.moved["DRAM"], timeline.moved["L2 of another vEU"]
    assert sum(timeline.busy_us) == pytest.approx(from_memory * 1e-3 / 8 + written * 1e-3 / 4, rel=0.1)
    slow = replace(plan, prices=dict.fromkeys(plan.kernels, Price(1e3, 0.0, 0.0)))
    assert sum(simulate(slow).busy_us) == pytest.approx(2 * COUNT * 1e3)


@pytest.mark.parametrize("veu_gbps", [10.0, 16.0, 0.0])
def test_who_alone_fetches_has_what_one_veu_draws(veu_gbps: float) -> None:
    """Half of main memory's rate is left to each of two where both fetch, and where nobody knows what one draws."""
    spec = replace(SPEC, memory=(OWN_LITTLE, replace(SPEC.memory[1], veu_gbps=veu_gbps)))
    plan, _ = kernel_of(spec)
    plan = replace(plan, prices=dict.fromkeys(plan.kernels, Price(1e-6, 0.0, 0.0)))
    both = simulate(plan)
    in_order = tuple(RTask(TaskUid(n, rtask)) for n in range(2) for rtask in range(COUNT))
    one = simulate(replace(plan, programs=(RProgram((in_order, ())),)))
    assert both.moved["DRAM"] == pytest.approx(one.moved["DRAM"], rel=0.4)  # what the other one wrote comes from there
    assert sum(one.busy_us) == pytest.approx(one.moved["DRAM"] * 1e-3 / (veu_gbps or 8.0), rel=0.02)


def test_what_takes_no_time_beside_others_has_a_price() -> None:
    """Late in a long plan the end of a short rTask is its begin."""
    plan, _ = kernel_of(replace(SPEC, memory=(OWN_LITTLE, *SPEC.memory[1:])))
    fetches = Fetches(plan, [(0, TaskUid(n, rtask)) for n in range(2) for rtask in range(COUNT)])
    at = [1e9] * 2 * COUNT
    assert fetches.us(at, at) == fetches.us()


@pytest.mark.parametrize(("second", "gbps"), [(1, 8.0), (2, 16.0), (3, 16.0)])
def test_groups_share_the_rate_of_their_own_cache(second: int, gbps: float) -> None:
    """Two of four vEUs fetch at the same time, in a group of two or in both."""
    shared = MemoryLevel("L3", 1 << 20, "group", 16.0, veu_gbps=16.0, group=2)
    spec = replace(SPEC, num_veus=4, memory=(replace(OWN_LITTLE, written_gbps=0.0), shared, SPEC.memory[1]))
    plan, _ = kernel_of(spec)
    lanes: list[tuple[RTask | BarrierRTask, ...]] = [()] * 4
    for veu, half in (0, 0), (second, 1):
        lanes[veu] = tuple(RTask(TaskUid(0, half * COUNT // 2 + n)) for n in range(COUNT // 2))
    prices = dict.fromkeys(plan.kernels, Price(1e-6, 0.0, 0.0))
    timeline = simulate(replace(plan, programs=(RProgram(tuple(lanes)),), prices=prices))
    assert timeline.moved["DRAM"] == 0
    assert sum(timeline.busy_us) == pytest.approx(timeline.moved["L3"] * 1e-3 / gbps, rel=1e-3)


def test_a_plan_is_priced_rtask_by_rtask() -> None:
    """The same in the second of two runs, one rTask after the other, by the formulas of docs/cost.md."""
    spec = replace(SPEC, memory=(replace(OWN_LITTLE, nbytes=1 << 9), *SPEC.memory[1:]))
    plan, _ = kernel_of(spec)
    prices = {k: Price(0.001 + 0.002 * n, 0.6 + n, 1.4 - n) for n, k in enumerate(plan.kernels)}
    plan = replace(plan, prices=prices)
    timeline, pieces = simulate(plan), PieceUse(plan)
    caches, alone_us = Residency(spec, pieces.in_use), us_per_byte(spec, 1)
    lanes, barrier = plan.programs[0].lanes, COUNT // 2
    parts = (0, lanes[0][:barrier]), (1, lanes[1]), (0, lanes[0][barrier:])  # each lane goes as far as it can
    order = [(veu, slot.uid) for veu, slots in parts for slot in slots if isinstance(slot, RTask)]
    for _ in range(2):
        moved = {t: caches.fetch(veu, pieces.touched[t.operator_id][t.rtask_id]) for veu, t in order}
    for task, nbytes in moved.items():
        assert timeline.fetched[task] == pytest.approx(nbytes.sum(axis=0))

    def us_of(task: TaskUid, memory_us: float) -> float:
        price, written_us = prices[plan.kernels[task.operator_id]], moved[task][:, 1].sum() * 1e-3 / 4
        stalls_us = written_us * price.shared_stall + memory_us * price.memory_stall
        return float(max(price.warm_us + stalls_us, written_us + memory_us))

    memory_us = {task: (nbytes * alone_us)[:, 2].sum() for task, nbytes in moved.items()}
    at = dict.fromkeys(range(2), 1.0)  # the launch
    when: dict[TaskUid, tuple[float, float]] = {}
    for operator in range(2):
        for veu, task in order:
            if task.operator_id == operator:
                when[task] = at[veu], at[veu] + us_of(task, memory_us[task])
                at[veu] = when[task][1]
        at = dict.fromkeys(at, max(at.values()) + 0.5)  # the barriers
    begin, end = np.array([when[task] for _, task in order]).T
    busy_us = np.array([moved[task][:, 2].sum() * 1e-3 / 16 for _, task in order])
    wanted = [0.0, 0.0]
    for n, (veu, task) in enumerate(order):
        meanwhile = np.clip(np.minimum(end, end[n]) - np.maximum(begin, begin[n]), 0, None) / (end - begin) @ busy_us
        wanted[veu] += us_of(task, max(memory_us[task], min(float(meanwhile), 2 * busy_us[n])))
    assert timeline.busy_us == pytest.approx(wanted)
    together_us = [us_of(task, 2 * busy_us[n]) for n, (_, task) in enumerate(order)]
    assert sum(us_of(task, memory_us[task]) for _, task in order) < sum(wanted) < sum(together_us)
