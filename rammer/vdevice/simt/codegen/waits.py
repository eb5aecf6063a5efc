"""Store lists of waits once for all lanes that wait for the same slots: on wide devices they dominate the streams."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from rammer.ir.program import Position

Codes = NDArray[np.int64]  # of positions, ascending: vEU, then order
ORDER_BITS = 32


class WaitLists:
    """Deduplicated lists of waits.

    Lanes of a wave wait for each other, and each omits itself. A shared list names all of them: its entry for the
    waiting lane is already complete, so the lane skips it. If it is not complete, the lane gets another list.
    """

    def __init__(self) -> None:
        self._lists: list[Codes] = []
        self._author: list[tuple[int, int] | None] = []  # of a list's only barrier: vEU, order
        self._by_anchor: dict[int, list[int]] = {}  # lists by each of their first two codes

    def add(self, veu: int, order: int, waits: Sequence[Position]) -> int:
        """Return the number of a list for the barrier at this slot."""
        wanted = np.fromiter(chain.from_iterable(waits), np.int64, 2 * len(waits)).reshape(-1, 2)
        codes: Codes = np.sort((wanted[:, 0] << ORDER_BITS) + wanted[:, 1])
        for number in {n: None for anchor in codes[:2].tolist() for n in self._by_anchor.get(anchor, ())}:
            if self._serves(number, veu, order, codes):
                self._author[number] = None
                return number
        number = len(self._lists)
        self._lists.append(codes)
        self._author.append((veu, order))
        for anchor in codes[:2].tolist():
            self._by_anchor.setdefault(anchor, []).append(number)
        return number

    def _serves(self, number: int, veu: int, order: int, codes: Codes) -> bool:
        """Return whether a barrier can use a list.

        If needed, and if the list has one user so far, the barrier's wait for that user is added to the list.
        """
        have, author = self._lists[number], self._author[number]
        if not 0 <= len(have) - len(codes) <= 1:
            return False
        rest = _without(have, veu, order)
        if rest is None:
            return False
        if np.array_equal(rest, codes):
            return True
        if author is None or author[0] == veu:
            return False
        common = _without(codes, *author)
        if common is None or not len(common) or not np.array_equal(rest, common):
            return False
        self._lists[number] = np.union1d(have, codes)
        return True

    def finish(self) -> tuple[list[int], list[int], NDArray[np.int32]]:
        """Return the first wait of each list, the number of waits of each, and all waits as (vEU, order)."""
        counts = [len(codes) for codes in self._lists]
        codes = np.concatenate([np.zeros(0, np.int64), *self._lists])
        waits = np.stack([codes >> ORDER_BITS, codes & ((1 << ORDER_BITS) - 1)], axis=1).astype(np.int32)
        return [0, *np.cumsum(counts).tolist()][: len(counts)], counts, waits


def _without(codes: Codes, veu: int, order: int) -> Codes | None:
    """Return the codes of other vEUs; None if this vEU has several, or one not before this order."""
    low, high = np.searchsorted(codes, [veu << ORDER_BITS, (veu + 1) << ORDER_BITS]).tolist()
    if high - low > 1 or (high > low and int(codes[low]) >= (veu << ORDER_BITS) + order):
        return None
    return np.concatenate([codes[:low], codes[high:]]) if high > low else codes
