"""Plans with tilings of a wider search, where they run faster than those with the usual ones. Beyond the paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from rammer.ir.kernel import RKernel
from rammer.ir.operator import Operation
from rammer.ir.plan import ExecutionPlan
from rammer.ir.verify import verify_schedule
from rammer.scheduler.judge import Judge
from rammer.scheduler.policy import Policy, Problem


class SearchedPolicy:
    """A policy that draws two plans: with all candidates, and with those that it is usually offered.

    A tiling that is fast alone may be slow in a run: the plan that runs faster is taken, by price where none can run.
    `usual`: the rKernels of each operation without a search.
    """

    def __init__(self, policy: Policy, usual: Mapping[Operation, Sequence[RKernel]]) -> None:
        self.name = policy.name
        self._policy = policy
        self._known = {operation: {k.identity for k in kernels} for operation, kernels in usual.items()}

    def schedule(self, problem: Problem) -> ExecutionPlan:
        found = self._policy.schedule(problem)
        others = {k.operation for k in found.kernels if not self._is_usual(k)}
        if not others:
            return replace(found, notes=(*found.notes, "search: no operation takes another tiling"))
        candidates = {
            operation: [k for k in kernels if self._is_usual(k)] or kernels
            for operation, kernels in problem.candidates.items()
        }
        usual = self._policy.schedule(replace(problem, candidates=candidates))
        usual_us, found_us = self._times_us(problem, usual, found)
        faster = found_us < usual_us
        verb = "take" if faster else "would take"
        times = f"{found_us:.1f} instead of {usual_us:.1f} µs a run"
        plan = found if faster else usual
        return replace(plan, notes=(*plan.notes, f"search: {len(others)} operations {verb} other tilings, {times}"))

    def _is_usual(self, kernel: RKernel) -> bool:
        """Whether it is offered without a search, as all are of operations that only a policy knows."""
        return kernel.operation not in self._known or kernel.identity in self._known[kernel.operation]

    def _times_us(self, problem: Problem, *plans: ExecutionPlan) -> Sequence[float]:
        """Microseconds of each plan. Raises VerificationError for one that is not to be run, nor to be priced."""
        for plan in plans:
            verify_schedule(plan)
        judge = Judge(problem, measures=False)
        return problem.profiler.plans_us(plans) or [judge.believed(plan).us for plan in plans]
