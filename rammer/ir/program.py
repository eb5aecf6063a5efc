"""rPrograms: prog[vEU][order] of rTasks and barrier-rTasks, built through append and wait. Paper: §3.2, §3.3."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from rammer.errors import ScheduleError


class TaskUid(NamedTuple):
    """An rTask's name: the operator's number in the graph, and the rTask's number in the operator."""

    operator_id: int
    rtask_id: int


class Position(NamedTuple):
    """A slot of an rProgram."""

    veu: int
    order: int


@dataclass(frozen=True, slots=True)
class RTask:
    uid: TaskUid


@dataclass(frozen=True, slots=True)
class BarrierRTask:
    """Waits until every listed slot has completed: one per foreign vEU, the last order needed there."""

    waits: tuple[Position, ...]


Slot = RTask | BarrierRTask


@dataclass(frozen=True, slots=True)
class RProgram:
    """One device invocation: a lane of slots per vEU. Immutable."""

    lanes: tuple[tuple[Slot, ...], ...]

    def __len__(self) -> int:
        return len(self.lanes)

    def __getitem__(self, veu: int) -> tuple[Slot, ...]:
        return self.lanes[veu]

    def tasks(self) -> Iterator[tuple[Position, TaskUid]]:
        """Every rTask with its slot, lane by lane."""
        for veu, lane in enumerate(self.lanes):
            for order, slot in enumerate(lane):
                if isinstance(slot, RTask):
                    yield Position(veu, order), slot.uid


class Mark(NamedTuple):
    """A state of a builder to come back to."""

    lengths: tuple[int, ...]
    clocks: tuple[tuple[int, ...], ...]


class RProgramBuilder:
    """Builds one rProgram. The only mutable thing in the IR.

    `wait` names what the next `append` of that rTask must see; waits on the same vEU need no barrier (lane order), and
    a wait that is already implied by an earlier barrier, also through other vEUs, is dropped.
    """

    def __init__(self, num_veus: int) -> None:
        self.num_veus = num_veus
        self._lanes: list[list[Slot]] = [[] for _ in range(num_veus)]
        self._where: dict[TaskUid, Position] = {}
        self._pending: dict[TaskUid, list[TaskUid]] = {}
        # _clock[v][u], u != v: slots of u known to be complete when lane v reaches its end; _history: the same per
        # slot. It changes at barriers only, so slots between two barriers share one tuple.
        self._clock: list[tuple[int, ...]] = [(0,) * num_veus for _ in range(num_veus)]
        self._history: list[list[tuple[int, ...]]] = [[] for _ in range(num_veus)]
        self._merged: tuple[dict[int, int], tuple[int, ...]] = ({}, ())  # the last slots waited for; all known there

    def __contains__(self, task: object) -> bool:
        return task in self._where

    def position(self, task: TaskUid) -> Position:
        return self._where[task]

    def find(self, task: TaskUid) -> Position | None:
        """The rTask's slot, or None if it was not appended here."""
        return self._where.get(task)

    def known(self, veu: int) -> tuple[int, ...]:
        """Per other vEU, how many of its slots are surely complete when lane `veu` reaches its end."""
        return self._clock[veu]

    def wait(self, task: TaskUid, on: Iterable[TaskUid]) -> None:
        """Make `task` wait for rTasks appended earlier; emits the barrier-rTask when `task` is appended."""
        self._pending.setdefault(task, []).extend(on)

    def append(self, task: TaskUid, veu: int) -> Position:
        """Place `task` at the end of lane `veu`, after a barrier-rTask if it must wait. Returns its slot."""
        if task in self._where:
            raise ScheduleError(f"rTask {task} appended twice", hint="every rTask has one slot")
        if not 0 <= veu < self.num_veus:
            raise ScheduleError(f"rTask {task}: no vEU {veu}", hint=f"vEUs are 0 … {self.num_veus - 1}")
        last: dict[int, int] = {}
        clock = self._clock[veu]
        for needed in self._pending.pop(task, ()):
            if (where := self._where.get(needed)) is None:
                raise ScheduleError(
                    f"rTask {task} waits for {needed}, which has no slot",
                    hint="an rTask may only wait for rTasks appended earlier to the same rProgram",
                )
            last[where.veu] = max(last.get(where.veu, -1), where.order)
        if any(u != veu and order >= clock[u] for u, order in last.items()):
            self._push(veu, BarrierRTask(self._advance(veu, last)))
        position = self._push(veu, RTask(task))
        self._where[task] = position
        return position

    def _advance(self, veu: int, last: dict[int, int]) -> tuple[Position, ...]:
        """Let lane `veu` know what lies before these slots; returns those that nothing else implies."""
        if last != self._merged[0]:  # the rTasks of one operator often wait for the same slots
            self._merged = (
                last,
                tuple(map(max, zip(*{self._history[u][order] for u, order in last.items()}, strict=True))),
            )
        behind = list(map(max, self._merged[1], self._clock[veu]))
        waits = tuple(Position(u, order) for u, order in sorted(last.items()) if u != veu and behind[u] <= order)
        for target in waits:
            behind[target.veu] = target.order + 1
        self._clock[veu] = tuple(behind)
        return waits

    def _push(self, veu: int, slot: Slot) -> Position:
        order = len(self._lanes[veu])
        self._lanes[veu].append(slot)
        self._history[veu].append(self._clock[veu])
        return Position(veu, order)

    def mark(self) -> Mark:
        """The present state, for `undo`."""
        return Mark(tuple(map(len, self._lanes)), tuple(self._clock))

    def undo(self, mark: Mark) -> None:
        """Take back everything appended since `mark`, and every open wait."""
        self._pending.clear()
        self._merged = ({}, ())
        for lane, history, length in zip(self._lanes, self._history, mark.lengths, strict=True):
            for slot in lane[length:]:
                if isinstance(slot, RTask):
                    del self._where[slot.uid]
            del lane[length:], history[length:]
        self._clock = list(mark.clocks)

    def sync(self) -> None:
        """Make every lane wait for all slots so far: a global barrier, the only kind on SyncModel.GLOBAL devices."""
        ends = tuple(Position(u, len(lane) - 1) for u, lane in enumerate(self._lanes) if lane)
        place = {end.veu: n for n, end in enumerate(ends)}
        done = tuple(map(len, self._lanes))
        for veu in range(self.num_veus):
            self._clock[veu] = done
            n = place.get(veu)
            self._push(veu, BarrierRTask(ends if n is None else ends[:n] + ends[n + 1 :]))

    def build(self) -> RProgram:
        """The finished rProgram."""
        if self._pending:
            raise ScheduleError(f"rTasks waited for but never appended: {sorted(self._pending)[:5]}")
        return RProgram(tuple(map(tuple, self._lanes)))
