"""Build rPrograms: prog[vEU][order] of rTasks and barrier-rTasks, by append and wait. Paper: §3.2, §3.3."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rammer.errors import ScheduleError

Orders = NDArray[np.int32]  # of slots
ALWAYS = np.iinfo(np.int32).max  # more slots than a lane can have
LOOP_SLOTS = 8  # slots of a front up to which a loop is faster than NumPy


class TaskUid(NamedTuple):
    """Name of an rTask: the operator's number in the graph, and the rTask's number in the operator."""

    operator_id: int
    rtask_id: int


class Position(NamedTuple):
    """A slot of an rProgram: vEU, and order in its lane."""

    veu: int
    order: int


@dataclass(frozen=True, slots=True)
class RTask:
    uid: TaskUid


@dataclass(frozen=True, slots=True)
class BarrierRTask:
    """A slot that waits until every listed slot has completed: one per other vEU, the last order needed there.

    `messages`: the last slot of each vEU whose results arrive here as messages; nothing else of it may be relied on.
    """

    waits: tuple[Position, ...]
    messages: tuple[Position, ...] = ()

    @property
    def all_waits(self) -> tuple[Position, ...]:
        """The last slot of each vEU for which it waits, by a counter or by a message."""
        if not self.messages:
            return self.waits
        last = dict(self.waits)
        for veu, order in self.messages:
            last[veu] = max(last.get(veu, -1), order)
        return tuple(Position(*item) for item in sorted(last.items()))


Slot = RTask | BarrierRTask


@dataclass(frozen=True, slots=True)
class RProgram:
    """One device invocation: a lane of slots per vEU. Immutable."""

    lanes: tuple[tuple[Slot, ...], ...]

    def __len__(self) -> int:
        return len(self.lanes)

    def __repr__(self) -> str:
        return f"<RProgram: {sum(map(len, self.lanes))} slots on {len(self.lanes)} vEUs>"

    def __getitem__(self, veu: int) -> tuple[Slot, ...]:
        return self.lanes[veu]

    def tasks(self) -> Iterator[tuple[Position, TaskUid]]:
        """Yield every rTask with its slot, lane by lane."""
        for veu, lane in enumerate(self.lanes):
            for order, slot in enumerate(lane):
                if isinstance(slot, RTask):
                    yield Position(veu, order), slot.uid


@dataclass(slots=True, eq=False)
class Front:
    """Slots to wait for, the last one of each lane, lanes ascending. rTasks with equal waits share one front."""

    slots: tuple[Position, ...]
    lanes: NDArray[np.intp]
    orders: Orders
    behind: Orders | None = None  # per vEU, how many of its slots happen before these; None until needed
    essential: NDArray[np.bool_] | None = None  # the slots that do not happen before others of them


def _runs(slot: Slot) -> bool:
    return isinstance(slot, RTask)


class Mark(NamedTuple):
    """State of a builder to return to by `undo`."""

    lengths: tuple[int, ...]
    clocks: tuple[Orders, ...]


class Removed(NamedTuple):
    """What `undo` removed, for `redo`: the ends of the lanes, and their clocks."""

    lanes: list[list[Slot]]
    history: list[list[Orders]]
    clocks: tuple[Orders, ...]


class RProgramBuilder:
    """Builder of one rProgram; the only mutable object in the IR. Known as: vector clocks.

    `wait` names what the next `append` of that rTask must see. Waits on the same vEU need no barrier (lane order). A
    wait that an earlier barrier already implies, also through other vEUs, is dropped.
    """

    def __init__(self, num_veus: int) -> None:
        self.num_veus = num_veus
        self._lanes: list[list[Slot]] = [[] for _ in range(num_veus)]
        self._where: dict[tuple[int, int], Position] = {}  # by TaskUid
        self._pending: dict[TaskUid, list[TaskUid]] = {}
        # _clock[v][u], u != v: slots of u known to be complete when lane v reaches its end; _history: the same per
        # slot. It changes at barriers only, so slots between two barriers share one array, and none is written to.
        # _known: the same as a matrix in which every lane knows all of itself.
        nothing = np.zeros(num_veus, np.int32)
        self._clock = [nothing] * num_veus
        self._history: list[list[Orders]] = [[] for _ in range(num_veus)]
        self._known = np.zeros((num_veus, num_veus), np.int32)
        np.fill_diagonal(self._known, ALWAYS)

    def __contains__(self, task: object) -> bool:
        return task in self._where

    def position(self, task: TaskUid) -> Position:
        return self._where[task]

    def find(self, task: tuple[int, int]) -> Position | None:
        """Return the slot of an rTask (a TaskUid), or None if it was not appended here."""
        return self._where.get(task)

    def known(self, veu: int) -> Orders:
        """Return, per other vEU, how many of its slots are surely complete when lane `veu` reaches its end."""
        return self._clock[veu]

    def front(self, last: Mapping[int, int]) -> Front:
        """Return the front of the slots at `last`, an order per lane, for `append` and `happens_after`.

        It is valid until the next `undo`.
        """
        lanes = np.array(sorted(last), np.intp)
        orders = np.array([last[u] for u in lanes.tolist()], np.int32)
        return Front(tuple(map(Position, lanes.tolist(), orders.tolist())), lanes, orders)

    def happens_after(self, veu: int, front: Front) -> bool:
        """Return whether lane `veu` needs no barrier-rTask to see a front."""
        if len(front.slots) > LOOP_SLOTS:
            return bool((self._known[veu, front.lanes] > front.orders).all())
        clock = self._clock[veu]
        unseen = [u for u, order in front.slots if clock[u] <= order]
        return not unseen or unseen == [veu]

    def lanes_past(self, front: Front) -> NDArray[np.bool_]:
        """Return `happens_after` for every lane."""
        known: NDArray[np.bool_] = np.all(self._known[:, front.lanes] > front.orders, axis=1)
        return known

    def wait(self, task: TaskUid, on: Iterable[TaskUid]) -> None:
        """Make `task` wait for rTasks appended earlier. The barrier-rTask is emitted when `task` is appended."""
        self._pending.setdefault(task, []).extend(on)

    def append(self, task: TaskUid, veu: int, after: Front | None = None) -> Position:
        """Place `task` at the end of lane `veu`, after a barrier-rTask if it must wait. Returns its slot.

        It waits for what `wait` said, or else for `after`.
        """
        if task in self._where:
            raise ScheduleError(f"rTask {task} appended twice", hint="every rTask has one slot")
        if not 0 <= veu < self.num_veus:
            raise ScheduleError(f"rTask {task}: no vEU {veu}", hint=f"vEUs are 0 … {self.num_veus - 1}")
        if needed := self._pending.pop(task, None):
            after = self._front_of(task, needed)
        if after is not None and after.slots and not self.happens_after(veu, after):
            self._push(veu, BarrierRTask(self._advance(veu, after)))
        position = self._push(veu, RTask(task))
        self._where[task] = position
        return position

    def _front_of(self, task: TaskUid, tasks: Iterable[TaskUid]) -> Front:
        last: dict[int, int] = {}
        for needed in tasks:
            if (where := self._where.get(needed)) is None:
                raise ScheduleError(
                    f"rTask {task} waits for {needed}, which has no slot",
                    hint="an rTask may only wait for rTasks appended earlier to the same rProgram",
                )
            last[where.veu] = max(last.get(where.veu, -1), where.order)
        return self.front(last)

    def _advance(self, veu: int, front: Front) -> tuple[Position, ...]:
        """Merge the clocks of these slots into that of lane `veu`; return the slots that nothing else implies."""
        if front.behind is None or front.essential is None:
            clocks = {id(c): c for c in (self._history[u][order] for u, order in front.slots)}
            front.behind = np.maximum.reduce(list(clocks.values()))
            front.essential = front.behind[front.lanes] <= front.orders
        awaited = front.essential & (self._known[veu, front.lanes] <= front.orders)
        clock = np.maximum(front.behind, self._clock[veu])
        clock[front.lanes[awaited]] = front.orders[awaited] + 1
        self._set_clock(veu, clock)
        return tuple(compress(front.slots, awaited.tolist()))

    def _set_clock(self, veu: int, clock: Orders) -> None:
        self._clock[veu] = clock
        self._known[veu] = clock
        self._known[veu, veu] = ALWAYS

    def _push(self, veu: int, slot: Slot) -> Position:
        order = len(self._lanes[veu])
        self._lanes[veu].append(slot)
        self._history[veu].append(self._clock[veu])
        return Position(veu, order)

    def mark(self) -> Mark:
        """Return the present state, for `undo`."""
        return Mark(tuple(map(len, self._lanes)), tuple(self._clock))

    def undo(self, mark: Mark) -> Removed:
        """Remove everything appended since `mark`, and every open wait. Returns it for `redo`."""
        self._pending.clear()
        removed = Removed([], [], tuple(self._clock))
        for lane, history, length in zip(self._lanes, self._history, mark.lengths, strict=True):
            removed.lanes.append(lane[length:])
            removed.history.append(history[length:])
            for slot in lane[length:]:
                if isinstance(slot, RTask):
                    del self._where[slot.uid]
            del lane[length:], history[length:]
        self._remember(mark.clocks)
        return removed

    def redo(self, removed: Removed) -> None:
        """Append again what `undo` removed; the builder must be in the state that `undo` left."""
        for veu, (lane, slots) in enumerate(zip(self._lanes, removed.lanes, strict=True)):
            for order, slot in enumerate(slots, len(lane)):
                if isinstance(slot, RTask):
                    self._where[slot.uid] = Position(veu, order)
            lane.extend(slots)
            self._history[veu].extend(removed.history[veu])
        self._remember(removed.clocks)

    def _remember(self, clocks: Sequence[Orders]) -> None:
        for veu, clock in enumerate(clocks):
            if clock is not self._clock[veu]:
                self._set_clock(veu, clock)

    def sync(self) -> None:
        """Make every lane wait for all rTasks so far: a global barrier, the only kind on SyncModel.GLOBAL devices.

        Lanes without rTasks since the last one are not awaited: of a thousand tiles, only some may have work in a step.
        """
        ends = tuple(Position(u, len(lane) - 1) for u, lane in enumerate(self._lanes) if lane and _runs(lane[-1]))
        place = {end.veu: n for n, end in enumerate(ends)}
        done = np.array([len(lane) - (bool(lane) and not _runs(lane[-1])) for lane in self._lanes], np.int32)
        for veu in range(self.num_veus):
            self._set_clock(veu, done)
            n = place.get(veu)
            self._push(veu, BarrierRTask(ends if n is None else ends[:n] + ends[n + 1 :]))

    def build(self) -> RProgram:
        """Return the finished rProgram. Raises ScheduleError if an rTask with waits was never appended."""
        if self._pending:
            raise ScheduleError(f"rTasks waited for but never appended: {sorted(self._pending)[:5]}")
        return RProgram(tuple(map(tuple, self._lanes)))
