"""Prove an image against its plan: rules R301 and on of docs/semantics.md, the same for each backend."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from rammer.errors import ArtifactError, VerificationError
from rammer.ir.analysis.dependency import read_elements
from rammer.ir.analysis.messages import Delivery, deliveries
from rammer.ir.analysis.order import HappensBefore, PlanPosition
from rammer.ir.kernel import ForeignSource, RKernel
from rammer.ir.plan import ExecutionPlan, MemoryPlan, Pieces
from rammer.ir.program import Position, RTask
from rammer.ir.tensor import Array, Numbers, TensorId, TensorType
from rammer.ir.verify.reuse import first_touched
from rammer.vdevice.base import Image, VDevice
from rammer.vdevice.proof.copies import CopyReads, by_lane, sources
from rammer.vdevice.proof.decoded import ARENA, SCRATCH, DecodedImage, broken
from rammer.vdevice.proof.flow import DecodedFlow, verify_flow
from rammer.vdevice.proof.messages import places_of, verify_messages
from rammer.vdevice.proof.packed import difference, value_of

DAMAGE = (ValueError, KeyError, IndexError, TypeError, ArtifactError)


def verify_image(image: Image, plan: ExecutionPlan, vdevice: VDevice) -> str:
    """Check all rules of an image; return a note if its backend cannot decode it. Raises VerificationError."""
    try:
        match decoded := vdevice.decode(image):
            case DecodedImage():
                verify_decoded(decoded, plan, image)
            case DecodedFlow():
                verify_flow(decoded, plan)
            case reason:
                return f"image not verified: {reason}"
    except DAMAGE as error:
        raise broken("R301", f"the image cannot be read back: {error}") from error
    return ""


def verify_decoded(decoded: DecodedImage, plan: ExecutionPlan, image: Image) -> None:
    """Check all rules of a decoded image. Raises VerificationError at the first violation."""
    memory = plan.memory
    if memory is None:
        raise VerificationError("R301", "the plan has no memory")
    evidence = ImageEvidence(decoded, plan, memory, image)
    for rule in RULES.values():
        rule.check(evidence)


@dataclass(frozen=True)
class ImageEvidence:
    """The facts that rules check, computed on demand."""

    decoded: DecodedImage
    plan: ExecutionPlan
    memory: MemoryPlan
    image: Image

    @cached_property
    def wanted(self) -> tuple[Numbers, Numbers]:
        """The plan's slots [slots, 5]: program, vEU, order, operator, rTask (-1: barrier-rTask); its waits [n, 3]."""
        rows: list[tuple[int, int, int, int, int]] = []
        barriers: list[tuple[int, Sequence[Position]]] = []
        for p, program in enumerate(self.plan.programs):
            for veu, lane in enumerate(program.lanes):
                for order, slot in enumerate(lane):
                    if isinstance(slot, RTask):
                        rows.append((p, veu, order, *slot.uid))
                        continue
                    barriers.append((len(rows), slot.waits))
                    rows.append((p, veu, order, -1, -1))
        flat = chain.from_iterable(chain.from_iterable(waits for _, waits in barriers))
        on = np.fromiter(flat, np.int64).reshape(-1, 2)
        counts = np.array([len(waits) for _, waits in barriers], np.int64)
        who = np.repeat(np.array([row for row, _ in barriers], np.int64), counts)
        return np.array(rows, np.int64).reshape(-1, 5), np.column_stack((who, on))

    @cached_property
    def order(self) -> HappensBefore:
        return HappensBefore(self.plan.programs)

    @cached_property
    def messages(self) -> list[Delivery]:
        """The results of the plan that are sent as messages."""
        sent = self.memory.messages
        return [*deliveries(self.plan, self.order, sent)] if sent else []

    @cached_property
    def tasks(self) -> Numbers:
        """The slots that hold rTasks."""
        return np.flatnonzero(self.wanted[0][:, 3] >= 0)

    @cached_property
    def _by_operator(self) -> tuple[Numbers, Numbers]:
        operators = self.wanted[0][self.tasks, 3]
        by = np.argsort(operators, kind="stable")
        return self.tasks[by], np.searchsorted(operators[by], np.arange(len(self.plan.kernels) + 1))

    def tasks_of(self, operator: int) -> Numbers:
        """Return the slots of an operator's rTasks."""
        tasks, starts = self._by_operator
        return tasks[starts[operator] : starts[operator + 1]]

    @cached_property
    def operands(self) -> tuple[list[tuple[int, int, TensorId, TensorType]], Numbers]:
        """The plan's operands: (operator, argument, tensor, type as read); where each operator's begin."""
        found = [
            (n, k, tensor, kind)
            for n, (op, kernel) in enumerate(zip(self.plan.graph.operators, self.plan.kernels, strict=True))
            for k, (tensor, kind) in enumerate(zip((*op.outputs, *op.inputs), kernel.argument_types(), strict=True))
        ]
        counts = [len(op.outputs) + len(op.inputs) for op in self.plan.graph.operators]
        return found, np.append(0, np.cumsum(counts)).astype(np.int64)

    @cached_property
    def of_constants(self) -> NDArray[np.bool_]:
        """Return which of the `operands` are constants, or views of constants."""
        graph = self.plan.graph
        return np.array([graph.storage(t).root in graph.constants for _, _, t, _ in self.operands[0]], bool)

    @cached_property
    def used(self) -> Numbers:
        """Distinct uses of operands, [n, 4]: slot (any), argument (a row of `operands`), place."""
        rows, _ = self.wanted
        slots, (_, starts) = self.decoded.slots, self.operands
        some = self.tasks[_firsts(rows[self.tasks, 3], slots.first_operand[self.tasks])]
        count = np.diff(starts)[rows[some, 3]]
        step = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
        at = np.repeat(slots.first_operand[some], count) + step
        argument = np.repeat(starts[rows[some, 3]], count) + step
        return np.column_stack((np.repeat(some, count), argument, self.decoded.operands[at]))

    def calls(self, operator: int, function: int, slot: int) -> bool:
        """Return whether a function is the operator's, with the operands of this slot."""
        first, (_, starts) = int(self.decoded.slots.first_operand[slot]), self.operands
        places = self.decoded.operands[first : first + int(starts[operator + 1] - starts[operator])]
        return self.decoded.calls(self.plan.kernels[operator], places, self.decoded.functions[function])

    def at(self, slot: int) -> str:
        """Return a slot of the plan as text for users."""
        rows, _ = self.wanted
        p, veu, order, n, rtask = rows[slot].tolist()
        what = f"rTask {n}.{rtask} of {self.operator(n)}" if n >= 0 else "a barrier-rTask"
        return f"{what} in {PlanPosition(p, veu, order)}"

    def operator(self, n: int) -> str:
        op = self.plan.graph.operators[n]
        return f"{op.kind} {op.name!r}"


