"""Prove that an image sends and receives the messages of its plan (R311)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from rammer.ir.analysis.messages import BOX_BYTES, WORD_BYTES, Delivery, last_barrier
from rammer.ir.analysis.order import HappensBefore
from rammer.ir.plan import ExecutionPlan, MemoryPlan
from rammer.ir.tensor import Numbers, TensorId
from rammer.vdevice.proof.decoded import ARENA, SCRATCH, DecodedImage, broken

NO_COPY = (0, SCRATCH)


def verify_messages(
    decoded: DecodedImage, plan: ExecutionPlan, memory: MemoryPlan, order: HappensBefore, found: Sequence[Delivery]
) -> None:
    """Raise VerificationError R311 unless each part of a result is sent once, to all who read it, and awaited once."""
    cluster, places = plan.spec.cluster, memory.messages
    sent, arrivals = list[tuple[int, ...]](), list[tuple[int, int, int, int]]()
    for one in found:
        for slot, first, end in one.parts.tolist():
            begin, ranks = first * WORD_BYTES, one.ranks(slot, cluster.group if cluster else 1)
            copy = (memory.offsets[one.tensor] + begin, ARENA) if one.outside else NO_COPY
            sent.append((slot, places[one.tensor] + begin, end - first, ranks, places[one.tensor], *copy))
        for veu, reader in one.receives.items():
            waiting = reader - int(order.order[reader]) + last_barrier(plan, order, reader)[1] + 1
            arrivals.append((veu, waiting, places[one.tensor], one.nbytes(veu)))
    if places and cluster and decoded.cluster != cluster.group:
        raise broken("R311", f"the image has clusters of {decoded.cluster} vEUs, and the plan of {cluster.group}")
    lasts = decoded.copies[:, 3] + (decoded.copies[:, 5] - 1) * decoded.copies[:, 7] + decoded.copies[:, 4]
    if lasts.max(initial=0) > min(places.values(), default=1 << 62) - BOX_BYTES:
        raise broken("R311", f"a copy of a constant reaches byte {lasts.max()} of scratch, where messages arrive")
    _compare("sends", decoded.sent, sent)
    times: dict[tuple[int, int], int] = {}
    received = []
    for veu, waiting, place, nbytes in sorted(arrivals):
        time = times[veu, place] = times.get((veu, place), -1) + 1
        received.append((waiting, place, nbytes, time & 1))
    _compare("awaits", decoded.received[:, :4], received)
    if not np.isin(decoded.received[:, 4], np.arange(decoded.num_veus)).all():
        raise broken("R311", "the image awaits a message of a vEU that does not exist")
    if closed := {place - BOX_BYTES for place in places.values()} - set(decoded.boxes):
        raise broken("R311", f"the box at byte {min(closed)} of scratch is not opened")


def _compare(verb: str, found: Numbers, wanted: Sequence[tuple[int, ...]]) -> None:
    have, need = sorted(map(tuple, found.tolist())), sorted(wanted)
    if have != need:
        row = min(set(have) ^ set(need), default=have[0])
        raise broken("R311", f"slot {row[0]} {'' if row in have else 'never '}{verb} the message {row[1:]}")


def places_of(
    plan: ExecutionPlan, memory: MemoryPlan, groups: Mapping[TensorId, int], tensor: TensorId, veus: Numbers
) -> Numbers:
    """Return [n, 2]: where rTasks on these vEUs find a message: in scratch, or in the arena outside of its group."""
    cluster = plan.spec.cluster
    inside = veus // (cluster.group if cluster else 1) == groups.get(tensor, -1)
    at: Numbers = np.where(inside, memory.messages[tensor], memory.offsets[tensor])
    return np.column_stack((np.where(inside, SCRATCH, ARENA), at))
