"""Promises of every policy, on random problems and on the paper's own examples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from math import inf
from statistics import geometric_mean

import networkx as nx
import pytest
from jobs import DIAMOND, Job, lanes_of, make_problem, random_jobs, recurrent, table

from rammer.errors import ScheduleError
from rammer.ir.analysis.dependency import Dependencies
from rammer.ir.device import MemoryLevel, SyncModel, VDeviceSpec
from rammer.ir.kernel import RKernel
from rammer.ir.plan import ExecutionPlan, Price
from rammer.ir.program import BarrierRTask, TaskUid
from rammer.ir.tensor import Digit, DType, Encoding, Layout
from rammer.ir.verify import verify_plan
from rammer.plugins import PluginRegistry
from rammer.scheduler.draft import Draft
from rammer.scheduler.plugin import rammer_policies
from rammer.scheduler.policies import waves
from rammer.scheduler.policy import Problem
from rammer.scheduler.profiler import NOISE, MeasuredProfiler
from rammer.scheduler.select import Options, PriceTable, SelectBy
from rammer.scheduler.timeline import simulate

REGISTRY = PluginRegistry(third_party=False)
POLICIES = [
    *sorted(rammer_policies()),
    "wavefront:beyond=off",
    "wavefront:selection=efficient",
    "wavefront:selection=fastest,beyond=off,sync=global",
    "sequential:kernels=selected",
]
EVERY = pytest.mark.parametrize("policy", POLICIES)


def device(num_veus: int, launch_us: float = 5.0, barrier_us: float = 0.25, **more: object) -> VDeviceSpec:
    return VDeviceSpec("paper", num_veus, launch_us=launch_us, barrier_us=barrier_us, **more)  # type: ignore[arg-type]


def schedule(policy: str, jobs: list[Job], spec: VDeviceSpec) -> ExecutionPlan:
    return REGISTRY.policy(policy).schedule(make_problem(jobs, spec))


def used(plan: ExecutionPlan) -> dict[str, int]:
    """Operator -> rTasks of the rKernel that was chosen."""
    return {op.name: k.num_rtasks for op, k in zip(plan.graph.operators, plan.kernels, strict=True)}


@EVERY
@pytest.mark.parametrize("num_veus", [1, 2, 5])
def test_every_plan_is_proven_and_priced_right(policy: str, num_veus: int) -> None:
    for seed in range(15):
        spec = device(num_veus, launch_us=3.0 * (seed % 3), barrier_us=0.4 * (seed % 2))
        plan = schedule(policy, random_jobs(seed), spec)
        verify_plan(plan)
        drawn_by = "wavefront" if policy == "auto" else policy  # these graphs have no images to compare anything for
        assert plan.policy == drawn_by or plan.policy.endswith(f" (chosen by {drawn_by})")
        assert plan.spec is spec
        placed = [uid for program in plan.programs for _, uid in program.tasks()]
        assert sorted(placed) == [TaskUid(n, r) for n, k in enumerate(plan.kernels) for r in range(k.num_rtasks)]
        total_us = simulate(plan).total_us
        work_us = sum(plan.rtask_us[k] * k.num_rtasks for k in plan.kernels)
        assert total_us >= work_us / num_veus - 1e-6
        assert total_us >= critical_path_us(plan) - 1e-6


def critical_path_us(plan: ExecutionPlan) -> float:
    """The longest chain of rTasks, each needing an operand from the one before."""
    dependencies = Dependencies(plan.graph, plan.kernels)
    graph = nx.DiGraph()
    for n, kernel in enumerate(plan.kernels):
        for rtask_id, needed in enumerate(dependencies.of(n)):
            graph.add_edge("start", TaskUid(n, rtask_id), us=plan.rtask_us[kernel])
            graph.add_edges_from(((uid, TaskUid(n, rtask_id)) for uid in needed), us=plan.rtask_us[kernel])
    return float(nx.dag_longest_path_length(graph, "us"))


@EVERY
def test_same_problem_same_plan(policy: str) -> None:
    first, second = (schedule(policy, random_jobs(7), device(3)) for _ in range(2))
    assert first.programs == second.programs
    assert used(first) == used(second) and first.notes == second.notes


@pytest.mark.parametrize("num_veus", [1, 2, 3, 8])
def test_wavefront_never_loses_to_sequential(num_veus: int) -> None:
    """Algorithm 1 merges only where that prices better, and one wave alone beats its operators one by one.

    Noise apart: rPrograms that end no sooner than by noise are not begun.
    """
    for seed in range(40):
        spec = device(num_veus, launch_us=(0.5, 5.0)[seed % 2], barrier_us=(0.0, 0.3, 2.0)[seed % 3])
        jobs = random_jobs(seed)
        sequential, wavefront = (simulate(schedule(p, jobs, spec)).total_us for p in ("sequential", "wavefront"))
        assert wavefront <= NOISE * sequential
        assert not any("worse" in note for note in schedule("wavefront", jobs, spec).notes)


@pytest.mark.parametrize("num_veus", [1, 2, 3, 8])
def test_wavefront_never_loses_to_a_selection_it_could_have_taken(num_veus: int) -> None:
    """By the same prices; also where every wave by itself chose well. Algorithm 1 as printed is seldom faster."""
    ratios = []
    for seed in range(40):
        spec = device(num_veus, launch_us=(0.5, 5.0)[seed % 2], barrier_us=(0.0, 0.3, 2.0)[seed % 3])
        spec = replace(spec, sync=SyncModel.GLOBAL if seed % 5 == 4 else SyncModel.FINE)
        problem = exact(make_problem(random_jobs(seed), spec))
        found = simulate(REGISTRY.policy("wavefront").schedule(problem)).total_us
        printed = inf
        for selection, beyond in product(("interplay", "efficient", "fastest"), ("on", "off")):
            policy = f"wavefront:selection={selection},beyond={beyond}"
            other = simulate(REGISTRY.policy(policy).schedule(problem)).total_us
            if beyond == "on":
                assert found <= other + 1e-6, (seed, policy)
            else:
                printed = min(printed, other)
        ratios.append(found / printed)
    assert max(ratios) < 1.1 and geometric_mean(ratios) < 1.0 + 1e-9


def exact(problem: Problem) -> Problem:
    """The problem with times that are no measurements: the least difference counts."""
    profiler = problem.profiler
    profiler.noise = 1.0
    return problem


def test_a_plan_worse_than_the_baseline_says_so() -> None:
    chain = [Job("a", ((2, 1.0),)), Job("b", ((2, 1.0),), ("a",)), Job("c", ((2, 1.0),), ("b",))]
    plan = schedule("round_robin", chain, device(2, launch_us=0.0, barrier_us=10.0))
    assert plan.notes[-1] == "priced at 23.00 µs, worse than the 3.00 µs of one rProgram per rOperator"


def test_barriers_dearer_than_a_launch_split_the_plan() -> None:
    """Algorithm 1, line 8: time(P1) > time(Pcurr) + time(P2)."""
    chain = [Job("a", ((2, 1.0),)), Job("b", ((2, 1.0),), ("a",))]
    assert len(schedule("wavefront", chain, device(2, launch_us=1.0, barrier_us=3.0)).programs) == 2
    assert len(schedule("wavefront", chain, device(2, launch_us=3.0, barrier_us=1.0)).programs) == 1


def test_choices_are_told_on_demand() -> None:
    chain = [Job("a", ((2, 1.0),)), Job("b", ((2, 1.0),), ("a",)), Job("c", ((2, 1.0),), near=("b",))]
    told: list[str] = []
    problem = make_problem(chain, device(2, launch_us=1.0, barrier_us=3.0))
    REGISTRY.policy("wavefront").schedule(replace(problem, tell=told.append))
    why = "(fastest: they are the most efficient too)"
    assert told[:3] == [  # of the first plan; more are compared with it
        f"wave 1 opens rProgram 0: a by 2 × x2 {why}; time(P) 2.00 µs",
        f"wave 2 opens rProgram 1: b by 2 × x2 {why}; time(P) 2.00 µs",
        f"wave 3 joins rProgram 1: c by 2 × x2 {why}; time(P) 3.00 µs",
    ]


@pytest.mark.parametrize(("copies", "num_rtasks"), [(1, 1024), (10, 16)])
def test_interplay_of_intra_and_inter_operator_parallelism(copies: int, num_rtasks: int) -> None:
    """Paper, §5.2.4: 1,024 rTasks at 4.28 µs win alone; 16 at 7.46 µs win where the wave fills the device."""
    jobs = [Job(f"matmul{n}", ((1024, 4.28), (16, 7.46)), kind="matmul") for n in range(copies)]
    plan = schedule("wavefront", jobs, device(1024))
    assert set(used(plan).values()) == {num_rtasks}
    assert simulate(plan).total_us == pytest.approx(5.0 + (4.28 if copies == 1 else 7.46))
    sequential = schedule("sequential", jobs, device(1024))
    assert set(used(sequential).values()) == {1024}
    assert simulate(sequential).total_us == pytest.approx(copies * (5.0 + 4.28))


def test_the_fastest_rkernels_stay_where_the_wave_cannot_fill_the_device() -> None:
    jobs = [Job("a", ((8, 2.0), (2, 4.0))), Job("b", ((7, 2.0), (2, 4.0)))]
    assert used(schedule("wavefront", jobs, device(16))) == {"a": 8, "b": 7}


def test_overlap_of_waves_as_figure_18() -> None:
    """Without a global barrier, an rTask of wave 2 runs beside a long one of wave 1."""
    jobs = [Job("long", ((1, 10.0),)), Job("short", ((1, 2.0),)), Job("next", ((1, 7.0),), ("short",))]
    plan = schedule("wavefront", jobs, device(2, launch_us=0.0))
    assert simulate(plan).total_us == pytest.approx(10.0)


def test_chains_run_side_by_side_though_no_wave_holds_both() -> None:
    """Step by step two rTasks are faster; but without barriers one vEU per chain is."""
    steps, cell = 70, ((2, 1.0), (1, 2.0))
    chain = [Job(f"a{n}", cell, (f"a{n - 1}",) if n else ("start",), kind="cell") for n in range(steps)]
    delay = [Job(f"z{n}", ((1, 0.0),), (f"z{n - 1}",) if n else ("start",), kind="nothing") for n in range(steps)]
    late = [Job(f"b{n}", cell, (f"b{n - 1}" if n else f"z{steps - 1}",), kind="cell") for n in range(steps)]
    plan = schedule("wavefront", [Job("start", ((1, 0.0),)), *chain, *delay, *late], device(2))
    assert {n for job, n in used(plan).items() if job[0] in "ab"} == {1}
    assert simulate(plan).total_us < 5.0 + 2.0 * steps + 5.0


def priced(problem: Problem) -> Problem:
    """The problem with prices by place: a kernel's time with operands near, and fetching as fast as the spec says."""
    profiler = problem.profiler
    assert isinstance(profiler, MeasuredProfiler)

    def price(times: Mapping[RKernel, float]) -> dict[RKernel, Price]:
        return {kernel: Price(us, 1.0, 1.0) for kernel, us in times.items()}

    return replace(problem, profiler=MeasuredProfiler(profiler.times, profiler.fallback, price))


