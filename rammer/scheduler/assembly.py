"""Build an rProgram slot by slot, and know at every moment when each slot runs. Known as: list scheduling with undo."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from rammer.ir.device import VDeviceSpec
from rammer.ir.program import Front, Mark, Position, Removed, RProgram, RProgramBuilder, TaskUid

T = TypeVar("T")
_last, _sum = np.maximum.reduce, np.add.reduce  # the bare ufuncs, as they are called at every wave
Times = NDArray[np.float64]
NOWHERE = (0, -1)
NEVER = float("-inf")  # when nothing ends
LOOP_LANES = 6  # lanes; up to so many, a loop is cheaper than NumPy


@dataclass(slots=True, eq=False)
class Needs:
    """The slots of an rProgram that an rTask depends on: the last one of each lane, and when they end.

    Lanes run in order, so the last slot covers all earlier ones (Paper: §3.3, "only include the last one"). rTasks with
    equal dependencies share one object, and with it the cached start times.
    """

    front: Front | None = None  # None: no dependencies in this rProgram
    end_us: float = 0.0  # when the last of these slots ends
    veu: int = -1  # the vEU of that slot
    other_end_us: float = NEVER  # when the last one on any vEU of another group ends
    by_group: dict[int, list[tuple[float, int]]] = field(default_factory=dict)  # ends and vEUs of each, last first
    starts_us: Times = field(default_factory=lambda: np.zeros(0))  # per lane, as of `seen` entries of `_grown`
    seen: int = -1

    @property
    def last(self) -> tuple[Position, ...]:
        return self.front.slots if self.front else ()


NOTHING = Needs()


class Checkpoint(NamedTuple):
    """A state of an Assembly, for `undo`."""

    mark: Mark
    ready_us: Times
    synced: tuple[int, ...]


class Placed(NamedTuple):
    """The arguments of one call of `place`, and the reason for the vEU."""

    task: TaskUid
    veu: int
    rtask_us: float
    needs: Needs
    reason: str = ""


class Undone(NamedTuple):
    """Slots that `Assembly.undo` removed, for `redo`."""

    removed: Removed
    ready_us: Times
    synced: tuple[int, ...]
    ends: list[list[float]]
    signalled_by: list[list[int]]


class Assembly:
    """Append rTasks to lanes and compute at once when each of them runs.

    Lanes grow only at their ends, so the state is the time at which each lane is ready. Placing one rTask costs O(1).
    `time_us` always equals what `simulate` returns for the finished rProgram. `mark` and `undo` allow trials.
    """

    def __init__(self, spec: VDeviceSpec) -> None:
        self.spec = spec
        self.ready_us: Times = np.zeros(spec.num_veus)
        cluster = spec.cluster
        self._group, self._group_us = (cluster.group, cluster.handover_us) if cluster else (1, 0.0)
        self._builder = RProgramBuilder(spec.num_veus)
        self._ends: list[list[float]] = [[] for _ in range(spec.num_veus)]
        self._signalled_by: list[list[int]] = [
            [] for _ in range(spec.num_veus)
        ]  # per slot, the one whose end signals it
        self._synced = (0,) * spec.num_veus  # per lane, its slots before the last global barrier
        self._grown: list[int] = []  # a log of the lanes that grew

    @property
    def is_empty(self) -> bool:
        return not any(self._ends)

    @property
    def ends(self) -> dict[int, int]:
        """The order of the last slot, by vEU; empty lanes are left out."""
        return {veu: len(ends) - 1 for veu, ends in enumerate(self._ends) if ends}

    @property
    def time_us(self) -> float:
        """time(P) in µs: the launch plus the longest lane; 0 for an empty rProgram. Paper: Alg. 1."""
        if self.is_empty:
            return 0.0
        others = self.spec.num_veus > 1 and bool(_last(self.ready_us[1:]) > 0)
        return self.spec.launched_us(others) + float(_last(self.ready_us))

    def least_us(self, later_us: float) -> float:
        """Return a lower bound in µs for this rProgram plus `later_us` of later vEU time, however distributed."""
        even_us = (float(_sum(self.ready_us)) + later_us) / self.spec.num_veus
        return max(self.time_us, self.spec.launched_us(others=False) + even_us)

    def find(self, task: TaskUid) -> Position | None:
        """Return the slot whose end signals that the rTask is done, or None if it is not in this rProgram."""
        where = self._builder.find(task)
        return where and Position(where.veu, self._signalled_by[where.veu][where.order])

    def find_all(self, operator_id: int, rtasks: Iterable[int]) -> list[tuple[int, int]]:
        """Return `find` of some rTasks of an operator as (vEU, order); NOWHERE for those not in this rProgram."""
        find, signalled_by = self._builder.find, self._signalled_by
        found = [find((operator_id, rtask)) for rtask in rtasks]
        return [(where[0], signalled_by[where[0]][where[1]]) if where else NOWHERE for where in found]

    def needs(self, tasks: Iterable[TaskUid], also: Needs = NOTHING) -> Needs:
        """Return the dependencies on those `tasks` that are in this rProgram; earlier rPrograms have completed.

        The result is valid until the next `undo`.
        """
        return self.needs_at((*also.last, *filter(None, map(self.find, tasks))))

    def needs_at(self, slots: Iterable[tuple[int, int]]) -> Needs:
        """Return the dependencies on these slots (vEU, order). Valid until the next `undo`."""
        last: dict[int, int] = {}
        for veu, order in slots:
            if last.get(veu, -1) < order:
                last[veu] = order
        if not last:
            return NOTHING
        ends, size = sorted(((self._ends[veu][order], veu) for veu, order in last.items()), reverse=True), self._group
        by_group: dict[int, list[tuple[float, int]]] = {}
        for end, veu in ends if size > 1 else ():
            by_group.setdefault(veu // size, []).append((end, veu))
        own = ends[0][1] // size
        other = next((end for end, veu in ends if veu // size != own), NEVER)
        return Needs(self._builder.front(last), *ends[0], other, by_group)

    def hand_over_us(self, veu: int, needs: Needs) -> tuple[float, float]:
        """Return when the last awaited slot of another vEU ends, and when the last hand-over to `veu` is over."""
        far = needs.other_end_us if veu // self._group == needs.veu // self._group else needs.end_us
        close = next((end for end, u in needs.by_group.get(veu // self._group, ()) if u != veu), NEVER)
        return max(far, close), max(far + self.spec.barrier_us, close + self._group_us)

    def start_us(self, veu: int, needs: Needs) -> float:
        """Return when an rTask with these dependencies would start on `veu`, with a barrier-rTask if it needs one."""
        ready = float(self.ready_us[veu])
        if needs.front is None:
            return ready
        foreign, handed = self.hand_over_us(veu, needs)
        if ready >= foreign and self._builder.happens_after(veu, needs.front):
            return ready
        return max(ready + self.spec.least_barrier_us, handed)

    def starts_us(self, needs: Needs) -> Times:
        """Return `start_us` of every lane. Only lanes that grew since the last call are computed again."""
        if needs.front is None:
            return self.ready_us
        grown = self._grown[needs.seen :] if needs.seen >= 0 else range(self.spec.num_veus)
        needs.seen = len(self._grown)
        if len(grown) > LOOP_LANES:
            foreign, first = np.full(self.spec.num_veus, needs.end_us), needs.veu // self._group * self._group
            foreign[first : first + self._group] = needs.other_end_us
            handed = foreign + self.spec.barrier_us
            for group, ends in needs.by_group.items():
                for veu in range(group * self._group, (group + 1) * self._group):
                    close = next((end for end, u in ends if u != veu), NEVER)
                    foreign[veu] = max(foreign[veu], close)
                    handed[veu] = max(handed[veu], close + self._group_us)
            informed = (self.ready_us >= foreign) & self._builder.lanes_past(needs.front)
            behind_barrier = np.maximum(self.ready_us + self.spec.least_barrier_us, handed)
            needs.starts_us = np.where(informed, self.ready_us, behind_barrier)
        else:
            if not needs.starts_us.size:
                needs.starts_us = np.zeros(self.spec.num_veus)
            for veu in grown:
                needs.starts_us[veu] = self.start_us(veu, needs)
        return needs.starts_us

    def place(self, task: TaskUid, veu: int, rtask_us: float, needs: Needs = NOTHING) -> None:
        """Append an rTask of `rtask_us` to a lane, behind a barrier-rTask if its dependencies require one."""
        start = float(self.ready_us[veu])
        where = self._builder.append(task, veu, needs.front)
        ends = self._ends[veu]
        if where.order > len(ends):  # after a barrier-rTask
            start = max(start + self.spec.least_barrier_us, self.hand_over_us(veu, needs)[1])
            ends.append(start)
        end = self.ready_us[veu] = start + rtask_us
        ends.append(end)
        self._signalled_by[veu] += range(len(self._signalled_by[veu]), len(ends))
        self._grown.append(veu)

    def gather(self, before: Checkpoint, placed: Iterable[Placed]) -> None:
        """Merge waits and completion signals of all rTasks placed since `before`, one of each per lane.

        These rTasks do not depend on each other. The first one of a lane waits for the dependencies of all of them;
        readers of any of them wait for the last one. If that would take longer, nothing changes.
        """
        alone = float(self.ready_us.max()), float(self.ready_us.sum())
        undone = self.undo(before)
        lanes: dict[int, list[Placed]] = {}
        for one in placed:
            lanes.setdefault(one.veu, []).append(one)
        shared: dict[frozenset[int], Needs] = {}
        for veu, mine in lanes.items():
            distinct = {id(one.needs): one.needs for one in mine if one.needs.front is not None}
            key = frozenset(distinct)
            if key not in shared:
                slots = (slot for needs in distinct.values() for slot in needs.last)
                shared[key] = next(iter(distinct.values())) if len(distinct) == 1 else self.needs_at(slots)
            for n, one in enumerate(mine):
                self.place(one.task, veu, one.rtask_us, NOTHING if n else shared[key])
        if (float(self.ready_us.max()), float(self.ready_us.sum())) > alone:
            self.undo(before)
            self.redo(undone)
            return
        for veu in lanes:
            signalled_by, first = self._signalled_by[veu], before.mark.lengths[veu]
            signalled_by[first:] = [len(signalled_by) - 1] * (len(signalled_by) - first)

    def sync(self) -> None:
        """Append a barrier of all lanes: every rTask so far completes before any later one begins."""
        end = float(self.ready_us.max()) + self.spec.barrier_us
        self.ready_us = np.full(self.spec.num_veus, end)
        self._synced = tuple(map(len, self._ends))
        self._builder.sync()
        for ends, signalled_by in zip(self._ends, self._signalled_by, strict=True):
            ends.append(end)
            signalled_by.append(len(signalled_by))
        self._grown.extend(range(self.spec.num_veus))

    def is_synced(self, task: TaskUid) -> bool:
        """Return whether a global barrier, or the end of an rProgram, follows an rTask."""
        where = self._builder.find(task)
        return where is None or where.order < self._synced[where.veu]

    def mark(self) -> Checkpoint:
        """Return the present state, for `undo`."""
        return Checkpoint(self._builder.mark(), self.ready_us.copy(), self._synced)

    def undo(self, state: Checkpoint) -> Undone:
        """Remove everything placed since `mark`."""
        ends, signalled_by = (_taken(lanes, state.mark.lengths) for lanes in (self._ends, self._signalled_by))
        undone = Undone(self._builder.undo(state.mark), self.ready_us, self._synced, ends, signalled_by)
        self.ready_us, self._synced = state.ready_us.copy(), state.synced
        return undone

    def redo(self, undone: Undone) -> None:
        """Restore what `undo` removed, on the state that it left."""
        self._builder.redo(undone.removed)
        self.ready_us, self._synced = undone.ready_us.copy(), undone.synced
        for lane, signalled_by, veu in zip(undone.ends, undone.signalled_by, range(self.spec.num_veus), strict=True):
            self._ends[veu] += lane
            self._signalled_by[veu] += signalled_by

    def build(self) -> RProgram:
        """Return the finished rProgram."""
        return self._builder.build()


def _taken(lanes: list[list[T]], lengths: Iterable[int]) -> list[list[T]]:
    """Cut lanes to these lengths and return the tails."""
    taken = []
    for lane, length in zip(lanes, lengths, strict=True):
        taken.append(lane[length:])
        del lane[length:]
    return taken
