"""Prove a plan by rules with stable ids, explained in docs/semantics.md."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from rammer.errors import RammerError, VerificationError
from rammer.ir.analysis.dependency import Dependencies, num_written, read_elements, writers, written_elements
from rammer.ir.analysis.intervals import NOTHING, Intervals, missing, union
from rammer.ir.analysis.messages import Delivery, deliveries
from rammer.ir.analysis.order import HappensBefore, PlanPosition, Slots
from rammer.ir.analysis.storage import accesses, arguments, memory_owners, must_be_seen
from rammer.ir.device import SyncModel
from rammer.ir.graph import Graph
from rammer.ir.operator import ROperator
from rammer.ir.plan import ExecutionPlan, Pieces
from rammer.ir.program import BarrierRTask, Position, RTask, Slot, TaskUid
from rammer.ir.tensor import TensorId, TensorType
from rammer.ir.verify.messages import check_messages
from rammer.ir.verify.reuse import check_reuse

__all__ = ["RULES", "HappensBefore", "PlanRule", "verify_graph", "verify_plan", "verify_schedule"]


class PlanEvidence:
    """Facts that the rules look at; each part is computed once."""

    def __init__(self, plan: ExecutionPlan, known: PlanEvidence | None = None) -> None:
        """Start from `known`, the evidence of the same plan before its memory was planned."""
        self.plan = plan
        self.dependencies: Dependencies = known.dependencies if known else Dependencies(plan.graph, plan.kernels)
        if known:
            assert all(getattr(plan, part) is getattr(known.plan, part) for part in ("graph", "kernels", "programs"))
            self.order, self.slots = known.order, known.slots

    @cached_property
    def order(self) -> HappensBefore:
        return HappensBefore(self.plan.programs)

    @cached_property
    def messages(self) -> list[Delivery]:
        """The results that are sent as messages."""
        wanted = self.plan.memory.messages if self.plan.memory else {}
        return [*deliveries(self.plan, self.order, wanted)] if wanted else []

    @cached_property
    def signalled(self) -> HappensBefore:
        """The order of slots by counters and messages. It orders what messages carry, and not what lies in memory."""
        return HappensBefore(self.plan.programs, messages=True) if self.messages else self.order

    @cached_property
    def slots(self) -> list[Slots]:
        """Slots of each rTask, per operator."""
        tasks = ((TaskUid(n, r) for r in range(kernel.num_rtasks)) for n, kernel in enumerate(self.plan.kernels))
        return [self.order.slots(*some) for some in tasks]

    def task(self, uid: TaskUid) -> str:
        """Name an rTask for messages: its numbers, and its operator's kind and name."""
        op = self.plan.graph.operators[uid.operator_id]
        return f"rTask {uid.operator_id}.{uid.rtask_id} of {op.kind} {op.name!r}"


@dataclass(frozen=True, slots=True)
class PlanRule:
    """A rule: `check` raises VerificationError with the rule's id. `memory`: it looks at places of tensors."""

    name: str
    check: Callable[[PlanEvidence], None]
    memory: bool = False


def verify_plan(plan: ExecutionPlan, schedule: PlanEvidence | None = None) -> None:
    """Check every rule, in the order of `RULES`. Raises VerificationError at the first one broken.

    `schedule`: what `verify_schedule` returned for the plan before its memory was planned.
    """
    evidence = PlanEvidence(plan, schedule or verify_schedule(plan))
    for rule in RULES.values():
        if rule.memory:
            rule.check(evidence)


def verify_schedule(plan: ExecutionPlan) -> PlanEvidence:
    """Check the rules that do not look at memory, on which memory planning relies: a slot for each rTask, for example.

    Raises VerificationError at the first one broken.
    """
    evidence = PlanEvidence(plan)
    for rule in RULES.values():
        if not rule.memory:
            rule.check(evidence)
    return evidence


def _right_kernels(evidence: PlanEvidence) -> None:
    plan = evidence.plan
    operators = plan.graph.operators
    if len(plan.kernels) != len(operators):
        raise VerificationError("R100", f"{len(plan.kernels)} kernels for {len(operators)} operators")
    for n, (op, kernel) in enumerate(zip(operators, plan.kernels, strict=True)):
        if kernel.operation is not op.operation:
            raise VerificationError(
                "R100",
                f"operator {n} ({op.kind} {op.name!r}) has kernel {kernel.name!r}, made for another operation",
                hint="choose among the candidates of the operator's own operation",
            )


