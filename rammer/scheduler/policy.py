"""What a scheduling policy sees and returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from rammer.errors import ScheduleError
from rammer.ir.device import SyncModel, VDeviceSpec
from rammer.ir.graph import Graph
from rammer.ir.kernel import RKernel
from rammer.ir.operator import Operation
from rammer.ir.plan import ExecutionPlan
from rammer.scheduler.profiler import Profiler


@dataclass(frozen=True, slots=True)
class Problem:
    """All that a policy may use: the graph, the device as data, candidate rKernels, and the profiler."""

    graph: Graph
    spec: VDeviceSpec
    candidates: Mapping[Operation, Sequence[RKernel]]
    profiler: Profiler


class Policy(Protocol):
    """Decides rKernels, placement and order. A class with a `name`, made without arguments, or with its options."""

    name: str

    def schedule(self, problem: Problem) -> ExecutionPlan:
        """A plan, maybe without memory (the compiler adds it). Raises ScheduleError; never falls back in silence."""


def need_fine_sync(policy: str, spec: VDeviceSpec) -> None:
    """Raise ScheduleError on a device with global synchronisation, for a policy whose rTasks wait for single others."""
    if spec.sync is SyncModel.GLOBAL:
        raise ScheduleError(
            f"policy {policy!r} needs rTask-level synchronisation, and {spec.name!r} has none",
            hint="use policy 'wavefront'",
        )
