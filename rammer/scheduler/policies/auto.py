"""Policy "auto": build plans by several policies and take the cheapest. Beyond the paper."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from rammer.cost.residency import levels
from rammer.cost.weights import recurrent_operators
from rammer.ir.device import SyncModel, VDeviceSpec
from rammer.ir.graph import Graph
from rammer.ir.kernel import USUAL, Tuning
from rammer.ir.plan import ExecutionPlan
from rammer.scheduler.judge import Estimate, PlanSelector
from rammer.scheduler.plugin import BUILT_IN
from rammer.scheduler.policies.wavefront import WavefrontPolicy
from rammer.scheduler.policy import Policy, Problem, images_of
from rammer.scheduler.policy_options import described, option, tuning_of

# Fraction of a plan's time that parts must be estimated to save before their plan is built, which takes 1 to 2 s. At
# most a third of the estimated savings was measured (docs/measurements.md, "Groups in parts").
PAYS = 0.08


@dataclass
class AutoPolicy:
    """Compare plans of several policies by price, starting from wavefront's.

    Another plan replaces wavefront's only if it is estimated to be faster. If graphturbo's plan is compared, tensors
    are laid out as it wants. On devices with only private memory, graphturbo decides alone: it knows what fits.
    """

    name = "auto"

    tries: Literal["few", "all"] = option(
        few="wavefront; for a batch that vEUs can share out evenly graphturbo:rules=images; else, where large "
        "tensors lie between operators, graphturbo:rules=parts; and stationary where vEUs keep weights that they "
        "read again and again, and the graph has such",
        all="wavefront, sequential, graphturbo, and stationary where it applies",
    )

    def tuning(self, graph: Graph, spec: VDeviceSpec) -> Tuning:
        """Return graphturbo's tuning if its plan will be compared."""
        if self.tries == "all" or spec.private:
            return tuning_of(BUILT_IN["graphturbo"](), graph, spec)
        return tuning_of(_of_images(), graph, spec) if _has_images(graph, spec) else USUAL

    def schedule(self, problem: Problem) -> ExecutionPlan:
        if problem.spec.private:
            plan = BUILT_IN["graphturbo"]().schedule(problem)
            return replace(plan, policy=f"{plan.policy} (chosen by {described(self, self.name)})")
        judge = PlanSelector(problem)
        best = judge.estimate(WavefrontPolicy().schedule(problem.usual))
        tried = []
        for policy in _all(problem) if self.tries == "all" else _worth_building(problem, best):
            tried.append(policy.name)
            cuts = tuning_of(policy, problem.graph, problem.spec).task_multiples
            other = judge.estimate(policy.schedule(problem if cuts else problem.usual))
            if judge.prefers(other, best):
                best = other
        if not tried:
            return best.plan
        notes = (*best.plan.notes, f"compared with wavefront's plan: {', '.join(tried)}")
        return replace(best.plan, policy=f"{best.plan.policy} (chosen by {described(self, self.name)})", notes=notes)


def _has_images(graph: Graph, spec: VDeviceSpec) -> bool:
    """Return whether the vEUs can share a batch's images evenly."""
    images = images_of(graph)
    return spec.num_veus > 1 and images > 0 and images % spec.num_veus == 0


def _worth_building(problem: Problem, known: Estimate) -> Iterator[Policy]:
    """Yield the policies besides wavefront whose plans are worth the time to build."""
    if _has_images(problem.graph, problem.spec):
        yield _of_images()
    elif _has_large_results(problem) and _spared_by_parts_us(problem) > PAYS * known.us:
        yield BUILT_IN["graphturbo"](rules="parts")
    if problem.spec.kept_reads and _steps(problem) >= problem.spec.kept_reads:
        yield BUILT_IN["stationary"]()


def _has_large_results(problem: Problem) -> bool:
    """Return whether some operator's result leaves the private caches before its reader begins."""
    graph, spec = problem.graph, problem.spec
    for op in graph.operators:
        read = [t for t in op.inputs if graph.storage(t).root not in graph.constants]
        sizes = (sum(graph.types[t].filled_bytes for t in some) for some in (op.outputs, read))
        resident, streamed = (size / spec.num_veus for size in sizes)
        if not spec.holds(spec.l2, resident, streamed):
            return True
    return False


def _spared_by_parts_us(problem: Problem) -> float:
    from rammer.scheduler.graphturbo.strips import gain_us, worthwhile  # seldom needed, and slow to import
    from rammer.scheduler.select import PriceTable

    return gain_us(worthwhile(problem, PriceTable(problem)))


def _steps(problem: Problem) -> int:
    """Return the largest number of operators that read the same weights."""
    return max(map(len, recurrent_operators(problem.graph).values()), default=0)


def _of_images() -> Policy:
    return BUILT_IN["graphturbo"](rules="images")


def _all(problem: Problem) -> Iterator[Policy]:
    """Yield all other policies that apply to this device and graph."""
    yield BUILT_IN["sequential"]()
    if problem.spec.sync is SyncModel.FINE and recurrent_operators(problem.graph):
        yield BUILT_IN["stationary"]()
    if len(levels(problem.spec)) > 1:
        yield BUILT_IN["graphturbo"](uncut=False)
