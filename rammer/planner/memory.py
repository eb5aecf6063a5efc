"""Place tensors, or pieces of them, in one arena; they share bytes if their lifetimes are ordered.

Known as: memory planning, dynamic storage allocation.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from rammer.ir.analysis.order import HappensBefore, Slots
from rammer.ir.analysis.storage import arguments, memory_owners
from rammer.ir.graph import Graph
from rammer.ir.plan import ExecutionPlan, MemoryPlan, Pieces
from rammer.ir.program import TaskUid
from rammer.ir.tensor import ALIGNMENT, TensorId
from rammer.planner.in_place import in_place_pairs
from rammer.planner.pieces import cuts
from rammer.planner.scratch_allocation import place_in_scratch

PAGE = 4096
BLOCK = 256  # owners whose overlaps are computed at once


class Lifetimes:
    """The accesses to each memory owner, or to each piece of it, reduced to what `precedes` needs.

    Graph inputs are written before everything; graph outputs are read after everything. `cut` maps owners to the first
    elements of their pieces; an rTask accesses only the piece that holds what it touches. Owners in `in_scratch` are
    left out: they lie in scratch.
    """

    def __init__(
        self,
        plan: ExecutionPlan,
        order: HappensBefore,
        cut: Mapping[TensorId, tuple[int, ...]] | None = None,
        in_scratch: Collection[TensorId] = (),
    ) -> None:
        graph, cut = plan.graph, cut or {}
        owners = (root for root in memory_owners(graph) if root not in in_scratch)
        places = [(root, first) for root in owners for first in cut.get(root, (0,))]
        self.owners = [root for root, _ in places]  # the owner of each piece
        self.firsts = np.array([first for _, first in places], np.int64)
        number = {root: n for n, root in reversed(list(enumerate(self.owners)))}
        count, num_veus = len(self.owners), order.num_veus
        slots = [order.slots(*(TaskUid(n, r) for r in range(k.num_rtasks))) for n, k in enumerate(plan.kernels)]
        accesses: list[tuple[int, int, bool]] = []  # (owner, operator, writes)
        pieces: list[tuple[Slots, Slots, bool]] = []  # (piece of each rTask, their slots, writes)
        for n, op in enumerate(graph.operators):
            written = {graph.storage(t).root for t in op.outputs}
            for root in written | {graph.storage(t).root for t in op.inputs}:
                if root in number and root not in cut:
                    accesses.append((number[root], n, root in written))
            for argument, root, found in arguments(graph, plan.kernels, n) if cut else ():
                if root in cut:
                    some = found[:, 1] > found[:, 0]
                    piece = number[root] + np.searchsorted(cut[root], found[some, 0], "right") - 1
                    pieces.append((piece, slots[n][some], argument < len(op.outputs)))
        lengths = [len(slots[n]) for _, n, _ in accesses]
        slot = np.concatenate([np.zeros(0, np.int64), *(slots[n] for _, n, _ in accesses), *(p[1] for p in pieces)])
        owner = np.repeat(np.array([a[0] for a in accesses], np.int64), lengths)
        owner = np.concatenate([owner, *(p[0] for p in pieces)])
        lengths += [len(p[1]) for p in pieces]
        writes = np.repeat(np.array([a[2] for a in (*accesses, *pieces)], bool), lengths)

        self.first_program = np.full(count, len(plan.programs), np.int64)  # the rProgram of the first write
        self.last_program = np.full(count, -1, np.int64)  # the rProgram of the last access
        np.minimum.at(self.first_program, owner[writes], order.program[slot[writes]])
        np.maximum.at(self.last_program, owner, order.program[slot])
        # in its last rProgram, an owner is accessed no later than order last[veu, owner] of each lane
        self.last = np.full((num_veus, count), -1, np.int32)
        final = order.program[slot] == self.last_program[owner]
        np.maximum.at(self.last, (order.veu[slot[final]], owner[final]), order.order[slot[final]].astype(np.int32))
        # in its first rProgram, every write of it knows needs[veu, owner] slots of each lane to be complete
        self.needs = np.full((num_veus, count), np.iinfo(np.int32).max, np.int32)
        early = np.flatnonzero(writes & (order.program[slot] == self.first_program[owner]))
        early = early[np.argsort(owner[early], kind="stable")]
        if early.size:
            begins = np.flatnonzero(np.append(True, np.diff(owner[early]) > 0))
            self.needs[:, owner[early[begins]]] = np.minimum.reduceat(order.known(slot[early]), begins, axis=0).T
        self.first_program[self.first_program == len(plan.programs)] = -1  # graph inputs: no rTask writes them first
        self.first_program[[number[t] for t in graph.inputs if t in number]] = -1
        for root in (graph.storage(t).root for t in graph.outputs):
            if root in number:
                self.last_program[number[root]] = len(plan.programs)

    def precedes(self, first: NDArray[np.int64] | int, second: NDArray[np.int64] | int) -> NDArray[np.bool_]:
        """Return whether every access of owner `first` happens before every write of owner `second`.

        Either may be an array.
        """
        ended, begun = self.last_program[first], self.first_program[second]
        inside = (ended == begun) & (begun >= 0)  # only these need the order within an rProgram
        if inside.any():
            for last, needs in zip(self.last, self.needs, strict=True):
                inside &= needs[second] > last[first]
        result: NDArray[np.bool_] = inside | (ended < begun)
        return result

    def disjoint(self, begin: int, end: int) -> NDArray[np.bool_]:
        """Return [end - begin, end]: which of owners [begin, end) and owners [0, end) are never live together."""
        these, all_before = np.arange(begin, end)[:, None], np.arange(end)
        return self.precedes(these, all_before) | self.precedes(all_before, these)

    def reorder(self, order: NDArray[np.int64]) -> None:
        """Renumber the pieces."""
        self.owners, self.firsts = [self.owners[n] for n in order], self.firsts[order]
        self.first_program, self.last_program = self.first_program[order], self.last_program[order]
        self.last, self.needs = self.last[:, order], self.needs[:, order]


def extents(graph: Graph, owners: Sequence[TensorId], firsts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return [n, 2]: the first byte and the end of each piece within its owner; pieces of an owner are in order."""
    sizes = np.array([graph.types[t].nbytes for t in owners], np.int64)
    starts = firsts * np.array([graph.types[t].element_bytes for t in owners], np.int64)
    last = np.append(firsts[1:] == 0, True)[: len(owners)]
    return np.stack([starts, np.where(last, sizes, np.append(starts[1:], 0)[: len(owners)])], 1)


