"""Keep results in the scratch of the vEU that makes them until its later rTasks have read them.

Known as: scratchpad allocation. A vEU keeps its scratch from one rTask to the next. What one vEU alone touches, in one
rProgram, need not lie where all vEUs see it. Each piece of such a result has a place beside the scratch of the rTasks
that run meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rammer.ir.analysis.order import HappensBefore
from rammer.ir.analysis.storage import accesses, must_be_seen
from rammer.ir.plan import ExecutionPlan, Pieces
from rammer.ir.program import RTask
from rammer.ir.tensor import ALIGNMENT, Numbers, TensorId, aligned_bytes

MOST_PIECES = 1 << 14  # of a plan: planning time grows with their number


class Lane(NamedTuple):
    """A lane of a plan. Its slots share one scratch, whose contents do not survive the rProgram."""

    program: int
    veu: int


@dataclass(slots=True)
class ResidentPiece:
    """A piece of an owner in scratch: bytes [begin, end) of it, live from order `first` to order `last` of a lane."""

    owner: TensorId
    lane: Lane
    first: int
    last: int
    begin: int
    end: int

    def meets(self, other: ResidentPiece) -> bool:
        """Return whether both are live at the same time, in one scratch."""
        return self.lane == other.lane and self.first <= other.last and other.first <= self.last


def resident_pieces(plan: ExecutionPlan, order: HappensBefore) -> list[ResidentPiece]:
    """Return all pieces that lie in scratch, each with its own vEU's accesses; pieces without accesses are left out."""
    resident, found = plan.memory.in_scratch if plan.memory else {}, list[ResidentPiece]()
    for owner, rows in accesses(plan, order, resident).items():
        pieces, kind = resident[owner], plan.graph.types[owner]
        sizes = np.diff(np.append(np.array(pieces.firsts) * kind.element_bytes, kind.nbytes)).tolist()
        which = np.searchsorted(pieces.firsts, rows[:, 0], "right") - 1
        for n, (begin, size, veu) in enumerate(zip(pieces.offsets, sizes, pieces.veus, strict=True)):
            slots = rows[which == n, 2]
            if len(slots := slots[order.veu[slots] == veu]):
                lane = Lane(int(order.program[slots[0]]), veu)
                orders = order.order[slots]
                found.append(ResidentPiece(owner, lane, int(orders.min()), int(orders.max()), begin, begin + size))
    return found


def own_scratch(plan: ExecutionPlan, lane: Lane) -> Numbers:
    """Return the bytes of scratch that each slot of a lane uses itself, from offset 0 on."""
    slots = plan.programs[lane.program].lanes[lane.veu]
    uses = (plan.kernels[s.uid.operator_id].scratch_bytes if isinstance(s, RTask) else 0 for s in slots)
    return np.array([aligned_bytes(n) for n in uses], np.int64)


def place_in_scratch(
    plan: ExecutionPlan, order: HappensBefore, unshared: Collection[TensorId] = ()
) -> dict[TensorId, Pieces]:
    """Choose owners that lie entirely in scratch, and place them.

    Those that move most bytes per byte and slot occupied come first. An owner is left out if several vEUs touch one of
    its pieces, if a piece does not fit, or if it is in `unshared`.
    """
    graph = plan.graph
    if not plan.spec.resident:
        return {}
    made = {graph.storage(t).root for op in graph.operators for t in op.outputs}
    wanted = sorted(made - must_be_seen(plan).keys() - set(unshared))
    cut: dict[TensorId, list[ResidentPiece]] = {}
    gain: dict[TensorId, float] = {}
    firsts: dict[TensorId, list[int]] = {}
    for owner, rows in accesses(plan, order, wanted).items():
        if len(rows) and (found := _pieces(plan, order, owner, rows)):
            firsts[owner], cut[owner] = found
            moved = float((rows[:, 1] - rows[:, 0]).sum()) * graph.types[owner].element_bytes
            gain[owner] = moved / sum((s.end - s.begin) * (s.last - s.first + 1) for s in cut[owner])
    scratches: dict[Lane, _LaneScratch] = {}
    placed: dict[TensorId, Pieces] = {}
    count = 0
    for owner in sorted(cut, key=lambda t: (-gain[t], t)):
        if count + len(cut[owner]) > MOST_PIECES:
            continue
        for lane in {s.lane for s in cut[owner]} - scratches.keys():
            scratches[lane] = _LaneScratch(own_scratch(plan, lane), plan.spec.scratch_bytes)
        if all(scratches[s.lane].place(s) for s in cut[owner]):
            count += len(cut[owner])
            places = tuple(s.begin for s in cut[owner])
            placed[owner] = Pieces(tuple(firsts[owner]), places, tuple(s.lane.veu for s in cut[owner]))
        else:
            for s in cut[owner]:
                scratches[s.lane].forget(s)
    return placed


