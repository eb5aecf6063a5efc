"""Small results that say themselves that they are there: hand-overs that carry nothing else. Beyond the paper.

Every number of such a result lies in a word of eight bytes with the launch's epoch beside it, stored and polled
relaxed: no fence, and no cache is emptied. As nothing is carried along, the plan is made anew from its own choices:
rTasks wait for all else that they read, and memory is shared only where those waits allow it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from rammer.ir.dependency import Dependencies, overlaps, written_elements
from rammer.ir.expr import loads
from rammer.ir.intervals import expand
from rammer.ir.kernel import RKernel
from rammer.ir.memory import plan_memory
from rammer.ir.plan import ExecutionPlan, MemoryPlan
from rammer.ir.program import Position, RProgram, RProgramBuilder, RTask, TaskUid
from rammer.ir.tensor import DType, TensorId
from rammer.ir.tile import Apply, Store, TileProgram, statements
from rammer.vdevice.arena import aligned
from rammer.vdevice.placement import ports_alone
from rammer.vdevice.simt.slices import slice_of

MOST_BYTES = 4 << 10  # of a result: larger ones are worth a fence
WORD = 8  # bytes


@dataclass(frozen=True)
class Told:
    """A plan some of whose results tell of themselves; `words`: where those of a memory owner begin in the arena."""

    plan: ExecutionPlan
    memory: MemoryPlan  # of the plan
    words: dict[TensorId, int]
    arena_bytes: int
    last: dict[TensorId, Position]  # a slot that writes some of it, to name where a wait never ends

    def of(self, tensor: TensorId) -> int | None:
        """Where the words of a tensor begin; None if it is not told."""
        root, offset = self.plan.graph.storage(tensor)
        return self.words[root] + WORD * offset if root in self.words else None


def telling(plan: ExecutionPlan) -> Told | None:
    """The plan with small results told; None if there are none, if something is changed in place, or if results stay
    near: memory is planned anew here."""
    if plan.memory is None or plan.memory.near or any(op.operation.expr.into for op in plan.graph.operators):
        return None
    dependencies = Dependencies(plan.graph, plan.kernels)
    slots = {
        slot.uid: (p, Position(veu, order))
        for p, program in enumerate(plan.programs)
        for veu, lane in enumerate(program.lanes)
        for order, slot in enumerate(lane)
        if isinstance(slot, RTask)
    }
    roots = {root: last for root, last in _tellable(plan, dependencies, slots) if root is not None}
    if not roots:
        return None
    needed = [_needed(dependencies, n, roots.keys()) for n in range(len(plan.kernels))]
    every = [dependencies.of(n) for n in range(len(plan.kernels))]
    programs = tuple(_again(program, needed, every) for program in plan.programs)
    made = replace(plan, programs=programs)
    memory = plan_memory(made, alone=ports_alone(plan.graph, plan.memory))
    words, end = dict[TensorId, int](), aligned(memory.arena_bytes)
    for root in roots:
        words[root] = end
        end = aligned(end + WORD * prod(plan.graph.types[root].physical_shape))
    return Told(replace(made, memory=memory), memory, words, end, roots)


def _tellable(
    plan: ExecutionPlan, dependencies: Dependencies, slots: dict[TaskUid, tuple[int, Position]]
) -> Iterator[tuple[TensorId, Position]]:
    """Memory owners that can be told, each with a slot that writes it: written and read in one rProgram, each element
    by one store of one rTask, read in parts that hold nothing but what their rTask depends on, by some other vEU.
    """
    graph = plan.graph
    readers: dict[TensorId, list[tuple[int, int]]] = {}
    writers: dict[TensorId, list[tuple[int, int]]] = {}
    for n, op in enumerate(graph.operators):
        for position, tensor in enumerate(op.inputs):
            readers.setdefault(graph.storage(tensor).root, []).append((n, position))
        for position, tensor in enumerate(op.outputs):
            writers.setdefault(graph.storage(tensor).root, []).append((n, position))
    for root, written in writers.items():
        kind = graph.types[root]
        if root not in readers or kind.dtype is not DType.F32 or kind.layout is not None or kind.nbytes > MOST_BYTES:
            continue
        if root in graph.inputs or not all(_stores_once(plan.kernels[n], position) for n, position in written):
            continue
        owner = _owners(plan, written, kind.size)
        reading = readers[root]
        if owner is None or not all(_takes(dependencies, owner, n, position) for n, position in reading):
            continue
        uids = {TaskUid(n, r) for n, _ in (*written, *reading) for r in range(plan.kernels[n].num_rtasks)}
        wrote = [TaskUid(n, r) for n, _ in written for r in range(plan.kernels[n].num_rtasks)]
        veus = {slots[uid][1].veu for uid in uids}
        if len({slots[uid][0] for uid in uids}) == 1 and len(veus) > 1:
            yield root, slots[wrote[-1]][1]


def _stores_once(kernel: RKernel, position: int) -> bool:
    """Whether a kernel of whole waves stores each element of an output by its only store there, and reads none."""
    body = kernel.body
    if not isinstance(body, TileProgram) or body.num_threads % 32:
        return False
    name = body.arguments[position].name
    stores = [s for s in statements(body.body) if isinstance(s, Store)]
    applied = any(o.buffer == name for s in statements(body.body) if isinstance(s, Apply) for o in s.operands)
    read = any(ld.tensor == name for s in stores for ld, _ in loads(s.value))
    own = [s for s in stores if s.buffer == name]
    return len(own) == 1 and not own[0].dynamic and not own[0].later and not applied and not read


def _owners(plan: ExecutionPlan, written: list[tuple[int, int]], size: int) -> NDArray[np.int64] | None:
    """[elements, 2]: operator and rTask that write each element of an owner; None if some has none, or several."""
    owner = np.full((size, 2), -1, np.int64)
    for n, position in written:
        begin = plan.graph.storage(plan.graph.operators[n].outputs[position]).offset
        elements = written_elements(plan.kernels[n], position)
        for rtask in range(plan.kernels[n].num_rtasks):
            at = expand(elements[rtask]) + begin
            if (owner[at] >= 0).any():
                return None
            owner[at] = n, rtask
    return None if (owner < 0).any() else owner


def _takes(dependencies: Dependencies, owner: NDArray[np.int64], n: int, position: int) -> bool:
    """Whether an input can be taken word by word: rTasks would wait for nothing that they do not depend on."""
    kernel, tensor = dependencies.kernels[n], dependencies.graph.operators[n].inputs[position]
    if not isinstance(kernel.body, TileProgram) or kernel.num_threads % 32:
        return False
    later = [s for s in statements(kernel.body.body) if isinstance(s, Store) and s.later]
    name = kernel.body.arguments[kernel.body.num_outputs + position].name
    part = slice_of(kernel, position)
    if part is None or part.nbytes > MOST_BYTES or any(ld.tensor == name for s in later for ld, _ in loads(s.value)):
        return False
    offset = dependencies.graph.storage(tensor).offset
    known = pairs_of(dependencies, n, position)
    for rtask in range(kernel.num_rtasks):
        for run in part.runs(rtask):
            first = offset + run.source // part.itemsize
            rows = np.arange(run.count)[:, None] * (run.source_step // part.itemsize)
            at = (first + rows + np.arange(run.nbytes // part.itemsize)).reshape(-1)
            if at.max() >= len(owner) or not {(rtask, *map(int, o)) for o in np.unique(owner[at], axis=0)} <= known:
                return False
    return True


def pairs_of(dependencies: Dependencies, n: int, position: int) -> set[tuple[int, int, int]]:
    """(rTask, operator, its rTask) that an input depends on."""
    tensor, kernel = dependencies.graph.operators[n].inputs[position], dependencies.kernels[n]
    offset = dependencies.graph.storage(tensor).offset
    return {
        (int(reader), producer, int(writer))
        for producer, output, start in dependencies.graph.writers(tensor)
        for reader, writer in overlaps(kernel, position, dependencies.kernels[producer], output, offset - start)
    }


def _needed(dependencies: Dependencies, n: int, told: Collection[TensorId]) -> list[list[TaskUid]]:
    """For each rTask of an operator, what it waits for by counters: the writers of all that is not told."""
    graph = dependencies.graph
    found: list[list[TaskUid]] = [[] for _ in range(dependencies.kernels[n].num_rtasks)]
    for position, tensor in enumerate(graph.operators[n].inputs):
        if graph.storage(tensor).root not in told:
            for reader, producer, writer in sorted(pairs_of(dependencies, n, position)):
                found[reader].append(TaskUid(producer, writer))
    return found


def _again(
    program: RProgram, needed: Sequence[list[list[TaskUid]]], every: Sequence[Sequence[tuple[TaskUid, ...]]]
) -> RProgram:
    """The same lanes with barriers for what is needed alone, built in an order in which all dependencies come first."""
    builder = RProgramBuilder(len(program.lanes))
    own = {slot.uid for lane in program.lanes for slot in lane if isinstance(slot, RTask)}
    left = [[slot.uid for slot in reversed(lane) if isinstance(slot, RTask)] for lane in program.lanes]

    def ready(uid: TaskUid) -> bool:
        return all(on in builder or on not in own for on in every[uid.operator_id][uid.rtask_id])

    while any(left):
        for veu, lane in enumerate(left):
            while lane and ready(lane[-1]):
                uid = lane.pop()
                builder.wait(uid, [on for on in needed[uid.operator_id][uid.rtask_id] if on in own])
                builder.append(uid, veu)
    return builder.build()
