"""Compute the happens-before order of a plan from lane order, barriers and the sequence of rPrograms.

Known as: vector clocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, groupby
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rammer.errors import VerificationError
from rammer.ir.program import BarrierRTask, Position, RProgram, RTask, TaskUid

Slots = NDArray[np.int64]  # numbers of slots, counted through programs, lanes and orders


class PlanPosition(NamedTuple):
    """A slot of a plan: rProgram, vEU, and order in its lane."""

    program: int
    veu: int
    order: int

    def __str__(self) -> str:
        return f"{'' if not self.program else f'programs[{self.program}] '}prog[{self.veu}][{self.order}]"


class HappensBefore:
    """Happens-before of a plan's slots by vector clocks: which slot surely completes before another one starts.

    `messages`: count them, too; they order what they carry, and not what lies in memory.
    Raises VerificationError R102 for a barrier that cannot be met, and R103 for barriers that wait for each other.
    """

    def __init__(self, programs: Sequence[RProgram], *, messages: bool = False) -> None:
        self.num_veus = max((len(p) for p in programs), default=0)
        self.task_slots: dict[TaskUid, int] = {}
        positions: list[Slots] = []
        known: list[Slots] = []
        clocks = [np.zeros((1, self.num_veus), np.int32)]  # row 0: nothing is known
        first_slot, first_row = 0, 1
        for number, program in enumerate(programs):
            slots = [slot for lane in program.lanes for slot in lane]
            self.task_slots.update((s.uid, first_slot + n) for n, s in enumerate(slots) if isinstance(s, RTask))
            lengths = np.array([len(lane) for lane in program.lanes], np.int64)
            veu = np.repeat(np.arange(len(lengths)), lengths)
            order = np.arange(len(slots)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
            positions.append(np.stack([np.full(len(slots), number), veu, order], 1))
            is_barrier = np.array([isinstance(s, BarrierRTask) for s in slots], bool)
            waits = [s.all_waits if messages else s.waits for s in slots if isinstance(s, BarrierRTask)]
            barriers = _Barriers(waits, veu[is_barrier], order[is_barrier])
            clocks.append(_clocks(program, number, barriers, self.num_veus))
            last = np.cumsum(is_barrier) - 1  # the last barrier so far, if it is in the same lane
            known.append(np.where((last >= 0) & (np.append(barriers.veu, -1)[last] == veu), first_row + last, 0))
            first_slot, first_row = first_slot + len(slots), first_row + len(barriers.veu)
        table = np.concatenate([np.zeros((0, 3), np.int64), *positions])
        self.program, self.veu, self.order = table[:, 0], table[:, 1], table[:, 2]
        self._known = np.concatenate([np.zeros(0, np.int64), *known])
        self._clocks: NDArray[np.int32] = np.concatenate(clocks)
        self._counts = self._clocks.sum(axis=1, dtype=np.int64)

    def position(self, slot: int) -> PlanPosition:
        return PlanPosition(int(self.program[slot]), int(self.veu[slot]), int(self.order[slot]))

    def slots(self, *tasks: TaskUid) -> Slots:
        """Return the slots of rTasks. Raises VerificationError R106 for an rTask without one."""
        try:
            return np.array([self.task_slots[task] for task in tasks], np.int64)
        except KeyError as error:
            operator_id, rtask_id = error.args[0]
            what = f"rTask {operator_id}.{rtask_id} is in no slot"
            raise VerificationError("R106", what, hint="append every rTask of every operator once") from None

    def before(self, first: Slots, second: Slots) -> NDArray[np.bool_]:
        """Return whether slot first[i] completes before slot second[i] starts, for every i."""
        row = self._known[second]
        earlier = self.program[first] < self.program[second]
        same = self.program[first] == self.program[second]
        lane = self.veu[first] == self.veu[second]
        in_lane = lane & (self.order[first] < self.order[second])
        seen = ~lane & (self._clocks[row, self.veu[first]] > self.order[first])
        result: NDArray[np.bool_] = earlier | (same & (in_lane | seen))
        return result

    def rank(self, slots: Slots) -> NDArray[np.int64]:
        """Return how many slots of the rProgram each slot knows to be complete. It grows along every chain of slots."""
        row, veu = self._known[slots], self.veu[slots]
        known: NDArray[np.int64] = self._counts[row] - self._clocks[row, veu] + self.order[slots]
        return known

    def known(self, slots: Slots) -> NDArray[np.int32]:
        """Return [n, num_veus]: how many slots of each vEU, in its rProgram, are complete when slot slots[i] starts."""
        rows: NDArray[np.int32] = self._clocks[self._known[slots]]
        rows[np.arange(len(slots)), self.veu[slots]] = self.order[slots]
        return rows


class _Barriers:
    """The barriers of an rProgram, lane by lane, as arrays."""

    def __init__(self, slots: Sequence[Sequence[Position]], veu: Slots, order: Slots) -> None:
        self.veu, self.order = veu, order
        flat = chain.from_iterable(chain.from_iterable(slots))
        self.waits = np.fromiter(flat, np.int64).reshape(-1, 2)  # of all barriers, one after the other: vEU, order
        counts = np.array([len(waits) for waits in slots], np.int64)
        self.ends = np.cumsum(counts)
        self.owner = np.repeat(np.arange(len(slots)), counts)  # of each wait

    def before_waits(self) -> Slots:
        """Return, for each wait, the last barrier at or before its target in the target's lane; -1 if there is none."""
        span = max(self.order.max(initial=0), self.waits[:, 1].max(initial=0)) + 1
        found = np.searchsorted(self.veu * span + self.order, self.waits[:, 0] * span + self.waits[:, 1], "right") - 1
        result: Slots = np.where((found >= 0) & (self.veu[found] == self.waits[:, 0]), found, -1)
        return result


