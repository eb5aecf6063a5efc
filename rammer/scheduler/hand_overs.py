"""Find the longest chain of hand-overs between vEUs. `critical.py` has the critical path, by time.

Its latency is a lower bound of a plan's time, however fast its rTasks are.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from rammer.ir.analysis.dependency import num_written
from rammer.ir.kernel import RKernel
from rammer.ir.plan import ExecutionPlan
from rammer.ir.program import Position, RProgram, RTask
from rammer.ir.remembered import remembered
from rammer.scheduler.timeline import walk


class HandOvers(NamedTuple):
    """Hand-overs in a chain (one vEU waits for another's rTask), and the bytes that the awaited rTasks wrote."""

    hops: int
    nbytes: int


def longest_chain(plan: ExecutionPlan) -> HandOvers:
    """Return the chain with the most hand-overs, then the most bytes. A launch is a hand-over to all vEUs."""
    longest = HandOvers(0, 0)
    for number, program in enumerate(plan.programs):
        begin = HandOvers(longest.hops + (number > 0), longest.nbytes)
        longest = max((lane[-1] for lane in _along(plan, program, begin) if lane), default=begin)
    return longest


def _along(plan: ExecutionPlan, program: RProgram, begin: HandOvers) -> list[list[HandOvers]]:
    """Return, per lane and slot, the longest chain that ends there."""

    def barrier(now: HandOvers, _: int, done: Iterable[tuple[Position, HandOvers]]) -> HandOvers:
        found = (HandOvers(past.hops + 1, past.nbytes + written_bytes(plan, program, at)) for at, past in done)
        return max((now, *found))

    return walk(program, begin, lambda now, *_: now, barrier)


def written_bytes(plan: ExecutionPlan, program: RProgram, at: Position) -> int:
    """Return the bytes that the rTask in a slot writes; 0 for a barrier."""
    slot = program.lanes[at.veu][at.order]
    return _bytes_of(plan.kernels[slot.uid.operator_id]) if isinstance(slot, RTask) else 0


@remembered(1 << 13)
def _bytes_of(kernel: RKernel) -> int:
    """Return the bytes that an rTask writes, on average."""
    kinds = kernel.operation.outputs
    return sum(num_written(kernel, n) * kind.dtype.itemsize for n, kind in enumerate(kinds)) // kernel.num_rtasks
