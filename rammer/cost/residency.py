"""How much of each piece of memory is in which cache while a plan runs, and from where rTasks have their operands."""

from __future__ import annotations

from math import exp

import numpy as np
from numpy.typing import NDArray

from rammer.cost.pieces import Touch
from rammer.ir.device import MemoryLevel, VDeviceSpec

Bytes = NDArray[np.float64]
_sum = np.add.reduce  # without the method's layers: arrays are short here

ROUNDS = 16  # of Newton's method, from below: exact to the last digit where a loop is a hundredth more than fits


def levels(spec: VDeviceSpec) -> list[tuple[MemoryLevel, bool]]:
    """From where an rTask may have its operands, nearest first; the second entry: written there by another vEU.

    The vEU's own caches count as one, the farthest: an rTask's time is measured with its operands there. Then comes the
    same of another vEU that wrote last, what all vEUs share, and main memory, which has everything.
    """
    caches = [m for m in spec.memory if m.managed == "cache"]
    own = [m for m in caches if m.owner == "veu"][-1:]
    return [(m, written) for m in own for written in (False, True)] + [(m, False) for m in caches if m.owner != "veu"]


class Residency:
    """The caches of a device, by what is to be expected of them.

    `in_use`: the bytes of each piece that some rTask touches.
    """

    def __init__(self, spec: VDeviceSpec, in_use: NDArray[np.int64]) -> None:
        found = levels(spec)
        own = [m for m, written in found if m.owner == "veu" and not written]
        shared = [m for m, _ in found if m.owner != "veu"]
        self._own = [_Cache(own[0].usable_bytes, in_use) for _ in range(spec.num_veus)] if own else []
        self._shared = [
            (size := m.sharing(spec.num_veus), [_Cache(m.usable_bytes, in_use) for _ in range(0, spec.num_veus, size)])
            for m in shared[:-1]
        ]
        self._writer = np.full(len(in_use), -1, np.int32)
        self._levels = len(found)

    def fetch(self, veu: int, touch: Touch) -> Bytes:
        """Bytes that an rTask on `veu` has from each level, of what it reads and of what it writes: [2, levels].

        They are near then, and what it writes is its vEU's.
        """
        moved = np.zeros((2, self._levels))
        pieces, left = touch.pieces, touch.nbytes
        reads = len(pieces) - len(touch.written)

        def parts(nbytes: Bytes) -> tuple[float, float]:
            read = float(_sum(nbytes[:reads]))
            return read, float(_sum(nbytes)) - read

        lacking = parts(left)
        first = 0
        if self._own:
            left = self._own[veu].take(pieces, left)
            lacking, before = parts(left), lacking
            moved[:, 0] = before[0] - lacking[0], before[1] - lacking[1]
            first = 2
            others = [cache for other, cache in enumerate(self._own) if other != veu]
            if sum(lacking) > 0.0 and others:
                writers = self._writer[pieces]
                for other, cache in enumerate(self._own):
                    if other != veu and (theirs := writers == other).any():
                        left = left - np.where(theirs, left * cache.share(pieces), 0.0)
                lacking, before = parts(left), lacking
                moved[:, 1] = before[0] - lacking[0], before[1] - lacking[1]
            for cache in others:
                cache.drop(touch.written)
            self._writer[touch.written] = veu
        if sum(lacking) > 0.0:
            for level, (sharing, caches) in enumerate(self._shared, first):
                left = caches[veu // sharing].take(pieces, left)
                lacking, before = parts(left), lacking
                moved[:, level] = before[0] - lacking[0], before[1] - lacking[1]
        if self._levels:
            moved[:, -1] += lacking
        return moved


def kept(touched: float, nbytes: float) -> float:
    """The part of `touched` bytes that a cache of `nbytes` still has when a loop comes to them again.

    The law of a cache as below, in a loop over all of them: what was not there pushes others out, so the part is the
    stable root of r = exp(-(1 - r) * touched / nbytes). All, where there is room for all.
    """
    if touched <= nbytes:
        return 1.0
    if not nbytes:
        return 0.0
    turns, share = touched / nbytes, 0.0
    for _ in range(ROUNDS):
        left = exp((share - 1.0) * turns)
        share += (left - share) / (1.0 - turns * left)
    return share


class _Cache:
    """One cache. Once it is full, what comes in pushes out at random: exp(-bytes since / its size) is left of the rest.

    Real ones push out by rules that are neither known nor the same; a loop over a little more than the cache holds does
    not lose everything in them, as it would if the oldest always went. A loop over less loses nothing.
    """

    def __init__(self, nbytes: int, in_use: NDArray[np.int64]) -> None:
        self._nbytes = float(max(nbytes, 1))
        self._in_use = np.maximum(in_use, 1).astype(np.float64)
        self._held = 0.0  # bytes that are there
        self._passed = 0.0  # bytes that pushed others out so far
        self._entered = np.full(len(in_use), -np.inf)  # how many had when a piece was touched last
        self._filled = np.zeros(len(in_use))  # how much of the piece was there then

    def share(self, pieces: NDArray[np.int64]) -> Bytes:
        """How much of each piece is still there."""
        since: Bytes = self._entered[pieces] - self._passed
        since /= self._nbytes
        np.exp(since, out=since)
        since *= self._filled[pieces]
        return since

    def take(self, pieces: NDArray[np.int64], nbytes: Bytes) -> Bytes:
        """Let in what is not there of some bytes of each piece, and say how much that was of each."""
        if not len(pieces):
            return nbytes
        share = self.share(pieces)
        fetched: Bytes = nbytes * (1.0 - share)
        came = fetched.cumsum()
        room, total = self._nbytes - self._held, float(came[-1])
        if total > room:
            came -= room
            np.maximum(came, 0.0, out=came)
            pushed = float(came[-1])
            came += self._passed
            self._entered[pieces] = came
            self._passed += pushed
            self._held = self._nbytes
        else:
            self._entered[pieces] = self._passed
            self._held += total
        share += fetched / self._in_use[pieces]
        self._filled[pieces] = np.minimum(share, 1.0, out=share)
        return fetched

    def drop(self, pieces: NDArray[np.int64]) -> None:
        """Forget pieces, which leaves room for others."""
        if self._filled[pieces].any():
            self._held = max(self._held - float(self.share(pieces) @ self._in_use[pieces]), 0.0)
            self._filled[pieces] = 0.0
