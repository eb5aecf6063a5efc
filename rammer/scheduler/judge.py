"""Compare plans by what the cost model estimates."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

from rammer.ir.plan import ExecutionPlan
from rammer.planner.memory import plan_memory
from rammer.scheduler.policy import Problem
from rammer.scheduler.timeline import simulate


class Judged:
    """A plan, and what it is believed to take; asked for when it is compared."""

    def __init__(self, problem: Problem, plan: ExecutionPlan) -> None:
        self._problem = problem
        self.plan = plan

    @property
    def to_follow(self) -> int:
        """rTasks that must be followed before `us` is known."""
        return 0 if "us" in vars(self) else self.plan.num_rtasks

    @cached_property
    def us(self) -> float:
        """Microseconds, simulated by where operands lie if prices say what that costs; the plan has its memory then."""
        if prices := self._problem.profiler.prices(self.plan.kernels):
            self.plan = replace(self.plan, memory=self.plan.memory or plan_memory(self.plan))
            return self._problem.timelines.of(replace(self.plan, prices=prices)).total_us
        return self.plain_us

    @cached_property
    def least_us(self) -> float:
        """Microseconds if all operands were near: never more than `us`, and known without following them."""
        if prices := self._problem.profiler.prices(self.plan.kernels):
            return simulate(self.plan, lambda kernel: prices[kernel].near_us).total_us
        return self.plain_us

    @cached_property
    def plain_us(self) -> float:
        """Microseconds by one time of each rKernel, wherever operands lie."""
        return simulate(self.plan).total_us


class Judge:
    """Price plans of one problem, each once, and compare them."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._seen: list[Judged] = []

    def believed(self, plan: ExecutionPlan) -> Judged:
        """What a plan takes on paper; asked again for one that runs the same, it is not priced again."""
        for known in self._seen:
            if (known.plan.programs, known.plan.kernels) == (plan.programs, plan.kernels):
                return known
        self._seen.append(Judged(self._problem, plan))
        return self._seen[-1]

    def plain_us_below(self, known: Judged) -> float:
        """What another plan must take less than to be worth a comparison: following operands takes long."""
        return known.plain_us / self._problem.profiler.noise

    def cheaper(self, other: Judged, known: Judged) -> bool:
        """Whether the other plan is believed to take less, however little."""
        return takes_less(other, known)

    def prefers(self, other: Judged, known: Judged) -> bool:
        """Whether the other plan is estimated to take less, by more than noise."""
        return takes_less(other, known, self._problem.profiler.noise)


def takes_less(one: Judged, other: Judged, ratio: float = 1.0) -> bool:
    """Whether one plan takes less, by this ratio: of the two the one that is sooner followed may be enough to know."""
    if one.to_follow < other.to_follow:
        if one.us * ratio < other.least_us:
            return True
    elif one.least_us * ratio >= other.us:
        return False
    return one.us * ratio < other.us