def two_chains(exchange_us: float, whole_us: float = 2.0) -> Problem:
    """Chains of 70 steps, the second one begins after 10: by two rTasks of 1 µs, or by one.

    A step whose two rTasks are on two vEUs pays for what the other one has written.
    """
    cell, size = ((2, 1.0), (1, whole_us)), 1024
    first = [Job(f"a{n}", cell, (f"a{n - 1}",) if n else (), weights="w", kind="cell") for n in range(70)]
    second = [Job(f"b{n}", cell, (f"b{n - 1}",) if n else ("a9",), weights="u", kind="cell") for n in range(70)]
    written_gbps = 4e-3 * size / 2 / exchange_us
    memory = (
        MemoryLevel("L2", 1 << 20, "veu", 200.0, written_gbps=written_gbps),
        MemoryLevel("DRAM", 1 << 40, read_gbps=1e6),
    )
    spec = device(2, barrier_us=0.0, memory=memory)
    return make_problem([*first, *second, Job("last", cell, ("b69",), weights="u")], spec, size)


@pytest.mark.parametrize(("exchange_us", "whole_us", "rtasks"), [(0.5, 2.0, 1), (0.5, 3.5, 2), (0.01, 2.0, 2)])
def test_what_vEUs_exchange_decides_on_chains(exchange_us: float, whole_us: float, rtasks: int) -> None:
    """Side by side 160 µs; one after the other 140, and what they exchange in 140 steps."""
    wavefront = rammer_policies()["wavefront"]
    problem = two_chains(exchange_us, whole_us)
    assert used(wavefront().schedule(problem))["a40"] == 2  # without prices nobody knows
    plan = wavefront().schedule(priced(problem))
    assert used(plan)["a40"] == rtasks
    if rtasks == 1:  # both vEUs share the steps before the second chain begins, and after the first one has ended
        alone = {job for job, n in used(plan).items() if n == 2}
        assert {"a1", "b69", "last"} <= alone and not alone & {"a20", "a69", "b12", "b40"}