@dataclass(frozen=True, slots=True)
class ImageRule:
    """A rule. `check` raises VerificationError with the rule's id."""

    name: str
    check: Callable[[ImageEvidence], None]


def _readable(evidence: ImageEvidence) -> None:
    """Check R301: numbers in the image are valid indices."""
    decoded = evidence.decoded
    slots, columns = decoded.slots, [getattr(decoded.slots, f.name) for f in fields(decoded.slots)]
    shapes = decoded.operands.shape[1:], decoded.waits.shape[1:], decoded.scratch.shape[1:]
    if any(len(c) != len(slots) for c in columns) or shapes != ((2,), (3,), (2,)):
        raise broken("R301", "the image has tables of other sizes than it says")
    for table in (decoded.waits, decoded.hints, decoded.copies):
        if np.any((table[:, 0] < 0) | (table[:, 0] >= len(slots))):
            raise broken("R301", "a row of the image belongs to no slot")


def _same_slots(evidence: ImageEvidence) -> None:
    """Check R302: each lane holds the plan's slots, in its order."""
    decoded, plan = evidence.decoded, evidence.plan
    wanted, _ = evidence.wanted
    if (decoded.num_veus, decoded.num_programs) != (plan.spec.num_veus, len(plan.programs)):
        raise broken(
            "R302",
            f"the image has {decoded.num_programs} rPrograms of {decoded.num_veus} vEUs, the plan has "
            f"{len(plan.programs)} of {plan.spec.num_veus}",
        )
    slots = decoded.slots
    rtask = np.where(slots.function < 0, -1, slots.rtask)
    found = np.column_stack((slots.program, slots.veu, slots.order, slots.operator, rtask))
    count = min(len(found), len(wanted))
    wrong = np.flatnonzero((found[:count] != wanted[:count]).any(axis=1))
    if len(wrong):
        n = int(wrong[0])
        p, veu, order, operator, task = found[n].tolist()
        where = f"rTask {operator}.{task}" if operator >= 0 else "a barrier-rTask"
        raise broken("R302", f"the image has {where} in {PlanPosition(p, veu, order)}, the plan has {evidence.at(n)}")
    if len(found) != len(wanted):
        raise broken("R302", f"the image has {len(found)} slots, the plan has {len(wanted)}")


