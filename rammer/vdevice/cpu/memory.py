"""Aligned memory in huge pages where the system has them; constants packed into one block."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from contextlib import suppress
from math import prod
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from rammer.errors import DeviceError
from rammer.ir.tensor import Array, Layout, pack

Bytes: TypeAlias = NDArray[np.uint8]
ALIGNMENT = 128
HUGE_PAGE = 2 << 20


def allocate(nbytes: int) -> Bytes:
    """Zeroed memory, private to the process; from 2 MB on it lies on huge pages, else on 4 KiB pages.

    It is freed when the last array that refers to it is gone. Raises DeviceError.
    """
    if nbytes < HUGE_PAGE:
        return np.frombuffer(_map(max(nbytes, 1)), np.uint8, nbytes)
    block = _map(nbytes + HUGE_PAGE)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a system without huge pages: ordinary ones are right, only slower
            block.madvise(mmap.MADV_HUGEPAGE)
    whole = np.frombuffer(block, np.uint8)
    first = -whole.ctypes.data % HUGE_PAGE
    return whole[first : first + nbytes]


def _map(nbytes: int) -> mmap.mmap:
    try:
        return mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        raise DeviceError(
            f"cannot get {nbytes / 2**20:.0f} MiB of memory", hint="the model needs more than this machine gives"
        ) from error


def aligned(nbytes: int) -> int:
    """The size that keeps what follows aligned."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def gather(arrays: Sequence[Array]) -> list[Array]:
    """The arrays side by side in one aligned block; those that lie aligned already stay where they are."""
    loose = [n for n, a in enumerate(arrays) if a.ctypes.data % 64 or not a.flags.c_contiguous]
    block = allocate(sum(aligned(arrays[n].nbytes) for n in loose))
    placed, at = list(arrays), 0
    for n in loose:
        array = arrays[n]
        placed[n] = block[at : at + array.nbytes].view(array.dtype).reshape(array.shape)
        np.copyto(placed[n], array)
        at += aligned(array.nbytes)
    return placed


def arrange(array: Array, layout: Layout | None, out: Array) -> None:
    """Write `array` in a layout into `out`, a flat array of the layout's physical size."""
    if layout is None:
        np.copyto(out, array.reshape(-1))
    elif (order := _radix_order(layout, array.ndim)) is None:
        np.copyto(out, pack(array, layout).reshape(-1))
    else:
        # Every dimension is cut into digits: pad, reshape, transpose; far faster than indexing element by element.
        sizes, shape = _digit_sizes(layout, array.shape)
        padded = array
        if tuple(shape) != array.shape:
            padded = np.zeros(shape, array.dtype)
            padded[tuple(slice(e) for e in array.shape)] = array
        np.copyto(out.reshape(layout.physical_shape(array.shape)), padded.reshape(sizes).transpose(order))


def _chains(layout: Layout, rank: int) -> list[list[int]]:
    """For every logical dimension its digits, most significant first."""
    chains: list[list[int]] = [[] for _ in range(rank)]
    for p, digit in enumerate(layout.digits):
        chains[digit.dim].append(p)
    return [sorted(chain, key=lambda p: -layout.digits[p].div) for chain in chains]


def _radix_order(layout: Layout, rank: int) -> list[int] | None:
    """The transposition of digits in logical order into physical order; None if they are no radix system."""
    flat: list[int] = []
    for chain in _chains(layout, rank):
        unit = 1
        for n, p in enumerate(reversed(chain)):
            digit = layout.digits[p]
            top = n == len(chain) - 1
            if digit.div != unit or (digit.mod == 0) != top:
                return None
            unit *= digit.mod
        if not chain:
            return None
        flat += chain
    return [flat.index(p) for p in range(len(layout.digits))]


def _digit_sizes(layout: Layout, shape: tuple[int, ...]) -> tuple[list[int], list[int]]:
    """Extents of all digits in logical order, and the padded extents of the logical dimensions."""
    physical = layout.physical_shape(shape)
    groups = [[physical[p] for p in chain] for chain in _chains(layout, len(shape))]
    return [e for g in groups for e in g], [prod(g) for g in groups]