def verify_graph(graph: Graph, before: Graph) -> None:
    """Check what every pass keeps of the graph before it: ports, types, one producer per tensor, and an order.

    Raises VerificationError.
    """
    updated = {op.outputs[0] for op in graph.operators if op.operation.expr.in_place}
    if (graph.inputs, graph.outputs, graph.symbols) != (before.inputs, before.outputs, before.symbols):
        raise VerificationError("R110", f"{before} has other ports now: {graph}")
    for tensor in (*before.inputs, *before.outputs):
        kind = before.types[tensor]
        if graph.types.get(tensor) != kind or (tensor in graph.views and tensor not in updated):
            raise VerificationError("R110", f"port {tensor!r} was {kind} with memory of its own, and is no more")
    for tensor, value in graph.constants.items():
        if (value.shape, value.dtype) != (graph.types[tensor].shape, graph.types[tensor].dtype.numpy):
            raise VerificationError("R110", f"constant {tensor!r} is {value.dtype}{value.shape}, unlike its type")
    made = {*graph.inputs, *graph.constants}
    written: set[TensorId] = set()  # owners of memory into which something was written before
    for op in graph.operators:
        for tensor in op.inputs:
            root = graph.storage(tensor).root
            if not {tensor, root} & made and root not in written:
                raise VerificationError("R110", f"{op.kind} {op.name!r} reads {tensor!r}, which nothing made before it")
        for tensor in op.outputs:
            if tensor in made:
                raise VerificationError("R110", f"{op.kind} {op.name!r} makes {tensor!r}, which exists already")
            made.add(tensor)
            written.add(graph.storage(tensor).root)
    for tensor in graph.outputs:
        if tensor not in made | written:
            raise VerificationError("R110", f"nothing makes the output {tensor!r}")
    _check_types(graph)


def _check_types(graph: Graph) -> None:
    for op in graph.operators:
        for tensor, kind in zip((*op.inputs, *op.outputs), (*op.operation.inputs, *op.operation.outputs), strict=True):
            if graph.types[tensor] != kind:
                raise VerificationError(
                    "R110",
                    f"{op.kind} {op.name!r} takes {tensor!r} for {kind} in layout {_layout(kind)}, "
                    f"but it is {graph.types[tensor]} in layout {_layout(graph.types[tensor])}",
                    hint="retype the operation when a pass changes a tensor's layout",
                )
    for tensor, view in graph.views.items():
        if tensor not in graph.types:
            continue
        kind, base = graph.types[tensor], graph.types[view.base]
        end = view.offset + kind.span
        if view.offset < 0 or end > base.span or kind.dtype is not base.dtype:
            raise VerificationError(
                "R110",
                f"view {tensor!r} is {kind} at elements [{view.offset}, {end}) of {view.base!r}, which is {base}",
                hint="a view lies inside its base and has its element type",
            )


def _layout(kind: TensorType) -> str:
    if kind.layout is None:
        return "row-major"
    digits = kind.layout.digits
    return " ".join(f"{d.dim}//{d.div}" + f"%{d.mod}" * bool(d.mod) + f"@{d.pitch}" * bool(d.pitch) for d in digits)


def _lane_count(evidence: PlanEvidence) -> None:
    for number, program in enumerate(evidence.plan.programs):
        if len(program) != evidence.plan.spec.num_veus:
            raise VerificationError(
                "R101",
                f"programs[{number}] has {len(program)} lanes, {evidence.plan.spec.name} has "
                f"{evidence.plan.spec.num_veus} vEUs",
                hint="build it with RProgramBuilder(spec.num_veus)",
            )


