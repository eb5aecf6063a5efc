"""Interpret a plan in NumPy, one slot at a time, in a random order of vEUs: the reference vDevice.

It defines what a plan means (docs/semantics.md), and every backend is compared with it. Races are detected by checking
each access against the happens-before order. It favours clarity over speed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from random import Random

import numpy as np
from numpy.typing import NDArray

from rammer.errors import DeviceError, VerificationError
from rammer.ir.analysis.dependency import reads, writes
from rammer.ir.analysis.intervals import expand
from rammer.ir.analysis.order import HappensBefore, PlanPosition
from rammer.ir.analysis.storage import memory_owners
from rammer.ir.device import VDeviceSpec
from rammer.ir.kernel import ForeignSource, RKernel
from rammer.ir.operator import Operation
from rammer.ir.plan import ExecutionPlan, MemoryPlan
from rammer.ir.program import BarrierRTask, RProgram, TaskUid
from rammer.ir.semantics.evaluate import Memory, evaluate_box, kept_part, logical, put_box, update_box
from rammer.ir.tensor import Array, DType, NamedArrays, TensorId, aligned_bytes
from rammer.ir.tile import TaskDigit
from rammer.vdevice.base import Executable, Image, VDevice

Bytes = NDArray[np.uint8]
JUNK = 77  # the content of padding, and of integers before they are written


class RaceError(VerificationError):
    """Two slots access the same bytes, at least one writes, and neither happens before the other."""

    def __init__(self, first: PlanPosition, second: PlanPosition, tensor: TensorId, *, writing: bool) -> None:
        self.first, self.second = first, second
        super().__init__(
            "R107" if writing else "R104",
            f"{second} {'writes' if writing else 'reads'} bytes of {tensor!r} that {first} uses, and neither waits",
            hint="the later one must wait for the earlier one",
        )


def run_plan(plan: ExecutionPlan, inputs: NamedArrays, *, seed: int = 0, check_races: bool = True) -> dict[str, Array]:
    """Return a plan's outputs, computed by one random interleaving of its vEUs.

    Raises RaceError when two unordered slots conflict, and VerificationError R103 on a deadlock. Without `check_races`,
    a race shows as wrong values in some interleavings.
    """
    memory = _Memory(plan)
    for name in plan.graph.inputs:
        memory.write(name, np.asarray(inputs[name]))
    watch = _Watch(plan, memory) if check_races else None
    random = Random(seed)
    for number, program in enumerate(plan.programs):
        if watch:
            watch.begin()
        _run_program(plan, number, program, memory, watch, random)
    return {t: memory.read(t).copy() for t in plan.graph.outputs}


def _run_program(
    plan: ExecutionPlan, number: int, program: RProgram, memory: _Memory, watch: _Watch | None, random: Random
) -> None:
    done = [0] * len(program)
    while True:
        unfinished = [v for v in range(len(program)) if done[v] < len(program[v])]
        if not unfinished:
            return
        ready = []
        for v in unfinished:
            slot = program[v][done[v]]
            if not isinstance(slot, BarrierRTask) or all(done[w.veu] > w.order for w in slot.waits):
                ready.append(v)
        if not ready:
            waiting = ", ".join(str(PlanPosition(number, v, done[v])) for v in unfinished)
            raise VerificationError("R103", f"deadlock: these barriers wait forever: {waiting}")
        veu = random.choice(ready)
        slot = program[veu][done[veu]]
        if not isinstance(slot, BarrierRTask):
            _run_rtask(plan, slot.uid, memory, watch)
        done[veu] += 1


def _run_rtask(plan: ExecutionPlan, uid: TaskUid, memory: _Memory, watch: _Watch | None) -> None:
    op, kernel = plan.graph.operators[uid.operator_id], plan.kernels[uid.operator_id]
    values = {}
    for position, ((name, _), tensor) in enumerate(zip(op.operation.expr.inputs, op.inputs, strict=True)):
        if tensor in plan.graph.constants:
            values[name] = plan.graph.constants[tensor]
            continue
        elements = expand(reads(kernel, position, uid.rtask_id))
        if watch:
            watch.access(uid, tensor, elements, writing=False)
        values[name] = memory.glimpse(tensor, elements)
    box, expr = kernel.box(uid.rtask_id), op.operation.expr
    if expr.into:
        if watch:
            watch.access(uid, op.outputs[0], expand(writes(kernel, 0, uid.rtask_id)), writing=True)
        updated = memory.read(op.outputs[0])
        if expr.copied:
            part = kept_part(expr, box)
            updated[part] = values[expr.into.tensor][part]
        update_box(expr, values, box, updated)
        return
    results = evaluate_box(expr, values, box)
    for position, (tensor, value) in enumerate(zip(op.outputs, results, strict=True)):
        elements = expand(writes(kernel, position, uid.rtask_id))
        if watch:
            watch.access(uid, tensor, elements, writing=True)
        if not len(elements):
            continue
        kind, flat = plan.graph.types[tensor], memory.physical(tensor, int(elements[0]))
        flat[elements] = JUNK if kind.dtype is not DType.BOOL else True
        put_box(flat, kind, box, value)  # padding keeps the junk


class _Memory(Memory):
    """The arena as planned (one piece per owner without a memory plan), with typed views of it.

    A tensor in pieces is seen as an rTask sees it: the view begins where the whole tensor would begin if it lay
    contiguously with the piece of the accessed element. The arena therefore has margins of `room` bytes on both sides.
    The scratch of each vEU, with the same margins, follows the arena.
    """

    def __init__(self, plan: ExecutionPlan) -> None:
        owners = memory_owners(plan.graph)
        nbytes = {t: plan.graph.types[t].nbytes for t in owners}
        if plan.memory is not None:
            self.plan = plan.memory
        else:
            starts = np.cumsum([0, *(aligned_bytes(max(n, 1)) for n in nbytes.values())]).tolist()
            self.plan = MemoryPlan(dict(zip(owners, starts, strict=False)), starts[-1])
        separate = {**self.plan.pieces, **self.plan.in_scratch}
        self.room = aligned_bytes(max((nbytes[t] for t in separate), default=0))
        self.end = aligned_bytes(self.plan.arena_bytes + 2 * self.room)  # of the arena
        # bytes of a vEU's scratch
        self.each = aligned_bytes(plan.spec.scratch_bytes) + 2 * self.room if self.plan.in_scratch else 0
        self.arena: Bytes = np.zeros(self.end + plan.spec.num_veus * self.each, np.uint8)
        super().__init__(plan.graph)
        for owner in owners:
            fill = np.nan if plan.graph.types[owner].dtype.is_float else JUNK
            firsts = separate[owner].firsts if owner in separate else (0,)
            for first, stop in pairwise((*firsts, plan.graph.types[owner].span)):
                self.physical(owner, first)[first:stop] = fill

    def byte_offset(self, tensor: TensorId, element: int = 0) -> int:
        """Return the tensor's first byte in `arena`, if the whole tensor lay contiguously with `element`."""
        root, offset = self.graph.storage(tensor)
        itemsize = self.graph.types[tensor].dtype.itemsize
        (base,) = self.plan.bases(root, itemsize, np.array([offset + element]))
        begin = self.room + int(base) + offset * itemsize
        if (resident := self.plan.in_scratch.get(root)) is None:
            return begin
        piece = bisect_right(resident.firsts, offset + element) - 1
        return self.end + resident.veus[piece] * self.each + begin

    def physical(self, tensor: TensorId, element: int = 0) -> Array:
        """Return the tensor's physical elements as a flat view, relative to the piece that holds `element`.

        Constants have memory of their own; all others lie in the arena.
        """
        if self.graph.storage(tensor).root in self.graph.constants:
            return super().physical(tensor)
        kind, start = self.graph.types[tensor], self.byte_offset(tensor, element)
        return self.arena[start : start + kind.nbytes].view(kind.dtype.numpy)

    def glimpse(self, tensor: TensorId, elements: NDArray[np.int64]) -> Array:
        """Return the logical tensor with only these elements. All others are NaN, so that a stray read shows."""
        kind, flat = self.graph.types[tensor], self.physical(tensor, int(elements[0]) if len(elements) else 0)
        if not kind.dtype.is_float:
            return logical(flat, kind).copy()
        seen = np.full(flat.shape, np.nan).astype(flat.dtype)
        seen[elements] = flat[elements]
        return logical(seen, kind)


