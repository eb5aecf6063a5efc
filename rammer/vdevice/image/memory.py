"""Allocate aligned memory, in huge pages if the system has them."""

from __future__ import annotations

import ctypes
import hashlib
import mmap
import sys
from collections.abc import Callable, Container, Hashable, Iterable, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rammer.errors import ArtifactError, DeviceError
from rammer.ir.tensor import Array, NamedArrays, TensorType
from rammer.vdevice.image.arena import ALIGNMENT, ARENA, aligned

Bytes: TypeAlias = NDArray[np.uint8]
HUGE_PAGE = 2 << 20
BLOCKS = 3  # most blocks kept for each output
_HELD = [object()]
REFERENCES: Callable[[object], int] = getattr(sys, "getrefcount", id)  # PyPy counts none: no block is ever free there
UNUSED = REFERENCES(_HELD[0])  # references to what only a list holds


def allocate(nbytes: int) -> Bytes:
    """Return zeroed memory, private to the process; from 2 MB on in huge pages, else in 4 KiB pages.

    It is freed with the last array that refers to it. Raises DeviceError.
    """
    if nbytes < HUGE_PAGE:
        return np.frombuffer(_map(max(nbytes, 1)), np.uint8, nbytes)
    block = _map(nbytes + HUGE_PAGE)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a system without huge pages: ordinary ones work, more slowly
            block.madvise(mmap.MADV_HUGEPAGE)
    whole = np.frombuffer(block, np.uint8)
    first = -whole.ctypes.data % HUGE_PAGE
    return whole[first : first + nbytes]


class HostBuffers:
    """Buffers of programs that run on the host: aligned arrays."""

    def room(self, kind: TensorType) -> Array:
        """Return a new buffer of zeros."""
        found: Array = allocate(kind.nbytes).view(kind.dtype.numpy).reshape(kind.shape)
        return found

    def rows(self, kind: TensorType, count: int) -> Array:
        """Return uninitialised rows, each of them aligned."""
        stride = aligned(kind.nbytes)
        block = np.empty(count * stride + ALIGNMENT, np.uint8)
        strides = stride, *np.empty(kind.shape, kind.dtype.numpy).strides
        return np.ndarray((count, *kind.shape), kind.dtype.numpy, block.data, -block.ctypes.data % ALIGNMENT, strides)

    def fill(self, room: Array, value: Array) -> None:
        """Copy a value into a buffer of its type."""
        np.copyto(room, value)

    @staticmethod
    def handed(
        views: Iterable[tuple[str, Array]], rooms: NamedArrays, direct: Container[str], wanted: Container[str]
    ) -> dict[str, Array]:
        """Return the `wanted` outputs of a run. Those with rooms are copied there, unless computed there (`direct`)."""
        found = {}
        for name, view in views:
            if name in rooms and name not in direct:
                np.copyto(rooms[name], view)
            if name in wanted:
                found[name] = (rooms[name] if name in direct else view).copy()
        return found


def reused(kind: TensorType) -> Callable[[], Array]:
    """Return a function that gives an uninitialised array, in memory of an earlier one that is gone, if possible.

    New pages are slower, as the system fills them with zeros. A block counts as free when nothing but the list of
    blocks refers to it. Known as: buffer pool.
    """
    blocks: list[Any] = []  # of ctypes: NumPy refers to such an object itself, and not to what a view is of
    shape, dtype = kind.shape, kind.dtype.numpy

    def take() -> Array:
        for n in range(len(blocks)):
            if REFERENCES(blocks[n]) == UNUSED:
                return np.ndarray(shape, dtype, blocks[n])
        blocks[BLOCKS - 1 :] = [(ctypes.c_char * kind.nbytes).from_buffer(allocate(kind.nbytes).data)]
        return np.ndarray(shape, dtype, blocks[-1])

    return take


def _map(nbytes: int) -> mmap.mmap:
    try:
        return mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        raise DeviceError(
            f"cannot get {nbytes / 2**20:.0f} MiB of memory", hint="the model needs more than this machine gives"
        ) from error


def gather(arrays: Sequence[Array]) -> list[Array]:
    """Copy unaligned arrays side by side into one aligned block; aligned ones stay where they are."""
    loose = [n for n, a in enumerate(arrays) if a.ctypes.data % 64 or not a.flags.c_contiguous]
    placed = list(arrays)
    for n, copy in zip(loose, _copied([arrays[n] for n in loose]), strict=True):
        placed[n] = copy
    return placed


def _copied(arrays: Sequence[Array]) -> list[Array]:
    """Copy arrays side by side into one aligned block."""
    block, at = allocate(sum(aligned(a.nbytes) for a in arrays)), 0
    copies = []
    for array in arrays:
        copies.append(block[at : at + array.nbytes].view(array.dtype).reshape(array.shape))
        np.copyto(copies[-1], array)
        at += aligned(array.nbytes)
    return copies


def share_equal(groups: Sequence[NamedArrays]) -> list[dict[str, Array]]:
    """Return the arrays with those of equal content in memory once.

    A group that shares some has the others copied, so that the block which held them all can be freed.
    """
    known: dict[Hashable, Array] = {}
    found = []
    for group in groups:
        keys = {name: _content(array) for name, array in group.items()}
        fresh = {key: group[name] for name, key in keys.items() if key not in known}
        if len(fresh) < len(group):
            fresh = dict(zip(fresh, _copied([*fresh.values()]), strict=True))
        known |= fresh
        found.append({name: known[key] for name, key in keys.items()})
    return found


def _content(array: Array) -> Hashable:
    raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return array.dtype, array.shape, hashlib.sha256(raw.data).digest()


def tensor_at(place: Sequence[int], kind: TensorType, arena: Bytes, constants: Sequence[Array]) -> Array:
    """Return the tensor at (ARENA or number of a constant, byte offset). Raises ArtifactError."""
    base, offset = place
    block = arena if base == ARENA else constants[base].reshape(-1).view(np.uint8)
    if offset + kind.nbytes > len(block):
        raise ArtifactError("an input or output lies outside of its memory")
    found: Array = block[offset : offset + kind.nbytes].view(kind.dtype.numpy).reshape(kind.shape)
    return found