def test_chains_are_not_drawn_again_with_what_they_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """The least work is the fastest here: nothing but the fewest rTasks is another plan."""
    problem = priced(two_chains(0.5, whole_us=3.5))
    market, drawn = PriceTable(problem), list[bool]()
    held_in = waves.build_plan_below

    def watched(
        limit_us: float, draft: Draft, policy: str, by: SelectBy, held: Mapping[int, Options] | None = None
    ) -> ExecutionPlan | None:
        of = {n: market.options(problem.graph.operators[n].operation) for n in held or ()}
        drawn.append(held != of)
        return held_in(limit_us, draft, policy, by, held)

    monkeypatch.setattr(waves, "build_plan_below", watched)
    rammer_policies()["wavefront"]().schedule(problem)
    assert len(drawn) > 1 and all(drawn)


@pytest.mark.parametrize("by", ["interplay", "efficient", "fastest"])
@pytest.mark.parametrize("num_veus", [1, 2, 5])
def test_a_limit_stops_a_drawing_that_takes_as_long(num_veus: int, by: SelectBy) -> None:
    for seed in range(6):
        problem = make_problem(random_jobs(seed), device(num_veus, barrier_us=0.5 * seed))
        plan = waves.build_plan_below(inf, Draft(problem), "", by)
        assert plan is not None
        total_us = simulate(plan).total_us
        known = waves.build_plan_below(total_us * 1.0001, Draft(problem), "", by)
        assert known is not None and known.programs == plan.programs
        assert waves.build_plan_below(total_us * 0.9999, Draft(problem), "", by) is None


