"""Plans for devices that are not here, priced by their specs: nothing is compiled, nothing runs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache

from benchmarks.paper.figure import Source, Values
from rammer.ir.device import VDeviceSpec
from rammer.ir.graph import Graph
from rammer.ir.kernel import RKernel
from rammer.ir.operator import Operation, Operations
from rammer.ir.ops import OPS
from rammer.ir.plan import ExecutionPlan
from rammer.passes import optimize
from rammer.plugins import PluginRegistry
from rammer.scheduler.policy import Problem
from rammer.scheduler.profiler import EstimatingProfiler
from rammer.scheduler.timeline import simulate

TARGETS = {"v100": "cuda", "mi50": "rocm", "gc2": "ipu"}  # the paper's devices, and the vDevice of each
RAMMER_BASE = "sequential"
RAMMER_BASE_K = "sequential:kernels=selected"
RAMMER = "wavefront:beyond=off"
BEYOND = "wavefront"
NAMES = {RAMMER_BASE: "RammerBase", RAMMER_BASE_K: "RammerBaseK", RAMMER: "Rammer", BEYOND: "beyond the paper"}


@dataclass(frozen=True, slots=True)
class Cost:
    """What the timeline says of a plan. `busy`: the share of the vEUs' time spent in rTasks."""

    ms: float
    launch_ms: float
    busy: float
    overhead: float
    rtasks: int
    rprograms: int

    def values(self) -> Values:
        """Rounded for a file: six digits."""
        shares = {"busy": round(self.busy, 5), "overhead": round(self.overhead, 5)}
        times = {"ms": float(f"{self.ms:.6g}"), "launch_ms": float(f"{self.launch_ms:.6g}")}
        return {**times, **shares, "rtasks": self.rtasks, "rprograms": self.rprograms}


class Planner:
    """One spec. Operations that graphs share are tiled and priced once; so let them share `operations`."""

    def __init__(self, name: str) -> None:
        self._registry = PluginRegistry(third_party=False)
        with closing(self._registry.open(TARGETS[name], arch=name)) as vdevice:
            self.spec: VDeviceSpec = vdevice.spec
        self.operations = Operations(OPS)
        self.source = Source("simulated", f"{name} ({self.spec.name}, {self.spec.arch}, {self.spec.num_veus} vEUs)")
        self.profiler = EstimatingProfiler(self.spec)
        self._candidates: dict[Operation, Sequence[RKernel]] = {}

    def optimized(self, graph: Graph) -> Graph:
        """The graph as it is planned."""
        return optimize(graph, self.spec)

    def plan(self, graph: Graph, policy: str) -> ExecutionPlan:
        """The plan of an optimized graph."""
        for op in graph.operators:
            if op.operation not in self._candidates:
                self._candidates[op.operation] = self._registry.rkernels(op.operation, self.spec)
        problem = Problem(graph, self.spec, self._candidates, self.profiler)
        return self._registry.policy(policy).schedule(problem)

    def cost(self, plan: ExecutionPlan) -> Cost:
        """What the timeline of a plan says, by the spec's estimates."""
        timeline = simulate(plan, self.profiler.rtask_us)
        return Cost(
            timeline.total_us / 1e3,
            timeline.launch_us / 1e3,
            timeline.utilisation,
            timeline.overhead,
            plan.num_rtasks,
            len(plan.programs),
        )


@cache
def planner(name: str) -> Planner:
    """The planner of a spec; one for the whole process."""
    return Planner(name)