def _every_rtask_once(evidence: PlanEvidence) -> None:
    kernels = evidence.plan.kernels
    seen: dict[TaskUid, PlanPosition] = {}
    for number, program in enumerate(evidence.plan.programs):
        for position, uid in program.tasks():
            place = PlanPosition(number, *position)
            if not (0 <= uid.operator_id < len(kernels) and 0 <= uid.rtask_id < kernels[uid.operator_id].num_rtasks):
                raise VerificationError("R106", f"{place} holds the unknown rTask {uid.operator_id}.{uid.rtask_id}")
            if uid in seen:
                raise VerificationError("R106", f"{evidence.task(uid)} is in {seen[uid]} and again in {place}")
            seen[uid] = place
    if len(seen) < evidence.plan.num_rtasks:
        lost = next(u for n, k in enumerate(kernels) for r in range(k.num_rtasks) if (u := TaskUid(n, r)) not in seen)
        raise VerificationError(
            "R106", f"{evidence.task(lost)} is in no slot", hint="append every rTask of every operator once"
        )


def _ordered(evidence: PlanEvidence) -> None:
    """Build the happens-before order, which exists if R102 and R103 hold."""
    _ = evidence.order


def _covers_dependency(evidence: PlanEvidence) -> None:
    order, slots, group = evidence.order, evidence.slots, {one.tensor: one.group for one in evidence.messages}
    cluster, edges, found = evidence.plan.spec.cluster, [], [np.zeros(0, bool)]
    for n in range(len(evidence.plan.kernels)):
        for tensor, producer, pairs in evidence.dependencies.by_input(n):
            first, second = slots[producer][pairs[:, 1]], slots[n][pairs[:, 0]]
            found.append(order.before(first, second))
            if cluster and tensor in group:
                in_group = order.veu[second] // cluster.group == group[tensor]
                found[-1] |= in_group & evidence.signalled.before(first, second)
            edges.append((n, producer, pairs))
    ok = np.concatenate(found)
    if ok.all():
        return
    bad = int(np.argmin(ok))
    for n, producer, pairs in edges:
        if bad < len(pairs):
            reader, writer = TaskUid(n, int(pairs[bad, 0])), TaskUid(producer, int(pairs[bad, 1]))
            raise VerificationError(
                "R104",
                f"{evidence.task(reader)} in {order.position(order.task_slots[reader])} reads what "
                f"{evidence.task(writer)} in {order.position(order.task_slots[writer])} writes, "
                "but nothing makes it wait",
                hint="RProgramBuilder.wait(reader, on=[writer]) before append(reader)",
            )
        bad -= len(pairs)


def _global_sync_only(evidence: PlanEvidence) -> None:
    if evidence.plan.spec.sync is not SyncModel.GLOBAL:
        return
    for number, program in enumerate(evidence.plan.programs):
        barriers = [[o for o, s in enumerate(lane) if isinstance(s, BarrierRTask)] for lane in program.lanes]
        steps = max(map(len, barriers), default=0)
        ends = [  # per step, the last slots of lanes that ran rTasks in it
            {
                Position(u, at[step] - 1)
                for u, at in enumerate(barriers)
                if step < len(at) and _ran(program[u], at[step])
            }
            for step in range(steps)
        ]
        for veu, lane in enumerate(program.lanes):
            for step, order in enumerate(barriers[veu]):
                slot = lane[order]
                assert isinstance(slot, BarrierRTask)
                if len(barriers[veu]) < steps or ends[step] - {Position(veu, order - 1)} != set(slot.waits):
                    raise VerificationError(
                        "R105",
                        f"{PlanPosition(number, veu, order)} does not wait for all vEUs, "
                        f"and {evidence.plan.spec.name} can only wait for all at once",
                        hint="use RProgramBuilder.sync(), or one rProgram per wave",
                    )


def _ran(lane: Sequence[Slot], barrier: int) -> bool:
    """Return whether an rTask lies right before a barrier."""
    return barrier > 0 and isinstance(lane[barrier - 1], RTask)


def _covers_reuse(evidence: PlanEvidence) -> None:
    check_reuse(evidence.plan, evidence.order, evidence.slots, evidence.task)


def _messages(evidence: PlanEvidence) -> None:
    if evidence.plan.memory and evidence.plan.memory.messages:
        check_messages(evidence.plan, evidence.signalled, evidence.messages, evidence.plan.memory.messages)