def plan_memory(
    plan: ExecutionPlan,
    *,
    unshared: Collection[TensorId] = (),
    least_piece: int = 0,
    scratch: bool = False,
    happens_before: HappensBefore | None = None,
) -> MemoryPlan:
    """Place every memory owner in one arena, largest first, each into the smallest gap between overlapping lifetimes.

    A result that may be in place reuses its operand's memory, whose lines its vEU has in cache. Owners in `unshared`
    never share bytes. With `least_piece`, other owners are split into pieces of at least so many bytes where possible.
    Owners in `unshared` then lie behind all pieces: arguments in pieces may begin far before their piece, but never
    behind it. `scratch`: place what only one vEU touches in its scratch, if the device allows it and it fits.
    `happens_before`: the plan's order, if known. Raises VerificationError R106 for an rTask without a slot.
    """
    happens_before = happens_before or HappensBefore(plan.programs)
    held = place_in_scratch(plan, happens_before, unshared) if scratch else {}
    cut = cuts(plan.graph, plan.kernels, least_piece) if least_piece else {}
    cut = {owner: firsts for owner, firsts in cut.items() if owner not in unshared and owner not in held}
    lifetimes = Lifetimes(plan, happens_before, cut, held)
    spans = extents(plan.graph, lifetimes.owners, lifetimes.firsts)
    skew = spans[:, 0] % ALIGNMENT  # of a piece: keeps the alignment that it has in its owner
    room = np.where([t in cut for t in lifetimes.owners], ALIGNMENT, 0)  # for any skew: equal pieces can share memory
    sizes = _padded(spans[:, 1] - spans[:, 0] + room)
    kept = np.array([owner in unshared for owner in lifetimes.owners], bool)
    order = np.lexsort((np.arange(len(sizes)), lifetimes.first_program, -sizes, kept & bool(cut)))
    lifetimes.reorder(order)
    sizes, kept = sizes[order], kept[order]
    starts = np.zeros(len(sizes), np.int64)
    placed = np.zeros(len(sizes), bool)
    lines = _reuse_chains(in_place_pairs(plan, happens_before), {*cut, *unshared, *held})
    number = {root: n for n, root in enumerate(lifetimes.owners) if root not in cut}
    for begin in range(0, len(sizes), BLOCK):
        end = min(begin + BLOCK, len(sizes))
        clash = ~lifetimes.disjoint(begin, end) | kept[:end] | kept[begin:end, None]
        for n, row in enumerate(clash, begin):
            line = sorted(number[root] for root in lines.get(lifetimes.owners[n], ()))
            if line and line[-1] > n:
                continue  # the whole line is placed with its last owner
            if kept[n] and cut:
                starts[n] = (starts + sizes)[:n][placed[:n]].max(initial=0)
            else:
                before = np.flatnonzero(placed[:n])
                meets = row[before]
                for m in line[:-1]:
                    meets |= ~(lifetimes.precedes(before, m) | lifetimes.precedes(m, before))
                starts[line or n] = _tightest_gap(starts[before[meets]], sizes[before[meets]], int(sizes[n]))
            placed[line or n] = True
    arena = int((starts + sizes).max(initial=0))
    offsets: dict[TensorId, int] = {}
    pieces: dict[TensorId, list[int]] = {root: [] for root in cut}
    for root, start in zip(lifetimes.owners, starts.tolist(), strict=True):
        if root not in cut:
            offsets[root] = start
    for n in np.argsort(order).tolist():
        if (root := lifetimes.owners[n]) in cut:
            pieces[root].append(int(starts[n] + skew[order[n]]))
    found = {root: Pieces(cut[root], tuple(some)) for root, some in pieces.items()}
    return MemoryPlan(offsets, arena, ALIGNMENT, found, held)


