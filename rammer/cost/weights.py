"""What rTasks take by where their weights are, on vEUs that keep constants which they read again and again.

A recurrent network reads the same weights at every step. Whoever comes back to its vEU finds them there; whoever is
sent elsewhere waits for them. Measured on an H200: 80 KiB of weights take 0.9 to 1.0 µs from there, estimated 0.94.
"""

from __future__ import annotations

from itertools import compress
from typing import NamedTuple

from rammer.ir.device import VDeviceSpec
from rammer.ir.kernel import RKernel
from rammer.ir.plan import ExecutionPlan
from rammer.ir.program import RTask, Slot, TaskUid
from rammer.ir.tensor import TensorId


class ByWeights(NamedTuple):
    """Microseconds of an rTask with its weights in its vEU's own memory, and with weights from beyond."""

    near_us: float
    far_us: float


def static_bytes(kernel: RKernel) -> float:
    """Of constants, that an rTask reads on average."""
    static = compress(kernel.input_types(), kernel.operation.static)
    return sum(t.nbytes for t in static) / max(kernel.num_rtasks, 1)


def reload_us(kernel: RKernel, spec: VDeviceSpec) -> float:
    """What an rTask pays for reading its static weights from the shared memory, and not from its vEU's own."""
    private = [m for m in spec.memory if m.owner == "veu" and m.read_gbps]
    shared = [m for m in spec.memory if m.owner != "veu" and m.read_gbps]
    if not private or not shared or not kernel.num_rtasks:
        return 0.0
    near_us, far_us = (spec.byte_us(m, spec.num_veus) for m in (private[-1], shared[0]))
    return max(0.0, static_bytes(kernel) * (far_us - near_us))


def by_weights(kernel: RKernel, us: float, spec: VDeviceSpec) -> ByWeights:
    """An estimate `us` has all operands near, though a weight may come from far; what was measured had it from there.

    What threads load from their vEU's own memory they wait for once, however much it is.
    """
    near = [m for m in spec.memory if m.owner == "veu" and m.read_gbps]
    far = [m for m in spec.memory if m.owner != "veu" and m.read_gbps]
    if not near or not far or not spec.load_us:
        return ByWeights(max(us - reload_us(kernel, spec), 0.1 * us), us)
    nbytes = static_bytes(kernel)
    return ByWeights(
        min(us, nbytes * spec.byte_us(near[-1], spec.num_veus) + spec.load_us),
        max(us, nbytes * spec.byte_us(far[0], spec.num_veus) + spec.load_us),
    )


def recurrent_us(plan: ExecutionPlan) -> dict[TaskUid, float]:
    """What rTasks take whose weights several operators read; the others take what their rKernel does.

    As backends do it, a vEU keeps a part of weights that `spec.kept_reads` operators read on it, those with the most
    readers first while there is room; the first of them brings it.
    """
    spec, found = plan.spec, dict[TaskUid, float]()
    readers: dict[tuple[TensorId, ...], int] = {}
    for op in plan.graph.operators:
        if op.statics:
            readers[op.statics] = readers.get(op.statics, 0) + 1
    if not spec.kept_reads or max(readers.values(), default=0) < spec.kept_reads:
        return found
    prices = {kernel: by_weights(kernel, plan.rtask_us[kernel], spec) for kernel in set(plan.kernels)}
    again = {n for n, op in enumerate(plan.graph.operators) if readers.get(op.statics, 0) > 1}
    for program in plan.programs:
        for lane in program.lanes:
            room = float(spec.scratch_bytes)
            parts = _parts(plan, lane, again)
            room -= max((plan.kernels[uids[0].operator_id].scratch_bytes for uids in parts.values()), default=0)
            for uids in sorted(parts.values(), key=lambda uids: -len(uids)):
                kernel = plan.kernels[uids[0].operator_id]
                nbytes = static_bytes(kernel)
                stays = len(uids) >= spec.kept_reads and nbytes <= room
                room -= nbytes * stays
                near_us, far_us = prices[kernel]
                found |= dict.fromkeys(uids, near_us if stays else far_us)
                found[uids[0]] = far_us
    return found


def _parts(
    plan: ExecutionPlan, lane: tuple[Slot, ...], again: set[int]
) -> dict[tuple[RKernel, tuple[TensorId, ...], int], list[TaskUid]]:
    """The rTasks of a lane by the part of weights that they read."""
    found: dict[tuple[RKernel, tuple[TensorId, ...], int], list[TaskUid]] = {}
    for slot in lane:
        if isinstance(slot, RTask) and (n := slot.uid.operator_id) in again:
            key = plan.kernels[n], plan.graph.operators[n].statics, slot.uid.rtask_id
            found.setdefault(key, []).append(slot.uid)
    return found
