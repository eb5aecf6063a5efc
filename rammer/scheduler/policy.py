"""Define what a scheduling policy receives and returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from rammer.errors import ScheduleError
from rammer.ir.device import SyncModel, VDeviceSpec
from rammer.ir.expr import Stage, loads
from rammer.ir.graph import Graph
from rammer.ir.index import variables
from rammer.ir.kernel import RKernel
from rammer.ir.operator import Operation
from rammer.ir.plan import ExecutionPlan
from rammer.scheduler.profiler import Profiler
from rammer.scheduler.timeline import Timeline, simulate

FOLLOWED = ("graph", "spec", "kernels", "programs", "memory")  # what a timeline depends on, besides prices


class Timelines:
    """Memoize simulated timelines of plans with prices, as following operands through the caches is slow."""

    def __init__(self) -> None:
        self._known: list[tuple[ExecutionPlan, Timeline]] = []

    def of(self, plan: ExecutionPlan) -> Timeline:
        """Return `simulate(plan)`, from memory if the plan is known."""
        for known, timeline in self._known:
            parts = zip(map(vars(known).get, FOLLOWED), map(vars(plan).get, FOLLOWED), strict=True)
            if all(one is other for one, other in parts) and known.prices == plan.prices:
                return timeline
        timeline = simulate(plan)
        if plan.prices:
            self._known.append((plan, timeline))
        return timeline


def _nobody_can_tell(plan: ExecutionPlan) -> None:
    return None


@dataclass(frozen=True, slots=True)
class Problem:
    """The input of a policy: the graph, the device as data, candidate rKernels, and the profiler.

    `offer(graph, veus)` returns candidates for another graph's new operations, each on so many vEUs, and adds their
    times to the profiler. None if unavailable. `has_room` returns whether the device's memory holds a plan's program,
    or None if only building it would show. `tell` receives the reason of each choice; None if reasons are not logged.
    """

    graph: Graph
    spec: VDeviceSpec
    candidates: Mapping[Operation, Sequence[RKernel]]
    profiler: Profiler
    timelines: Timelines = field(default_factory=Timelines, compare=False, repr=False)
    offer: Callable[[Graph, int], Mapping[Operation, Sequence[RKernel]]] | None = None
    has_room: Callable[[ExecutionPlan], bool | None] = _nobody_can_tell
    tell: Callable[[str], None] | None = None

    @property
    def usual(self) -> Problem:
        """The same problem without the rKernels that are offered only for splitting operators.

        With more candidates, timing noise more often selects one that was measured too fast.
        """
        usual = {op: [k for k in kernels if not k.for_splitting] or kernels for op, kernels in self.candidates.items()}
        return replace(self, candidates=usual)

    def of(self, graph: Graph, veus: int) -> Problem | None:
        """Return the same problem for another graph of the same meaning, or None without `offer`.

        `veus`: the number of vEUs that each new operator runs on.
        """
        if self.offer is None:
            return None
        more = {o: kernels for o, kernels in self.offer(graph, veus).items() if o not in self.candidates}
        return replace(self, graph=graph, candidates={**self.candidates, **more})


class Policy(Protocol):
    """An algorithm that chooses rKernels, placement and order.

    A policy is a class with a `name`. It is made without arguments, or with its options.
    """

    name: str

    def schedule(self, problem: Problem) -> ExecutionPlan:
        """Return a plan; the compiler adds memory if it has none.

        Raises ScheduleError instead of falling back silently.
        """


def images_of(graph: Graph) -> int:
    """Return the largest batch that some operator multiplies by filters; 0 without such operators."""
    filtering = (op.operation for op in graph.operators if any(map(_filters_images, op.operation.expr.stages)))
    return max((operation.outputs[0].shape[0] for operation in filtering), default=0)


def _filters_images(stage: Stage) -> bool:
    """Return whether a stage sums over filters that move along its channels alone, axis 1, as a convolution does."""
    if not stage.reduce or not stage.axes[2:]:
        return False
    (image, _), (channel, _), *_ = stage.axes
    axes = {axis for axis, _ in stage.axes}
    moved = [axes & {name for ix in load.index for name in variables(ix)} for load, _ in loads(stage.body)]
    return {channel} in moved and any(image in moving for moving in moved)


def need_fine_sync(policy: str, spec: VDeviceSpec) -> None:
    """Raise ScheduleError on a device with global synchronisation, for a policy that needs waits for single rTasks."""
    if spec.sync is SyncModel.GLOBAL:
        raise ScheduleError(
            f"policy {policy!r} needs rTask-level synchronisation, and {spec.name!r} has none",
            hint="use policy 'wavefront'",
        )
