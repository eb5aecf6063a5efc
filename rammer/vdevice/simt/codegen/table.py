"""Make the streams that vEUs walk: plain arrays of a plan, stored in one file of an image."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rammer.ir.plan import ExecutionPlan
from rammer.ir.program import BarrierRTask, Position, RTask, TaskUid
from rammer.ir.tensor import Array
from rammer.vdevice.image.arena import ARENA, SCRATCH
from rammer.vdevice.image.tables import INT32, INT64, TableFile, rows_of
from rammer.vdevice.simt.codegen.waits import WaitLists

ABI = 3  # of the megakernel, the streams and the state; changes with any of them
LINE = 32  # words of a cache line: each vEU's counter has its own
END, ONLY_WAIT, KEEP = -1, -2, -3  # `fn` of an instruction without a task
NUMBER = SCRATCH  # `arg_base` of an argument that is a number, not an address, such as bytes from the scratch
ENTRY = "rammer_run"  # the program's function
ALIGNMENT = 128
AHEAD = 64  # waits of the next instruction that are prefetched
KEEP_ARGS = 7  # of a KEEP: source, target, bytes of a row, rows, distances of rows in both, bytes of an access

Ints = NDArray[np.int32]


def header_bytes(max_args: int) -> int:
    """Return the bytes of shared memory before a task's scratch.

    They hold a flag, a ring of instructions, waits, this task's arguments and the next one's.
    """
    return -(-(16 + 4 * 32 + 8 * AHEAD + 2 * 8 * max_args) // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True)
class Streams(TableFile):
    """Lanes of all rPrograms.

    An instruction is eight int32: function, rTask, first argument, number of arguments, first wait, number of waits,
    step to publish when done (0: no slot waits for it), order of its slot. A barrier-rTask is part of the rTask behind
    it. A KEEP copies rows of a constant into the vEU's own memory. An rTask that reads the copy takes its offset from
    the scratch, in bytes, as an argument. Every lane ends with an END.

    Lanes share lists of waits. Entries of the waiting lane itself are complete already, and are skipped.
    """

    bounds: Ints = field(metadata=INT32)  # [programs * veus + 1] first instruction of every lane
    instructions: Ints = field(metadata=rows_of(INT32, 8))  # [instructions, 8]
    waits: Ints = field(metadata=rows_of(INT32, 2))  # [waits, 2] vEU, order
    operators: Ints = field(metadata=INT32)  # [instructions] operator of the rTask, or -1
    arg_base: Ints = field(metadata=INT32)  # [args] placement.ARENA, NUMBER, or the number of a constant
    arg_offset: NDArray[np.int64] = field(metadata=INT64)  # [args] bytes; the value of a NUMBER

    @property
    def num_veus(self) -> int:
        return int(self.header["num_veus"])

    @property
    def num_programs(self) -> int:
        return int(self.header["num_programs"])

    def lane(self, program: int, veu: int) -> Ints:
        """Return the instructions of a lane, without its END."""
        n = program * self.num_veus + veu
        return self.instructions[self.bounds[n] : self.bounds[n + 1] - 1]

    def operator_at(self, program: int, veu: int, order: int) -> int:
        """Return the operator whose rTask has this slot, or follows this barrier; -1 if there is none."""
        n = program * self.num_veus + veu
        if not (0 <= program < self.num_programs and 0 <= veu < self.num_veus):
            return -1
        lane = slice(self.bounds[n], self.bounds[n + 1] - 1)
        found = np.flatnonzero(self.instructions[lane][:, 7] >= order)
        return int(self.operators[lane][found[0]]) if len(found) else -1

    def check(self) -> None:
        """Raise ValueError if an index points outside of its array, or if a vEU waits for itself."""
        fn, rtask, args, nargs, wait, nwaits, step, order = self.instructions.T
        ends = self.bounds[1:] - 1
        sound = (
            self.num_veus >= 1
            and len(self.bounds) == self.num_programs * self.num_veus + 1
            and self.bounds[0] == 0
            and self.bounds[-1] + 2 == len(self.instructions) == len(self.operators) + 2
            and bool(np.all(np.diff(self.bounds) >= 1))
            and bool(np.all(fn[ends] == END))
            and int(np.sum(fn == END)) == len(ends) + 2
            and bool(np.all((fn >= KEEP) & (fn < self.header["num_kernels"])))
            and bool(np.all((rtask >= 0) & (step >= 0) & (order >= 0)))
            and bool(np.all((args >= 0) & (nargs >= 0) & (args + nargs <= len(self.arg_base))))
            and bool(np.all(nargs <= min(self.header["max_args"], self.header["threads"])))
            and bool(np.all((wait >= 0) & (nwaits >= 0) & (wait + nwaits <= len(self.waits))))
            and bool(np.all((self.waits[:, 0] >= 0) & (self.waits[:, 0] < self.num_veus) & (self.waits[:, 1] >= 0)))
            and len(self.arg_base) == len(self.arg_offset)
            and bool(np.all((self.arg_base >= NUMBER) & (self.arg_base < len(self.header["weights"]))))
            and bool(np.all((self.arg_offset >= 0) | ((self.arg_base <= ARENA) & (self.arg_offset > -1 << 50))))
            and bool(np.all(self.arg_offset[self.arg_base == ARENA] <= self.header["arena_bytes"]))
        )
        if not sound or not self._copies_are_sound():
            raise ValueError("an index points outside of its array")
        if not self._own_waits_are_over():
            raise ValueError("a vEU waits for itself")

    def _own_waits_are_over(self) -> bool:
        """Return whether each list's entries for the waiting lane itself are complete, so that they may be skipped."""
        fn, *_, first, nwaits, _, order = self.instructions.T
        within = (fn[:-1] != END) & (fn[1:] != END)
        if np.any(np.diff(order)[within] < 0):
            return False
        count = len(self.waits) + 1
        at = np.lexsort((np.arange(count - 1), self.waits[:, 0]))  # by vEU, then place
        places = self.waits[at, 0].astype(np.int64) * count + at
        slots = np.flatnonzero(nwaits)
        lane = np.searchsorted(self.bounds, slots, "right") - 1
        begin = lane % self.num_veus * count + first[slots]
        low, high = np.searchsorted(places, begin), np.searchsorted(places, begin + nwaits[slots])
        own = high > low
        awaited = self.waits[at[low[own]], 1]
        barrier = order[slots[own]] - (fn[slots[own]] >= 0)  # a barrier before an rTask is merged into it
        return bool(np.all(high - low <= 1) and np.all(awaited < barrier))

    def _copies_are_sound(self) -> bool:
        """Return whether all copies lie in the vEU's shared memory."""
        rows = self.instructions[self.instructions[:, 0] == KEEP]
        if np.any(rows[:, 3] != KEEP_ARGS):
            return False
        args = rows[:, 2:3] + np.arange(KEEP_ARGS)
        _, target, nbytes, count, source_step, target_step, unit = self.arg_offset[args].T
        return (
            bool(np.all(self.arg_base[args[:, 0]] >= 0))
            and bool(np.all(self.arg_base[args[:, 1:]] == NUMBER))
            and bool(np.all((nbytes > 0) & (count > 0) & np.isin(unit, (1, 4, 16)) & (source_step >= 0)))
            and bool(np.all((target >= 0) & ((count == 1) | (target_step >= nbytes))))
            and bool(np.all(target + (count - 1) * target_step + nbytes <= self.header["shared_bytes"]))
        )

    def addresses(self, constants: Sequence[int], arena: int) -> NDArray[np.int64]:
        """Return the arguments, for constants and an arena at these addresses."""
        bases = np.array([*constants, 0, arena], np.int64)  # NUMBER is -2, ARENA -1
        found: NDArray[np.int64] = bases[self.arg_base] + self.arg_offset
        return found

    def span(self, program: int) -> int:
        """Return what an rProgram adds to the epoch: more than any of its counters grows."""
        first, last = self.bounds[program * self.num_veus], self.bounds[(program + 1) * self.num_veus]
        return int(self.instructions[first:last, 7].max(initial=0)) + 2