def _clocks(program: RProgram, number: int, barriers: _Barriers, num_veus: int) -> NDArray[np.int32]:
    """Compute the clock of every barrier. A lane proceeds until a barrier that waits for one without a clock."""
    count = len(barriers.veu)
    table = np.zeros((count, num_veus), np.int32)
    if not count:
        return table
    _check_targets(program, number, barriers)
    before = barriers.before_waits()
    has = np.zeros(count, bool)
    next_of = np.searchsorted(barriers.veu, np.arange(num_veus)).tolist()
    end_of = [*next_of[1:], count]
    parked: dict[int, list[int]] = {}
    runnable = list(range(num_veus))
    while runnable:
        veu = runnable.pop()
        for n in range(next_of[veu], end_of[veu]):
            waits = slice(int(barriers.ends[n - 1]) if n else 0, int(barriers.ends[n]))
            needed = before[waits]
            needed = needed[needed >= 0]
            open_needs = needed[~has[needed]]
            if open_needs.size:
                next_of[veu] = n
                parked.setdefault(int(open_needs[0]), []).append(veu)
                break
            if n and barriers.veu[n - 1] == veu:
                needed = np.append(needed, n - 1)
            clock = table[n]
            np.max(table[needed], axis=0, out=clock, initial=0)
            target, order = barriers.waits[waits].T
            clock[target] = np.maximum(clock[target], order + 1)
            has[n] = True
            runnable.extend(parked.pop(n, ()))
    if not has.all():
        raise VerificationError(
            "R103",
            f"barriers wait for each other: {_cycle(number, barriers, before, has)}",
            hint="an rTask may only wait for rTasks appended earlier",
        )
    return table


def _check_targets(program: RProgram, number: int, barriers: _Barriers) -> None:
    veu, order = barriers.waits.T
    lengths = np.array([len(lane) for lane in program.lanes], np.int64)
    exists = (veu >= 0) & (veu < len(program)) & (order >= 0)
    exists[exists] = order[exists] < lengths[veu[exists]]
    own = veu == barriers.veu[barriers.owner]
    again = np.ones(len(veu), bool)
    again[np.unique(barriers.owner * (len(program) + 1) + veu, return_index=True)[1]] = False
    wrong = np.flatnonzero(~exists | own | again)
    if not wrong.size:
        return
    n = int(wrong[0])
    at = int(barriers.owner[n])
    where = PlanPosition(number, int(barriers.veu[at]), int(barriers.order[at]))
    target = PlanPosition(number, int(veu[n]), int(order[n]))
    if not exists[n]:
        raise VerificationError(
            "R102",
            f"{where} waits for {target}, which does not exist",
            hint="a barrier waits for slots of its rProgram",
        )
    if own[n]:
        raise VerificationError("R102", f"{where} waits for {target} on its own lane", hint="a lane needs no barrier")
    raise VerificationError("R102", f"{where} waits for vEU {target.veu} twice", hint="name the last order on each vEU")


def _cycle(number: int, barriers: _Barriers, before: Slots, has: NDArray[np.bool_]) -> str:
    """Return the slots of a cycle of waiting barriers, each needing the next."""
    import networkx as nx  # imported here: running programs does not need it

    graph = nx.DiGraph()  # barriers without a clock; an edge has the slot that its barrier awaits
    graph.add_nodes_from(np.flatnonzero(~has).tolist())
    slots = list(zip(barriers.veu.tolist(), barriers.order.tolist(), strict=True))
    for n in list(graph):
        if n - 1 in graph and slots[n - 1][0] == slots[n][0]:
            graph.add_edge(n, n - 1, slot=slots[n - 1])
    for owner, needed, slot in zip(barriers.owner.tolist(), before.tolist(), barriers.waits.tolist(), strict=True):
        if owner in graph and needed in graph:
            graph.add_edge(owner, needed, slot=tuple(slot))
    path: list[tuple[int, int]] = []
    for here, needed in nx.find_cycle(graph):
        path += dict.fromkeys((slots[here], graph.edges[here, needed]["slot"], slots[needed]))
    return " -> ".join(str(PlanPosition(number, *slot)) for slot, _ in groupby(path))