def _right_functions(evidence: ImageEvidence) -> None:
    """Check R303: a slot calls the function of its operator's rKernel, with all operands."""
    decoded, plan = evidence.decoded, evidence.plan
    rows, _ = evidence.wanted
    tasks = evidence.tasks
    operators, functions = rows[tasks, 3], decoded.slots.function[tasks]
    unknown = (functions < 0) | (functions >= len(decoded.functions))
    arity = np.diff(evidence.operands[1])[operators]
    missing = decoded.slots.num_operands[tasks] < arity
    if (bad := np.flatnonzero(unknown | missing)).size:
        at = int(bad[0])
        raise broken(
            "R303",
            f"{evidence.at(int(tasks[at]))} calls function {functions[at]} of {len(decoded.functions)} with "
            f"{decoded.slots.num_operands[tasks[at]]} operands, and has {arity[at]}",
        )
    for n, function, slot in _distinct(operators, functions, tasks):
        if not evidence.calls(n, function, slot):
            raise broken(
                "R303",
                f"{evidence.at(slot)} calls {decoded.functions[function]!r}, which is not rKernel "
                f"{plan.kernels[n].name!r} with these operands",
            )


def _firsts(first: Numbers, second: Numbers) -> Numbers:
    """Return the first positions of distinct pairs of numbers >= 0."""
    found: Numbers = np.unique(first * (int(second.max(initial=0)) + 1) + second, return_index=True)[1]
    return found


def _distinct(first: Numbers, second: Numbers, slots: Numbers) -> Iterator[tuple[int, int, int]]:
    """Yield distinct pairs of numbers, each with one slot that has it."""
    at = _firsts(first, second)
    yield from zip(first[at].tolist(), second[at].tolist(), slots[at].tolist(), strict=True)


def _same_waits(evidence: ImageEvidence) -> None:
    """Check R304: a barrier waits for exactly the slots that the plan lists."""
    _, wanted = evidence.wanted
    found = evidence.decoded.waits
    lost, more = _only(wanted, found), _only(found, wanted)
    if len(lost) or len(more) or len(wanted) != len(found):
        slot, veu, order = (lost if len(lost) else more)[0].tolist()
        verb = "does not wait" if len(lost) else "waits"
        raise broken(
            "R304",
            f"in the image {evidence.at(slot)} {verb} for prog[{veu}][{order}]"
            + ("" if len(lost) else ", which the plan does not ask for"),
        )


def _only(some: Numbers, others: Numbers) -> Numbers:
    """Return the rows that are not among `others`."""
    rows = np.concatenate([some, others])
    code = np.zeros(len(rows), np.int64)
    for column in rows.T:  # encode rows as numbers: these sort much faster
        code = code * (int(column.max(initial=0)) + 2) + column + 1
    mine, theirs = code[: len(some)], code[len(some) :]
    if np.array_equal(mine, theirs) or np.array_equal(np.sort(mine), np.sort(theirs)):
        return some[:0]
    return some[~np.isin(mine, theirs)]


def _published(evidence: ImageEvidence) -> None:
    """Check R305: a slot that others wait for signals its completion, and no slot signals more."""
    rows, waits = evidence.wanted
    slots = evidence.decoded.slots
    said = slots.published
    if (bad := np.flatnonzero((said != 0) & (said != slots.order + 1))).size:
        raise broken("R305", f"{evidence.at(int(bad[0]))} says that {said[bad[0]]} slots of its lane are complete")
    lane = rows[:, 0] * evidence.plan.spec.num_veus + rows[:, 1]
    program = rows[waits[:, 0], 0]
    on = np.searchsorted(lane, program * evidence.plan.spec.num_veus + waits[:, 1]) + waits[:, 2]
    if (bad := np.flatnonzero(said[on] == 0)).size:
        slot = int(waits[bad[0], 0])
        raise broken("R305", f"{evidence.at(int(on[bad[0]]))} does not tell {evidence.at(slot)} that it is complete")