@dataclass(frozen=True, slots=True)
class Task:
    """The call of an rTask: its function's number, and where its arguments are."""

    function: int
    first_arg: int
    num_args: int


def streams_of(
    plan: ExecutionPlan, tasks: Callable[[TaskUid], Task], copies: Mapping[TaskUid, Sequence[int]]
) -> dict[str, Array]:
    """Return the arrays of a plan's lanes; `copies` has the first arguments of the KEEPs before an rTask."""
    instructions: list[tuple[int, ...]] = []
    operators: list[int] = []
    bounds = [0]
    lists = WaitLists()
    taken = [lists.add(veu, order, slot.waits) for veu, order, slot in _barriers(plan)]
    first_wait, num_waits, waits = lists.finish()
    barriers = iter(taken)

    def copy(order: int, ahead: RTask) -> None:
        for args in copies.get(ahead.uid, ()):
            instructions.append((KEEP, 0, args, KEEP_ARGS, 0, 0, 0, order))
            operators.append(ahead.uid.operator_id)

    for program in plan.programs:
        awaited = {w for lane in program.lanes for slot in lane if isinstance(slot, BarrierRTask) for w in slot.waits}
        for veu in range(plan.spec.num_veus):
            lane = program.lanes[veu] if veu < len(program.lanes) else ()
            wait = 0, 0  # of the barrier that is merged into the next rTask
            for order, slot in enumerate(lane):
                step = order + 1 if Position(veu, order) in awaited else 0
                follower = lane[order + 1] if order + 1 < len(lane) else None
                if isinstance(slot, RTask) and not (order and isinstance(lane[order - 1], BarrierRTask)):
                    copy(order, slot)
                elif isinstance(slot, BarrierRTask) and isinstance(follower, RTask):
                    copy(order, follower)  # copy before the wait
                if isinstance(slot, RTask):
                    n, rtask = slot.uid
                    task = tasks(slot.uid)
                    found = (task.function, rtask, task.first_arg, task.num_args)
                    operators.append(n)
                else:
                    number = next(barriers)
                    wait = first_wait[number], num_waits[number]
                    if isinstance(follower, RTask) and not step:
                        continue
                    found = (ONLY_WAIT, 0, 0, 0)
                    operators.append(-1)
                instructions.append((*found, *wait, step, order))
                wait = 0, 0
            instructions.append((END, *(0,) * 7))
            operators.append(-1)
            bounds.append(len(instructions))
    instructions += [(END, *(0,) * 7)] * 2  # prefetched, never run
    return {
        "bounds": np.array(bounds, np.int32),
        "instructions": np.array(instructions, np.int32).reshape(-1, 8),
        "waits": waits,
        "operators": np.array(operators, np.int32),
    }


def _barriers(plan: ExecutionPlan) -> Iterator[tuple[int, int, BarrierRTask]]:
    """Yield every barrier-rTask of a plan with its vEU and order, lane by lane."""
    for program in plan.programs:
        for veu, lane in enumerate(program.lanes):
            for order, slot in enumerate(lane):
                if isinstance(slot, BarrierRTask):
                    yield veu, order, slot
