"""Options of policies: how they are given and named, and that each changes what it should."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import get_args, get_type_hints

import pytest
from jobs import Job, make_problem, random_jobs

from rammer import hookimpl
from rammer.errors import PolicyError
from rammer.ir.analysis.dependency import Dependencies
from rammer.ir.device import SyncModel, VDeviceSpec
from rammer.ir.kernel import RKernel
from rammer.ir.plan import ExecutionPlan
from rammer.ir.program import RProgram, RProgramBuilder, TaskUid
from rammer.ir.verify import verify_plan
from rammer.plugins import PluginRegistry
from rammer.scheduler.policies.sequential import SequentialPolicy
from rammer.scheduler.policy import Problem
from rammer.scheduler.policy_options import option, options_of, split_policies
from rammer.scheduler.timeline import simulate

REGISTRY = PluginRegistry(third_party=False)


def device(num_veus: int, launch_us: float = 5.0, barrier_us: float = 0.25) -> VDeviceSpec:
    return VDeviceSpec("paper", num_veus, launch_us=launch_us, barrier_us=barrier_us)


def schedule(policy: str, jobs: list[Job], spec: VDeviceSpec) -> ExecutionPlan:
    return REGISTRY.policy(policy).schedule(make_problem(jobs, spec))


def used(plan: ExecutionPlan) -> dict[str, int]:
    """Operator -> rTasks of the rKernel that was chosen."""
    return {op.name: k.num_rtasks for op, k in zip(plan.graph.operators, plan.kernels, strict=True)}


class TestNames:
    @pytest.mark.parametrize(
        ("text", "options", "name"),
        [
            ("wavefront", {}, "wavefront"),
            ("wavefront:selection=interplay,beyond=on", {}, "wavefront"),
            ("wavefront: sync=global, selection=fastest ", {}, "wavefront:selection=fastest,sync=global"),
            ("wavefront:sync=global", {"selection": "fastest"}, "wavefront:selection=fastest,sync=global"),
            ("sequential", {"kernels": "selected"}, "sequential:kernels=selected"),
        ],
    )
    def test_a_plan_says_which_options_drew_it(self, text: str, options: dict[str, str], name: str) -> None:
        policy = REGISTRY.policy(text, options)
        assert policy.name == name
        assert policy.schedule(make_problem(random_jobs(1), device(2))).policy == name

    def test_options_are_typed_as_they_are_documented(self) -> None:
        for make in REGISTRY.policies().values():
            assert inspect.isclass(make)
            for known in options_of(make):
                assert tuple(known.values) == get_args(get_type_hints(make)[known.name])
                assert known.default in known.values and all(known.values.values())

    def test_lists_of_policies(self) -> None:
        text = "sequential, wavefront:beyond=off,sync=global,list,wavefront"
        assert split_policies(text) == ["sequential", "wavefront:beyond=off,sync=global", "list", "wavefront"]

    def test_a_plugins_policy_may_have_options(self) -> None:
        @dataclass
        class Backwards(SequentialPolicy):
            name = "backwards"
            how: str = option(slowly="as ever", fast="sooner")
            private: int = 0

        registry = PluginRegistry(third_party=False)
        registry.register(SimpleNamespace(rammer_policies=hookimpl(lambda: {"backwards": Backwards})), "researcher")
        assert registry.policy("backwards:how=fast").name == "backwards:how=fast"
        assert [o.name for o in registry.policy_options()["backwards"]] == ["kernels", "how"]
        with pytest.raises(PolicyError, match="how is 'slowly' or 'fast', not 'quick'"):
            registry.policy("backwards:how=quick")
        with pytest.raises(PolicyError, match="no option 'private'"):
            registry.policy("backwards:private=1")


@pytest.mark.parametrize("beyond", ["on", "off"])
@pytest.mark.parametrize(
    ("copies", "selection", "num_rtasks"),
    [
        (1, "interplay", 4),
        (1, "fastest", 4),
        (1, "efficient", 1),
        (2, "interplay", 1),
        (2, "fastest", 4),
        (2, "efficient", 1),
    ],
)
def test_selection(beyond: str, copies: int, selection: str, num_rtasks: int) -> None:
    """Four rTasks are faster alone, but one is less work, and two of those fill both vEUs."""
    jobs = [Job(f"a{n}", ((4, 1.0), (1, 3.0))) for n in range(copies)]
    plan = schedule(f"wavefront:selection={selection},beyond={beyond}", jobs, device(2))
    assert set(used(plan).values()) == {num_rtasks}
    assert any("as asked" in note for note in plan.notes) == (selection != "interplay")


def test_sequential_with_the_rkernels_that_wavefront_selects() -> None:
    """Paper, §5.2.4: in RammerBase the selected rKernels are slower than the fastest ones."""
    jobs = [Job(f"matmul{n}", ((1024, 4.28), (16, 7.46)), kind="matmul") for n in range(10)]
    fastest, selected = (schedule(f"sequential:kernels={k}", jobs, device(1024)) for k in ("fastest", "selected"))
    assert set(used(fastest).values()) == {1024} and set(used(selected).values()) == {16}
    assert len(fastest.programs) == len(selected.programs) == 10
    assert simulate(selected).total_us == pytest.approx(10 * (5.0 + 7.46))


@pytest.mark.parametrize("beyond", ["on", "off"])
def test_global_barriers_keep_waves_apart(beyond: str) -> None:
    """Figure 18: an rTask of wave 2 may run beside a long one of wave 1 only without them."""
    jobs = [Job("long", ((1, 10.0),)), Job("short", ((1, 2.0),)), Job("next", ((1, 7.0),), ("short",))]
    took = {
        sync: simulate(schedule(f"wavefront:beyond={beyond},sync={sync}", jobs, device(2))).total_us
        for sync in ("fine", "global")
    }
    assert took == {"fine": 5.0 + 10.0, "global": 5.0 + 10.0 + 0.25 + 7.0}
    for seed in range(10):
        spec = device(3, barrier_us=0.5)
        plan = schedule(f"wavefront:beyond={beyond},sync=global", random_jobs(seed), spec)
        verify_plan(replace(plan, spec=replace(spec, sync=SyncModel.GLOBAL)))  # R105: no other waits
        assert plan.spec is spec


def test_off_is_without_what_goes_beyond_the_paper() -> None:
    """A time hardly dearer is not equal."""
    jobs = [Job("a", ((4, 1.0), (2, 2.02)))]
    assert used(schedule("wavefront", jobs, device(2))) == {"a": 2}
    assert used(schedule("wavefront:beyond=off", jobs, device(2))) == {"a": 4}


@pytest.mark.parametrize("num_veus", [1, 2, 4])
def test_off_is_algorithm_1_to_the_letter(num_veus: int) -> None:
    decided = Counter[str]()
    for seed in range(15):
        spec = device(num_veus, launch_us=(0.5, 2.0)[seed % 2], barrier_us=(0.0, 0.25, 2.0)[seed % 3])
        jobs = [_in_fractions_of_two(job) for job in random_jobs(seed, most=8)]
        problem = make_problem(jobs, spec)
        plan = REGISTRY.policy("wavefront:beyond=off").schedule(problem)
        text = _Algorithm1(problem)
        programs, kernels = text.schedule()
        assert plan.kernels == kernels and plan.programs == programs
        decided["split"] += len(programs) > 1
        decided["merged"] += len(programs) < len(problem.graph.wavefronts())
        for kernel, options in zip(kernels, text.candidates, strict=True):
            decided["fastest" if kernel is min(options, key=text.alone_us) else "efficient"] += len(options) > 1
    assert all(decided[way] for way in ("split", "merged", "fastest", "efficient") if num_veus > 1), decided


def _in_fractions_of_two(job: Job) -> Job:
    """Times whose sums are exact, in any order."""
    return replace(job, tilings=tuple((n, round(us * 64) / 64) for n, us in job.tilings))


class _Algorithm1:
    """The paper's text, with whole rPrograms built and simulated at every question. P is a list of (rTask, vEU)."""

    def __init__(self, problem: Problem) -> None:
        self.problem, self.spec = problem, problem.spec
        self.candidates = [problem.candidates[op.operation] for op in problem.graph.operators]
        self.kernels = [options[0] for options in self.candidates]

    def schedule(self) -> tuple[tuple[RProgram, ...], tuple[RKernel, ...]]:
        plans: list[RProgram] = []
        current: list[tuple[TaskUid, int]] = []
        for wave in self.problem.graph.wavefronts():
            present_us = self.time_us(current)
            p1, kernels1, us1 = self.schedule_wave(wave, current)
            p2, kernels2, us2 = self.schedule_wave(wave, [])
            if us1 <= present_us + us2:
                current, kernels = p1, kernels1
            else:
                plans.append(self.build(current))
                current, kernels = p2, kernels2
            self.choose(kernels)
        return (*plans, self.build(current)), tuple(self.kernels)

    def schedule_wave(
        self, wave: Sequence[int], program: list[tuple[TaskUid, int]]
    ) -> tuple[list[tuple[TaskUid, int]], dict[int, RKernel], float]:
        fastest = {op: min(self.candidates[op], key=self.alone_us) for op in wave}
        found = self.place(fastest, program), fastest
        us = self.time_us(found[0])
        if sum(kernel.num_rtasks for kernel in fastest.values()) >= self.spec.num_veus:
            efficient = {op: min(self.candidates[op], key=lambda k: self.rtask_us(k) * k.num_rtasks) for op in wave}
            other = self.place(efficient, program)
            if (other_us := self.time_us(other)) < us:
                found, us = (other, efficient), other_us
        return *found, us

    def place(self, kernels: dict[int, RKernel], program: list[tuple[TaskUid, int]]) -> list[tuple[TaskUid, int]]:
        self.choose(kernels)
        program = list(program)
        for op, kernel in kernels.items():
            for task in (TaskUid(op, r) for r in range(kernel.num_rtasks)):
                starts = [self.start_us([*program, (task, veu)]) for veu in range(self.spec.num_veus)]
                program.append((task, starts.index(min(starts))))
        return program

    def choose(self, kernels: dict[int, RKernel]) -> None:
        for op, kernel in kernels.items():
            self.kernels[op] = kernel

    def rtask_us(self, kernel: RKernel) -> float:
        return self.problem.profiler.rtask_us(kernel)

    def alone_us(self, kernel: RKernel) -> float:
        return self.rtask_us(kernel) * -(-kernel.num_rtasks // self.spec.num_veus)

    def build(self, program: list[tuple[TaskUid, int]]) -> RProgram:
        needed = Dependencies(self.problem.graph, self.kernels)
        builder = RProgramBuilder(self.spec.num_veus)
        for task, veu in program:
            builder.wait(task, [before for before in needed.of(task.operator_id)[task.rtask_id] if before in builder])
            builder.append(task, veu)
        return builder.build()

    def plan(self, program: list[tuple[TaskUid, int]]) -> ExecutionPlan:
        programs = (self.build(program),) if program else ()
        return ExecutionPlan(self.problem.graph, self.spec, tuple(self.kernels), programs)

    def time_us(self, program: list[tuple[TaskUid, int]]) -> float:
        return simulate(self.plan(program), self.rtask_us).total_us

    def start_us(self, program: list[tuple[TaskUid, int]]) -> float:
        """When the last rTask starts."""
        _, veu = program[-1]
        return simulate(self.plan(program), self.rtask_us).programs[0].lanes[veu].start_us[-1]