def _operands(evidence: ImageEvidence) -> None:
    """Check R306: each operand is the address range of its tensor, in the arena, its vEU's scratch or a constant."""
    decoded, memory, graph = evidence.decoded, evidence.memory, evidence.plan.graph
    if decoded.arena_bytes < memory.arena_bytes:
        raise broken("R306", f"the arena has {decoded.arena_bytes} bytes, the plan takes {memory.arena_bytes}")
    separate = {**memory.pieces, **memory.in_scratch}
    slots, tasks = decoded.slots, evidence.tasks
    first, end = slots.first_operand[tasks], (slots.first_operand + slots.num_operands)[tasks]
    if (bad := np.flatnonzero((first < 0) | (end > len(decoded.operands)))).size:
        where = evidence.at(int(tasks[bad[0]]))
        raise broken("R306", f"operands of {where} lie outside of the image's table")
    arguments, _ = evidence.operands
    offset = np.zeros(len(arguments), np.int64)
    kind_of = np.zeros(len(arguments), np.int8)  # 0: whole in the arena; 1: a constant; 2: in pieces; 3: a message
    for row, (_, _, tensor, _) in enumerate(arguments):
        root, shift = graph.storage(tensor)
        if root in graph.constants:
            kind_of[row] = 1
        elif tensor in memory.messages:
            kind_of[row] = 3
        elif root in separate:
            kind_of[row] = 2
        else:
            offset[row] = memory.offsets[root] + shift * graph.types[tensor].element_bytes
    used = evidence.used
    whole = kind_of[used[:, 1]] == 0
    wrong = whole & ((used[:, 2] != ARENA) | (used[:, 3] != offset[used[:, 1]]))
    if (bad := np.flatnonzero(wrong)).size:
        slot, row, found, at = used[bad[0]].tolist()
        _misplaced(evidence, slot, row, (found, at), (ARENA, int(offset[row])))
    for row in np.flatnonzero(kind_of == 2).tolist():
        _in_pieces(evidence, row, separate)
    groups = {one.tensor: one.group for one in evidence.messages}
    for row in np.flatnonzero(kind_of == 3).tolist():
        n, _, tensor, _ = arguments[row]
        mine = evidence.tasks_of(n)
        at = places_of(evidence.plan, memory, groups, tensor, evidence.wanted[0][mine, 1])
        _compare_places(evidence, row, mine, at)


def _misplaced(
    evidence: ImageEvidence, slot: int, row: int, found: tuple[int, int], wanted: tuple[int, int] | None
) -> None:
    _, argument, tensor, _ = evidence.operands[0][row]
    said = f", and it lies at {_place(*wanted)}" if wanted else ", which is no place of it"
    raise broken("R306", f"operand {argument} ({tensor!r}) of {evidence.at(slot)} is at {_place(*found)}{said}")


def _place(base: int, offset: int) -> str:
    where = {ARENA: "of the arena", SCRATCH: "of its vEU's scratch"}.get(base, f"of constant {base}")
    return f"byte {offset} {where}"


def _in_pieces(evidence: ImageEvidence, row: int, separate: Mapping[TensorId, Pieces]) -> None:
    """Check that each rTask finds the elements of an argument in pieces, or resident in scratch, in their piece."""
    graph, (arguments, _) = evidence.plan.graph, evidence.operands
    n, argument, tensor, kind = arguments[row]
    root, shift = graph.storage(tensor)
    pieces, tasks = separate[root], evidence.tasks_of(n)
    first = first_touched(evidence.plan.kernels[n], argument)[evidence.decoded.slots.rtask[tasks]]
    tasks, first = tasks[first >= 0], first[first >= 0]
    at = np.searchsorted(pieces.firsts, first + shift, "right") - 1
    begin = np.array(pieces.offsets)[at] + (first + shift - np.array(pieces.firsts)[at]) * kind.element_bytes
    wanted = begin - first * kind.element_bytes
    base = SCRATCH if root in evidence.memory.in_scratch else ARENA
    _compare_places(evidence, row, tasks, np.column_stack((np.full(len(wanted), base), wanted)))