@pytest.mark.parametrize(
    ("branches", "cache", "chosen"), [(0, 1 << 20, "larger"), (8, 1 << 20, "larger"), (8, 1 << 14, "smaller")]
)
def test_weights_cost_what_fetching_them_takes(branches: int, cache: int, chosen: str) -> None:
    """Alone an rKernel finds its weights in the cache, even if they take three times the memory; in a plan, if the
    cache has room for all that comes between."""
    size = 1024
    others = [Job(f"other{n}", ((1, 1.0),), ("a",), weights=f"u{n}") for n in range(branches)]
    memory = (MemoryLevel("L2", cache, "veu", 200.0), MemoryLevel("DRAM", 1 << 40, read_gbps=1.0))
    problem = make_problem([Job("a", ((2, 20.0), (1, 30.0)), weights="w"), *others], device(2, memory=memory), size)
    operation = problem.graph.operators[0].operation
    smaller = problem.candidates[operation][0]
    name = next(n for (n, _), static in zip(operation.expr.inputs, operation.static, strict=True) if static)
    larger = replace(smaller, name="larger", packing=((name, Layout((Digit(0),), Encoding(DType.BF16, 3, 512))),))
    profiler = problem.profiler
    assert isinstance(profiler, MeasuredProfiler)
    times = {**profiler.times, larger: 19.0}
    candidates = {**problem.candidates, operation: [smaller, larger]}
    problem = replace(problem, candidates=candidates, profiler=MeasuredProfiler(times, profiler.fallback))
    found = PriceTable(problem).options(operation).fastest
    assert (found.kernel.name == "larger") == (chosen == "larger")


