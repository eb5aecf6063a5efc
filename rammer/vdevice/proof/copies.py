"""Prove that constants are where rTasks read them, after a vEU has copied them to its own memory. Part of R307.

A copy is made before some rTask of a lane. That one and later ones read it until its bytes are overwritten.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from rammer.ir.analysis.dependency import read_elements
from rammer.ir.analysis.intervals import expand
from rammer.ir.kernel import RKernel
from rammer.ir.tensor import Numbers
from rammer.vdevice.proof.decoded import DecodedImage


@dataclass(slots=True)
class CopyReads:
    """The readers of a copy: slots of one lane whose operand has the same rKernel, begin and elements."""

    kernel: RKernel
    position: int  # of its inputs
    rtask: int  # of any of the slots
    itemsize: int
    offset: int  # of the operand, in bytes of scratch
    slots: list[int] = field(default_factory=list)


def by_lane(decoded: DecodedImage, rows: Numbers) -> dict[tuple[int, int], Numbers]:
    """Return the copies of each lane (rProgram, vEU), in order. `rows` are the plan's slots."""
    lanes = rows[decoded.copies[:, 0], :2]
    distinct, which = np.unique(lanes, axis=0, return_inverse=True)
    which = which.reshape(-1)
    return {(p, veu): decoded.copies[which == n] for n, (p, veu) in enumerate(distinct.tolist())}


def sources(
    decoded: DecodedImage, copies: Numbers, reads: CopyReads, scratch: Numbers, in_scratch: Numbers
) -> list[tuple[int, int] | str]:
    """Return the origin (constant, byte) of an operand's element 0, or an error, for each state of memory that is read.

    `copies` are those of the lane. `scratch` has the bytes that each slot's rTask uses itself. `in_scratch` has the
    bytes of results resident in scratch, by slots that touch them: [n, 3] slot, begin, end.
    """
    assert decoded.copy_place is not None
    elements = expand(read_elements(reads.kernel, reads.position)[reads.rtask])
    at = reads.offset + decoded.copy_place(reads.kernel, reads.position, reads.rtask, elements) * reads.itemsize
    if not len(at):
        return []
    low, high = int(at.min()), int(at.max()) + reads.itemsize
    last = copies[:, 3] + (copies[:, 5] - 1) * copies[:, 7] + copies[:, 4]
    mine = copies[(copies[:, 3] < high) & (last > low)]
    when = np.unique(mine[:, 0])
    found: list[tuple[int, int] | str] = []
    states: dict[int, list[int]] = defaultdict(list)  # number of copies made there so far -> readers
    for slot in reads.slots:
        states[int(np.searchsorted(when, slot, "right"))].append(slot)
    for count, slots in states.items():
        constant = np.full(high - low, -1, np.int32)
        source = np.zeros(high - low, np.int64)
        done = mine[mine[:, 0] <= when[count - 1]] if count else mine[:0]
        for number, begin, target, nbytes, repeats, step, distance in done[:, 1:].tolist():
            for n in range(repeats):
                at_row = target + n * distance
                first, stop = max(at_row, low), min(at_row + nbytes, high)
                if first < stop:
                    constant[first - low : stop - low] = number
                    source[first - low : stop - low] = begin + n * step + np.arange(first, stop) - at_row
        begins = source[at - low] - elements * reads.itemsize
        ends = source[at - low + reads.itemsize - 1] - elements * reads.itemsize - reads.itemsize + 1
        whose = constant[at - low]
        if (whose < 0).any() or (whose != whose[0]).any() or (begins != begins[0]).any() or (ends != begins[0]).any():
            wrong = (whose < 0) | (begins != begins[0]) | (ends != begins[0]) | (whose != whose[0])
            found.append(f"element {elements[int(np.argmax(wrong))]} was not copied to where it is read")
            continue
        since = int(when[count - 1])
        used = int(scratch[since : max(slots) + 1].max())
        there = in_scratch[
            (in_scratch[:, 0] >= since)
            & (in_scratch[:, 0] <= max(slots))
            & (in_scratch[:, 1] < high)
            & (in_scratch[:, 2] > low)
        ]
        taken = used > low or len(there) > 0
        found.append("something else uses those bytes meanwhile" if taken else (int(whose[0]), int(begins[0])))
    return found
