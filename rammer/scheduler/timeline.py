"""Simulate an execution plan: used to compare plans, to draw them, and to price them on other devices.

Known as: discrete-event simulation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

from rammer.cost.price import Fetches
from rammer.cost.residency import Bytes, levels
from rammer.cost.weights import recurrent_us
from rammer.errors import ScheduleError
from rammer.ir.kernel import RKernel
from rammer.ir.plan import ExecutionPlan
from rammer.ir.program import BarrierRTask, Position, RProgram, RTask, TaskUid
from rammer.ir.tensor import Array

State = TypeVar("State")


@dataclass(frozen=True, slots=True)
class LaneTimes:
    """Start and end of every slot of one lane, in microseconds since the plan began.

    A barrier-rTask starts when its lane arrives at it. It ends when its waits are over and its own cost is paid.
    """

    start_us: tuple[float, ...]
    end_us: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class ProgramTimes:
    """Times of one rProgram: launched at `launch_at_us`; lanes begin at `begin_us` and are all done at `end_us`."""

    launch_at_us: float
    begin_us: float
    end_us: float
    lanes: tuple[LaneTimes, ...]


@dataclass(frozen=True, slots=True)
class Timeline:
    """Times of all slots of a plan, in microseconds since the plan began."""

    programs: tuple[ProgramTimes, ...]
    busy_us: tuple[float, ...]  # per vEU, the time spent in rTasks
    barrier_us: tuple[float, ...]  # per vEU, the time spent in barrier-rTasks: waiting, and their own cost
    barrier_cost_us: float  # the barriers' own cost alone, over all vEUs
    moved: Mapping[str, int] = field(default_factory=dict)  # bytes read from each memory level, if followed
    fetched: Mapping[TaskUid, Bytes] = field(
        default_factory=dict, compare=False
    )  # of each rTask, in the order of `moved`

    @property
    def total_us(self) -> float:
        """time(P) summed over the plan's rPrograms, including launches. Paper: §3.3, Alg. 1."""
        return self.programs[-1].end_us if self.programs else 0.0

    @property
    def launch_us(self) -> float:
        """Time spent launching rPrograms, in µs."""
        return sum(p.begin_us - p.launch_at_us for p in self.programs)

    @property
    def veu_utilisation(self) -> tuple[float, ...]:
        """Fraction of the total time spent in rTasks, per vEU."""
        return tuple(busy / self.total_us if self.total_us else 0.0 for busy in self.busy_us)

    @property
    def utilisation(self) -> float:
        """Mean of `veu_utilisation`."""
        return sum(self.veu_utilisation) / len(self.busy_us) if self.busy_us else 0.0

    @property
    def overhead(self) -> float:
        """Fraction of all vEUs' time spent on launches and barriers' own cost; waiting is not counted."""
        room = self.total_us * len(self.busy_us)
        return (self.launch_us * len(self.busy_us) + self.barrier_cost_us) / room if room else 0.0


def simulate(plan: ExecutionPlan, rtask_us: Callable[[RKernel], float] | None = None) -> Timeline:
    """Simulate a plan with the time of one rTask of each rKernel, or with the plan's prices.

    With prices, the simulation follows where operands lie, in a run after many like it. Without `rtask_us` and prices,
    the plan's own `rtask_us` are used, adjusted for weights that recurrent operators read again. Linear in the number
    of slots. Raises ScheduleError if barriers wait for each other or for a slot that does not exist.
    """
    if rtask_us is None and plan.prices:
        order = _in_order(plan)
        fetches = Fetches(plan, order)
        each = iter(fetches.us(*_when(plan, fetches.us())))
        timeline = timed(plan, lambda *_: next(each))
        names = [f"{m.name} of another vEU" if written else m.name for m, written in levels(plan.spec)]
        moved = dict(zip(names, map(round, fetches.moved.sum(axis=0)), strict=True))
        tasks = [task for _, task in order]
        return replace(timeline, moved=moved, fetched=dict(zip(tasks, fetches.moved, strict=True)))
    price = plan.rtask_us.__getitem__ if rtask_us is None else rtask_us
    distinct = {kernel: float(price(kernel)) for kernel in set(plan.kernels)}
    operator_us = [distinct[kernel] for kernel in plan.kernels]
    own_us = recurrent_us(plan) if rtask_us is None else {}
    return timed(plan, lambda task, _: own_us.get(task, operator_us[task.operator_id]))


def recorded(programs: Sequence[Sequence[Array]], operators: Sequence[Sequence[Array]]) -> Timeline:
    """Return the timeline of a run that was measured.

    For each rProgram and vEU, `programs` has an array [slots, 2] of begin and end in µs, `operators` one of the slots'
    operators, -1 for barrier-rTasks.
    """
    found: list[ProgramTimes] = []
    spent = np.zeros((2, max(map(len, programs), default=0)))  # in barrier-rTasks, and in rTasks
    now = 0.0
    for lanes, numbers in zip(programs, operators, strict=True):
        begin = min((float(lane[0, 0]) for lane in lanes if len(lane)), default=now)
        end = max((float(lane[-1, 1]) for lane in lanes if len(lane)), default=begin)
        times = tuple(LaneTimes(tuple(lane[:, 0].tolist()), tuple(lane[:, 1].tolist())) for lane in lanes)
        found.append(ProgramTimes(now, max(begin, now), end, times))
        for veu, (lane, number) in enumerate(zip(lanes, numbers, strict=True)):
            for is_task in (0, 1):
                spent[is_task, veu] += (lane[:, 1] - lane[:, 0])[(number >= 0) == is_task].sum()
        now = end
    return Timeline(tuple(found), tuple(spent[1].tolist()), tuple(spent[0].tolist()), 0.0)