def _one_place(evidence: PlanEvidence) -> None:
    """Check R111: an rTask has one address for each argument, so what it accesses of it must lie in one piece."""
    plan, memory = evidence.plan, evidence.plan.memory
    if memory is None or not (cut := {**memory.pieces, **memory.in_scratch}):
        return
    for n, op in enumerate(plan.graph.operators):
        for argument, root, found in arguments(plan.graph, plan.kernels, n):
            if root in cut:
                firsts = cut[root].firsts
                low, high = (np.searchsorted(firsts, found[:, k] - k, "right") for k in range(2))
                if (torn := np.flatnonzero((low != high) & (found[:, 1] > found[:, 0]))).size:
                    (start, end), task = found[torn[0]].tolist(), TaskUid(n, int(torn[0]))
                    raise VerificationError(
                        "R111",
                        f"{evidence.task(task)} touches elements [{start}, {end}) of {root!r} as "
                        f"{(*op.outputs, *op.inputs)[argument]!r}, and they lie in several pieces",
                        hint="cut a tensor only between elements that no rTask touches together",
                    )


def _one_veu(evidence: PlanEvidence) -> None:
    """Check R113: what lies in a vEU's scratch is accessed by that vEU alone, in one rProgram."""
    plan, memory, order = evidence.plan, evidence.plan.memory, evidence.order
    if memory is None or not memory.in_scratch:
        return
    seen = must_be_seen(plan)
    for owner, rows in accesses(plan, order, memory.in_scratch).items():
        if owner in seen:
            raise VerificationError("R113", f"{owner!r} lies in scratch, but {seen[owner]}", hint="put it in the arena")
        pieces = memory.in_scratch[owner]
        which = np.searchsorted(pieces.firsts, rows[:, 0], "right") - 1
        veus, slots = np.array(pieces.veus)[which], rows[:, 2]
        program = np.full(len(pieces.firsts), len(plan.programs))
        np.minimum.at(program, which, order.program[slots])
        wrong = np.flatnonzero((order.veu[slots] != veus) | (order.program[slots] != program[which]))
        if wrong.size:
            n = int(wrong[0])
            position = order.position(int(slots[n]))
            slot = plan.programs[position.program].lanes[position.veu][position.order]
            assert isinstance(slot, RTask)
            raise VerificationError(
                "R113",
                f"{evidence.task(slot.uid)} in {position} touches {owner!r} from element "
                f"{pieces.firsts[int(which[n])]} on, which lies in the scratch of vEU {int(veus[n])} in rProgram "
                f"{int(program[which[n]])}",
                hint="only what one vEU touches, in one rProgram, may lie in its scratch",
            )


def _offset(offsets: Mapping[TensorId, int], tensor: TensorId) -> int:
    if tensor not in offsets:
        raise VerificationError("R108", f"{tensor!r} has no place in the arena", hint="plan_memory places every owner")
    return offsets[tensor]


def _fits_device(evidence: PlanEvidence) -> None:
    plan = evidence.plan
    for n, kernel in enumerate(plan.kernels):
        for what, wanted, limit in (
            ("bytes of scratch", kernel.scratch_bytes, plan.spec.scratch_bytes),
            ("threads", kernel.num_threads, plan.spec.max_threads),
        ):
            if wanted > limit:
                raise VerificationError(
                    "R108",
                    f"kernel {kernel.name!r} of {plan.graph.operators[n].name!r} needs {wanted} {what}, "
                    f"{plan.spec.name} has {limit}",
                    hint="choose a kernel with smaller tiles",
                )
    if plan.memory is None:
        return
    memory, graph = plan.memory, plan.graph
    seen = {graph.storage(t).root for t in (*graph.inputs, *graph.outputs)}
    if memory.in_scratch and plan.spec.level(plan.spec.resident) is None:
        raise VerificationError(
            "R108",
            f"{len(memory.in_scratch)} results lie in scratch, and {plan.spec.name} has no level where they may stay",
        )
    for tensor in memory_owners(graph):
        kind, kept = graph.types[tensor], memory.in_scratch.get(tensor)
        pieces = kept or memory.pieces.get(tensor) or Pieces((0,), (_offset(memory.offsets, tensor),))
        place, room = ("scratch", plan.spec.scratch_bytes) if kept else ("arena", memory.arena_bytes)
        if kept and any(not 0 <= veu < plan.spec.num_veus for veu in kept.veus):
            raise VerificationError("R108", f"{tensor!r} lies in the scratch of vEUs {kept.veus}, not all of which are")
        elements = kind.span
        ends = (*pieces.firsts[1:], elements)
        if pieces.firsts[0] or any(f >= e for f, e in zip(pieces.firsts, ends, strict=True) if elements):
            raise VerificationError("R108", f"pieces of {tensor!r} begin at {pieces.firsts}, of {elements} elements")
        if tensor in memory.pieces and tensor in seen:
            raise VerificationError("R108", f"{tensor!r} is an input or output, and lies in pieces")
        for first, stop, start in zip(pieces.firsts, ends, pieces.offsets, strict=True):
            end = start + (stop - first) * kind.element_bytes
            if start < 0 or end > room:
                raise VerificationError("R108", f"{tensor!r} at [{start}, {end}) leaves the {place} of {room} bytes")
            if (start - first * kind.element_bytes) % memory.alignment:
                raise VerificationError("R108", f"{tensor!r} at {start} is not aligned to {memory.alignment} bytes")


