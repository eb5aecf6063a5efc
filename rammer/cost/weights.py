"""What rTasks take by where their weights are, on vEUs that keep constants which they read again and again.

A recurrent network reads the same weights at every step. Whoever comes back to its vEU finds them there; whoever is
sent elsewhere waits for them. Measured on an H200: 80 KiB of weights take 0.9 to 1.0 µs from there, estimated 0.94.
"""

from __future__ import annotations

from itertools import compress
from typing import NamedTuple, TypeAlias

from rammer.ir.device import VDeviceSpec
from rammer.ir.graph import Graph
from rammer.ir.kernel import RKernel
from rammer.ir.plan import ExecutionPlan
from rammer.ir.program import RTask, Slot, TaskUid
from rammer.ir.tensor import TensorId

Weights: TypeAlias = tuple[TensorId, ...]  # the static operands of an operator

LEAST_BYTES = 1024  # of weights, that a vEU may be chosen for


class ByWeights(NamedTuple):
    """Microseconds of an rTask with its weights in its vEU's own memory, and with weights from beyond."""

    near_us: float
    far_us: float


def recurrent_operators(graph: Graph) -> dict[Weights, list[int]]:
    """Operators that share weights worth a home, by these weights: no operand is larger, so that who has the weights
    near has most of what it reads.
    """
    groups: dict[Weights, list[int]] = {}
    for n, op in enumerate(graph.operators):
        nbytes = sum(graph.types[t].nbytes for t in op.statics)
        others = (graph.types[t].nbytes for t in (*op.inputs, *op.outputs) if t not in op.statics)
        if nbytes >= max(LEAST_BYTES, *others):
            groups.setdefault(op.statics, []).append(n)
    return {weights: numbers for weights, numbers in groups.items() if len(numbers) > 1}


def static_bytes(kernel: RKernel) -> float:
    """Of constants, that an rTask reads on average."""
    static = compress(kernel.input_types(), kernel.operation.static)
    return sum(t.nbytes for t in static) / max(kernel.num_rtasks, 1)


def _byte_us(spec: VDeviceSpec) -> tuple[float, float] | None:
    """Microseconds of a byte from a vEU's own memory, and from the nearest that all share; None if one is missing."""
    near = [m for m in spec.memory if m.owner == "veu" and m.read_gbps]
    far = [m for m in spec.memory if m.owner != "veu" and m.read_gbps]
    return (spec.byte_us(near[-1], spec.num_veus), spec.byte_us(far[0], spec.num_veus)) if near and far else None


def reload_us(kernel: RKernel, spec: VDeviceSpec) -> float:
    """What an rTask pays for reading its static weights from the shared memory, and not from its vEU's own."""
    if (rates := _byte_us(spec)) is None:
        return 0.0
    near_us, far_us = rates
    return max(0.0, static_bytes(kernel) * (far_us - near_us))


def by_weights(kernel: RKernel, us: float, spec: VDeviceSpec) -> ByWeights:
    """Of an rTask that reads hardly anything but weights. An estimate `us` has all operands near, though a weight may
    come from far; what was measured had it from there.

    What threads load from their vEU's own memory they wait for once, however much it is.
    """
    rates = _byte_us(spec)
    if rates is None or not spec.load_us:
        return ByWeights(max(us - reload_us(kernel, spec), 0.1 * us), us)
    near_us, far_us = (static_bytes(kernel) * rate + spec.load_us for rate in rates)
    return ByWeights(min(us, near_us), max(us, far_us))


def recurrent_us(plan: ExecutionPlan) -> dict[TaskUid, float]:
    """What rTasks of recurrent operators take; the others take what their rKernel does.

    As backends do it, a vEU keeps a part of weights that `spec.kept_reads` operators read on it, those with the most
    readers first while there is room; the first of them brings it.
    """
    spec, found = plan.spec, dict[TaskUid, float]()
    again = {n for numbers in recurrent_operators(plan.graph).values() for n in numbers} if spec.kept_reads else set()
    prices = {kernel: by_weights(kernel, plan.rtask_us[kernel], spec) for kernel in {plan.kernels[n] for n in again}}
    for lane in (lane for program in plan.programs for lane in program.lanes):
        parts = _parts(plan, lane, again)
        room = spec.scratch_bytes - max((kernel.scratch_bytes for kernel, *_ in parts), default=0)
        for (kernel, *_), uids in sorted(parts.items(), key=lambda part: -len(part[1])):
            near_us, far_us = prices[kernel]
            stays = len(uids) >= spec.kept_reads and static_bytes(kernel) <= room
            room -= int(static_bytes(kernel)) if stays else 0
            found |= dict.fromkeys(uids[1:], near_us if stays else far_us) | {uids[0]: far_us}
    return found


def _parts(
    plan: ExecutionPlan, lane: tuple[Slot, ...], again: set[int]
) -> dict[tuple[RKernel, Weights, int], list[TaskUid]]:
    """The rTasks of a lane by the part of weights that they read."""
    found: dict[tuple[RKernel, Weights, int], list[TaskUid]] = {}
    for slot in lane:
        if isinstance(slot, RTask) and (n := slot.uid.operator_id) in again:
            key = plan.kernels[n], plan.graph.operators[n].statics, slot.uid.rtask_id
            found.setdefault(key, []).append(slot.uid)
    return found
