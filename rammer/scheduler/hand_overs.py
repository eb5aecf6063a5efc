"""The longest chain of hand-overs between vEUs: what a plan cannot be faster than, however fast its rTasks are."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from rammer.ir.dependency import num_written
from rammer.ir.kernel import RKernel
from rammer.ir.plan import ExecutionPlan
from rammer.ir.program import Position, RProgram, RTask
from rammer.scheduler.timeline import walk


class HandOvers(NamedTuple):
    """How often a vEU waits for another one's rTask, one after the other, and the bytes that those rTasks wrote."""

    hops: int
    nbytes: int


_NONE = HandOvers(0, 0)


def longest_chain(plan: ExecutionPlan) -> HandOvers:
    """The chain with the most hand-overs; of equal ones that with the most bytes. A launch hands over to all vEUs."""
    longest = _NONE
    for number, program in enumerate(plan.programs):
        begin = longest if number == 0 else HandOvers(longest.hops + 1, longest.nbytes)
        longest = max((lane[-1] for lane in _along(plan, program, begin) if lane), default=begin)
    return longest


def _along(plan: ExecutionPlan, program: RProgram, begin: HandOvers) -> list[list[HandOvers]]:
    def barrier(now: HandOvers, done: Iterable[tuple[Position, HandOvers]]) -> HandOvers:
        return max((now, *(HandOvers(d.hops + 1, d.nbytes + _written(plan, program, at)) for at, d in done)))

    return walk(program, begin, lambda now, veu, task: now, barrier)


def _written(plan: ExecutionPlan, program: RProgram, at: Position) -> int:
    slot = program.lanes[at.veu][at.order]
    return _bytes_of(plan.kernels[slot.uid.operator_id]) if isinstance(slot, RTask) else 0


@lru_cache(maxsize=1 << 13)
def _bytes_of(kernel: RKernel) -> int:
    """Bytes that an rTask writes, on average."""
    kinds = kernel.operation.outputs
    return sum(num_written(kernel, n) * kind.dtype.itemsize for n, kind in enumerate(kinds)) // kernel.num_rtasks