def _written_once(evidence: PlanEvidence) -> None:
    plan, graph = evidence.plan, evidence.plan.graph
    given = {graph.storage(t).root for t in graph.inputs} | set(graph.constants)
    written: dict[TensorId, list[tuple[int, int, int, int]]] = {}  # owner -> (start, stop, operator, output)
    for n, position, tensor in _outputs(plan):
        root, low, high = graph.extent(tensor)
        written.setdefault(root, []).append((low, high, n, position))
        if root in given and not _updates(graph, graph.operators[n]):
            raise VerificationError(
                "R109", f"{graph.operators[n].name!r} writes into {root!r}, an input or a constant of the graph"
            )
        try:
            writers(plan.kernels[n], position)
        except RammerError as error:
            raise VerificationError("R109", error.what, hint=error.hint) from error
    for root, parts in written.items():
        parts.sort()
        if clash := _clash(plan, parts):
            (n, position), (m, output) = clash
            raise VerificationError(
                "R109",
                f"{graph.operators[n].outputs[position]!r} and {graph.operators[m].outputs[output]!r} "
                f"share elements of {root!r}, so both would be written there",
                hint="views in which operators write must lie side by side, or between each other's elements",
            )
    whole = {root: _hulls(plan, parts) for root, parts in written.items()}
    for n, op in enumerate(graph.operators):
        for position, tensor in enumerate(op.inputs):
            root, low, high = graph.extent(tensor)
            if root in given or _contains(whole.get(root, NOTHING), low, high):
                continue
            wanted = union(read_elements(plan.kernels[n], position).sets) + low
            _check_defined(f"{op.kind} {op.name!r}", tensor, missing(wanted, _exactly(plan, written.get(root, []))))
    for tensor in graph.outputs:
        root, low, high = graph.extent(tensor)
        if root not in given and low < high:
            gaps = missing(np.array([[low, high]]), _exactly(plan, written.get(root, [])))
            _check_defined("the caller", tensor, gaps)


def _updates(graph: Graph, op: ROperator) -> bool:
    """Return whether an operator changes an input in its own memory."""
    return (
        op.operation.expr.in_place
        and op.inputs[0] in graph.inputs
        and graph.views.get(op.outputs[0]) == (op.inputs[0], 0)
    )


def _in_place(evidence: PlanEvidence) -> None:
    """Check R112: an update overwrites an input, so only the update itself may refer to it by its old name."""
    graph = evidence.plan.graph
    for op in graph.operators:
        if not op.operation.expr.in_place:
            continue
        old, new = op.inputs[0], op.outputs[0]
        if not _updates(graph, op):
            raise VerificationError("R112", f"{op.name!r} updates {old!r}, and {new!r} is not that input's memory")
        reads = [(f"{by.kind} {by.name!r}", t) for by in graph.operators if by is not op for t in by.inputs]
        reads += [("the caller", t) for t in graph.outputs] + [(f"{op.kind} {op.name!r}", t) for t in op.inputs[1:]]
        for reader, tensor in reads:
            if graph.storage(tensor).root == old and not _seen_through(graph, tensor, new):
                raise VerificationError(
                    "R112",
                    f"{reader} reads {tensor!r}, which lies in {old!r}, and {op.name!r} changes that in place",
                    hint="only what the update returns may be read",
                )