def _compare_places(evidence: ImageEvidence, row: int, tasks: Numbers, wanted: Numbers) -> None:
    """Check that rTasks find an argument at the `wanted` places."""
    argument = evidence.operands[0][row][1]
    found = evidence.decoded.operands[evidence.decoded.slots.first_operand[tasks] + argument]
    if (bad := np.flatnonzero((found != wanted).any(axis=1))).size:
        b = int(bad[0])
        _misplaced(evidence, int(tasks[b]), row, *(tuple(at[b].tolist()) for at in (found, wanted)))


def _constants(evidence: ImageEvidence) -> None:
    """Check R307: a constant that an rTask reads is the plan's, in the layout that its rKernel reads, bit for bit."""
    decoded, graph = evidence.decoded, evidence.plan.graph
    arguments, _ = evidence.operands
    known: dict[tuple[TensorId, TensorType, int, int], str] = {}
    stored = [np.ascontiguousarray(c).reshape(-1).view(np.uint8) for c in decoded.constants]
    values: dict[TensorId, Array] = {}

    def check(tensor: TensorId, kind: TensorType, place: tuple[int, int], who: str) -> None:
        key = (tensor, kind, *place)
        if key not in known:
            if tensor not in values:
                values[tensor] = value_of(graph, tensor)
            known[key] = _of_constant(stored, kind, place, values[tensor])
        if known[key]:
            raise broken("R307", f"{who} finds {tensor!r} at {_place(*place)}, and there {known[key]}")

    used = evidence.used
    for slot, row, base, offset in used[evidence.of_constants[used[:, 1]]].tolist():
        _, argument, tensor, kind = arguments[row]
        if base != SCRATCH:
            check(tensor, kind, (base, offset), f"operand {argument} of {evidence.at(slot)}")
    for tensor, kind, who, place in _copied(evidence):
        check(tensor, kind, place, who)
    for tensor, place in zip(graph.outputs, decoded.outputs, strict=True):
        if graph.storage(tensor).root in graph.constants:
            check(tensor, graph.types[tensor], place, "the caller")


def _of_constant(stored: list[Array], kind: TensorType, place: tuple[int, int], value: Array) -> str:
    base, offset = place
    if not 0 <= base < len(stored):
        return "is no constant"
    if offset < 0 or offset + kind.nbytes > len(stored[base]):
        return f"are {len(stored[base])} bytes, of which {kind.nbytes} from {offset} on are read"
    return difference(kind, stored[base][offset:], value)


def _copied(evidence: ImageEvidence) -> Iterator[tuple[TensorId, TensorType, str, tuple[int, int]]]:
    """Yield the constants that rTasks read in copies: (tensor, type, reader, place that the copy came from)."""
    decoded, kernels = evidence.decoded, evidence.plan.kernels
    rows, _ = evidence.wanted
    arguments, _ = evidence.operands
    reads: dict[tuple[int, int, int, TensorId, RKernel, int, Hashable], CopyReads] = {}
    for row in np.flatnonzero(evidence.of_constants).tolist() if decoded.copy_place else ():
        n, argument, tensor, kind = arguments[row]
        tasks = evidence.tasks_of(n)
        operand = decoded.operands[decoded.slots.first_operand[tasks] + argument]
        position = argument - len(kernels[n].operation.outputs)
        chosen = read_elements(kernels[n], position).chosen
        for slot, offset in zip(*(x[operand[:, 0] == SCRATCH].tolist() for x in (tasks, operand[:, 1])), strict=True):
            rtask = int(rows[slot, 4])
            key = (int(rows[slot, 0]), int(rows[slot, 1]), offset, tensor, kernels[n], position, chosen[rtask])
            known = CopyReads(kernels[n], position, rtask, kind.element_bytes, offset)
            reads.setdefault(key, known).slots.append(slot)

    sizes = np.array([*(k.scratch_bytes for k in kernels), 0], np.int64)
    scratch, copies = sizes[rows[:, 3]], by_lane(decoded, rows)  # 0 for a barrier-rTask, -1
    in_scratch = _in_scratch(evidence) if reads else np.zeros((0, 3), np.int64)
    for (p, veu, offset, tensor, kernel, position, _), some in reads.items():
        who = f"operand {len(kernel.operation.outputs) + position} of {evidence.at(some.slots[0])}"
        beside = in_scratch[(rows[in_scratch[:, 0], :2] == (p, veu)).all(axis=1)] if len(in_scratch) else in_scratch
        for place in sources(decoded, copies.get((p, veu), decoded.copies[:0]), some, scratch, beside):
            if isinstance(place, str):
                raise broken("R307", f"{who} finds a copy of {tensor!r} at {_place(SCRATCH, offset)}: {place}")
            yield tensor, kernel.input_types()[position], who, place


