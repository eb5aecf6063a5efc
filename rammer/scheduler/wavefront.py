"""Algorithm 1: the wavefront scheduling policy. Paper: §3.3."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from rammer.ir.device import SyncModel
from rammer.ir.memory import plan_memory
from rammer.ir.plan import ExecutionPlan
from rammer.scheduler.algorithm1 import algorithm_1
from rammer.scheduler.draft import Draft
from rammer.scheduler.policy import Problem
from rammer.scheduler.policy_options import described
from rammer.scheduler.select import SelectBy
from rammer.scheduler.sequential import SequentialPolicy
from rammer.scheduler.waves import CLOSE, draw, draw_with_chains

SPREAD = 2  # times the baseline's memory: with as much, branches side by side may push each other out of the caches


@dataclass
class WavefrontPolicy:
    """Algorithm 1; and what waves and prices do not see, beyond the paper: chains of steps, weights, and caches.

    Plans whose prices are close are measured, where the device can run them.
    """

    name = "wavefront"

    selection: SelectBy = field(
        default="interplay",
        metadata={
            "interplay": "a wave's fastest rKernels; if they fill the vEUs, the most efficient where time(P) is less",
            "fastest": "always each operator's fastest; no chains, no measuring of plans",
            "efficient": "always each operator's most efficient; no chains, no measuring of plans",
        },
    )
    beyond: Literal["on", "off"] = field(
        default="on",
        metadata={
            "on": "what goes beyond the paper: chains side by side, weights and operands that stay, measured plans",
            "off": "Algorithm 1 as the paper prints it",
        },
    )
    sync: Literal["fine", "global"] = field(
        default="fine",
        metadata={
            "fine": "rTasks wait for single rTasks, where the device can",
            "global": "a barrier of all vEUs stands between dependent waves (the comparison of §5.2.5)",
        },
    )

    def schedule(self, problem: Problem) -> ExecutionPlan:
        spec, policy = problem.spec, described(self, self.name)
        if self.sync == "global":
            problem = replace(problem, spec=replace(spec, sync=SyncModel.GLOBAL))
        if self.beyond == "off":
            plan = algorithm_1(problem, self.selection, policy)
        elif self.selection != "interplay":
            _, plan = draw(problem, policy, self.selection)
        else:
            plan = _within_caches(problem, *draw_with_chains(problem, policy))
        return replace(plan, spec=spec)


def _within_caches(problem: Problem, price_us: float, plan: ExecutionPlan) -> ExecutionPlan:
    """The plan; or one operator after another, where that takes far less memory and, measured, less time."""
    if Draft(problem).sequential_us() > CLOSE * price_us or problem.profiler.plans_us(()) is None:
        return plan
    arena_bytes = plan_memory(plan).arena_bytes
    if arena_bytes <= problem.spec.own_cache * problem.spec.num_veus:
        return plan
    baseline = SequentialPolicy().schedule(problem)
    if arena_bytes <= SPREAD * plan_memory(baseline).arena_bytes:
        return plan
    if (measured := problem.profiler.plans_us((plan, baseline))) is None:
        return plan
    us, baseline_us = measured
    note = f"measured: {us:.0f} µs, {baseline_us:.0f} µs with one operator after another, in far less memory"
    chosen = plan
    if baseline_us * problem.profiler.noise < us:
        chosen = replace(baseline, policy=f"{baseline.policy} (chosen by {plan.policy})")
    return replace(chosen, notes=(*chosen.notes, note))
