"""Choose which parts of constants stay in a vEU's shared memory while its rTasks need them. Beyond the paper.

Known as: scratchpad allocation. A recurrent network reads the same weights at every step. An acquire empties L1, so
they would come from L2 each time. If a policy returns a step's rTask to its vEU, they stay in shared memory from
first use to last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from rammer.ir.kernel import RKernel
from rammer.ir.plan import ExecutionPlan
from rammer.ir.program import RTask, TaskUid
from rammer.planner.scratch_allocation import Lane
from rammer.vdevice.simt.codegen.slices import OperandSlice, Run, slice_of

LEAST_BYTES = 512  # for a smaller part, the load costs more than it saves

Pointer: TypeAlias = tuple[int, int]  # number of a constant, byte offset


@dataclass(frozen=True, slots=True)
class KeptRows:
    """Rows of a constant to load into shared memory; `run.target` counts bytes from the start of the scratch."""

    constant: int
    run: Run


@dataclass(slots=True)
class ConstantResidency:
    """The loads before each rTask, and the copies that rTasks read instead of operands."""

    loads: dict[TaskUid, list[KeptRows]] = field(default_factory=dict)
    copies: dict[TaskUid, dict[int, int]] = field(default_factory=dict)  # input position -> bytes from the scratch
    end: int = 0  # bytes of shared memory, from the start of the scratch
    nbytes: int = 0  # of all copies on all vEUs
    veus: set[tuple[int, int]] = field(default_factory=set)  # (rProgram, vEU)

    def __str__(self) -> str:
        return (
            f"resident: {self.nbytes / 1024:.0f} KiB of constants in the shared memory of {len(self.veus)} vEUs, "
            f"read there by {len(self.copies)} rTasks"
        )


@dataclass(slots=True)
class _WantedPart:
    """A part of a constant on one vEU, and the orders of the rTasks that read it."""

    source: Pointer
    part: OperandSlice
    rtask: int  # one of those that read it
    readers: list[tuple[int, TaskUid, int]] = field(default_factory=list)  # order, rTask, input position
    offset: int = 0

    @property
    def first(self) -> int:
        return self.readers[0][0]

    @property
    def last(self) -> int:
        return self.readers[-1][0]

    @property
    def gain(self) -> float:
        """Return the reads saved, per slot of the lane during which memory is occupied."""
        return (len(self.readers) - 1) / (self.last - self.first + 1)


def make_resident(
    plan: ExecutionPlan,
    sources: Sequence[Sequence[Pointer]],
    bases: Sequence[int],
    room: int,
    taken: Mapping[Lane, NDArray[np.int64]] | None = None,
) -> ConstantResidency:
    """Choose the constants that stay in shared memory, below byte `room` from the start of the scratch.

    They lie behind the scratch that rTasks use meanwhile: `bases` has its end by operator, `taken` slot by slot where
    results stay there too. `sources` has, by operator, the begin of each input. A part is kept only if
    `spec.kept_reads` operators read it: rTasks of one operator read it at short intervals and hit a cache.
    """
    found = ConstantResidency(end=max(bases, default=0))
    if not plan.spec.kept_reads:
        return found
    least = min(bases, default=0)
    parts: dict[tuple[RKernel, int], tuple[OperandSlice, list[int]] | None] = {}
    for p, program in enumerate(plan.programs):
        for veu, lane in enumerate(program.lanes):
            wanted: dict[object, _WantedPart] = {}
            used = taken[Lane(p, veu)].tolist() if taken else [0] * len(lane)
            for order, slot in enumerate(lane):
                if not isinstance(slot, RTask):
                    continue
                n, rtask = slot.uid
                used[order] = max(used[order], bases[n])
                kernel = plan.kernels[n]
                for position, static in enumerate(kernel.operation.static):
                    if not static:
                        continue
                    if (kernel, position) not in parts:
                        parts[kernel, position] = _part(kernel, position, room - least)
                    if (known := parts[kernel, position]) is None:
                        continue
                    part, starts = known
                    source = sources[n][position]
                    key = (source, part.folds, part.size, part.itemsize, starts[rtask])
                    if key not in wanted:
                        wanted[key] = _WantedPart(source, part, rtask)
                    wanted[key].readers.append((order, slot.uid, position))
            _keep(found, (p, veu), list(wanted.values()), used, room, plan.spec.kept_reads)
    return found


def _part(kernel: RKernel, position: int, room: int) -> tuple[OperandSlice, list[int]] | None:
    part = slice_of(kernel, position)
    if part is None or not LEAST_BYTES <= part.nbytes <= room:
        return None
    return part, [part.start(r) for r in range(kernel.num_rtasks)]


def _keep(
    found: ConstantResidency,
    where: tuple[int, int],
    wanted: list[_WantedPart],
    used: Sequence[int],
    room: int,
    reads: int,
) -> None:
    """Place parts so that none overlaps another one needed at the same time, the most useful first.

    `used`: bytes of the scratch that each slot of the lane takes.
    """
    several = [w for w in wanted if len({uid.operator_id for _, uid, _ in w.readers}) >= reads]
    kept: list[_WantedPart] = []
    for w in sorted(several, key=lambda w: (-w.gain, -w.part.nbytes, w.first)):
        offset = max(used[w.first : w.last + 1])
        for other in sorted(kept, key=lambda o: o.offset):
            if other.first <= w.last and w.first <= other.last and other.offset < offset + w.part.nbytes:
                offset = max(offset, other.offset + other.part.nbytes)
        if offset + w.part.nbytes <= room:
            w.offset = offset
            kept.append(w)
    for w in sorted(kept, key=lambda w: (w.first, w.offset)):
        constant, begin = w.source
        for run in w.part.runs(w.rtask):
            moved = replace(run, source=run.source + begin, target=run.target + w.offset)
            found.loads.setdefault(w.readers[0][1], []).append(KeptRows(constant, moved))
        for _, uid, position in w.readers:
            found.copies.setdefault(uid, {})[position] = w.offset
        found.end = max(found.end, w.offset + w.part.nbytes)
        found.nbytes += w.part.nbytes
    if kept:
        found.veus.add(where)
