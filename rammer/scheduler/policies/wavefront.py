"""Schedule by Algorithm 1, the wavefront policy. Paper: §3.3."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Literal

from rammer.ir.device import SyncModel
from rammer.ir.plan import ExecutionPlan
from rammer.scheduler.draft import Draft
from rammer.scheduler.judge import PlanSelector
from rammer.scheduler.policies.algorithm1 import PrintedDraft
from rammer.scheduler.policies.locality import place_by_owner
from rammer.scheduler.policies.sequential import SequentialPolicy
from rammer.scheduler.policies.waves import best_plan, build_plan
from rammer.scheduler.policy import Problem
from rammer.scheduler.policy_options import described, option
from rammer.scheduler.select import SelectBy


@dataclass
class WavefrontPolicy:
    """Algorithm 1. Beyond the paper, it considers what waves do not see: chains of steps, weights, and caches."""

    name = "wavefront"

    selection: SelectBy = option(
        interplay="a wave's fastest rKernels; if they fill the vEUs, the most efficient where time(P) is less",
        fastest="always each operator's fastest; no chains",
        efficient="always each operator's most efficient; no chains",
    )
    beyond: Literal["on", "off"] = option(
        on="beyond the paper: the cheapest of all selections, chains side by side, what stays",
        off="Algorithm 1 as the paper prints it",
    )
    sync: Literal["fine", "global"] = option(
        fine="rTasks wait for single rTasks, where the device can",
        **{"global": "a barrier of all vEUs stands between dependent waves (the comparison of §5.2.5)"},
    )

    def schedule(self, problem: Problem) -> ExecutionPlan:
        spec, policy = problem.spec, described(self, self.name)
        if self.sync == "global":
            problem = replace(problem, spec=replace(spec, sync=SyncModel.GLOBAL))
        if self.beyond == "off":
            plan = build_plan(PrintedDraft(problem), policy, self.selection)
        elif self.selection != "interplay":
            plan = build_plan(Draft(problem), policy, self.selection)
        else:
            plan = self._best(problem, policy)
        return replace(plan, spec=spec, memory=plan.memory if problem.spec is spec else None)

    def _best(self, problem: Problem, policy: str) -> ExecutionPlan:
        """Return the cheapest waves, or operators one by one if parallel branches evict each other from caches."""
        judge = PlanSelector(problem)
        best = best_plan(problem, policy, judge)
        plan = best.plan
        if _is_crowded(problem) and problem.profiler.prices(plan.kernels):
            baseline = SequentialPolicy().schedule(problem)
            if judge.prefers(judge.estimate(baseline), best):
                plan = replace(baseline, policy=f"{baseline.policy} (chosen by {policy})")
        return place_by_owner(plan)


def _is_crowded(problem: Problem) -> bool:
    """Return whether some wave's operands and results exceed the caches of all vEUs together.

    Weights count if other waves read them, too (an LSTM's steps), as they may stay resident between two steps.
    """
    graph, room = problem.graph, problem.spec.room(problem.spec.l2) * problem.spec.num_veus
    readers = Counter(t for op in graph.operators for t in set(op.inputs))
    for wave in graph.wavefronts():
        operators = [graph.operators[n] for n in wave]
        tensors = {t for op in operators for t in (*op.inputs, *op.outputs)}
        again = (t for t in tensors if graph.storage(t).root not in graph.constants or readers[t] > 1)
        if sum(graph.types[t].nbytes for t in again) > room:
            return True
    return False
