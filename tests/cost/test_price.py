"""Prices from two measured times, and plans that are priced by where operands lie."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rammer.cost.pieces import touches_alone
from rammer.cost.price import MOST_FETCHING, fit, us_per_byte
from rammer.cost.residency import Residency
from rammer.ir.device import MemoryLevel, VDeviceSpec
from rammer.ir.kernel import RKernel
from rammer.ir.plan import ExecutionPlan, Price
from rammer.ir.program import BarrierRTask, Position, RProgram, RTask, TaskUid
from rammer.scheduler.timeline import simulate
from rammer.testing.problems import Job, make_problem

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


def kernel_of(spec: VDeviceSpec = SPEC) -> tuple[ExecutionPlan, RKernel]:
    problem = make_problem([Job("a", ((2, 4.0),)), Job("b", ((2, 4.0),), ("a",))], spec)
    kernels = tuple(problem.candidates[op.operation][0] for op in problem.graph.operators)
    first, second = ([RTask(TaskUid(n, r)) for r in range(2)] for n in range(2))
    lanes = tuple((first[v], BarrierRTask((Position(1 - v, 0),)), second[1 - v]) for v in range(2))
    plan = ExecutionPlan(problem.graph, spec, kernels, (RProgram(lanes),))
    return replace(plan, prices={k: Price(4.0, 1.0) for k in kernels}), kernels[0]


def test_a_veu_alone_has_more_of_a_shared_level_than_many() -> None:
    assert us_per_byte(SPEC, 1).tolist() == [0.0, 1e-3 / 4, 1e-3 / 10]
    assert us_per_byte(SPEC, 4).tolist() == [0.0, 1e-3 / 4, 1e-3 / 4]


@pytest.mark.parametrize("cache", [1 << 20, 256])
@pytest.mark.parametrize("stall", [0.3, 1.0, 2.5])
def test_a_price_explains_both_times(cache: int, stall: float) -> None:
    """In turn, operands are near if the cache holds them all, and else are fetched each time."""
    spec = replace(SPEC, memory=(replace(SPEC.memory[0], nbytes=cache), *SPEC.memory[1:]))
    _, kernel = kernel_of(spec)
    touched, pieces = touches_alone(kernel)
    caches, rates = Residency(spec, pieces), us_per_byte(spec, 1)
    cold, warm = (sum(float(caches.fetch(0, t) @ rates) for t in touched) / len(touched) for _ in range(2))
    price = fit(kernel, spec, 3.0 + stall * warm, 3.0 + stall * cold)
    assert price.near_us == pytest.approx(3.0)
    assert price.stall == pytest.approx(stall if cold > warm else 1.0)


def test_a_price_always_explains_the_time_in_turn() -> None:
    """Also where the rates say that fetching alone takes longer, and where two times are no pair."""
    spec = replace(SPEC, memory=(replace(SPEC.memory[0], nbytes=1), replace(SPEC.memory[1], veu_gbps=1e-5)))
    _, kernel = kernel_of(spec)
    price = fit(kernel, spec, 5.0, None)
    assert price.near_us == pytest.approx((1 - MOST_FETCHING) * 5.0) and 0 < price.stall < 1
    assert fit(kernel_of()[1], SPEC, 5.0, 4.0) == (5.0, 0.0)


def test_a_plan_pays_for_what_another_veu_wrote() -> None:
    plan, _ = kernel_of()
    near = simulate(plan, lambda kernel: 4.0)
    far = simulate(plan)
    assert far.moved["L2 of another vEU"] > 0 and far.moved["DRAM"] == 0  # in a run after many like it
    extra = sum(far.busy_us) - sum(near.busy_us)
    assert extra == pytest.approx(far.moved["L2 of another vEU"] * 1e-3 / 4)
    assert near.moved == {}


def test_a_plan_larger_than_the_caches_pays_for_main_memory() -> None:
    spec = replace(SPEC, memory=(replace(SPEC.memory[0], nbytes=1), *SPEC.memory[1:]))
    plan, _ = kernel_of(spec)
    timeline = simulate(plan)
    assert timeline.moved["L2"] == 0 and timeline.moved["DRAM"] > 0
    assert timeline.total_us > simulate(plan, lambda kernel: 4.0).total_us