@pytest.mark.parametrize(("stalls", "chosen"), [((1.0, 1.0), 0), ((3.0, 0.5), 1), ((0.2, 0.4), 0)])
def test_far_weights_cost_what_was_seen_of_each_rKernel(stalls: tuple[float, float], chosen: int) -> None:
    """Two rKernels read 4 KiB of weights that eight others push out, 4 us at 1 GB/s: how long do they wait for them?"""
    others = [Job(f"other{n}", ((1, 1.0),), ("a",), weights=f"u{n}") for n in range(8)]
    memory = (MemoryLevel("L2", 1 << 13, "veu", 200.0), MemoryLevel("DRAM", 1 << 40, read_gbps=1.0))
    problem = make_problem([Job("a", ((1, 20.0), (1, 21.0)), weights="w"), *others], device(2, memory=memory), 1024)
    operation, profiler = problem.graph.operators[0].operation, problem.profiler
    assert isinstance(profiler, MeasuredProfiler)
    asked: list[RKernel] = []

    def price(times: Mapping[RKernel, float]) -> dict[RKernel, Price]:
        asked.extend(times)
        found = dict(zip(problem.candidates[operation], stalls, strict=True))
        return {kernel: Price(us, 1.0, found[kernel]) for kernel, us in times.items()}

    seen = MeasuredProfiler(profiler.times, profiler.fallback, price)
    found = PriceTable(replace(problem, profiler=seen)).options(operation).fastest
    assert found.kernel == problem.candidates[operation][chosen]
    assert asked == list(problem.candidates[operation])  # and of no other operation, which has only one


@pytest.mark.parametrize("cache", [1 << 14, 1 << 20])
def test_branches_that_push_each_other_out_of_caches_go_one_by_one(cache: int) -> None:
    """Wave by wave all branches are alive at once; one operator after another, two. Caches may hold all of them."""
    jobs = [Job("sum0", ((2, 1.0),))]
    for n in range(8):
        jobs.append(Job(f"branch{n}", ((2, 1.0),), near=("sum0",), kind="branch"))
        jobs.append(Job(f"end{n}", ((2, 1.0),), near=(f"branch{n}",), kind="end"))
        jobs.append(Job(f"sum{n + 1}", ((2, 1.0),), near=(f"sum{n}", f"end{n}"), kind="sum"))
    memory = (MemoryLevel("L2", cache, "veu", 200.0), MemoryLevel("DRAM", 1 << 40, read_gbps=20.0))
    problem = make_problem(jobs, device(2, launch_us=0.0, barrier_us=0.0, memory=memory), 2048)
    plan = rammer_policies()["wavefront"]().schedule(priced(problem))
    assert plan.policy == ("wavefront" if cache == 1 << 20 else "sequential (chosen by wavefront)")


@pytest.mark.parametrize("cache", [20 << 10, 1 << 20])
def test_chains_that_push_each_others_weights_out_of_caches_take_turns(cache: int) -> None:
    """Both directions of an LSTM: together what they read and write fits, but not with the weights of both."""
    jobs = []
    for side in "fb":
        for n in range(8):
            jobs.append(Job(f"{side}{n}", ((2, 1.0),), (f"{side}{n - 1}",) if n else (), kind=side, weights=f"w{side}"))
    memory = (MemoryLevel("L2", cache, "veu", 200.0), MemoryLevel("DRAM", 1 << 40, read_gbps=1.0))
    problem = make_problem(jobs, device(2, launch_us=0.0, barrier_us=0.0, memory=memory), 2048)
    plan = rammer_policies()["wavefront"]().schedule(priced(problem))
    assert plan.policy == ("wavefront" if cache == 1 << 20 else "sequential (chosen by wavefront)")


