"""Hold the result of each stage of a compilation, as frozen values that refer to the stage before.

Each value can be printed, and pickled up to `Proven`: `Compilation.enter` continues from it, in another process too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from rammer.errors import counted
from rammer.ir.graph import Graph
from rammer.ir.kernel import USUAL, RKernel, Tuning
from rammer.ir.operator import Operation
from rammer.ir.plan import ExecutionPlan
from rammer.ir.tensor import TensorId
from rammer.ir.verify import PlanEvidence
from rammer.runtime.report import Report
from rammer.scheduler.timeline import Timeline
from rammer.vdevice.base import Executable, Image

Kernels: TypeAlias = Mapping[Operation, Sequence[RKernel]]


@dataclass(frozen=True)
class Optimized:
    """A graph after all passes, ready to be scheduled.

    `model` is the imported graph. `state` maps outputs to inputs of the next run; those in `in_place` share memory with
    their inputs. `tuning`: what the policy asks of passes and generators. `notes` are for the program's report.
    """

    graph: Graph
    model: Graph = field(repr=False)
    state: Mapping[TensorId, TensorId]
    in_place: frozenset[TensorId]
    tuning: Tuning = USUAL
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        kinds = dict.fromkeys(op.kind for op in self.graph.operators)
        return (
            f"optimized {self.graph.name!r}: {counted(len(self.graph.operators), 'operator')} of "
            f"{counted(len(kinds), 'kind')}, "
            f"{len(self.model.operators)} before"
        )


@dataclass(frozen=True)
class CandidateSet:
    """rKernels by operation that a device accepts."""

    optimized: Optimized = field(repr=False)
    kernels: Kernels
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        most = f", of {len(self.notes)} notes the first: {self.notes[0]}" if self.notes else ""
        count = counted(sum(map(len, self.kernels.values())), "rKernel")
        return f"candidates: {count} of {counted(len(self.kernels), 'operation')}{most}"


@dataclass(frozen=True)
class Profiled:
    """Measured µs of one rTask of each candidate; empty if nothing is measured, and estimates are used."""

    candidates: CandidateSet = field(repr=False)
    times: Mapping[RKernel, float]

    def __str__(self) -> str:
        return f"profiled: {counted(len(self.times), 'rKernel')} measured, the others estimated"


@dataclass(frozen=True)
class Planned:
    """The plan that the policy made. `kernels` and `times` include those of operations that the policy has made."""

    profiled: Profiled = field(repr=False)
    plan: ExecutionPlan
    kernels: Kernels = field(repr=False)
    times: Mapping[RKernel, float] = field(repr=False)
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"planned by {self.plan.policy!r}: {_size(self.plan)}"


@dataclass(frozen=True)
class Proven:
    """A plan whose rKernels and order are proven, with memory, prices and all notes.

    `evidence` is what the proof found out about the order; None if RAMMER_VERIFY=0.
    """

    planned: Planned = field(repr=False)
    plan: ExecutionPlan
    timeline: Timeline = field(repr=False)
    evidence: PlanEvidence | None = field(repr=False, compare=False)

    def __str__(self) -> str:
        how = "proven" if self.evidence else "not proven (RAMMER_VERIFY=0)"
        arena = self.plan.memory.arena_bytes if self.plan.memory else 0
        return f"{how}: {_size(self.plan)}, arena {arena} bytes, estimated {self.timeline.total_us:.1f} µs"


@dataclass(frozen=True)
class Built:
    """An image that was compared with its plan, loaded and run once. A Program saves it."""

    proven: Proven = field(repr=False)
    image: Image = field(repr=False)
    executable: Executable = field(repr=False, compare=False)
    report: Report

    def __str__(self) -> str:
        return f"built for {self.image.target}: {counted(len(self.image.files), 'file')}, {self.report.checked}"


Stage: TypeAlias = Optimized | CandidateSet | Profiled | Planned | Proven | Built


def _size(plan: ExecutionPlan) -> str:
    return (
        f"{counted(len(plan.graph.operators), 'operator')} by {counted(len(set(plan.kernels)), 'rKernel')}, "
        f"{counted(plan.num_rtasks, 'rTask')} in {counted(len(plan.programs), 'rProgram')}"
    )