class _Watch:
    """Race detection with vector clocks: the last writer and readers of each byte, checked against happens-before."""

    def __init__(self, plan: ExecutionPlan, memory: _Memory) -> None:
        self.graph = plan.graph
        self.memory = memory
        self.order = HappensBefore(plan.programs)
        self.writer = np.full(len(memory.arena), -1, np.int32)  # slot
        self.reader = np.full((plan.spec.num_veus, len(memory.arena)), -1, np.int32)  # slot, per vEU

    def begin(self) -> None:
        """Begin a new rProgram: all earlier accesses happen before it."""
        self.writer[...] = -1
        self.reader[...] = -1

    def access(self, uid: TaskUid, tensor: TensorId, elements: NDArray[np.int64], *, writing: bool) -> None:
        """Record an access to elements of a tensor. Raises RaceError."""
        if self.graph.storage(tensor).root in self.graph.constants:
            return
        itemsize = self.graph.types[tensor].dtype.itemsize
        start = self.memory.byte_offset(tensor, int(elements[0]) if len(elements) else 0)
        touched = (start + elements[:, None] * itemsize + np.arange(itemsize)).ravel()
        me = self.order.task_slots[uid]
        self._check(self.writer[touched], me, tensor, writing)
        if writing:
            for veu in range(len(self.reader)):
                self._check(self.reader[veu, touched], me, tensor, writing)
            self.writer[touched] = me
        else:
            self.reader[self.order.veu[me], touched] = me

    def _check(self, slots: NDArray[np.int32], me: int, tensor: TensorId, writing: bool) -> None:
        others = np.unique(slots).astype(np.int64)
        others = others[(others >= 0) & (others != me)]
        ordered = self.order.before(others, np.full(len(others), me))
        if not ordered.all():
            first = self.order.position(int(others[np.argmin(ordered)]))
            raise RaceError(first, self.order.position(me), tensor, writing=writing)


