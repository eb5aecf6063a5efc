"""Prove that bytes of memory are shared in turns (R107), by the plan's order and by what rTasks access.

It shares no code with the memory planner (`rammer/planner`), so that it sees faults there.

Ranges that cover a byte must be totally ordered: all accesses of one happen before all writes of the next one. That
order is transitive, as all that is accessed was written. So it suffices to compare neighbours in the order of first
writes, while sweeping the arena from its first byte to the last. Known as: sweep line.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rammer.errors import VerificationError
from rammer.ir.analysis.access import Accesses
from rammer.ir.analysis.dependency import read_elements, written_elements
from rammer.ir.analysis.order import HappensBefore, Slots
from rammer.ir.kernel import RKernel
from rammer.ir.plan import ExecutionPlan, MemoryPlan, Pieces
from rammer.ir.program import RTask, TaskUid
from rammer.ir.tensor import Numbers, TensorId, aligned_bytes
from rammer.ir.tile import TileProgram

MOST_NUMBERS = 1 << 24  # clocks that are compared at once


@dataclass(frozen=True)
class Ranges:
    """Bytes [begins, ends) of memory owners, or of pieces of them, and every access of them.

    Accesses are rows of `which` (the range), `slots` and `writes`.
    """

    owners: Sequence[TensorId]
    firsts: Numbers  # the first element of each range in its owner
    begins: Numbers
    ends: Numbers
    which: Numbers
    slots: Slots
    writes: NDArray[np.bool_]


def check_reuse(
    plan: ExecutionPlan, order: HappensBefore, slots: Sequence[Slots], name: Callable[[TaskUid], str]
) -> None:
    """Raise VerificationError R107 unless bytes of the arena, and of each vEU's scratch, are shared in turns.

    `slots` are those of every operator's rTasks; `name` names an rTask in messages.
    """
    memory = plan.memory
    if memory is None:
        return
    whole = {owner: Pieces((0,), (offset,)) for owner, offset in memory.offsets.items()}
    _check_arena(plan, memory, order, _ranges(plan, slots, {**whole, **memory.pieces}), slots)
    if memory.in_scratch:
        _check_scratch(plan, memory, order, _ranges(plan, slots, memory.in_scratch), name)


def _ranges(plan: ExecutionPlan, slots: Sequence[Slots], places: Mapping[TensorId, Pieces]) -> Ranges:
    graph = plan.graph
    rows = [
        (owner, first, offset, offset + (end - first) * kind.element_bytes)
        for owner, pieces in places.items()
        for kind in [graph.types[owner]]
        for first, end, offset in zip(pieces.firsts, (*pieces.firsts[1:], kind.span), pieces.offsets, strict=True)
    ]
    start: dict[TensorId, int] = {}
    for n, (owner, *_) in enumerate(rows):
        start.setdefault(owner, n)
    which: list[Numbers] = [np.zeros(0, np.int64)]
    found: list[Slots] = [np.zeros(0, np.int64)]
    writes = [np.zeros(0, bool)]
    for n, op in enumerate(graph.operators):
        count = len(op.outputs)
        seen: set[tuple[TensorId, bool]] = set()
        for argument, tensor in enumerate((*op.outputs, *op.inputs)):
            root, shift = graph.storage(tensor)
            writing = argument < count
            if root not in start or (len(places[root].firsts) == 1 and (root, writing) in seen):
                continue
            seen.add((root, writing))
            if len(places[root].firsts) == 1:
                mine, here = np.full(len(slots[n]), start[root]), slots[n]
            else:
                first = first_touched(plan.kernels[n], argument) + shift
                touching = first >= shift
                here = slots[n][touching]
                mine = start[root] + np.searchsorted(places[root].firsts, first[touching], "right") - 1
            which.append(mine)
            found.append(here)
            writes.append(np.full(len(here), writing))
    first, begin, end = np.array([row[1:] for row in rows], np.int64).reshape(-1, 3).T
    parts = map(np.concatenate, (which, found, writes))
    return Ranges([row[0] for row in rows], first, begin, end, *parts)


def first_touched(kernel: RKernel, argument: int) -> Numbers:
    """Return the first element of an argument (outputs, then inputs) that each rTask accesses; -1 for none.

    R111 requires the last one to lie in the same piece.
    """
    count = len(kernel.operation.outputs)
    elements = written_elements(kernel, argument) if argument < count else read_elements(kernel, argument - count)
    firsts = np.array([int(s[0, 0]) if len(s) else -1 for s in elements.sets], np.int64)
    return firsts[np.array(elements.chosen, np.int64)]


class _Lifetimes:
    """Times at which ranges are used: `precedes` decides whether one is done with before another one is written."""

    def __init__(self, plan: ExecutionPlan, order: HappensBefore, ranges: Ranges) -> None:
        graph, count = plan.graph, len(ranges.owners)
        self._order, self._ranges = order, ranges
        program = order.program[ranges.slots]
        self.begun = np.full(count, len(plan.programs), np.int64)  # program of the first write; -1: before all of them
        np.minimum.at(self.begun, ranges.which[ranges.writes], program[ranges.writes])
        self.ended = np.full(count, -1, np.int64)  # program of the last access
        np.maximum.at(self.ended, ranges.which, program)
        given = {graph.storage(t).root for t in graph.inputs}
        wanted = {graph.storage(t).root for t in graph.outputs}
        self.begun[(self.begun == len(plan.programs)) | np.array([t in given for t in ranges.owners], bool)] = -1
        self.ended[np.array([t in wanted for t in ranges.owners], bool)] = len(plan.programs)
        rank = np.full(count, np.iinfo(np.int64).max)
        early = ranges.writes & (program == self.begun[ranges.which])
        np.minimum.at(rank, ranges.which[early], order.rank(ranges.slots[early]))
        self._early, self._late = early, program == self.ended[ranges.which]
        place = np.lexsort((np.arange(count), rank, self.begun))
        self.place = np.empty(count, np.int64)  # in the order of first writes
        self.place[place] = np.arange(count)

    def precedes(self, pairs: Numbers) -> NDArray[np.bool_]:
        """Return, of each (first, second), whether all accesses of the first happen before all writes of the second."""
        first, second = pairs.T
        found: NDArray[np.bool_] = self.ended[first] < self.begun[second]
        asking = np.flatnonzero((self.ended[first] == self.begun[second]) & (self.begun[second] >= 0))
        asking = asking[np.argsort(second[asking], kind="stable")]
        writers, wrote = _of_lanes(self._order, *self._some(self._early))
        users, used = _of_lanes(self._order, *self._some(self._late), last=True)
        most = max(1, MOST_NUMBERS // max(self._order.num_veus, 1) ** 2)
        for begin in range(0, len(asking), most):
            some = asking[begin : begin + most]
            rows, which = np.unique(second[some], return_inverse=True)
            at, row = _spans(writers, rows)
            needs = np.minimum.reduceat(self._order.known(wrote[at]), np.searchsorted(row, range(len(rows))), axis=0)
            at, pair = _spans(users, first[some])
            known = needs[which[pair], self._order.veu[used[at]]]
            found[some] = ~np.isin(np.arange(len(some)), pair[known <= self._order.order[used[at]]])
        return found

    def _some(self, chosen: NDArray[np.bool_]) -> tuple[Numbers, Slots]:
        return self._ranges.which[chosen], self._ranges.slots[chosen]


def _spans(keys: Numbers, wanted: Numbers) -> tuple[Numbers, Numbers]:
    """Return all places of each wanted key among sorted `keys`, and to which of `wanted` each belongs."""
    low, high = (np.searchsorted(keys, wanted, side) for side in ("left", "right"))
    which = np.repeat(np.arange(len(wanted)), high - low)
    return np.arange(len(which)) + np.repeat(high - np.cumsum(high - low), high - low), which


def _of_lanes(order: HappensBefore, which: Numbers, slots: Slots, *, last: bool = False) -> tuple[Numbers, Slots]:
    """Return the first, or the last, slot of every lane that accesses each range; sorted by range.

    All slots of one range are of one program.
    """
    by = np.lexsort((order.order[slots], order.veu[slots], which))
    which, slots = which[by], slots[by]
    new = (np.diff(which) > 0) | (np.diff(order.veu[slots]) != 0)
    end = np.ones(min(len(which), 1), bool)
    kept = np.append(new, end) if last else np.append(end, new)
    return which[kept], slots[kept]


def _check_arena(
    plan: ExecutionPlan, memory: MemoryPlan, order: HappensBefore, ranges: Ranges, slots: Sequence[Slots]
) -> None:
    turns = _Lifetimes(plan, order, ranges)
    pairs = np.array(list(_neighbours(ranges, turns.place)), np.int64).reshape(-1, 2)
    for n, m in pairs[~turns.precedes(pairs)].tolist() if len(pairs) else ():
        if not _succeeds(plan, memory, order, slots, (ranges.owners[n], ranges.owners[m])):
            first, second = sorted((n, m))
            raise VerificationError(
                "R107",
                f"{_named(memory, ranges, first)} and {_named(memory, ranges, second)} share arena bytes, "
                "but the plan may use both at once",
                hint="share memory only if all accesses of one happen before all writes of the other, or one is read "
                "only where the other one is stored",
            )


def _named(memory: MemoryPlan, ranges: Ranges, n: int) -> str:
    """Name a range for messages."""
    piece = f" from element {ranges.firsts[n]} on" if ranges.owners[n] in memory.pieces else ""
    return f"{ranges.owners[n]!r}{piece} at [{ranges.begins[n]}, {ranges.ends[n]})"


def _neighbours(ranges: Ranges, place: Numbers) -> Iterator[tuple[int, int]]:
    """Yield pairs of ranges that share a byte, and follow one another there in the order of first writes."""
    filled = np.flatnonzero(ranges.ends > ranges.begins)
    address = np.concatenate([ranges.ends[filled], ranges.begins[filled]])
    entering = np.repeat([False, True], len(filled))
    by = np.lexsort((entering, address))  # at one address, first leave
    there: list[tuple[int, int]] = []  # by place
    for n, enters in zip(np.tile(filled, 2)[by].tolist(), entering[by].tolist(), strict=True):
        own = int(place[n]), n
        at = bisect_left(there, own)
        before = there[at - 1][1] if at else None
        behind = there[at + (not enters)][1] if at + (not enters) < len(there) else None
        if enters:
            insort(there, own)
            if before is not None:
                yield before, n
            if behind is not None:
                yield n, behind
        else:
            del there[at]
            if before is not None and behind is not None:
                yield before, behind


def _succeeds(
    plan: ExecutionPlan,
    memory: MemoryPlan,
    order: HappensBefore,
    slots: Sequence[Slots],
    pair: tuple[TensorId, TensorId],
) -> bool:
    """Return whether a result reuses an operand's memory in place, element by element.

    The operand may be read by the result's rKernel only in the statement that stores the element with the same number,
    and by all others only before any of the result is written.
    """
    graph, (old, new) = plan.graph, pair
    kinds = graph.types[old], graph.types[new]
    separate = not plan.spec.in_place or pair[0] in memory.pieces or pair[1] in memory.pieces
    ports = {graph.storage(t).root for t in (*graph.inputs, *graph.outputs)}
    makers = [n for n, op in enumerate(graph.operators) if any(graph.storage(t).root == new for t in op.outputs)]
    if separate or ports & {old, new} or len(makers) != 1 or memory.offsets[old] != memory.offsets[new]:
        return False
    op, kernel = graph.operators[makers[0]], plan.kernels[makers[0]]
    if op.outputs != (new,) or kinds[0].nbytes != kinds[1].nbytes or kinds[0].dtype is not kinds[1].dtype:
        return False
    own = {n for n, t in enumerate(op.inputs) if graph.storage(t).root == old}
    if any(graph.storage(op.inputs[n]).offset for n in own) or not own <= _read_where_stored(kernel):
        return False
    # Operators that only wrote the operand need no check: R104 orders them before each reader of an element.
    readers = [n for n, other in enumerate(graph.operators) if any(graph.storage(t).root == old for t in other.inputs)]
    read = np.concatenate([np.zeros(0, np.int64), *(slots[n] for n in readers if n != makers[0])])
    program = order.program[slots[makers[0]]]
    begun = slots[makers[0]][program == program.min()]
    _, begun = _of_lanes(order, np.zeros(len(begun), np.int64), begun)
    return bool(order.before(np.repeat(read, len(begun)), np.tile(begun, len(read))).all())


def _read_where_stored(kernel: RKernel) -> frozenset[int]:
    """Return inputs that a kernel reads only in the statement that stores the result's element at the same place."""
    program = kernel.program
    if not isinstance(program, TileProgram) or program.num_outputs != 1 or kernel.operation.expr.into:
        return frozenset()
    out, *inputs = program.arguments
    found = Accesses(program).found
    stored = {a.statement: a for a in found if a.write and a.buffer == out.name}
    if any(a.buffer == out.name and not a.write for a in found):
        return frozenset()

    def alike(buffer: str) -> bool:
        reads = [a for a in found if a.buffer == buffer and not a.write]
        return all(
            a.statement in stored and (a.index, a.more, stored[a.statement].more) == (stored[a.statement].index, (), ())
            for a in reads
        )

    same = [n for n, b in enumerate(inputs) if (b.size, b.dtype, b.encoding) == (out.size, out.dtype, out.encoding)]
    return frozenset(n for n in same if alike(inputs[n].name))


