"""Policy "auto": never dearer than any policy that it compares, and the plan that it takes is complete."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import test_graphturbo as towers
from cpus import MadeUp, runnable
from stages import problem_of

from rammer.ir.device import SyncModel
from rammer.ir.kernel import USUAL, RKernel, Tuning
from rammer.ir.plan import Price
from rammer.ir.verify import verify_plan
from rammer.passes import optimize
from rammer.planner.memory import plan_memory
from rammer.plugins import PluginRegistry
from rammer.scheduler.policy import Problem
from rammer.scheduler.policy_options import tuning_of
from rammer.scheduler.profiler import EstimatingProfiler
from rammer.scheduler.timeline import simulate


class Priced(EstimatingProfiler):
    """Estimates for near operands, and the spec's rates for others."""

    def prices(self, kernels: Iterable[RKernel]) -> Mapping[RKernel, Price]:  # type: ignore[override]
        return {k: Price(self.rtask_us(k) / 20, 1.0, 1.0) for k in kernels}


def problem(*, images: int = 12, sync: SyncModel = SyncModel.FINE) -> Problem:
    spec = replace(towers.TestPlans.spec, sync=sync)
    found = problem_of(optimize(towers.tower(images, 32), spec, per_image=True), spec, "graphturbo")
    return replace(found, profiler=Priced(spec))


def priced_us(given: Problem, policy: str) -> float:
    plan = PluginRegistry(third_party=False).policy(policy).schedule(given)
    plan = replace(plan, memory=plan.memory or plan_memory(plan), prices=given.profiler.prices(plan.kernels) or {})
    verify_plan(plan)
    return simulate(plan).total_us


def test_the_cheapest_of_all() -> None:
    """Here memory is slow, and graphturbo's plan the cheapest; it keeps its memory in pieces."""
    given = problem()
    plan = PluginRegistry(third_party=False).policy("auto:tries=all").schedule(given)
    assert plan.policy == "graphturbo (chosen by auto:tries=all)"
    assert plan.memory is not None and plan.memory.pieces
    assert "compared with wavefront's plan: sequential, graphturbo" in plan.notes
    each = {p: priced_us(given, p) for p in ("sequential", "wavefront", "graphturbo")}
    assert priced_us(given, "auto:tries=all") <= min(each.values()) * 1.0001


def test_only_what_the_device_can() -> None:
    """With barriers of all vEUs, only policies that need no others are compared."""
    plan = PluginRegistry(third_party=False).policy("auto:tries=all").schedule(problem(images=1, sync=SyncModel.GLOBAL))
    assert "compared with wavefront's plan: sequential, graphturbo" in plan.notes
    verify_plan(replace(plan, memory=plan.memory or plan_memory(plan)))


def test_few_are_tried_by_default() -> None:
    """Images of a batch, each on a vEU, if every vEU can have some; else wavefront's plan is the plan."""
    registry = PluginRegistry(third_party=False)
    chosen = registry.policy("auto")
    given = problem(images=12)
    plan = chosen.schedule(given)
    assert "compared with wavefront's plan: graphturbo" in plan.notes
    assert plan.policy == "graphturbo:rules=images (chosen by auto)"
    assert priced_us(given, "auto") < priced_us(given, "wavefront")
    for one in (problem(images=1), replace(given, spec=replace(given.spec, num_veus=16))):
        same = registry.policy("auto").schedule(one)
        wavefront = registry.policy("wavefront").schedule(one.usual)
        assert (same.policy, same.programs, same.kernels) == (wavefront.policy, wavefront.programs, wavefront.kernels)


def _images(*finer: int) -> Tuning:
    return Tuning(task_multiples=finer, per_image=True)


def test_what_policies_ask_for() -> None:
    """Images apart, and rKernels of single images, only where vEUs may have images of their own."""
    registry, spec = PluginRegistry(third_party=False), problem().spec
    for images, few in ((1, USUAL), (2, _images(1)), (7, USUAL), (8, _images(4))):
        graph = towers.tower(images, 32)
        assert tuning_of(registry.policy("auto"), graph, spec) == few
        assert tuning_of(registry.policy("auto:tries=all"), graph, spec) == _images(8, 64)
        assert tuning_of(registry.policy("wavefront"), graph, spec) == USUAL
    assert tuning_of(registry.policy("auto"), towers.tower(8, 32), replace(spec, num_veus=1)) == USUAL


class Hasty(Priced):
    """Finer rKernels look ten times as fast as they are, as some of many always do."""

    def rtask_us(self, kernel: RKernel) -> float:
        return super().rtask_us(kernel) / (10 if kernel.for_splitting else 1)


def test_finer_rkernels_are_for_cuts() -> None:
    """Of what is offered to who cuts operators, a plan that leaves them whole takes none, however fast it looks."""
    registry = PluginRegistry(third_party=False)
    spec = MadeUp(runnable("x86-64-avx2"), 2, 512).spec
    graph = optimize(towers.tower(1, 32), spec, per_image=True)
    usual, all_of_them = (
        {op.operation: registry.rkernels(op.operation, spec, Tuning(task_multiples=finer)) for op in graph.operators}
        for finer in ((), (8, 64))
    )
    for operation, kernels in all_of_them.items():
        assert [k.schedule for k in kernels if not k.for_splitting] == [k.schedule for k in usual[operation]]
    assert any(k.for_splitting for kernels in all_of_them.values() for k in kernels)
    given = Problem(graph, spec, all_of_them, Hasty(spec))
    taken = registry.policy("wavefront").schedule(given)
    assert any(k.for_splitting for k in taken.kernels), "nobody would take one: this shows nothing"
    for policy in ("auto", "graphturbo:rules=parts,parts=none"):
        assert not any(k.for_splitting for k in registry.policy(policy).schedule(given).kernels)