def _in_order(plan: ExecutionPlan) -> list[tuple[int, TaskUid]]:
    """Return (vEU, rTask) pairs, each rTask after all that it waits for."""
    found: list[tuple[int, TaskUid]] = []
    for program in plan.programs:
        walk(program, None, lambda _, veu, task: found.append((veu, task)), lambda *_: None)
    return found


def _when(plan: ExecutionPlan, us: Sequence[float]) -> tuple[list[float], list[float]]:
    """Return when rTasks begin and end if they take `us`. Both are in the order of `_in_order`.

    That order does not depend on `us`.
    """
    begins: list[float] = []
    each = iter(us)

    def rtask_us(task: TaskUid, now: float) -> float:
        begins.append(now)
        return next(each)

    timed(plan, rtask_us)
    return begins, [begin + took for begin, took in zip(begins, us, strict=True)]


def timed(plan: ExecutionPlan, rtask_us: Callable[[TaskUid, float], float]) -> Timeline:
    """Return the timeline of a plan. `rtask_us(task, now)` is the time of an rTask that begins at `now`."""

    cluster, far_us = plan.spec.cluster, plan.spec.barrier_us
    barriers_of = ((v, s) for p in plan.programs for v, lane in enumerate(p.lanes) for s in lane if cluster)
    sent = {(veu, at) for veu, s in barriers_of if isinstance(s, BarrierRTask) for at in s.messages}

    def hand_over_us(at: Position, veu: int) -> float:
        by_counter = plan.memory and (veu, at) not in sent
        return far_us if by_counter else plan.spec.handover_us(at.veu, veu)

    def barrier(now: float, veu: int, done: Iterable[tuple[Position, float]]) -> float:
        if cluster:
            return max([now + plan.spec.least_barrier_us, *(end + hand_over_us(at, veu) for at, end in done)])
        latest = max((end for _, end in done), default=now) + far_us
        return max(now + plan.spec.least_barrier_us, latest)

    programs: list[ProgramTimes] = []
    busy, blocked, barriers = [0.0] * plan.spec.num_veus, [0.0] * plan.spec.num_veus, 0
    now, run_us = 0.0, plan.spec.run_us
    for program in plan.programs:
        begin, run_us = now + run_us + plan.spec.launched_us(any(program.lanes[1:])), 0.0
        ends = walk(program, begin, lambda now, _, task: now + rtask_us(task, now), barrier)
        lanes = tuple(LaneTimes((begin, *lane[:-1]) if lane else (), tuple(lane)) for lane in ends)
        end = max((lane.end_us[-1] for lane in lanes if lane.end_us), default=begin)
        programs.append(ProgramTimes(now, begin, end, lanes))
        now = end
        for veu, (lane, at) in enumerate(zip(program.lanes, lanes, strict=True)):
            for slot, start_us, end_us in zip(lane, at.start_us, at.end_us, strict=True):
                if isinstance(slot, RTask):
                    busy[veu] += end_us - start_us
                else:
                    blocked[veu] += end_us - start_us
                    barriers += 1
    return Timeline(tuple(programs), tuple(busy), tuple(blocked), barriers * plan.spec.barrier_us)


def walk(
    program: RProgram,
    begin: State,
    rtask: Callable[[State, int, TaskUid], State],
    barrier: Callable[[State, int, Iterable[tuple[Position, State]]], State],
) -> list[list[State]]:
    """Return, per lane and slot, the state after the slot, computed from the state before it by `rtask` or `barrier`.

    Both also receive the vEU. `barrier` receives each awaited slot with the state after it. Each lane advances
    until a barrier waits for a slot that is not done; it is parked there and continues from that slot. Linear in slots
    and waits. Raises ScheduleError on a deadlock.
    """
    ends: list[list[State]] = [[] for _ in program.lanes]
    unseen: dict[int, Iterator[Position]] = {}  # parked lane -> the slots that its barrier still waits for
    parked: list[dict[int, list[int]]] = [{} for _ in program.lanes]  # target lane -> order -> lanes waiting there
    runnable = list(reversed(range(len(program.lanes))))
    while runnable:
        veu = runnable.pop()
        lane, end, waiting = program.lanes[veu], ends[veu], parked[veu]
        now = end[-1] if end else begin
        for order in range(len(end), len(lane)):
            slot = lane[order]
            if isinstance(slot, RTask):
                now = rtask(now, veu, slot.uid)
            else:
                waits = unseen.pop(veu, None) or reversed(slot.all_waits)  # lanes run in order: the last one is missing
                missing = next((w for w in waits if w.order >= len(ends[w.veu])), None)
                if missing is not None:
                    unseen[veu] = waits
                    parked[missing.veu].setdefault(missing.order, []).append(veu)
                    break
                now = barrier(now, veu, ((w, ends[w.veu][w.order]) for w in slot.all_waits))
            end.append(now)
            if waiting and order in waiting:
                runnable.extend(waiting.pop(order))
    stuck = [f"prog[{v}][{len(done)}]" for v, done in enumerate(ends) if len(done) < len(program.lanes[v])]
    if stuck:
        raise ScheduleError(
            f"barriers wait for each other, or for no slot: {', '.join(stuck[:8])}",
            hint="an rTask may only wait for rTasks appended earlier",
        )
    return ends
