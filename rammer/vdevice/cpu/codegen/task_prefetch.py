"""Choose which rTasks prefetch the weights of later rTasks into the private cache. Beyond the paper.

Known as: software prefetching across tasks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TypeAlias

from rammer.ir.analysis.dependency import reads, writes
from rammer.ir.analysis.intervals import Intervals
from rammer.ir.kernel import RKernel
from rammer.ir.plan import ExecutionPlan
from rammer.ir.program import RTask, TaskUid
from rammer.ir.remembered import remembered
from rammer.ir.tensor import TensorId
from rammer.vdevice.cpu.runtime.table import LINE_BYTES

SMALLEST = 16 << 10  # bytes worth a prefetch: the hardware's prefetcher handles less
DENSE = 0.5  # of the bytes between the first and the last one: sparser parts are not prefetched

Part: TypeAlias = tuple[TensorId, int, int]  # a tensor, and the first and end byte that an rTask touches


@dataclass(frozen=True, slots=True)
class TaskPrefetch:
    """Lines of a weight that an rTask prefetches while it computes."""

    operator: int  # the reader of the weight
    position: int  # of the weight among its inputs
    first: int  # byte
    lines: int


def task_prefetches(plan: ExecutionPlan, capacity: Mapping[RKernel, int]) -> dict[TaskUid, TaskPrefetch]:
    """Return the prefetches of rTasks. `capacity` is the number of lines that an rTask of a kernel can prefetch.

    A part of a weight is prefetched if its lane has touched more than the private cache holds since it last read the
    part. The rTasks just before its reader prefetch it. The last of these takes the first lines, which are needed
    first.
    """
    cache = plan.spec.l2.nbytes
    found: dict[TaskUid, TaskPrefetch] = {}
    for program in plan.programs:
        for lane in program.lanes:
            tasks = [slot.uid for slot in lane if isinstance(slot, RTask)]
            touched = [list(_parts(plan, task)) for task in tasks]
            latest: dict[Part, None] = {}  # parts that the lane touched, least recently used first
            for order, task in enumerate(tasks):
                static = plan.graph.operators[task.operator_id].operation.static
                for position, (part, is_static) in enumerate(zip(touched[order], static, strict=False)):
                    if is_static and part[2] - part[1] >= SMALLEST and not _is_resident(part, latest, cache):
                        before = _just_before(order, touched, cache)
                        _distribute(plan, capacity, found, (task, position, part), [tasks[n] for n in before], cache)
                for part in touched[order]:
                    latest.pop(part, None)
                    latest[part] = None
    return found


def _distribute(
    plan: ExecutionPlan,
    capacity: Mapping[RKernel, int],
    found: dict[TaskUid, TaskPrefetch],
    wanted: tuple[TaskUid, int, Part],
    before: Sequence[TaskUid],
    cache_bytes: int,
) -> None:
    """Distribute a part, up to half a cache, over the rTasks `before` that prefetch nothing else."""
    task, position, (_, first, end) = wanted
    left = -(-min(end - first, cache_bytes // 2) // LINE_BYTES)
    for asking in before:
        lines = 0 if asking in found else min(left, capacity[plan.kernels[asking.operator_id]])
        if lines:
            found[asking] = TaskPrefetch(task.operator_id, position, first, lines)
            first += lines * LINE_BYTES
            left -= lines


def _just_before(order: int, touched: Sequence[Sequence[Part]], cache_bytes: int) -> Iterator[int]:
    """Yield a lane's rTasks before one, last first, until they touch more than a cache holds."""
    seen: set[Part] = set()
    nbytes = 0
    for before in range(order - 1, -1, -1):
        yield before
        nbytes += sum(end - first for _, first, end in set(touched[before]) - seen)
        seen.update(touched[before])
        if nbytes > cache_bytes:
            return


def _is_resident(part: Part, latest: dict[Part, None], cache_bytes: int) -> bool:
    """Return whether a part is still resident: since its last use the lane touched no more than a cache holds (LRU)."""
    if part not in latest:
        return False
    room = cache_bytes
    for _, first, end in takewhile(lambda other: other != part, reversed(latest)):
        room -= end - first
        if room < 0:
            return False
    return True


def _parts(plan: ExecutionPlan, task: TaskUid) -> Iterator[Part]:
    """Yield the part of each input, then of each output, that an rTask touches."""
    op, kernel = plan.graph.operators[task.operator_id], plan.kernels[task.operator_id]
    for position, tensor in enumerate((*op.inputs, *op.outputs)):
        yield tensor, *_span(kernel, position, task.rtask_id)


@remembered(1 << 13)
def _span(kernel: RKernel, position: int, rtask_id: int) -> tuple[int, int]:
    """Return the first and end byte of an argument that an rTask touches; (0, 0) if it touches them sparsely."""
    inputs = kernel.input_types()
    if position < len(inputs):
        elements: Intervals = reads(kernel, position, rtask_id)
        itemsize = inputs[position].element_bytes
    else:
        elements = writes(kernel, position - len(inputs), rtask_id)
        itemsize = kernel.operation.outputs[position - len(inputs)].dtype.itemsize
    if not len(elements):
        return 0, 0
    first, end = int(elements[0, 0]), int(elements[-1, 1])
    if int((elements[:, 1] - elements[:, 0]).sum()) < DENSE * (end - first):
        return 0, 0
    return first * itemsize, end * itemsize
