"""Say where bytes of a built program lie: in its arena, in a constant, in scratch, or in the caller's arrays."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rammer.ir.tensor import Array

ALIGNMENT = 128
ARENA = -1  # the place of a tensor that is no constant; constants count from 0
SCRATCH = -2  # of one that stays in its vEU's scratch


def aligned(nbytes: int) -> int:
    """The size that keeps what follows aligned."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


class Bound(NamedTuple):
    """What refers to a port that may lie elsewhere: numbers of arguments, where in it each begins, and its home."""

    args: NDArray[np.int64]
    offsets: NDArray[np.int64]
    home: int  # byte of the arena


def bound_ports(
    ports: Sequence[tuple[str, int, tuple[int, int]]], alone: Collection[str], base: Array, offset: Array
) -> dict[str, Bound]:
    """What refers to the ports that are `alone`. A port: its name, bytes and place; arguments: their bases, offsets."""
    found = {}
    for name, nbytes, (where, begin) in ports:
        if where == ARENA and name in alone:
            args = np.flatnonzero((base == ARENA) & (offset >= begin) & (offset < begin + nbytes))
            found[name] = Bound(args, offset[args] - begin, begin)
    return found