def _reuse_chains(
    pairs: Iterable[tuple[TensorId, TensorId]], without: Collection[TensorId]
) -> dict[TensorId, list[TensorId]]:
    """Return, for each owner that shares its memory in place, all owners that do, each followed by its successor."""
    found: dict[TensorId, list[TensorId]] = {}
    for operand, result in pairs:
        line = found.get(operand, [operand])
        if line[-1] == operand and result not in found and not {operand, result} & set(without):
            line.append(result)
            found[operand] = found[result] = line
    return found


def _padded(nbytes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return sizes to reserve: aligned, and not a multiple of a page, or neighbours would share cache sets."""
    sizes: NDArray[np.int64] = -(-np.maximum(nbytes, 1) // ALIGNMENT) * ALIGNMENT
    return np.where(sizes % PAGE, sizes, sizes + ALIGNMENT)


def _tightest_gap(starts: NDArray[np.int64], sizes: NDArray[np.int64], size: int) -> int:
    """Return the offset of the smallest gap of at least `size` bytes between taken ranges, else the end of them all."""
    if not len(starts):
        return 0
    order = np.argsort(starts)
    low = starts[order]
    reach = np.maximum.accumulate(low + sizes[order])
    gaps = np.append(low[0], low[1:] - reach[:-1])
    fits = np.flatnonzero(gaps >= size)
    if not fits.size:
        return int(reach[-1])
    best = int(fits[np.argmin(gaps[fits])])
    return int(reach[best - 1]) if best else 0
