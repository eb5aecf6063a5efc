"""Policy "auto": the cheapest plan of all policies that apply. Beyond the paper."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

from rammer.cost.residency import levels
from rammer.ir.device import SyncModel
from rammer.ir.plan import ExecutionPlan
from rammer.scheduler.graphturbo.policy import GraphTurboPolicy
from rammer.scheduler.judge import PLANS, Judge
from rammer.scheduler.list_policy import ListPolicy
from rammer.scheduler.policy import Policy, Problem
from rammer.scheduler.policy_options import described
from rammer.scheduler.sequential import SequentialPolicy
from rammer.scheduler.stationary import StationaryPolicy, recurrent_operators
from rammer.scheduler.wavefront import WavefrontPolicy


@dataclass
class AutoPolicy:
    """Plans of several policies, compared by price, and run where prices are too close to tell.

    Wavefront's is left only for one that is faster. Tensors lie as graphturbo wants them, for all policies.
    """

    name = "auto"
    finer: ClassVar[tuple[int, ...]] = GraphTurboPolicy.finer
    images_apart: ClassVar[bool] = GraphTurboPolicy.images_apart

    plans: Literal["measured", "priced"] = field(default="measured", metadata=PLANS)

    def schedule(self, problem: Problem) -> ExecutionPlan:
        judge = Judge(problem, self.plans == "measured")
        best = judge.believed(WavefrontPolicy(plans=self.plans).schedule(problem))
        tried = []
        for policy in _others(problem):
            tried.append(policy.name)
            other = judge.believed(policy.schedule(problem))
            if judge.prefers(other, best, f"by {policy.name}"):
                best = other
        notes = (*best.plan.notes, f"compared with wavefront's plan: {', '.join(tried)}", *judge.notes)
        return replace(best.plan, policy=f"{best.plan.policy} (chosen by {described(self, self.name)})", notes=notes)


def _others(problem: Problem) -> Iterator[Policy]:
    """Those beside wavefront that say something about this device and this graph."""
    yield SequentialPolicy()
    if problem.spec.sync is SyncModel.FINE:
        yield ListPolicy()
        if recurrent_operators(problem):
            yield StationaryPolicy()
    if len(levels(problem.spec)) > 1:
        yield GraphTurboPolicy(uncut=False)
