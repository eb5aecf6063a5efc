"""Replay a plan's rTasks one after another, keeping each operator's operands and results though memory is reused."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from rammer.ir.analysis.dependency import writes
from rammer.ir.analysis.intervals import expand
from rammer.ir.plan import ExecutionPlan
from rammer.ir.program import BarrierRTask, Position, RProgram, TaskUid
from rammer.ir.remembered import memoized
from rammer.ir.semantics.evaluate import VirtualInput, logical
from rammer.ir.tensor import Array, TensorId, TensorType, element

Bytes = NDArray[np.uint8]
Slots = NDArray[np.int64]  # rows of [program, vEU, order]


def in_order(program: RProgram) -> Iterator[tuple[Position, TaskUid]]:
    """Yield the rTasks of an rProgram in an order that its lanes and waits allow.

    Of those that are ready, one of the first operator is next, so that operators are mixed as little as possible.
    """
    done = [0] * len(program)
    waiting: dict[int, list[int]] = defaultdict(list)  # lane -> lanes that wait for it
    ready: list[tuple[int, int]] = []

    def look(veu: int) -> None:
        """Pass barriers that are met, and queue the lane's next rTask or its unmet wait."""
        lane = program[veu]
        while done[veu] < len(lane):
            slot = lane[done[veu]]
            if not isinstance(slot, BarrierRTask):
                heapq.heappush(ready, (slot.uid.operator_id, veu))
                return
            if (unmet := next((w.veu for w in slot.waits if done[w.veu] <= w.order), None)) is not None:
                waiting[unmet].append(veu)
                return
            passed(veu)

    def passed(veu: int) -> None:
        done[veu] += 1
        for other in waiting.pop(veu, ()):
            look(other)

    for veu in range(len(program)):
        look(veu)
    while ready:
        _, veu = heapq.heappop(ready)
        slot = program[veu][done[veu]]
        assert not isinstance(slot, BarrierRTask)
        yield Position(veu, done[veu]), slot.uid
        passed(veu)
        look(veu)


@dataclass(frozen=True, slots=True)
class Snapshot(VirtualInput):
    """A tensor as an operator found or left it, in its layout."""

    kind: TensorType
    flat: Array

    def at(self, places: Sequence[NDArray[np.int64]]) -> Array:
        found: Array = self.flat[element(self.kind, places)]
        return found

    def whole(self) -> Array:
        """Return all elements."""
        return logical(self.flat, self.kind)