def test_times_that_measurement_cannot_tell_apart_are_equal() -> None:
    """The fewest rTasks then, and not what a moment's noise preferred."""
    for us in (1.0, 1.015, 1.03):
        plan = schedule("wavefront", [Job("a", ((4, 1.0), (2, 2 * us)))], device(2))
        assert used(plan) == {"a": 2 if us < 1.02 else 4}


def test_operands_keep_tiles_on_their_veu() -> None:
    """Element-wise chains need no barrier at all."""
    chain = [Job("a", ((4, 3.0),)), Job("b", ((4, 1.0),), near=("a",)), Job("c", ((4, 2.0),), near=("b",))]
    plan = schedule("wavefront", chain, device(4))
    assert lanes_of(plan, "a") == lanes_of(plan, "b") == lanes_of(plan, "c")
    assert not any(isinstance(s, BarrierRTask) for p in plan.programs for lane in p.lanes for s in lane)


@pytest.mark.parametrize("policy", [p for p in POLICIES if p != "stationary"])
def test_global_synchronisation(policy: str) -> None:
    """R105 of the verifier; the price counts the global barriers too."""
    for seed in range(10):
        plan = schedule(policy, random_jobs(seed), device(3, sync=SyncModel.GLOBAL))
        verify_plan(plan)
        assert simulate(plan).total_us > 0


@EVERY
def test_rkernels_that_do_not_fit_are_named(policy: str) -> None:
    problem = make_problem([Job("a", ((2, 1.0),))], VDeviceSpec("tiny", 2, max_threads=0))
    with pytest.raises(ScheduleError, match=r"a: no rKernel fits vDevice 'tiny'.*x2 \(1 threads, 0 bytes"):
        REGISTRY.policy(policy).schedule(problem)


@EVERY
def test_no_operators(policy: str) -> None:
    plan = schedule(policy, [], device(2))
    assert plan.programs == () and simulate(plan).total_us == 0.0


@pytest.mark.parametrize(("num_ops", "num_rtasks"), [(1000, 2), (100, 32)])
def test_large_graphs(num_ops: int, num_rtasks: int) -> None:
    """No policy is quadratic in the graph (each takes well under a second here)."""
    tiling = ((num_rtasks, 5.0), (num_rtasks // 2, 9.0))
    jobs = [Job(f"c{s}", tiling, (f"c{s - 1}",) if s else (), kind=f"k{bool(s)}") for s in range(num_ops)]
    problem = make_problem(jobs, device(2))
    for policy in POLICIES:
        assert simulate(REGISTRY.policy(policy).schedule(problem)).utilisation > 0.49


GOLDEN = {
    ("wavefront", "diamond"): """\
0/0: stem.0>7 stem.2>9 wait(1:1)>9.25 left.1>12.25 right.1>13.25 right.2>14.25 wait(1:4)>14.5 join.1>16
0/1: stem.1>7 stem.3>9 wait(0:1)>9.25 left.0>12.25 right.0>13.25 wait(0:4)>13.5 join.0>15""",
    ("wavefront", "recurrent"): """\
0/0: c0.0.0>9 odd.0>10 wait(1:0)>10.25 c0.1.1>14.25 c1.0.1>18.25 wait(1:3)>18.5 c1.1.0>22.5
0/1: c0.0.1>9 wait(0:0)>9.25 c0.1.0>13.25 c1.0.0>17.25 wait(0:4)>18.5 c1.1.1>22.5""",
}


@pytest.mark.parametrize(("policy", "graph"), sorted(GOLDEN))
def test_golden_tables(policy: str, graph: str) -> None:
    jobs = DIAMOND if graph == "diamond" else recurrent(2)
    assert table(schedule(policy, jobs, device(2))) == GOLDEN[policy, graph]
