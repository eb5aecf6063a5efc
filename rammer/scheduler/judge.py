"""Compare plans by estimated time."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

from rammer.ir.analysis.storage import direct_ports
from rammer.ir.plan import ExecutionPlan
from rammer.planner.memory import plan_memory
from rammer.scheduler.policy import Problem
from rammer.scheduler.timeline import simulate


class Estimate:
    """A plan and its estimated times, each computed when it is first read."""

    def __init__(self, problem: Problem, plan: ExecutionPlan) -> None:
        self._problem = problem
        self.plan = plan

    @property
    def to_follow(self) -> int:
        """Number of rTasks to simulate before `us` is known; 0 if it is."""
        return 0 if "us" in vars(self) else self.plan.num_rtasks

    @cached_property
    def us(self) -> float:
        """Estimated µs. With measured prices, places the plan in memory and follows where operands lie."""
        if prices := self._problem.profiler.prices(self.plan.kernels):
            alone = direct_ports(self.plan.graph, self.plan.spec.direct_bytes)
            self.plan = replace(self.plan, memory=self.plan.memory or plan_memory(self.plan, unshared=alone))
            return self._problem.timelines.of(replace(self.plan, prices=prices)).total_us
        return self.plain_us

    @cached_property
    def least_us(self) -> float:
        """Lower bound of `us`: all operands in the private cache. Cheaper, as operands are not followed."""
        if prices := self._problem.profiler.prices(self.plan.kernels):
            return simulate(self.plan, lambda kernel: prices[kernel].warm_us).total_us
        return self.plain_us

    @cached_property
    def plain_us(self) -> float:
        """Estimated µs with one time per rKernel, wherever operands lie."""
        return simulate(self.plan).total_us


class PlanSelector:
    """Compare plans of one problem; each is priced once."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._seen: list[Estimate] = []

    def estimate(self, plan: ExecutionPlan) -> Estimate:
        """Return the estimate of a plan, shared by plans with the same rPrograms and rKernels."""
        for known in self._seen:
            if (known.plan.programs, known.plan.kernels) == (plan.programs, plan.kernels):
                return known
        self._seen.append(Estimate(self._problem, plan))
        return self._seen[-1]

    def plain_us_below(self, known: Estimate) -> float:
        """Return the `plain_us` below which another plan is worth comparing, because following operands is slow."""
        return known.plain_us / self._problem.profiler.noise

    def cheaper(self, other: Estimate, known: Estimate) -> bool:
        """Return whether the other plan is estimated to take less, by any amount."""
        return takes_less(other, known)

    def prefers(self, other: Estimate, known: Estimate) -> bool:
        """Return whether the other plan is estimated to take less, by more than noise."""
        return takes_less(other, known, self._problem.profiler.noise)


def takes_less(one: Estimate, other: Estimate, ratio: float = 1.0) -> bool:
    """Return whether `one.us * ratio < other.us`. Simulates the smaller plan first; a lower bound may decide."""
    if one.to_follow < other.to_follow:
        if one.us * ratio < other.least_us:
            return True
    elif one.least_us * ratio >= other.us:
        return False
    return one.us * ratio < other.us