def _in_scratch(evidence: ImageEvidence) -> Numbers:
    """Return the slots that touch results resident in scratch, and the bytes of the piece that they touch: [n, 3]."""
    graph, held, found = evidence.plan.graph, evidence.memory.in_scratch, [np.zeros((0, 3), np.int64)]
    for n, argument, tensor, kind in evidence.operands[0] if held else ():
        root, shift = graph.storage(tensor)
        if root in held:
            tasks, firsts = evidence.tasks_of(n), np.array(held[root].firsts)
            first = first_touched(evidence.plan.kernels[n], argument)[evidence.wanted[0][tasks, 4]]
            at = np.searchsorted(firsts, first[first >= 0] + shift, "right") - 1
            begins = np.array(held[root].offsets)
            ends = begins + np.diff(np.append(firsts, graph.types[root].span)) * kind.element_bytes
            found.append(np.column_stack((tasks[first >= 0], begins[at], ends[at])))
    return np.concatenate(found)


def _ports(evidence: ImageEvidence) -> None:
    """Check R308: inputs, outputs and state lie where the plan says; ports that may move share no byte."""
    decoded, plan, memory, graph = evidence.decoded, evidence.plan, evidence.memory, evidence.plan.graph
    found = [*zip(graph.inputs, decoded.inputs, strict=False), *zip(graph.outputs, decoded.outputs, strict=False)]
    if len(found) != len(graph.inputs) + len(graph.outputs):
        raise broken("R308", f"the image has {len(found)} ports, the graph has others")
    for tensor, place in found:
        root, shift = graph.storage(tensor)
        if root in graph.constants:
            continue
        wanted = ARENA, memory.offsets[root] + shift * graph.types[tensor].element_bytes
        if tuple(place) != wanted:
            raise broken("R308", f"port {tensor!r} is at {_place(*place)}, and it lies at {_place(*wanted)}")
    ports = dict(found)
    for out, into in evidence.image.state.items():
        if out in ports and into in ports and (out in evidence.image.in_place) != (ports[out] == ports[into]):
            raise broken("R308", f"state {out!r} lies at {_place(*ports[out])}, and {into!r} at {_place(*ports[into])}")
    spans = sorted(_spans(plan, memory))
    reach, whose = 0, ""
    for begin, end, owner in spans:
        for tensor in {owner, whose} & decoded.unshared if begin < reach else ():
            raise broken("R308", f"port {tensor!r} may lie elsewhere, and shares bytes with {owner!r} or {whose!r}")
        if end > reach:
            reach, whose = end, owner


def _spans(plan: ExecutionPlan, memory: MemoryPlan) -> Iterator[tuple[int, int, TensorId]]:
    """Yield the bytes of owners in the arena.

    A piece counts from where its whole owner would begin to the piece's end.
    """
    for owner, offset in memory.offsets.items():
        yield offset, offset + plan.graph.types[owner].nbytes, owner
    for owner, pieces in memory.pieces.items():
        kind = plan.graph.types[owner]
        for first, end, offset in zip(pieces.firsts, (*pieces.firsts[1:], kind.span), pieces.offsets, strict=True):
            yield offset - first * kind.element_bytes, offset + (end - first) * kind.element_bytes, owner


