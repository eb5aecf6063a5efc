"""Estimate rTask times by where their weights are, on vEUs that keep constants in their own memory.

Known as: weight-stationary execution, persistent RNNs. A recurrent network reads the same weights at every step. An
rTask on the vEU that has them finds them there; on another vEU it waits for them.
"""

from __future__ import annotations

from itertools import compress
from typing import NamedTuple, TypeAlias

from rammer.cost.estimate import estimated_us
from rammer.ir.device import Execution, VDeviceSpec
from rammer.ir.graph import Graph
from rammer.ir.kernel import RKernel
from rammer.ir.plan import ExecutionPlan
from rammer.ir.program import RTask, Slot, TaskUid
from rammer.ir.tensor import TensorId

Weights: TypeAlias = tuple[TensorId, ...]  # the static operands of an operator

LEAST_SHARE = 0.1  # of its time that an rTask takes without fetching weights
LEAST_BYTES = 1024  # of weights, for them to decide on which vEU an rTask runs


class ByWeights(NamedTuple):
    """Microseconds of an rTask with its weights in its vEU's own memory, and with weights from shared memory."""

    resident_us: float
    streamed_us: float


def recurrent_operators(graph: Graph) -> dict[Weights, list[int]]:
    """Return groups of operators that share weights, by these weights. Their vEU is chosen by the weights.

    An operator counts if no other operand is larger than its weights: where they are, most of its data are.
    """
    groups: dict[Weights, list[int]] = {}
    for n, op in enumerate(graph.operators):
        nbytes = sum(graph.types[t].nbytes for t in op.statics)
        others = (graph.types[t].nbytes for t in (*op.inputs, *op.outputs) if t not in op.statics)
        if nbytes >= max(LEAST_BYTES, *others):
            groups.setdefault(op.statics, []).append(n)
    return {weights: numbers for weights, numbers in groups.items() if len(numbers) > 1}


def static_bytes(kernel: RKernel) -> float:
    """Return the bytes of constants that an rTask reads on average."""
    static = compress(kernel.input_types(), kernel.operation.static)
    return sum(t.nbytes for t in static) / max(kernel.num_rtasks, 1)


def _byte_us(spec: VDeviceSpec) -> tuple[float, float] | None:
    """Return microseconds per byte from a vEU's own memory and from the nearest shared one; None if one is missing."""
    own = [m for m in spec.memory if m.owner == "veu" and m.read_gbps]
    rest = [m for m in spec.memory if m.owner != "veu" and m.read_gbps]
    return (spec.byte_us(own[-1], spec.num_veus), spec.byte_us(rest[0], spec.num_veus)) if own and rest else None


def reload_us(kernel: RKernel, spec: VDeviceSpec) -> float:
    """Return the extra microseconds of an rTask that reads its weights from shared memory, not from its vEU's own."""
    if (rates := _byte_us(spec)) is None:
        return 0.0
    resident_us, streamed_us = rates
    return max(0.0, static_bytes(kernel) * (streamed_us - resident_us))


def by_weights(kernel: RKernel, us: float, spec: VDeviceSpec) -> ByWeights:
    """Return both times of an rTask that reads hardly anything but weights.

    Both an estimate `us` and a measured one have the weights in shared memory. SIMT threads wait once for all that they
    load from their vEU's own memory, however much it is.
    """
    less_us = reload_us(kernel, spec)
    if spec.execution is Execution.SIMT:
        less_us = estimated_us(kernel, spec) - estimated_us(kernel, spec, True)
    return ByWeights(max(us - less_us, LEAST_SHARE * us), us)


def recurrent_us(plan: ExecutionPlan) -> dict[TaskUid, float]:
    """Return the microseconds of rTasks of recurrent operators. All others take the time of their rKernel.

    As in the backends, a vEU keeps a part of weights that at least `spec.kept_reads` operators read on it. Parts with
    the most readers come first, while there is space. The first reader loads the part.
    """
    spec, found = plan.spec, dict[TaskUid, float]()
    again = {n for numbers in recurrent_operators(plan.graph).values() for n in numbers} if spec.kept_reads else set()
    prices = {kernel: by_weights(kernel, plan.rtask_us[kernel], spec) for kernel in {plan.kernels[n] for n in again}}
    for lane in (lane for program in plan.programs for lane in program.lanes):
        parts = _parts(plan, lane, again)
        room = spec.scratch_bytes - max((kernel.scratch_bytes for kernel, *_ in parts), default=0)
        for (kernel, *_), uids in sorted(parts.items(), key=lambda part: -len(part[1])):
            resident_us, streamed_us = prices[kernel]
            stays = len(uids) >= spec.kept_reads and static_bytes(kernel) <= room
            room -= int(static_bytes(kernel)) if stays else 0
            found |= dict.fromkeys(uids[1:], resident_us if stays else streamed_us) | {uids[0]: streamed_us}
    return found


def _parts(
    plan: ExecutionPlan, lane: tuple[Slot, ...], again: set[int]
) -> dict[tuple[RKernel, Weights, int], list[TaskUid]]:
    """Group the rTasks of a lane by the part of weights that they read."""
    found: dict[tuple[RKernel, Weights, int], list[TaskUid]] = {}
    for slot in lane:
        if isinstance(slot, RTask) and (n := slot.uid.operator_id) in again:
            key = plan.kernels[n], plan.graph.operators[n].statics, slot.uid.rtask_id
            found.setdefault(key, []).append(slot.uid)
    return found
