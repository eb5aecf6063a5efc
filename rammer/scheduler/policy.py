"""What a scheduling policy sees and returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from rammer.errors import ScheduleError
from rammer.ir.device import SyncModel, VDeviceSpec
from rammer.ir.graph import Graph
from rammer.ir.kernel import RKernel
from rammer.ir.operator import Operation
from rammer.ir.plan import ExecutionPlan
from rammer.scheduler.profiler import Profiler
from rammer.scheduler.timeline import Timeline, simulate

FOLLOWED = ("graph", "spec", "kernels", "programs", "memory")  # what a timeline by prices depends on, beside these


class Timelines:
    """Timelines of plans with prices: none is followed through the caches twice, whoever asks."""

    def __init__(self) -> None:
        self._known: list[tuple[ExecutionPlan, Timeline]] = []

    def of(self, plan: ExecutionPlan) -> Timeline:
        """What `simulate` says of a plan."""
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
    """All that a policy may use: the graph, the device as data, candidate rKernels, and the profiler.

    `offer`: candidates for the operations of another graph, those that are new for so many vEUs, whose times the
    profiler knows then; None if nobody has any. `has_room`: whether the device's memory holds a plan's program; None if
    nobody can tell without building it. `tell`: called with how each choice was made, if anybody listens.
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
        """The same problem without rKernels that are offered to who cuts operators into parts.

        Whoever takes the fastest of many takes one that was measured too fast: the more there are, the more so.
        """
        usual = {op: [k for k in kernels if not k.finer] or kernels for op, kernels in self.candidates.items()}
        return replace(self, candidates=usual)

    def of(self, graph: Graph, veus: int) -> Problem | None:
        """The same problem for another graph of the same meaning; None if nobody offers rKernels for it.

        `veus`: how many each of its new operators has.
        """
        if self.offer is None:
            return None
        more = {o: kernels for o, kernels in self.offer(graph, veus).items() if o not in self.candidates}
        return replace(self, graph=graph, candidates={**self.candidates, **more})


class Policy(Protocol):
    """Decides rKernels, placement and order. A class with a `name`, made without arguments, or with its options."""

    name: str

    def schedule(self, problem: Problem) -> ExecutionPlan:
        """A plan, maybe without memory (the compiler adds it). Raises ScheduleError; never falls back in silence."""


def images_of(graph: Graph) -> int:
    """The most images that a convolution takes at once; 0 where there is none."""
    convolutions = (op for op in graph.operators if "conv" in op.kind.split("+"))
    return max((op.operation.outputs[0].shape[0] for op in convolutions), default=0)


def need_fine_sync(policy: str, spec: VDeviceSpec) -> None:
    """Raise ScheduleError on a device with global synchronisation, for a policy whose rTasks wait for single others."""
    if spec.sync is SyncModel.GLOBAL:
        raise ScheduleError(
            f"policy {policy!r} needs rTask-level synchronisation, and {spec.name!r} has none",
            hint="use policy 'wavefront'",
        )
