"""Find results that reach their readers as messages: the vEUs of the writers' group have places for them in scratch.

Known as: mailboxes, one-sided communication. A message carries its own bytes only. All else that a reader needs, it
still waits for by counters.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

import numpy as np

from rammer.ir.analysis.dependency import writers
from rammer.ir.analysis.order import HappensBefore, Slots
from rammer.ir.analysis.storage import hulls, must_be_seen
from rammer.ir.plan import ExecutionPlan
from rammer.ir.program import TaskUid
from rammer.ir.tensor import DType, Numbers, TensorId

MOST_BYTES = 4096  # of a result that is sent to every reader's vEU
WORD_BYTES = 4
BOX_BYTES = 16  # before a place: how many bytes have arrived


@dataclass(frozen=True)
class Delivery:
    """A result that vEUs of one group write, and how it reaches the vEUs of this group that read it."""

    tensor: TensorId
    group: int
    parts: Numbers  # [n, 3] slot of a writer, and the elements [first, end) that it writes
    readers: Slots  # in the group
    outside: bool  # whether others read it, too
    receives: dict[int, int] = field(default_factory=dict)  # by vEU the first slot that reads what other vEUs wrote
    sources: dict[int, Numbers] = field(default_factory=dict)  # by vEU the parts that others send it

    def nbytes(self, veu: int) -> int:
        """Return the bytes that other vEUs send to this one."""
        return int(np.diff(self.sources[veu][:, 1:]).sum()) * WORD_BYTES

    def ranks(self, slot: int, size: int) -> int:
        """Return to which vEUs of a group of `size` a writer sends its part, as bits."""
        return sum(1 << veu % size for veu, parts in self.sources.items() if slot in parts[:, 0])

    def is_read_before(self, second: Delivery, order: HappensBefore) -> bool:
        """Return whether all that touches this result's places is over before another one is written there.

        `order` counts messages, too.
        """
        before, after = np.concatenate([self.parts[:, 0], self.readers]), second.parts[:, 0]
        return bool(order.before(np.repeat(before, len(after)), np.tile(after, len(before))).all())


def deliveries(
    plan: ExecutionPlan, order: HappensBefore, wanted: Collection[TensorId] | None = None
) -> Iterator[Delivery]:
    """Yield each result, or each of `wanted`, that can be a message: small, contiguous, all of it from one group."""
    graph, cluster = plan.graph, plan.spec.cluster
    if cluster is None or len(plan.programs) != 1:
        return
    reading: dict[TensorId, list[tuple[int, int]]] = {}
    for n, op in enumerate(graph.operators):
        for argument, tensor in enumerate(op.inputs, len(op.outputs)):
            reading.setdefault(tensor, []).append((n, argument))
    left_out = {*must_be_seen(plan), *graph.views, *(graph.storage(t).root for t in graph.views)}
    for n, (op, kernel) in enumerate(zip(graph.operators, plan.kernels, strict=True)):
        for output, tensor in enumerate(op.outputs):
            kind = graph.types[tensor]
            if tensor in left_out or kind.dtype is not DType.F32 or kind.nbytes > MOST_BYTES:
                continue
            if wanted is not None and tensor not in wanted:
                continue
            first, end, rtasks = writers(kernel, output)
            slots = order.slots(*(TaskUid(n, r) for r in rtasks.tolist()))
            groups = np.unique(order.veu[slots] // cluster.group)
            if len(groups) != 1 or len(np.unique(rtasks)) != len(rtasks):
                continue
            read = [np.zeros((0, 3), np.int64)]
            for m, argument in reading.get(tensor, ()):
                ranges = hulls(plan.kernels[m], argument)
                some = np.flatnonzero(ranges[:, 1] > ranges[:, 0])
                read.append(np.column_stack((order.slots(*(TaskUid(m, r) for r in some.tolist())), ranges[some])))
            rows = np.concatenate(read)
            inside = order.veu[rows[:, 0]] // cluster.group == groups[0]
            parts, rows = np.column_stack((slots, first, end)), rows[inside]
            found = Delivery(tensor, int(groups[0]), parts, rows[:, 0], not inside.all())
            for veu in np.unique(order.veu[rows[:, 0]]).tolist():
                mine, others = rows[order.veu[rows[:, 0]] == veu], parts[order.veu[slots] != veu]
                others = others[(others[:, 1] < mine[:, 2].max()) & (others[:, 2] > mine[:, 1].min())]
                if len(others):
                    found.sources[veu] = others
                    found.receives[veu] = int(mine[np.argmin(order.order[mine[:, 0]]), 0])
            yield found


def last_barrier(plan: ExecutionPlan, order: HappensBefore, slot: int) -> tuple[int, int]:
    """Return the vEU of a slot, and the order of the last barrier-rTask before it; -1 if there is none."""
    veu, at = int(order.veu[slot]), int(order.order[slot])
    lane = plan.programs[int(order.program[slot])].lanes[veu]
    return veu, next((n for n in range(at - 1, -1, -1) if not hasattr(lane[n], "uid")), -1)


def received_at(
    plan: ExecutionPlan, order: HappensBefore, found: Collection[Delivery]
) -> dict[tuple[int, int], dict[int, int]]:
    """Return, by the vEU and order of a barrier-rTask, the last slot of each vEU whose messages arrive there."""
    result: dict[tuple[int, int], dict[int, int]] = {}
    for one in found:
        for veu, slot in one.receives.items():
            last, makers = result.setdefault(last_barrier(plan, order, slot), {}), one.sources[veu][:, 0]
            for other, at in zip(order.veu[makers].tolist(), order.order[makers].tolist(), strict=True):
                last[other] = max(last.get(other, -1), at)
    return result
