"""Choose the results that are sent as messages inside a group of vEUs, and their places in scratch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from rammer.ir.analysis.dependency import Dependencies
from rammer.ir.analysis.messages import BOX_BYTES, Delivery, deliveries, last_barrier, received_at
from rammer.ir.analysis.order import HappensBefore
from rammer.ir.plan import ExecutionPlan
from rammer.ir.program import BarrierRTask, Position, RProgram, TaskUid
from rammer.ir.tensor import Numbers, TensorId, aligned_bytes

MOST_PLACES = 16  # of a vEU


def with_messages(plan: ExecutionPlan) -> tuple[ExecutionPlan, dict[TensorId, int]]:
    """Return the plan with barriers that await messages, and the place of each result in scratch.

    A barrier no longer waits for a slot of its group by a counter if all that it needs of that vEU are messages. Where
    something else relied on the wait, it stays. The plan is returned unchanged if nothing can be sent.
    """
    order = HappensBefore(plan.programs)
    found = [one for one in deliveries(plan, order) if one.receives and _is_ordered(order, one)]
    kept: set[tuple[int, int]] = set()
    for _ in range(2):
        sent = _rewritten(plan, order, found, kept)
        full, places = HappensBefore(sent.programs, messages=True), dict[TensorId, int]()
        number = _places(full, found)
        stride = aligned_bytes(max((plan.graph.types[t].nbytes for t in number), default=0)) + BOX_BYTES
        places = {t: plan.spec.scratch_bytes - (n + 1) * stride + BOX_BYTES for t, n in number.items()}
        missing = _uncovered(sent, places)
        if len(places) == len(found) and not missing:
            break
        found, kept = [one for one in found if one.tensor in places], kept | missing
    else:
        return plan, {}
    floor = max(kernel.scratch_bytes for kernel in plan.kernels)
    return (sent, places) if min(places.values(), default=0) - BOX_BYTES >= floor else (plan, {})


def _is_ordered(order: HappensBefore, one: Delivery) -> bool:
    """Return whether each vEU that receives a result waits for all of its writers."""
    return all(order.before(own[:, 0], np.full(len(own), one.receives[veu])).all() for veu, own in one.sources.items())


def _edges(plan: ExecutionPlan, order: HappensBefore, sent: Mapping[TensorId, object]) -> Numbers:
    """Return [n, 3]: slots of a reader and of a writer, and whether a message connects them."""
    rows, group = [np.zeros((0, 3), np.int64)], plan.spec.cluster.group if plan.spec.cluster else 1
    slots = [order.slots(*(TaskUid(n, r) for r in range(k.num_rtasks))) for n, k in enumerate(plan.kernels)]
    dependencies = Dependencies(plan.graph, plan.kernels)
    for n in range(len(plan.kernels)):
        for tensor, producer, pairs in dependencies.by_input(n):
            readers, makers = slots[n][pairs[:, 0]], slots[producer][pairs[:, 1]]
            inside = order.veu[readers] // group == order.veu[makers] // group
            rows.append(np.column_stack((readers, makers, inside & (tensor in sent))))
    return np.concatenate(rows)


def _rewritten(
    plan: ExecutionPlan, order: HappensBefore, found: Sequence[Delivery], kept: set[tuple[int, int]]
) -> ExecutionPlan:
    only: dict[tuple[int, int], dict[int, bool]] = {}  # by barrier and awaited vEU: whether all it needs are messages
    barriers: dict[int, tuple[int, int]] = {}
    for reader, maker, message in _edges(plan, order, {one.tensor: one for one in found}).tolist():
        if reader not in barriers:
            barriers[reader] = last_barrier(plan, order, reader)
        needs, veu = only.setdefault(barriers[reader], {}), int(order.veu[maker])
        needs[veu] = needs.get(veu, True) and bool(message)
    arriving = received_at(plan, order, found)

    def barrier(slot: BarrierRTask, at: tuple[int, int]) -> BarrierRTask:
        needs = {} if at in kept else only.get(at, {})
        waits = tuple(w for w in slot.waits if not needs.get(w.veu))
        return BarrierRTask(waits, tuple(Position(*item) for item in sorted(arriving.get(at, {}).items())))

    lanes = (
        tuple(barrier(s, (v, n)) if isinstance(s, BarrierRTask) else s for n, s in enumerate(lane))
        for v, lane in enumerate(plan.programs[0].lanes)
    )
    return replace(plan, programs=(RProgram(tuple(lanes)),))


def _places(full: HappensBefore, found: Sequence[Delivery]) -> dict[TensorId, int]:
    """Number the places of results: the first one whose last result is read before this one is written."""
    result: dict[TensorId, int] = {}
    last: dict[int, list[Delivery]] = {}
    for one in sorted(found, key=lambda one: (int(full.rank(one.parts[:, 0]).min()), one.tensor)):
        mine = last.setdefault(one.group, [])
        number = next((n for n, before in enumerate(mine) if before.is_read_before(one, full)), len(mine))
        if number < MOST_PLACES:
            mine[number : number + 1] = [one]
            result[one.tensor] = number
    return result


def _uncovered(plan: ExecutionPlan, places: Mapping[TensorId, int]) -> set[tuple[int, int]]:
    """Return the barriers before readers of something that neither a counter nor a message makes them wait for."""
    order = HappensBefore(plan.programs)
    edges = _edges(plan, order, places)
    edges = edges[edges[:, 2] == 0]
    late = edges[~order.before(edges[:, 1], edges[:, 0]), 0]
    return {last_barrier(plan, order, slot) for slot in np.unique(late).tolist()}