def numpy_kernel(operation: Operation, tile: Mapping[str, int]) -> RKernel:
    """Return a kernel for the interpreter: boxes of `tile[axis]` along each root axis; axes not in `tile` are whole."""
    digits: list[TaskDigit] = []
    stride = 1
    for axis, extent in reversed(operation.expr.root.axes):
        count = -(-extent // tile.get(axis, max(extent, 1)))
        if count > 1:
            digits.insert(0, TaskDigit(axis, tile[axis], count, stride))
            stride *= count
    label = "_".join([operation.kind, "numpy", *(f"{a}{n}" for a, n in tile.items())])
    return RKernel(label, operation, ForeignSource("numpy", "", "", tuple(digits), num_block_syncs=0))


def numpy_kernels(operation: Operation, spec: VDeviceSpec) -> list[RKernel]:
    """Return two kernels: the whole operation as one rTask, and its longest axis split among the vEUs."""
    kernels = [numpy_kernel(operation, {})]
    axis, extent = max(operation.expr.root.axes, key=lambda a: a[1], default=("", 1))
    if extent > 1 and spec.num_veus > 1:
        kernels.append(numpy_kernel(operation, {axis: -(-extent // spec.num_veus)}))
    return kernels


@dataclass
class _InterleavedRun:
    """An executable whose every run is another interleaving. The sequence of interleavings is deterministic."""

    plan: ExecutionPlan
    seed: int = 0

    def run(self, inputs: NamedArrays) -> dict[str, Array]:
        self.seed += 1
        return run_plan(self.plan, inputs, seed=self.seed)

    def close(self) -> None:
        """Do nothing: there is nothing to free."""


class InterpreterVDevice(VDevice):
    """A vDevice of any number of vEUs, in NumPy. `device` is their number, 2 by default."""

    def __init__(self, *, arch: str | None = None, device: str | int | None = None) -> None:
        count = "2" if device is None else str(device)
        if not (count.isascii() and count.isdigit() and 1 <= int(count) <= 1024):
            raise DeviceError(f"the interpreter has no device {device!r}", hint="device is a number of vEUs, 1 … 1024")
        if arch:
            raise DeviceError(f"the interpreter has no arch {arch!r}", hint="leave arch out")
        self.spec = VDeviceSpec("interpreter", num_veus=int(count), languages=("numpy",), in_place=True)

    def load(self, image: Image) -> Executable:
        if image.plan is None:
            raise DeviceError("the interpreter runs plans, not saved programs", hint="compile again in this process")
        return _InterleavedRun(image.plan)
