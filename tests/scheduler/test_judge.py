"""Which of two plans is faster, and how little is asked to know it; and plans that stand with other rKernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from cpus import MadeUp
from jobs import make_problem, random_jobs
from layers import network, node

from rammer.compiler.candidates import with_replacements
from rammer.ir.analysis.dependency import reads
from rammer.ir.device import MemoryLevel, VDeviceSpec
from rammer.ir.kernel import RKernel
from rammer.ir.plan import Price
from rammer.ir.verify import verify_plan
from rammer.kernels import candidates
from rammer.passes import optimize
from rammer.scheduler.judge import Estimate, PlanSelector, takes_less
from rammer.scheduler.policies.sequential import SequentialPolicy
from rammer.scheduler.policies.wavefront import WavefrontPolicy
from rammer.scheduler.policy import Problem
from rammer.scheduler.profiler import EstimatingProfiler, MeasuredProfiler
from rammer.scheduler.timeline import simulate
from rammer.vdevice.image.placement import ports_alone

SPEC = VDeviceSpec(
    "made up",
    2,
    launch_us=1.0,
    barrier_us=0.1,
    memory=(
        MemoryLevel("L2", 1 << 10, "veu", 100.0, written_gbps=5.0),
        MemoryLevel("DRAM", 1 << 30, "device", 10.0),
    ),
)


def priced(seed: int) -> Problem:
    """A random problem whose rKernels stall for far operands."""
    problem = make_problem(random_jobs(seed), SPEC, size=64)
    times = {k: problem.profiler.rtask_us(k) for options in problem.candidates.values() for k in options}

    def price(kernels: Mapping[RKernel, float]) -> Mapping[RKernel, Price]:
        return {k: Price(0.5 * us, 0.7, 1.3) for k, us in kernels.items()}

    return replace(problem, profiler=MeasuredProfiler(times, EstimatingProfiler(SPEC), price=price))


@pytest.mark.parametrize("seed", range(8))
def test_with_all_operands_near_no_plan_takes_longer(seed: int) -> None:
    problem = priced(seed)
    judge = PlanSelector(problem)
    for policy in (SequentialPolicy(), WavefrontPolicy()):
        found = judge.estimate(policy.schedule(problem))
        assert 0.0 < found.least_us < found.us


def test_the_same_plan_is_priced_once() -> None:
    problem = priced(3)
    judge, plan = PlanSelector(problem), SequentialPolicy().schedule(problem)
    first = judge.estimate(plan)
    assert judge.estimate(replace(plan, notes=("another",), memory=None)) is first
    assert judge.estimate(WavefrontPolicy().schedule(problem)) is not first
    assert not judge.prefers(first, first)


def test_what_is_slower_with_all_near_is_not_followed() -> None:
    problem = priced(3)
    judge = PlanSelector(problem)
    fast, slow = (judge.estimate(p.schedule(problem)) for p in (WavefrontPolicy(), SequentialPolicy()))
    assert fast.us < slow.least_us
    assert not judge.prefers(slow, fast) and not judge.cheaper(slow, fast)
    assert "us" not in vars(slow)
    assert judge.cheaper(fast, slow) and judge.prefers(fast, slow)


@pytest.mark.parametrize("seed", range(4))
def test_bounds_answer_as_times_do(seed: int) -> None:
    """Whichever of two plans is followed first, and where that is enough."""
    problem = priced(seed)
    plans = [policy.schedule(problem) for policy in (SequentialPolicy(), WavefrontPolicy())]
    exact = [Estimate(problem, plan).us for plan in plans]
    for one, other in ((0, 1), (1, 0)):
        tie = exact[other] / exact[one]
        for ratio, close in ((0.3 * tie, False), (0.999 * tie, True), (1.001 * tie, True), (3.0 * tie, False)):
            judged = [Estimate(problem, plan) for plan in plans]
            assert takes_less(judged[one], judged[other], ratio) == (ratio < tie)
            assert close <= all("us" in vars(j) for j in judged)


def test_of_two_plans_the_smaller_one_is_followed() -> None:
    """Where it is enough to know what that takes, and what the other does with all operands near."""
    problem = priced(3)
    small, large = (Estimate(problem, p.schedule(problem)) for p in (WavefrontPolicy(), SequentialPolicy()))
    large.plan = replace(large.plan, kernels=large.plan.kernels + large.plan.kernels)
    assert small.to_follow < large.to_follow and small.us < large.least_us
    assert small.to_follow == 0
    assert takes_less(small, large) and not takes_less(large, small)
    assert "us" not in vars(large)


def test_a_plan_is_followed_once() -> None:
    problem = priced(3)
    judged = PlanSelector(problem).estimate(SequentialPolicy().schedule(problem))
    assert judged.us > 0
    plan = replace(judged.plan, prices=problem.profiler.prices(judged.plan.kernels) or {})
    timeline = problem.timelines.of(plan)
    assert timeline.total_us == judged.us
    assert problem.timelines.of(replace(plan, notes=("another",))) is timeline
    for other in (
        replace(plan, memory=replace(plan.memory)),
        replace(plan, prices=dict.fromkeys(plan.prices, Price(1.0))),
    ):
        found = problem.timelines.of(other)
        assert found is not timeline and found == simulate(other)


def test_memory_for_an_estimate_keeps_large_ports_separate() -> None:
    """They may stay in the caller's memory then: no call copies them."""
    problem = priced(3)
    problem = replace(problem, spec=replace(problem.spec, direct_bytes=1))
    judged = PlanSelector(problem).estimate(SequentialPolicy().schedule(problem))
    assert judged.us > 0 and judged.plan.memory
    graph = judged.plan.graph
    assert {*ports_alone(graph, judged.plan.memory)} == {*graph.inputs, *graph.outputs}


def test_a_plan_stands_where_nobody_must_wait_for_more() -> None:
    """Rows are normalised in blocks that reach into the next rTask's: one operator after another that is no matter."""
    spec = MadeUp("x86-64-avx512", 2, 1024).spec
    nodes = [node("MatMul", ["x", "w"], ["h"]), node("LayerNormalization", ["h", "g", "b"], ["y"])]
    graph = optimize(network((75, 96), nodes, w=(96, 96), g=(96,), b=(96,)), spec)
    halves = {op.operation: candidates(op.operation, spec)[:1] for op in graph.operators}
    problem = Problem(graph, spec, halves, EstimatingProfiler(spec))
    norm = halves[graph.operators[-1].operation][0]
    wider = replace(norm, overreads=True)
    assert norm.num_rtasks == 2 and reads(norm, 0, 0)[-1, 1] < reads(wider, 0, 0)[-1, 1]
    offered = {operation: [wider if k is norm else k for k in kernels] for operation, kernels in halves.items()}
    sequential, waves = (p.schedule(problem) for p in (SequentialPolicy(), WavefrontPolicy(beyond="off")))
    found = with_replacements(sequential, offered, {norm: wider})
    assert found and found.kernels[-1] is wider and found.programs == sequential.programs
    verify_plan(found)
    assert len(waves.programs) == 1 and with_replacements(waves, offered, {norm: wider}) is None
    assert with_replacements(sequential, {**offered, norm.operation: []}, {norm: wider}) is None
