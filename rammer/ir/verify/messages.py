"""Prove that places of messages are free when they are written, and that barriers await what arrives there (R114)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from rammer.errors import VerificationError
from rammer.ir.analysis.messages import BOX_BYTES, Delivery, received_at
from rammer.ir.analysis.order import HappensBefore
from rammer.ir.plan import ExecutionPlan
from rammer.ir.program import BarrierRTask, Position
from rammer.ir.tensor import TensorId


def check_messages(
    plan: ExecutionPlan, signalled: HappensBefore, found: Sequence[Delivery], places: Mapping[TensorId, int]
) -> None:
    """Raise VerificationError R114 unless messages are separate, are awaited once, and are read before the next one.

    `signalled`: the order by counters and messages.
    """
    if lost := places.keys() - {one.tensor for one in found}:
        raise _broken(f"{min(lost)!r} is a message, and not all of it is written in one group")
    arriving = received_at(plan, signalled, found)
    for number, program in enumerate(plan.programs):
        for veu, lane in enumerate(program.lanes):
            for order, slot in enumerate(lane):
                wanted = tuple(Position(*item) for item in sorted(arriving.pop((veu, order), {}).items()))
                if isinstance(slot, BarrierRTask) and slot.messages != wanted:
                    awaited, arrive = (list(map(tuple, ats)) for ats in (slot.messages, wanted))
                    raise _broken(f"programs[{number}] prog[{veu}][{order}] awaits {awaited}, not {arrive}")
    if arriving:
        veu, order = min(arriving)
        raise _broken(f"messages arrive at prog[{veu}][{order}], which is no barrier-rTask")
    own = max((kernel.scratch_bytes for kernel in plan.kernels), default=0)
    memory, groups = plan.memory, dict[int, list[Delivery]]()
    assert memory is not None
    for owner, pieces in memory.in_scratch.items():
        kind = plan.graph.types[owner]
        sizes = (end - first for first, end in zip(pieces.firsts, (*pieces.firsts[1:], kind.span), strict=True))
        own = max(own, *(at + n * kind.element_bytes for at, n in zip(pieces.offsets, sizes, strict=True)))
    for one in found:
        begin, end = places[one.tensor] - BOX_BYTES, places[one.tensor] + plan.graph.types[one.tensor].nbytes
        if begin < own or end > plan.spec.scratch_bytes or begin % BOX_BYTES:
            raise _broken(f"{one.tensor!r} has bytes [{begin}, {end}) of scratch, where rTasks have theirs below {own}")
        groups.setdefault(one.group, []).append(one)
    for mine in groups.values():
        mine.sort(key=lambda one: (places[one.tensor], int(signalled.rank(one.parts[:, 0]).min())))
        for first, second in pairwise(mine):
            at, next_at = places[first.tensor], places[second.tensor]
            if at == next_at:
                if not first.is_read_before(second, signalled):
                    raise _broken(f"{second.tensor!r} may arrive at byte {at} while {first.tensor!r} is read there")
            elif at + plan.graph.types[first.tensor].nbytes > next_at - BOX_BYTES:
                raise _broken(f"{first.tensor!r} and {second.tensor!r} share bytes of scratch")


def _broken(what: str) -> VerificationError:
    return VerificationError("R114", what)