class Replay:
    """Replay of a plan's slots in an `arena` by `run`, which keeps operands and results of the given operators.

    Iterating yields the number of each when its results are complete. Results are copied when their operator is done.
    They are copied rTask by rTask if another operator begins before that and reads some of them, or overwrites them (in
    place, or because the plan is wrong).
    """

    def __init__(
        self,
        plan: ExecutionPlan,
        inputs: Mapping[TensorId, Array],
        arena: Bytes,
        run: Callable[[Slots], None],
        operators: Collection[int],
    ) -> None:
        self._plan, self._graph, self._arena, self._run = plan, plan.graph, arena, run
        self._wanted = frozenset(operators)
        assert plan.memory is not None
        self._memory = plan.memory
        graph = plan.graph
        tensors = {t for n in operators for t in (*graph.operators[n].inputs, *graph.operators[n].outputs)}
        self._roots = {graph.storage(t).root for t in tensors} - graph.constants.keys()
        self._copies = {r: [np.empty(graph.types[r].nbytes, np.uint8)] for r in self._roots}
        self._versions: dict[tuple[int, TensorId], int] = {}  # (operator, owner): which copy it reads
        for tensor, value in inputs.items():
            root, begin, end = self._span(tensor)
            if root in self._roots:
                self._copies[root][0][begin:end] = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
        self.now = -1  # the operator that runs

    def __iter__(self) -> Iterator[int]:
        left = [kernel.num_rtasks for kernel in self._plan.kernels]
        begun: dict[int, list[int]] = {}  # operators that are not done: rTasks that are
        mixed: set[int] = set()  # operators whose results are copied at once
        for number, program in enumerate(self._plan.programs):
            for n, batch in groupby(in_order(program), key=lambda item: item[1].operator_id):
                slots = [(number, *position, uid.rtask_id) for position, uid in batch]
                self.now = n
                if n not in begun:
                    self._begin(n, begun, mixed)
                for part in [[s] for s in slots] if n in mixed else [slots]:
                    self._run(np.array([s[:3] for s in part], np.int64))
                    begun[n] += [s[3] for s in part]
                    if n in mixed:
                        self._copy_rtasks(n, [s[3] for s in part])
                left[n] -= len(slots)
                if left[n] == 0:
                    if n not in mixed:
                        self._copy(n)
                    del begun[n]
                    mixed.discard(n)
                    if n in self._wanted:
                        yield n
        self.now = -1

    def operands(self, operator: int) -> list[Snapshot | None]:
        """Return what an operator reads; None for constants."""
        inputs = self._graph.operators[operator].inputs
        return [self._kept(t, self._versions.get((operator, self._graph.storage(t).root))) for t in inputs]

    def results(self, operator: int) -> list[Snapshot]:
        """Return what an operator left."""
        found = [self._kept(t, -1) for t in self._graph.operators[operator].outputs]
        return [kept for kept in found if kept is not None]

    def output(self, tensor: TensorId) -> Array | None:
        """Return an output of the graph after all is done, from the arena; None if it is a constant."""
        kind = self._graph.types[tensor]
        if self._graph.storage(tensor).root in self._graph.constants:
            return None
        return logical(self._region(tensor).view(kind.dtype.numpy), kind)

    def _kept(self, tensor: TensorId, version: int | None) -> Snapshot | None:
        if version is None:
            return None
        root, begin, end = self._span(tensor)
        kind = self._graph.types[tensor]
        return Snapshot(kind, self._copies[root][version][begin:end].view(kind.dtype.numpy))

    def _begin(self, n: int, begun: dict[int, list[int]], mixed: set[int]) -> None:
        """Note what an operator reads, and which running operators it overwrites."""
        op = self._graph.operators[n]
        for tensor in op.inputs:
            root = self._graph.storage(tensor).root
            if root in self._roots:
                self._versions[n, root] = len(self._copies[root]) - 1
        if op.operation.expr.in_place:
            root = self._graph.storage(op.outputs[0]).root
            if root in self._roots:
                self._copies[root].append(self._copies[root][-1].copy())
        mine = [self._place(t) for t in op.outputs]
        read = {self._graph.storage(t).root for t in op.inputs}
        for m in begun:
            results = self._graph.operators[m].outputs
            written = any(a < d and c < b for a, b in mine for c, d in map(self._place, results))
            if (written or not read.isdisjoint(self._graph.storage(t).root for t in results)) and m not in mixed:
                self._copy_rtasks(m, begun[m])
                mixed.add(m)
            if written:
                mixed.add(n)
        if any(self._is_scattered(t) for t in op.outputs):
            mixed.add(n)
        begun[n] = []

    def _is_scattered(self, tensor: TensorId) -> bool:
        """Return whether other tensors may lie between elements of a tensor: it has a pitch, or lies in pieces."""
        layout = self._graph.types[tensor].layout
        return bool(layout and layout.pitched) or self._graph.storage(tensor).root in self._memory.pieces

    def _copy(self, n: int) -> None:
        for tensor in self._graph.operators[n].outputs:
            root, begin, end = self._span(tensor)
            if root in self._roots:
                self._copies[root][-1][begin:end] = self._region(tensor)

    def _copy_rtasks(self, n: int, rtasks: Sequence[int]) -> None:
        for position, tensor in enumerate(self._graph.operators[n].outputs):
            root, begin, end = self._span(tensor)
            if root not in self._roots:
                continue
            dtype = self._graph.types[tensor].dtype.numpy
            to = self._copies[root][-1][begin:end].view(dtype)
            whole = self._arena[: len(self._arena) // dtype.itemsize * dtype.itemsize].view(dtype)
            for rtask in rtasks:
                elements = expand(writes(self._plan.kernels[n], position, rtask))
                first = elements[:1] + begin // dtype.itemsize  # of a tensor in pieces, all are in one
                for base in self._memory.bases(root, dtype.itemsize, first).tolist():
                    to[elements] = whole[elements + (base + begin) // dtype.itemsize]

    @memoized
    def _span(self, tensor: TensorId) -> tuple[TensorId, int, int]:
        """Return the owner of a tensor's memory, and its bytes there."""
        root, low, high = self._graph.extent(tensor)
        itemsize = self._graph.types[tensor].dtype.itemsize
        return root, low * itemsize, high * itemsize

    def _place(self, tensor: TensorId) -> tuple[int, int]:
        """Return the bytes of the arena between which a tensor lies."""
        root, begin, end = self._span(tensor)
        if root in self._memory.pieces:
            return 0, len(self._arena)
        at = self._memory.offsets[root]
        return at + begin, at + end

    def _region(self, tensor: TensorId) -> Bytes:
        return self._arena[slice(*self._place(tensor))]