def _seen_through(graph: Graph, tensor: TensorId, new: TensorId) -> bool:
    """Return whether a view is one of what an update returns."""
    while tensor != new and tensor in graph.views:
        tensor = graph.views[tensor].base
    return tensor == new


def _outputs(plan: ExecutionPlan) -> Iterator[tuple[int, int, TensorId]]:
    for n, op in enumerate(plan.graph.operators):
        for position, tensor in enumerate(op.outputs):
            yield n, position, tensor


def _clash(
    plan: ExecutionPlan, parts: list[tuple[int, int, int, int]]
) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """Return two outputs (operator, number) written to the same element of an owner, or None; `parts` are in order.

    If their ranges overlap and some have a pitch, the elements decide.
    """
    pairs = [(a[2:], b[2:]) for a, b in pairwise(parts) if b[0] < a[1]]
    if not pairs or not any(_pitched(plan.graph, n, position) for _, _, n, position in parts):
        return pairs[0] if pairs else None
    spans = [union(written_elements(plan.kernels[n], position).sets) + first for first, _, n, position in parts]
    part = np.repeat(np.arange(len(parts)), [len(s) for s in spans])
    flat = np.concatenate(spans)
    order = np.argsort(flat[:, 0], kind="stable")
    over = np.flatnonzero(flat[order[1:], 0] < flat[order[:-1], 1])
    if not len(over):
        return None
    first, second = (parts[part[order[over[0] + k]]] for k in (0, 1))
    return first[2:], second[2:]


def _pitched(graph: Graph, operator: int, output: int) -> bool:
    layout = graph.operators[operator].operation.outputs[output].layout
    return layout is not None and layout.pitched


def _hulls(plan: ExecutionPlan, parts: list[tuple[int, int, int, int]]) -> Intervals:
    """Return the elements of an owner that lie in outputs which their kernels write from end to end."""
    full = [[s, e] for s, e, n, position in parts if num_written(plan.kernels[n], position) == e - s]
    return union([np.array([part]) for part in full])


def _contains(intervals: Intervals, low: int, high: int) -> bool:
    at = int(np.searchsorted(intervals[:, 0], low, "right")) - 1
    return low >= high or (at >= 0 and bool(intervals[at, 1] >= high))


def _exactly(plan: ExecutionPlan, parts: list[tuple[int, int, int, int]]) -> Intervals:
    """Return the elements of an owner that some rTask writes."""
    return union([union(written_elements(plan.kernels[n], p).sets) + start for start, _, n, p in parts])


def _check_defined(reader: str, tensor: TensorId, gaps: Intervals) -> None:
    if len(gaps):
        raise VerificationError(
            "R109",
            f"{reader} reads {tensor!r}, whose elements [{gaps[0, 0]}, {gaps[0, 1]}) no rTask writes",
            hint="the digits of the producer's kernel must cover all of its output",
        )


RULES: dict[str, PlanRule] = {
    "R100": PlanRule("right-kernel", _right_kernels),
    "R110": PlanRule("well-typed", lambda evidence: _check_types(evidence.plan.graph)),
    "R101": PlanRule("lane-count", _lane_count),
    "R106": PlanRule("every-rtask-once", _every_rtask_once),
    "R102": PlanRule("barrier-target", _ordered),
    "R103": PlanRule("no-deadlock", _ordered),
    "R105": PlanRule("global-sync-only", _global_sync_only),
    "R109": PlanRule("written-once", _written_once),
    "R112": PlanRule("in-place", _in_place),
    "R104": PlanRule("covers-dependency", _covers_dependency),
    "R108": PlanRule("fits-device", _fits_device, memory=True),
    "R111": PlanRule("one-place", _one_place, memory=True),
    "R113": PlanRule("one-veu", _one_veu, memory=True),
    "R107": PlanRule("covers-reuse", _covers_reuse, memory=True),
    "R114": PlanRule("messages", _messages, memory=True),
}
