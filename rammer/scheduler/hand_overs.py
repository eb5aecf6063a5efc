"""Find the longest chain of hand-overs between vEUs. Known as: the critical path.

Its latency is a lower bound of a plan's time, however fast its rTasks are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count
from typing import NamedTuple

from rammer.ir.analysis.dependency import num_written
from rammer.ir.kernel import RKernel
from rammer.ir.plan import ExecutionPlan
from rammer.ir.program import Position, RProgram, RTask, TaskUid
from rammer.ir.remembered import remembered
from rammer.scheduler.timeline import walk


class HandOvers(NamedTuple):
    """Hand-overs in a chain (one vEU waits for another's rTask), and the bytes that the awaited rTasks wrote."""

    hops: int
    nbytes: int


class Hop(NamedTuple):
    """One hand-over: the operators of the awaited rTask and of the waiting one; -1 for a launch."""

    waited_for: int
    waits: int


class _Link(NamedTuple):
    """The last hand-over of a chain. `number` is unique, so that comparing equal chains never reaches `before`."""

    hops: int
    nbytes: int
    number: int
    source: int = -1  # the operator of the last hand-over
    before: _Link | None = None


def longest_chain(plan: ExecutionPlan) -> HandOvers:
    """Return the chain with the most hand-overs, then the most bytes. A launch is a hand-over to all vEUs."""
    longest = _longest(plan, {})
    return HandOvers(longest.hops, longest.nbytes)


def hops_of(plan: ExecutionPlan) -> list[Hop]:
    """Return the hand-overs of the longest chain, in order."""
    waiting: dict[int, int] = {}  # the first rTask behind a hand-over
    link: _Link | None = _longest(plan, waiting)
    found = []
    while link is not None and link.hops:
        found.append(Hop(link.source, waiting.get(link.number, -1)))
        link = link.before
    return found[::-1]


def _longest(plan: ExecutionPlan, waiting: dict[int, int]) -> _Link:
    numbers = count(1)
    longest = _Link(0, 0, 0)
    for number, program in enumerate(plan.programs):
        begin = longest if number == 0 else _Link(longest.hops + 1, longest.nbytes, next(numbers), -1, longest)
        longest = max((lane[-1] for lane in _along(plan, program, begin, numbers, waiting) if lane), default=begin)
    return longest


def _along(
    plan: ExecutionPlan, program: RProgram, begin: _Link, numbers: Iterator[int], waiting: dict[int, int]
) -> list[list[_Link]]:
    def rtask(now: _Link, veu: int, uid: TaskUid) -> _Link:
        waiting.setdefault(now.number, uid.operator_id)
        return now

    def barrier(now: _Link, done: Iterable[tuple[Position, _Link]]) -> _Link:
        latest = max(done, key=lambda one: (one[1].hops, one[1].nbytes + _written(plan, program, one[0])), default=None)
        if latest is None:
            return now
        at, before = latest
        nbytes = before.nbytes + _written(plan, program, at)
        if (before.hops + 1, nbytes) <= now[:2]:
            return now
        slot = program.lanes[at.veu][at.order]
        source = slot.uid.operator_id if isinstance(slot, RTask) else -1
        return _Link(before.hops + 1, nbytes, next(numbers), source, before)

    return walk(program, begin, rtask, barrier)


def _written(plan: ExecutionPlan, program: RProgram, at: Position) -> int:
    slot = program.lanes[at.veu][at.order]
    return _bytes_of(plan.kernels[slot.uid.operator_id]) if isinstance(slot, RTask) else 0


@remembered(1 << 13)
def _bytes_of(kernel: RKernel) -> int:
    """Return the bytes that an rTask writes, on average."""
    kinds = kernel.operation.outputs
    return sum(num_written(kernel, n) * kind.dtype.itemsize for n, kind in enumerate(kinds)) // kernel.num_rtasks
