"""Save a plan's outline with a program: lanes, slots, and the estimated time of each rTask.

An outline has the names of operators and rKernels that the report lists. This is enough to draw a plan, but not to
build or prove one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rammer.errors import ArtifactError
from rammer.ir.device import VDeviceSpec
from rammer.ir.expr import TensorExpr
from rammer.ir.graph import Graph
from rammer.ir.kernel import ForeignSource, RKernel
from rammer.ir.operator import Operation, Operations, ROperator
from rammer.ir.plan import ExecutionPlan
from rammer.ir.program import BarrierRTask, Position, RProgram, RTask, Slot, TaskUid
from rammer.ir.tile import TaskDigit
from rammer.runtime.report import OperatorRow, Report
from rammer.vdevice.image.tables import INT32, INT64, TableFile, rows_of

if TYPE_CHECKING:
    from rammer.scheduler.timeline import Timeline

OUTLINE = "outline.bin"  # its name among an image's files
SPEC: dict[str, Callable[[Any], Any]] = {"num_veus": int, "launch_us": float, "calls": bool, "barrier_us": float}
OPTIONAL = ("run_us", "passed_us")  # times that programs of earlier versions lack


@dataclass(frozen=True)
class Outline(TableFile):
    """Slots of all lanes as int32 [operator, rtask]. A barrier has operator -1, and its number of waits."""

    bounds: NDArray[np.int64] = field(metadata=INT64)  # [programs * veus + 1] first slot of every lane
    slots: NDArray[np.int32] = field(metadata=rows_of(INT32, 2))  # [slots, 2]
    waits: NDArray[np.int32] = field(metadata=rows_of(INT32, 2))  # [waits, 2] of barriers, in order: veu, order
    rtask_us: NDArray[np.float64] = field(metadata={"dtype": "<f8"})  # [slots] 0 for barriers

    def check(self) -> None:
        """Raise ValueError for inconsistent lanes."""
        barriers, num_veus = self.slots[:, 0] < 0, self.header["num_veus"]
        sound = (
            all(type(self.header[name]) is kind for name, kind in SPEC.items())
            and all(type(self.header.get(name, 0.0)) is float for name in OPTIONAL)
            and 1 <= num_veus <= 1 << 20
            and (len(self.bounds) - 1) % num_veus == 0
            and self.bounds[0] == 0
            and self.bounds[-1] == len(self.slots) == len(self.rtask_us)
            and bool(np.all(np.diff(self.bounds) >= 0))
            and bool(np.all(self.slots >= -1))
            and int(self.slots[barriers, 1].astype(np.int64).sum()) == len(self.waits)
            and bool(np.all((self.waits >= 0) & (self.waits[:, :1] < num_veus)))
            and bool(np.all(np.isfinite(self.rtask_us)))
        )
        if not sound:
            raise ValueError("lanes of a plan are damaged")


def pack(plan: ExecutionPlan) -> bytes:
    """Return the outline of a plan."""
    from rammer.scheduler.timeline import simulate

    timeline = simulate(plan)
    slots: list[tuple[int, int]] = []
    waits: list[Position] = []
    us: list[float] = []
    bounds = [0]
    for program, times in zip(plan.programs, timeline.programs, strict=True):
        for lane, at in zip(program.lanes, times.lanes, strict=True):
            for slot, start_us, end_us in zip(lane, at.start_us, at.end_us, strict=True):
                if isinstance(slot, RTask):
                    slots.append(slot.uid)
                    us.append(end_us - start_us)
                else:
                    slots.append((-1, len(slot.waits)))
                    us.append(0.0)
                    waits += slot.waits
            bounds.append(len(slots))
    header = {"graph": plan.graph.name, **{name: kind(getattr(plan.spec, name)) for name, kind in SPEC.items()}}
    header |= {"run_us": float(plan.spec.run_us), "passed_us": float(plan.spec.least_barrier_us)}
    return Outline(
        header,
        np.array(bounds, np.int64),
        np.array(slots, np.int32).reshape(-1, 2),
        np.array(waits, np.int32).reshape(-1, 2),
        np.array(us, np.float64),
    ).to_bytes()


def unpack(data: bytes, report: Report) -> tuple[ExecutionPlan, Timeline]:
    """Return a plan that can be drawn, and its timeline. Raises ArtifactError."""
    from rammer.scheduler.timeline import timed  # needed for drawing only

    outline = Outline.from_bytes(data)
    header, num_veus = outline.header, outline.header["num_veus"]
    known = {name: header[name] for name in (*SPEC, *OPTIONAL) if name in header}
    spec = VDeviceSpec(report.target, arch=report.arch, **known)
    waits = iter(outline.waits.tolist())
    slots: list[Slot] = []
    us: dict[TaskUid, float] = {}
    for (operator, number), rtask_us in zip(outline.slots.tolist(), outline.rtask_us.tolist(), strict=True):
        if operator >= len(report.operators):
            raise ArtifactError("the program's plan names operators that its report lacks", hint="compile it again")
        if operator < 0:
            slots.append(BarrierRTask(tuple(Position(*next(waits)) for _ in range(number))))
        else:
            slots.append(RTask(TaskUid(operator, number)))
            us[TaskUid(operator, number)] = rtask_us
    lanes = [tuple(slots[a:b]) for a, b in zip(outline.bounds[:-1], outline.bounds[1:], strict=True)]
    plan = ExecutionPlan(
        Graph(str(header["graph"]), (), (), tuple(map(_operator, report.operators)), {}, {}, Operations({})),
        spec,
        tuple(map(_kernel, report.operators)),
        tuple(RProgram(tuple(lanes[n : n + num_veus])) for n in range(0, len(lanes), num_veus)),
        report.policy,
        notes=tuple(report.notes),
    )
    return plan, replace(timed(plan, lambda task, _: us[task]), moved=report.moved)


def _operation(row: OperatorRow) -> Operation:
    return Operation(row.kind, (), TensorExpr(row.kind, (), (), ()), ())


def _operator(row: OperatorRow) -> ROperator:
    return ROperator(row.name, _operation(row), (), ())


def _kernel(row: OperatorRow) -> RKernel:
    return RKernel(row.rkernel, _operation(row), ForeignSource("saved", "", "", (TaskDigit("", 1, row.num_rtasks, 1),)))
