"""Track how much of each piece of memory is in which cache while a plan runs. Known as: a statistical cache model.

This determines the level from which an rTask fetches its operands.
"""

from __future__ import annotations

from functools import lru_cache
from math import exp

import numpy as np
from numpy.typing import NDArray

from rammer.cost.pieces import NO_SCRATCH, ScratchBytes, Touch
from rammer.ir.device import MemoryLevel, VDeviceSpec

Bytes = NDArray[np.float64]
NOBODY = -1
MOST_TURNS = 256.0  # the exponential of it is well inside of float64's range


def levels(spec: VDeviceSpec) -> list[tuple[MemoryLevel, bool]]:
    """Return the levels that may hold an rTask's operands, nearest first. True marks what another vEU wrote there.

    The vEU's scratch comes first, if results may stay there. Its private caches count as one, the last one, because an
    rTask's time is measured with its operands there. Then come the private cache of another vEU that wrote last, the
    shared caches, and main memory, which holds everything.
    """
    scratch = spec.level(spec.resident)
    caches = [m for m in spec.memory if m.managed == "cache"]
    own = [m for m in caches if m.owner == "veu"][-1:]
    found = [(m, written) for m in own for written in (False, True)] + [(m, False) for m in caches if m.owner != "veu"]
    return [(scratch, False), *found] if scratch else found


class Residency:
    """The expected contents of a device's caches. `in_use`: bytes of each piece that some rTask touches."""

    def __init__(self, spec: VDeviceSpec, in_use: NDArray[np.int64]) -> None:
        found = levels(spec)
        own = [m for m, written in found if m.owner == "veu" and m.managed == "cache" and not written]
        shared = [m for m, _ in found if m.owner != "veu"]
        self._own = [_Cache(own[0].usable_bytes, in_use) for _ in range(spec.num_veus)] if own else []
        self._shared = [
            (size := m.sharing(spec.num_veus), [_Cache(m.usable_bytes, in_use) for _ in range(0, spec.num_veus, size)])
            for m in shared[:-1]
        ]
        self._writer = np.full(len(in_use), NOBODY, np.int32)
        self._levels, self._scratch = len(found), int(bool(spec.resident))

    def fetch(self, veu: int, touch: Touch, in_scratch: ScratchBytes = NO_SCRATCH) -> Bytes:
        """Return the bytes that an rTask on `veu` has from each level, as an array [2, levels]: reads, then writes.

        Afterwards they are in its private cache, and it owns what it writes. `in_scratch`: bytes that it has in
        scratch.
        """
        pieces, left = touch.pieces, touch.nbytes
        had = np.zeros((self._levels, len(pieces)))
        lacking, first = bool(len(pieces)), self._scratch
        if self._own and lacking:
            left, lacking = self._own[veu].take(pieces, left, had[first])
            first += 2
            if lacking and len(self._own) > 1:
                writers = self._writer.take(pieces)
                if others := {*writers.tolist()} - {veu, NOBODY}:
                    for other in others:
                        np.multiply(left, self._own[other].share(pieces), out=had[first - 1], where=writers == other)
                    left = left - had[first - 1]
            if len(touch.written):
                for other, cache in enumerate(self._own):
                    if other != veu:
                        cache.drop(touch.written)
                self._writer[touch.written] = veu
        for level, (sharing, caches) in enumerate(self._shared, first):
            if lacking:
                left, lacking = caches[veu // sharing].take(pieces, left, had[level])
        if self._levels:
            had[-1] = left
        moved: Bytes = _parts(len(pieces), len(touch.written)) @ had.T
        if in_scratch is not NO_SCRATCH:
            moved[:, 0] += in_scratch
        return moved

    def flush_private(self, veu: int) -> None:
        """Evict everything from a vEU's private caches, as if much other data had passed through them."""
        if self._own:
            self._own[veu].empty()


@lru_cache(maxsize=1 << 10)
def _parts(count: int, written: int) -> Bytes:
    """Return a matrix [2, count] that sums over the pieces that are read, and over the last ones, that are written."""
    found = np.zeros((2, count))
    found[0, : count - written] = 1.0
    found[1, count - written :] = 1.0
    return found


class _Cache:
    """One cache with random replacement. Once full, exp(-fetched / size) of its contents is left after `fetched` bytes.

    Real caches follow other, unknown rules. A loop over slightly more than they hold does not miss everything, as it
    would with LRU. A loop over less than they hold misses nothing.
    """

    def __init__(self, nbytes: int, in_use: NDArray[np.int64]) -> None:
        self._nbytes = float(max(nbytes, 1))
        self._in_use = np.maximum(in_use, 1).astype(np.float64)
        self._per_byte = 1.0 / self._in_use
        self._room = self._nbytes
        self._turns = 0.0  # bytes that evicted others so far, over the size
        self._left = 1.0  # part of the earlier contents that evictions left
        self._present = np.zeros(len(in_use))  # part of each piece, before evictions so far (`_left`)

    def share(self, pieces: NDArray[np.int64]) -> Bytes:
        """Return the part of each piece that is still in the cache."""
        share: Bytes = self._present.take(pieces)
        share *= self._left
        return share

    def take(self, pieces: NDArray[np.int64], nbytes: Bytes, had: Bytes) -> tuple[Bytes, bool]:
        """Fetch what is missing of `nbytes` of each piece.

        Return the bytes fetched of each, and whether there were any.

        `had` receives the bytes of each that were present.
        """
        share = self.share(pieces)
        np.multiply(nbytes, share, out=had)
        fetched: Bytes = nbytes - had
        came = fetched.cumsum()
        total = float(came[-1])
        share += fetched * self._per_byte.take(pieces)
        np.minimum(share, 1.0, out=share)
        if total > self._room:
            if self._room:
                came -= self._room
                np.maximum(came, 0.0, out=came)
                self._room = 0.0
            came /= self._nbytes
            pushed = float(came[-1])
            self._push(pushed)
            came += self._turns - pushed
            share *= np.exp(came, out=came)
        else:
            share /= self._left
            self._room -= total
        self._present[pieces] = share
        return fetched, total > 0.0

    def _push(self, turns: float) -> None:
        self._turns += turns
        if self._turns > MOST_TURNS:
            self._present *= exp(-self._turns)
            self._turns = 0.0
        self._left = exp(-self._turns)

    def empty(self) -> None:
        """Evict everything."""
        self._present[:] = 0.0
        self._room = self._nbytes

    def drop(self, pieces: NDArray[np.int64]) -> None:
        """Invalidate pieces, and free their space."""
        share = self.share(pieces)
        if share.any():
            self._room = min(self._room + float(share @ self._in_use[pieces]), self._nbytes)
            self._present[pieces] = 0.0
