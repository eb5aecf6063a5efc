"""Constants that a vEU copies into its own memory and reads there: each element that an rTask reads is where it looks.

Part of R307. A copy is made before some rTask of a lane, and read by that one and later ones, until something else is
written where it lies.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from rammer.ir.dependency import read_elements
from rammer.ir.intervals import expand
from rammer.ir.kernel import RKernel
from rammer.vdevice.proof.decoded import DecodedImage, Numbers


@dataclass(slots=True)
class CopyReads:
    """Who reads a copy: slots of one lane whose operand has the same rKernel, begin and elements."""

    kernel: RKernel
    position: int  # of its inputs
    rtask: int  # any of them
    itemsize: int
    offset: int  # of the operand, in bytes of scratch
    slots: list[int] = field(default_factory=list)


def sources(
    decoded: DecodedImage, rows: Numbers, reads: CopyReads, scratch: Callable[[int], int]
) -> list[tuple[int, int] | str]:
    """For each state of memory in which an operand is read, where its element 0 lies: (constant, byte); or what is
    wrong. `rows` are the plan's slots, `scratch` says how many bytes a slot's rTask uses itself.
    """
    assert decoded.copy_place is not None
    elements = expand(read_elements(reads.kernel, reads.position)[reads.rtask])
    at = reads.offset + decoded.copy_place(reads.kernel, reads.position, reads.rtask, elements) * reads.itemsize
    if not len(at):
        return []
    low, high = int(at.min()), int(at.max()) + reads.itemsize
    lane = tuple(rows[reads.slots[0], :2].tolist())
    mine = _of_lane(decoded, rows, lane)
    last = mine[:, 3] + (mine[:, 5] - 1) * mine[:, 7] + mine[:, 4]
    mine = mine[(mine[:, 3] < high) & (last > low)]
    when = np.unique(mine[:, 0])
    found: list[tuple[int, int] | str] = []
    states: dict[int, list[int]] = defaultdict(list)  # number of times that something was copied there -> who reads
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
        used = max(scratch(slot) for slot in range(since, max(slots) + 1))
        found.append("an rTask between uses that scratch itself" if used > low else (int(whose[0]), int(begins[0])))
    return found


def _of_lane(decoded: DecodedImage, rows: Numbers, lane: tuple[int, ...]) -> Numbers:
    """The copies of a lane, in order."""
    here = (rows[decoded.copies[:, 0], :2] == np.array(lane)).all(axis=1)
    return decoded.copies[here]
