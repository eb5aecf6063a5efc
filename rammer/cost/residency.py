"""How much of each piece of memory is in which cache while a plan runs, and from where rTasks have their operands."""

from __future__ import annotations

from functools import lru_cache
from math import exp

import numpy as np
from numpy.typing import NDArray

from rammer.cost.pieces import NOTHING_NEAR, Near, Touch
from rammer.ir.device import MemoryLevel, VDeviceSpec

Bytes = NDArray[np.float64]
NOBODY = -1
ROUNDS = 16  # of Newton's method, from below: exact to the last digit where a loop is a hundredth more than fits
MOST_TURNS = 256.0  # whose exponential is still far from what a number can be


def levels(spec: VDeviceSpec) -> list[tuple[MemoryLevel, bool]]:
    """From where an rTask may have its operands, nearest first; the second entry: written there by another vEU.

    First the vEU's scratch, where results may stay there. The vEU's own caches count as one, the farthest: an rTask's
    time is measured with its operands there. Then comes the same of another vEU that wrote last, what all vEUs share,
    and main memory, which has everything.
    """
    scratch = spec.level(spec.resident)
    caches = [m for m in spec.memory if m.managed == "cache"]
    own = [m for m in caches if m.owner == "veu"][-1:]
    found = [(m, written) for m in own for written in (False, True)] + [(m, False) for m in caches if m.owner != "veu"]
    return [(scratch, False), *found] if scratch else found


class Residency:
    """The caches of a device, by what is to be expected of them.

    `in_use`: the bytes of each piece that some rTask touches.
    """

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

    def fetch(self, veu: int, touch: Touch, near: Near = NOTHING_NEAR) -> Bytes:
        """Bytes that an rTask on `veu` has from each level, of what it reads and of what it writes: [2, levels].

        They are near then, and what it writes is its vEU's. `near`: what it has in scratch.
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
        if near is not NOTHING_NEAR:
            moved[:, 0] += near
        return moved

    def pass_by(self, veu: int) -> None:
        """Let so much else pass through a vEU's own caches that nothing is left there."""
        if self._own:
            self._own[veu].empty()


@lru_cache(maxsize=1 << 10)
def _parts(count: int, written: int) -> Bytes:
    """[2, count]: what sums up over pieces that are read, and over the last ones, that are written."""
    found = np.zeros((2, count))
    found[0, : count - written] = 1.0
    found[1, count - written :] = 1.0
    return found


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
        self._per_byte = 1.0 / self._in_use
        self._room = self._nbytes
        self._turns = 0.0  # how many times its size pushed others out so far
        self._left = 1.0  # of what was there before
        self._there = np.zeros(len(in_use))  # how much of each piece, had nothing been pushed out so far

    def share(self, pieces: NDArray[np.int64]) -> Bytes:
        """How much of each piece is still there."""
        share: Bytes = self._there.take(pieces)
        share *= self._left
        return share

    def take(self, pieces: NDArray[np.int64], nbytes: Bytes, had: Bytes) -> tuple[Bytes, bool]:
        """Let in what is not there of some bytes of each piece: how much that was of each, and whether it was any.

        `had` receives what was there.
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
        self._there[pieces] = share
        return fetched, total > 0.0

    def _push(self, turns: float) -> None:
        self._turns += turns
        if self._turns > MOST_TURNS:
            self._there *= exp(-self._turns)
            self._turns = 0.0
        self._left = exp(-self._turns)

    def empty(self) -> None:
        """Forget everything."""
        self._there[:] = 0.0
        self._room = self._nbytes

    def drop(self, pieces: NDArray[np.int64]) -> None:
        """Forget pieces, which leaves room for others."""
        share = self.share(pieces)
        if share.any():
            self._room = min(self._room + float(share @ self._in_use[pieces]), self._nbytes)
            self._there[pieces] = 0.0