def _check_scratch(
    plan: ExecutionPlan, memory: MemoryPlan, order: HappensBefore, ranges: Ranges, name: Callable[[TaskUid], str]
) -> None:
    """Check that what stays in scratch overlaps with nothing that is used there meanwhile: lane order alone counts."""
    veus = np.array([veu for pieces in memory.in_scratch.values() for veu in pieces.veus], np.int64)
    own = order.veu[ranges.slots] == veus[ranges.which]  # R113 refuses other accesses
    which, slots = ranges.which[own], ranges.slots[own]
    lanes: dict[tuple[int, int], list[tuple[int, int, int]]] = {}  # (program, vEU) -> (range, first order, last)
    for n in np.unique(which).tolist():
        here = slots[which == n]
        orders = order.order[here]
        lane = int(order.program[here[0]]), int(veus[n])
        lanes.setdefault(lane, []).append((n, int(orders.min()), int(orders.max())))
    for (program, veu), there in lanes.items():
        where = f"the scratch of vEU {veu}"
        lane_slots = plan.programs[program].lanes[veu]
        kernels = [plan.kernels[s.uid.operator_id] if isinstance(s, RTask) else None for s in lane_slots]
        used = np.array([aligned_bytes(k.scratch_bytes) if k else 0 for k in kernels], np.int64)
        there.sort(key=lambda stay: int(ranges.begins[stay[0]]))
        for at, (n, first, last) in enumerate(there):
            span = used[first : last + 1]
            begin, end = int(ranges.begins[n]), int(ranges.ends[n])
            if int(span.max()) > begin:
                slot = lane_slots[first + int(span.argmax())]
                assert isinstance(slot, RTask)
                raise VerificationError(
                    "R107",
                    f"{ranges.owners[n]!r} lies at [{begin}, {end}) of {where}, and {name(slot.uid)}, "
                    f"which runs meanwhile, uses {int(span.max())} bytes of it",
                    hint="what stays lies behind the scratch of all rTasks that run before it was read",
                )
            for m, begun, ended in there[at + 1 :]:
                if ranges.begins[m] >= end:
                    break
                if begun <= last and first <= ended:
                    raise VerificationError(
                        "R107",
                        f"{ranges.owners[n]!r} at [{begin}, {end}) and {ranges.owners[m]!r} at [{ranges.begins[m]}, "
                        f"{ranges.ends[m]}) share bytes of {where}, and are needed at the same time",
                        hint="share scratch only if one is read before the other is written, on the same vEU",
                    )
