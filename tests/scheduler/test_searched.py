"""Of a plan with tilings that a search has found and one without, the faster is taken, and a note says by how much."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from jobs import Job, make_problem

from rammer.errors import VerificationError
from rammer.ir.device import VDeviceSpec
from rammer.ir.plan import ExecutionPlan
from rammer.scheduler.plugin import rammer_policies
from rammer.scheduler.policy import Policy, Problem
from rammer.scheduler.profiler import MeasuredProfiler
from rammer.scheduler.searched import SearchedPolicy
from rammer.scheduler.wavefront import WavefrontPolicy


def searched(alone_us: float, run_us: dict[str, float] | None, policy: Policy) -> ExecutionPlan:
    """The plan for two operators, of which a search has found a second tiling for the first one."""
    spec = VDeviceSpec("made up", num_veus=1)
    problem = make_problem([Job("a", ((1, 10.0), (1, alone_us))), Job("b", ((1, 5.0),), ("a",))], spec)
    operation, profiler = problem.graph.operators[0].operation, problem.profiler
    assert isinstance(profiler, MeasuredProfiler)
    usual, found = (
        replace(kernel, name=name, schedule=name)
        for kernel, name in zip(problem.candidates[operation], ("usual", "found"), strict=True)
    )
    times = {**profiler.times, usual: 10.0, found: alone_us}

    def measure(plans: Sequence[ExecutionPlan]) -> Sequence[float] | None:
        return None if run_us is None else [run_us[plan.kernels[0].name] for plan in plans]

    problem = replace(
        problem,
        candidates={**problem.candidates, operation: [usual, found]},
        profiler=MeasuredProfiler(times, profiler.fallback, measure),
    )
    known = {**problem.candidates, operation: [usual]}
    return SearchedPolicy(policy, known).schedule(problem)


@pytest.mark.parametrize(
    ("alone_us", "run_us", "wanted", "note"),
    [
        (
            9.0,
            {"usual": 30.0, "found": 25.0},
            "found",
            "1 operations take other tilings, 25.0 instead of 30.0 µs a run",
        ),
        (9.0, {"usual": 30.0, "found": 33.0}, "usual", "1 operations would take other tilings, 33.0 instead of 30.0"),
        (9.0, None, "found", "1 operations take other tilings, "),  # nothing runs: by price
        (11.0, None, "usual", "no operation takes another tiling"),
    ],
)
def test_what_a_search_found_must_run_faster(
    alone_us: float, run_us: dict[str, float] | None, wanted: str, note: str
) -> None:
    plan = searched(alone_us, run_us, rammer_policies()["wavefront"]())
    assert plan.kernels[0].name == wanted and plan.policy == "wavefront"
    assert any(said.startswith(f"search: {note}") for said in plan.notes)


def test_a_wrong_plan_is_neither_run_nor_priced() -> None:
    class Careless(WavefrontPolicy):
        def schedule(self, problem: Problem) -> ExecutionPlan:
            return replace(super().schedule(problem), programs=())

    for run_us in (None, {"usual": 30.0, "found": 25.0}):
        with pytest.raises(VerificationError, match=r"R106: rTask 0\.0 .* is in no slot"):
            searched(9.0, run_us, Careless())
