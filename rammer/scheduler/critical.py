"""Find the critical path of a simulated plan: what each moment of it waits for."""

from __future__ import annotations

from typing import NamedTuple

from rammer.ir.plan import ExecutionPlan
from rammer.ir.program import BarrierRTask, RTask, TaskUid
from rammer.scheduler.timeline import LaneTimes, Timeline


class Step(NamedTuple):
    """A part of the critical path, in the rProgram `program`: an rTask, a hand-over, or a launch.

    A hand-over lies at the barrier-rTask that ends it, and begins at the end of the slot that this waited for. A launch
    has `order` -1.
    """

    program: int
    veu: int
    order: int
    task: TaskUid | None
    begin_us: float
    end_us: float

    @property
    def us(self) -> float:
        return self.end_us - self.begin_us


def critical_path(plan: ExecutionPlan, timeline: Timeline) -> list[Step]:
    """Return the steps that decide the plan's time, in order and without gaps: their times sum to the total."""
    path: list[Step] = []
    for number in reversed(range(len(plan.programs))):
        times = timeline.programs[number]
        ends = [lane.end_us[-1] if lane.end_us else times.begin_us for lane in times.lanes]
        veu = max(range(len(ends)), key=ends.__getitem__)
        order = len(times.lanes[veu].end_us) - 1
        while order >= 0:
            slot, lane = plan.programs[number].lanes[veu][order], times.lanes[veu]
            begin_us, end_us, before = lane.start_us[order], lane.end_us[order], (veu, order - 1)
            if isinstance(slot, BarrierRTask):
                begin_us, before = _awaited(slot, times.lanes, plan, begin_us) or (begin_us, before)
            path.append(Step(number, veu, order, slot.uid if isinstance(slot, RTask) else None, begin_us, end_us))
            veu, order = before
        path.append(Step(number, veu, -1, None, times.launch_at_us, times.begin_us))
    return path[::-1]


def _awaited(
    slot: BarrierRTask, lanes: tuple[LaneTimes, ...], plan: ExecutionPlan, begin_us: float
) -> tuple[float, tuple[int, int]] | None:
    """Return when the last slot that a barrier-rTask waits for ends, and its place; None if its own lane is later."""
    if not slot.waits:
        return None
    last = max(slot.waits, key=lambda at: lanes[at.veu].end_us[at.order])
    end_us = lanes[last.veu].end_us[last.order]
    waited = end_us + plan.spec.barrier_us > begin_us + plan.spec.least_barrier_us
    return (end_us, (last.veu, last.order)) if waited else None