def _scratch(evidence: ImageEvidence) -> None:
    """Check R309: each vEU has its own scratch, large enough for all rTasks it may run and for resident results."""
    decoded, plan, memory = evidence.decoded, evidence.plan, evidence.memory
    own = decoded.scratch
    most = max((at + plan.graph.types[t].nbytes for t, at in memory.messages.items()), default=0)
    need = np.full(decoded.num_veus, most, np.int64)
    rows, _ = evidence.wanted
    sizes = np.array([k.scratch_bytes for k in plan.kernels] or [0], np.int64)
    tasks = evidence.tasks
    np.maximum.at(need, rows[tasks, 1], sizes[rows[tasks, 3]])
    helped = tasks[decoded.slots.tickets[tasks] > 0]
    need = np.maximum(need, sizes[rows[helped, 3]].max(initial=0))  # any vEU may steal from these
    for owner, pieces in memory.in_scratch.items():
        kind = plan.graph.types[owner]
        ends = (*pieces.firsts[1:], kind.span)
        for first, end, at, veu in zip(pieces.firsts, ends, pieces.offsets, pieces.veus, strict=True):
            need[veu] = max(need[veu], at + (end - first) * kind.element_bytes)
    if len(own) != decoded.num_veus or (small := np.flatnonzero(own[:, 1] - own[:, 0] < need)).size:
        veu = int(small[0]) if len(own) == decoded.num_veus else len(own)
        raise broken(
            "R309",
            f"vEU {veu} has {own[veu].tolist() if veu < len(own) else 'no'} scratch, and needs {need[veu]} bytes",
        )
    by = np.argsort(own[:, 0], kind="stable")
    over = np.flatnonzero((own[by[1:], 0] < own[by[:-1], 1]) & (need[by[1:]] > 0) & (need[by[:-1]] > 0))
    if decoded.scratch_shared and over.size:
        raise broken(
            "R309",
            f"vEUs {by[over[0]]} and {by[over[0] + 1]} share bytes of scratch: {own[by[over[0]]].tolist()} and "
            f"{own[by[over[0] + 1]].tolist()}",
        )


def _hints(evidence: ImageEvidence) -> None:
    """Check R310: prefetches lie in their memory; only tickets that an rKernel offers can be stolen."""
    decoded, plan = evidence.decoded, evidence.plan
    sizes = np.array([*(c.nbytes for c in decoded.constants), decoded.arena_bytes], np.int64)  # ARENA is the last
    slot, base, offset, nbytes = decoded.hints.T
    known = (base >= ARENA) & (base < len(decoded.constants))
    inside = known & (offset >= 0) & (nbytes >= 0) & (offset + nbytes <= sizes[np.where(known, base, ARENA)])
    if not inside.all():
        at = int(np.argmin(inside))
        raise broken(
            "R310",
            f"{evidence.at(int(slot[at]))} asks for {nbytes[at]} bytes from {_place(int(base[at]), int(offset[at]))}"
            " on, which are not there",
        )
    rows, _ = evidence.wanted
    tasks = evidence.tasks
    said, may = decoded.slots.tickets, np.zeros(len(rows), np.int64)
    for n in np.unique(rows[tasks, 3]).tolist():
        kernel = plan.kernels[n]
        parts = decoded.tickets.get(kernel, ())
        if plan.spec.num_veus > 1 and len(parts) and not isinstance(kernel.body, ForeignSource) and not kernel.unproven:
            mine = evidence.tasks_of(n)
            may[mine] = np.array(parts, np.int64)[rows[mine, 4]]
    if (bad := np.flatnonzero((said > may) | (said < 0))).size:
        raise broken("R310", f"{said[bad[0]]} parts of {evidence.at(int(bad[0]))} may be others', of {may[bad[0]]}")


def _messages(evidence: ImageEvidence) -> None:
    """Check R311: messages are those of the plan."""
    decoded = evidence.decoded
    if evidence.memory.messages or len(decoded.sent) or len(decoded.received):
        verify_messages(decoded, evidence.plan, evidence.memory, evidence.order, evidence.messages)


RULES: dict[str, ImageRule] = {
    "R301": ImageRule("readable", _readable),
    "R302": ImageRule("same-slots", _same_slots),
    "R303": ImageRule("right-functions", _right_functions),
    "R304": ImageRule("same-waits", _same_waits),
    "R305": ImageRule("published", _published),
    "R306": ImageRule("operands", _operands),
    "R307": ImageRule("constants", _constants),
    "R308": ImageRule("ports", _ports),
    "R309": ImageRule("scratch", _scratch),
    "R310": ImageRule("hints", _hints),
    "R311": ImageRule("messages", _messages),
}
