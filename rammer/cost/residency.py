"""Which pieces of memory are in which cache while a plan runs, and from where every rTask has its operands."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rammer.cost.pieces import Touch
from rammer.ir.device import MemoryLevel, VDeviceSpec


def levels(spec: VDeviceSpec) -> list[tuple[MemoryLevel, bool]]:
    """From where an rTask may have its operands, nearest first; the second entry: written there by another vEU.

    The vEU's own caches count as one, the farthest: an rTask's time is measured with its operands there. Then comes the
    same of another vEU that wrote last, what all vEUs share, and main memory, which has everything.
    """
    caches = [m for m in spec.memory if m.managed == "cache"]
    own = [m for m in caches if m.owner == "veu"][-1:]
    return [(m, written) for m in own for written in (False, True)] + [(m, False) for m in caches if m.owner != "veu"]


class Residency:
    """The caches of a device, as queues: what comes in pushes out what came in first.

    `moved` counts the bytes that rTasks have had from each of `levels`.
    """

    def __init__(self, spec: VDeviceSpec, num_pieces: int) -> None:
        found = levels(spec)
        own = [m for m, written in found if m.owner == "veu" and not written]
        shared = [m for m, _ in found if m.owner != "veu"]
        self._own = [_Queue(own[0].usable_bytes, num_pieces) for _ in range(spec.num_veus)] if own else []
        self._shared = [_Queue(m.usable_bytes, num_pieces) for m in shared[:-1]]
        self._writer = np.full(num_pieces, -1, np.int32)
        self.moved = np.zeros(len(found), np.int64)

    def fetch(self, veu: int, touch: Touch) -> NDArray[np.int64]:
        """Bytes that an rTask on `veu` has from each level; they are near then, and what it writes is its vEU's."""
        pieces, nbytes, written, total_bytes = touch
        moved = np.zeros_like(self.moved)
        first = 0
        if self._own:
            own, first = self._own[veu], 2
            left = own.lacks(pieces)
            moved[0] = total_bytes
            if left.any():
                pieces, nbytes = pieces[left], nbytes[left]
                own.take(pieces, nbytes)
                others = self._writer[pieces]
                elsewhere = np.zeros(len(pieces), bool)
                for other, queue in enumerate(self._own):
                    if other != veu and (theirs := others == other).any():
                        elsewhere |= theirs & ~queue.lacks(pieces)
                moved[0] -= nbytes.sum()
                moved[1] = nbytes[elsewhere].sum()
                pieces, nbytes = pieces[~elsewhere], nbytes[~elsewhere]
            else:
                pieces = pieces[:0]
            for other, queue in enumerate(self._own):
                if other != veu:
                    queue.drop(written)
            self._writer[written] = veu
        for level, queue in enumerate(self._shared, first):
            if len(pieces):
                left = queue.lacks(pieces)
                moved[level] = nbytes[~left].sum()
                pieces, nbytes = pieces[left], nbytes[left]
                queue.take(pieces, nbytes)
        if len(pieces):
            moved[-1] += nbytes.sum()
        self.moved += moved
        return moved


class _Queue:
    """One cache: for each piece the number of bytes that had come in before it."""

    def __init__(self, nbytes: int, num_pieces: int) -> None:
        self._capacity = nbytes
        self._passed = 0
        self._before = np.full(num_pieces, -nbytes - 1, np.int64)

    def lacks(self, pieces: NDArray[np.int64]) -> NDArray[np.bool_]:
        return self._before[pieces] < self._passed - self._capacity

    def take(self, pieces: NDArray[np.int64], nbytes: NDArray[np.int64]) -> None:
        """Let pieces in that are not there."""
        ends = np.cumsum(nbytes)
        self._before[pieces] = self._passed + ends - nbytes
        self._passed += int(ends[-1]) if len(ends) else 0

    def drop(self, pieces: NDArray[np.int64]) -> None:
        self._before[pieces] = self._passed - self._capacity - 1
