"""Address the bytes of a built program: in its arena, in a constant, in scratch, or in the caller's arrays."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rammer.ir.tensor import Array

ALIGNMENT = 128
ARENA = -1  # base of tensors in the arena; constants count from 0
SCRATCH = -2  # base of tensors resident in their vEU's scratch


def aligned(nbytes: int) -> int:
    """Return `nbytes` rounded up to the alignment."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


class PortBinding(NamedTuple):
    """The arguments that refer to a port which may lie elsewhere: their numbers, their offsets in it, and its home."""

    args: NDArray[np.int64]
    offsets: NDArray[np.int64]
    home: int  # byte of the arena


def bound_ports(
    ports: Sequence[tuple[str, int, tuple[int, int]]], unshared: Collection[str], base: Array, offset: Array
) -> dict[str, PortBinding]:
    """Return the arguments that refer to each port in `unshared`.

    A port is its name, bytes and place; arguments are given by their bases and offsets.
    """
    found = {}
    for name, nbytes, (where, begin) in ports:
        if where == ARENA and name in unshared:
            args = np.flatnonzero((base == ARENA) & (offset >= begin) & (offset < begin + nbytes))
            found[name] = PortBinding(args, offset[args] - begin, begin)
    return found