def _pieces(
    plan: ExecutionPlan, order: HappensBefore, owner: TensorId, rows: Numbers
) -> tuple[list[int], list[ResidentPiece]] | None:
    """Split an owner between elements that no rTask touches together.

    Returns the first element of each piece, and its place: an offset in scratch with the alignment that it has in its
    owner. None if a piece is too large, or several vEUs touch it.
    """
    rows = rows[np.argsort(rows[:, 0], kind="stable")]
    begins = np.flatnonzero(np.append(True, rows[1:, 0] >= np.maximum.accumulate(rows[:, 1])[:-1]))
    slots = rows[:, 2]
    lane = order.program[slots] * order.num_veus + order.veu[slots]
    if (np.maximum.reduceat(lane, begins) != np.minimum.reduceat(lane, begins)).any():
        return None
    kind = plan.graph.types[owner]
    firsts = np.append(0, rows[begins[1:], 0])
    starts = firsts * kind.element_bytes
    sizes = np.diff(np.append(starts, kind.nbytes))
    if sizes.max() > plan.spec.scratch_bytes:
        return None
    early, late = np.minimum.reduceat(order.order[slots], begins), np.maximum.reduceat(order.order[slots], begins)
    columns = (c.tolist() for c in (lane[begins], early, late, starts % ALIGNMENT, starts % ALIGNMENT + sizes))
    found = [ResidentPiece(owner, Lane(*divmod(at, order.num_veus)), *rest) for at, *rest in zip(*columns, strict=True)]
    return firsts.tolist(), found


class _LaneScratch:
    """Scratch of one lane: what rTasks use of it, slot by slot, and the pieces that stay there."""

    def __init__(self, used: Numbers, nbytes: int) -> None:
        self._used, self._nbytes = used, nbytes
        self._placed: list[ResidentPiece] = []

    def place(self, piece: ResidentPiece) -> bool:
        """Place a piece where nothing else lies while it is live; return whether there is such a place."""
        skew = piece.begin
        begin, size = int(self._used[piece.first : piece.last + 1].max()), aligned_bytes(piece.end)
        for other in sorted(self._placed, key=lambda s: s.begin):
            if piece.meets(other) and other.begin < begin + size and begin < other.end:
                begin = aligned_bytes(other.end)
        if begin + size > self._nbytes:
            return False
        piece.begin, piece.end = begin + skew, begin + piece.end
        self._placed.append(piece)
        return True

    def forget(self, piece: ResidentPiece) -> None:
        """Remove a piece if it is there."""
        self._placed = [s for s in self._placed if s is not piece]


def scratch_ends(plan: ExecutionPlan, found: Sequence[ResidentPiece]) -> dict[Lane, Numbers]:
    """Return, for each lane and slot, the end of the scratch that the rTask and the resident pieces use."""
    lanes = [Lane(p, v) for p, program in enumerate(plan.programs) for v in range(len(program.lanes))]
    ends = {lane: own_scratch(plan, lane) for lane in lanes}
    for stay in found:
        span = ends[stay.lane][stay.first : stay.last + 1]
        np.maximum(span, aligned_bytes(stay.end), out=span)
    return ends
