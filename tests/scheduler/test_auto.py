"""Policy "auto": never dearer than any policy that it compares, and the plan that it takes is complete."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import test_graphturbo as towers

from rammer.ir.device import SyncModel
from rammer.ir.kernel import RKernel
from rammer.ir.memory import plan_memory
from rammer.ir.plan import Price
from rammer.ir.verify import verify_plan
from rammer.passes import optimize
from rammer.plugins import PluginRegistry
from rammer.scheduler.policy import Problem
from rammer.scheduler.profiler import EstimatingProfiler
from rammer.scheduler.timeline import simulate


class Priced(EstimatingProfiler):
    """Estimates for near operands, and the spec's rates for others."""

    def prices(self, kernels: Iterable[RKernel]) -> Mapping[RKernel, Price]:  # type: ignore[override]
        return {k: Price(self.rtask_us(k) / 20, 1.0, 1.0) for k in kernels}


def problem(*, images: int = 12, sync: SyncModel = SyncModel.FINE) -> Problem:
    plans = towers.TestPlans()
    spec = replace(plans.spec, sync=sync)
    found = plans.problem(optimize(towers.tower(images, 32), spec, images_apart=True), "graphturbo")
    return replace(found, spec=spec, profiler=Priced(spec))


def priced_us(given: Problem, policy: str) -> float:
    plan = PluginRegistry(third_party=False).policy(policy).schedule(given)
    plan = replace(plan, memory=plan.memory or plan_memory(plan), prices=given.profiler.prices(plan.kernels) or {})
    verify_plan(plan)
    return simulate(plan).total_us


def test_the_cheapest_of_all() -> None:
    """Here memory is slow, and graphturbo's plan the cheapest; it keeps its memory in pieces."""
    given = problem()
    plan = PluginRegistry(third_party=False).policy("auto").schedule(given)
    assert plan.policy == "graphturbo (chosen by auto)"
    assert plan.memory is not None and plan.memory.pieces
    assert "compared with wavefront's plan: sequential, list, stationary, graphturbo" in plan.notes
    each = {p: priced_us(given, p) for p in ("sequential", "wavefront:plans=priced", "list", "graphturbo")}
    assert priced_us(given, "auto") <= min(each.values()) * 1.0001


def test_only_what_the_device_can() -> None:
    """With barriers of all vEUs, only policies that need no others are compared."""
    plan = PluginRegistry(third_party=False).policy("auto").schedule(problem(images=1, sync=SyncModel.GLOBAL))
    assert "compared with wavefront's plan: sequential, graphturbo" in plan.notes
    verify_plan(replace(plan, memory=plan.memory or plan_memory(plan)))
