"""The happens-before order of a plan: lane order, barriers, and rPrograms one after another."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rammer.errors import VerificationError
from rammer.ir.program import BarrierRTask, Position, RProgram, TaskUid

Slots = NDArray[np.int64]  # numbers of slots, counted through programs, lanes and orders


class Place(NamedTuple):
    """A slot of a plan."""

    program: int
    veu: int
    order: int

    def __str__(self) -> str:
        return f"{'' if not self.program else f'programs[{self.program}] '}prog[{self.veu}][{self.order}]"


class HappensBefore:
    """Which slot of a plan surely completes before which other one starts, by vector clocks.

    Raises VerificationError R102 for a barrier that cannot be met, and R103 for barriers that wait for each other.
    """

    def __init__(self, programs: Sequence[RProgram]) -> None:
        self.num_veus = max((len(p) for p in programs), default=0)
        self.task_slots: dict[TaskUid, int] = {}
        places: list[tuple[int, int, int]] = []
        known: list[int] = []
        clocks: list[NDArray[np.int32]] = [np.zeros(self.num_veus, np.int32)]
        for number, program in enumerate(programs):
            bases = [*accumulate(map(len, program.lanes), initial=len(places))]
            for position, uid in program.tasks():
                self.task_slots[uid] = bases[position.veu] + position.order
            rows = _clocks(program, number, clocks, self.num_veus)
            for veu, lane in enumerate(program.lanes):
                row = 0
                for order in range(len(lane)):
                    row = rows.get((veu, order), row)
                    known.append(row)
                    places.append((number, veu, order))
        table = np.array(places, np.int64).reshape(-1, 3)
        self.program, self.veu, self.order = table[:, 0], table[:, 1], table[:, 2]
        self._known = np.array(known, np.int64)
        self._clocks = np.stack(clocks)

    def place(self, slot: int) -> Place:
        return Place(int(self.program[slot]), int(self.veu[slot]), int(self.order[slot]))

    def slots(self, *tasks: TaskUid) -> Slots:
        """The slots of rTasks."""
        return np.array([self.task_slots[task] for task in tasks], np.int64)

    def before(self, first: Slots, second: Slots) -> NDArray[np.bool_]:
        """Whether slot first[i] completes before slot second[i] starts, for every i."""
        earlier = self.program[first] < self.program[second]
        same = self.program[first] == self.program[second]
        lane = self.veu[first] == self.veu[second]
        in_lane = lane & (self.order[first] < self.order[second])
        seen = ~lane & (self._clocks[self._known[second], self.veu[first]] > self.order[first])
        result: NDArray[np.bool_] = earlier | (same & (in_lane | seen))
        return result

    def known(self, slots: Slots) -> NDArray[np.int32]:
        """[n, num_veus]: how many slots of each vEU are complete when slot slots[i] starts (of its own rProgram)."""
        rows = self._clocks[self._known[slots]]
        rows[np.arange(len(slots)), self.veu[slots]] = self.order[slots]
        return rows


def _clocks(
    program: RProgram, number: int, clocks: list[NDArray[np.int32]], num_veus: int
) -> dict[tuple[int, int], int]:
    """Append the clock of every barrier of a program to `clocks`; returns the row of each barrier's slot."""
    barriers = [[o for o, s in enumerate(lane) if isinstance(s, BarrierRTask)] for lane in program.lanes]
    needs: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for veu, orders in enumerate(barriers):
        for k, order in enumerate(orders):
            slot = program[veu][order]
            assert isinstance(slot, BarrierRTask)
            _check_targets(program, number, Position(veu, order), slot)
            needed = needs[veu, order] = [(veu, orders[k - 1])] if k else []
            for wait in slot.waits:
                if (last := bisect_right(barriers[wait.veu], wait.order)) > 0:
                    needed.append((wait.veu, barriers[wait.veu][last - 1]))
    rows: dict[tuple[int, int], int] = {}
    followers: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for node, needed in needs.items():
        for other in needed:
            followers.setdefault(other, []).append(node)
    open_needs = {node: len(needed) for node, needed in needs.items()}
    ready = [node for node, count in open_needs.items() if not count]
    while ready:
        veu, order = node = ready.pop()
        slot = program[veu][order]
        assert isinstance(slot, BarrierRTask)
        clock = np.zeros(num_veus, np.int32)
        for other in needs[node]:
            np.maximum(clock, clocks[rows[other]], out=clock)
        for wait in slot.waits:
            clock[wait.veu] = max(clock[wait.veu], wait.order + 1)
        rows[node] = len(clocks)
        clocks.append(clock)
        for follower in followers.get(node, ()):
            open_needs[follower] -= 1
            if not open_needs[follower]:
                ready.append(follower)
    if len(rows) < len(needs):
        raise VerificationError(
            "R103",
            f"barriers wait for each other: {_cycle(program, number, needs, rows)}",
            hint="an rTask may only wait for rTasks appended earlier",
        )
    return rows


def _check_targets(program: RProgram, number: int, at: Position, barrier: BarrierRTask) -> None:
    where = Place(number, *at)
    seen: set[int] = set()
    for wait in barrier.waits:
        target = Place(number, *wait)
        if not (0 <= wait.veu < len(program) and 0 <= wait.order < len(program[wait.veu])):
            raise VerificationError(
                "R102",
                f"{where} waits for {target}, which does not exist",
                hint="a barrier waits for slots of its rProgram",
            )
        if wait.veu == at.veu:
            raise VerificationError(
                "R102", f"{where} waits for {target} on its own lane", hint="lane order needs no barrier"
            )
        if wait.veu in seen:
            raise VerificationError(
                "R102", f"{where} waits for vEU {wait.veu} twice", hint="name the last order needed on each vEU"
            )
        seen.add(wait.veu)


def _cycle(
    program: RProgram,
    number: int,
    needs: dict[tuple[int, int], list[tuple[int, int]]],
    rows: dict[tuple[int, int], int],
) -> str:
    """The slots around which barriers wait for each other, each needing the next."""
    node = next(n for n in needs if n not in rows)
    path: list[tuple[int, int]] = []
    while node not in path:
        path.append(node)
        node = next(n for n in needs[node] if n not in rows)
    path = [*path[path.index(node) :], node]
    slots: list[tuple[int, int]] = [path[0]]
    for here, needed in pairwise(path):
        slot = program[here[0]][here[1]]
        assert isinstance(slot, BarrierRTask)
        if needed[0] != here[0]:
            target = next(w for w in slot.waits if w.veu == needed[0])
            if target.order != needed[1]:
                slots.append((target.veu, target.order))
        slots.append(needed)
    return " -> ".join(str(Place(number, *s)) for s in slots)
