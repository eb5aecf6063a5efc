"""Make tensors of seeded random numbers that take little memory: a file of one period is mapped repeatedly."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import tempfile
from collections.abc import Callable, Hashable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from rammer.ir.semantics.evaluate import VirtualInput
from rammer.ir.tensor import Array, DType, Encoding, TensorType, element
from rammer.vdevice.image.arena import aligned
from rammer.vdevice.image.placement import arrange

SEED = 0
PAGE = mmap.PAGESIZE
PERIOD = 61 * PAGE  # elements: whole pages of any type, times a prime, so that most strides do not repeat numbers
FILE_BYTES = 1 << 20  # minimum size of a file; it is mapped repeatedly to fill a tensor
PAGES_BETWEEN = 7  # pages between the first numbers of an operation's inputs
FIXED = 0x10  # mmap's MAP_FIXED, which Python does not name


@dataclass(frozen=True, eq=False)
class NumberFile:
    """A period of numbers, and the file that holds them as they lie in memory."""

    values: Array
    file: BinaryIO
    nbytes: int  # size of the file: whole periods and whole pages

    def map(self, address: int, nbytes: int, page: int, *, writable: bool) -> None:
        """Map the numbers at an address, beginning with a page of the file.

        Writes there stay private to this process.
        """
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        at = page * PAGE
        while nbytes:
            size = min(nbytes, self.nbytes - at)
            _mmap(address, size, protection, mmap.MAP_PRIVATE | FIXED | _NORESERVE, self.file.fileno(), at)
            address, nbytes, at = address + size, nbytes - size, 0


@dataclass(frozen=True, eq=False)
class Seeded(VirtualInput):
    """An input as a kernel reads it: physical element i is number `first` + i of a period.

    For a layout that pads, elements are numbered in row-major order instead, then packed with zeros added.
    """

    kind: TensorType
    numbers: NumberFile
    page: int
    first: int

    def at(self, places: Sequence[NDArray[np.int64]]) -> Array:
        kind = replace(self.kind, layout=None) if padded(self.kind) else self.kind
        flat = element(kind, places) + self.first
        flat %= PERIOD
        found: Array = self.numbers.values[flat]
        return found

    def pack(self, memory: NDArray[np.uint8]) -> None:
        """Write a padded tensor to its memory."""
        assert self.kind.layout is not None
        whole = np.resize(np.roll(self.numbers.values, -self.first), self.shape)
        if encoding := self.kind.layout.encoding:
            out = memory.view(encoding.dtype.numpy).reshape(-1, encoding.parts, encoding.block)
        else:
            out = memory.view(self.kind.dtype.numpy)
        if self.kind.layout.pitched:
            out[element(self.kind, np.indices(self.shape, sparse=True))] = whole
        else:
            arrange(whole, self.kind.layout, out)


def padded(kind: TensorType) -> bool:
    """Return whether a tensor's memory has padding."""
    return kind.layout is not None and kind.layout.pads(kind.shape)


class Seeds(ExitStack):
    """The numbers of trials, in files that are closed in the end. Each kind is generated once."""

    def __init__(self) -> None:
        super().__init__()
        self._kinds: dict[Hashable, NumberFile] = {}

    @cached_property
    def _normal(self) -> NDArray[np.float64]:
        return np.random.default_rng(SEED).standard_normal(PERIOD)

    def floats(self, kind: TensorType, order: int, power: int, positive: bool, narrow: DType | None = None) -> Seeded:
        """Return normally distributed numbers times a power of two (both parts of complex ones).

        All are exact in `narrow`, if given.
        """
        encoding = kind.layout.encoding if kind.layout is not None and not padded(kind) else None

        def draw() -> Array:
            normal = np.abs(self._normal) + 0.1 if positive else self._normal
            drawn = np.ldexp(normal, power).astype((narrow or kind.dtype.part).numpy).astype(kind.dtype.numpy)
            return drawn + 1j * np.roll(drawn, 1) if kind.dtype.is_complex else drawn

        key = kind.dtype, power, positive, narrow, encoding
        return self._seeded(kind, order, self._numbers(key, draw, encoding))

    def integers(self, kind: TensorType, order: int, low: int, high: int) -> Seeded:
        """Return integers, or booleans, of [low, high)."""

        def draw() -> Array:
            return np.random.default_rng(SEED).integers(low, high, PERIOD).astype(kind.dtype.numpy)

        return self._seeded(kind, order, self._numbers((kind.dtype, low, high), draw))

    def nothing(self) -> NumberFile:
        """Return the content of unwritten memory: all bits set, which is NaN in floats."""
        return self._numbers(None, lambda: np.full(PERIOD, 0xFF, np.uint8))

    def _numbers(self, key: Hashable, draw: Callable[[], Array], encoding: Encoding | None = None) -> NumberFile:
        if key not in self._kinds:
            values = draw()
            data = (encoding.encode(values) if encoding else values).tobytes()
            data *= -(-FILE_BYTES // len(data))
            file = self.enter_context(_unnamed())
            file.write(data)
            file.flush()
            self._kinds[key] = NumberFile(values, file, len(data))
        return self._kinds[key]

    @staticmethod
    def _seeded(kind: TensorType, order: int, numbers: NumberFile) -> Seeded:
        """Return a tensor that ends with a page, from a page of the file on; if encoded, it begins with a block."""
        page = PAGES_BETWEEN * order
        if padded(kind):
            return Seeded(kind, numbers, page, page * PAGE)
        into = _room(kind.nbytes) - aligned(max(kind.nbytes, 1))
        encoding = kind.layout.encoding if kind.layout is not None else None
        block = encoding.block * encoding.nbytes if encoding else 1
        while (page * PAGE + into) % block:
            page += 1
        page %= numbers.nbytes // PAGE
        return Seeded(kind, numbers, page, (page * PAGE + into) // kind.element_bytes)


class TrialMemory:
    """Memory of a trial: the outputs, the read-only inputs, and scratch, with guard pages.

    Each tensor ends right before an inaccessible page and begins after one.
    """

    def __init__(self, outputs: Sequence[int], inputs: Sequence[Seeded], scratch: int, nothing: NumberFile) -> None:
        tensors: list[tuple[int, Seeded | None]] = [(nbytes, None) for nbytes in outputs]
        tensors += [*((t.kind.nbytes, t) for t in inputs), (scratch, None)]
        self._nbytes = sum(_room(nbytes) + PAGE for nbytes, _ in tensors) + PAGE
        self._base = _mmap(0, self._nbytes, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE, -1, 0)
        self.starts: list[int] = []
        at = self._base + PAGE
        for nbytes, tensor in tensors:
            room = _room(nbytes)
            self.starts.append(at + room - aligned(max(nbytes, 1)))
            if tensor is not None and not padded(tensor.kind):
                tensor.numbers.map(at, room, tensor.page, writable=False)
            else:
                nothing.map(at, room, 0, writable=True)
                if tensor is not None:
                    tensor.pack(bytes_at(self.starts[-1], nbytes))
                    _LIBC.mprotect(at, room, mmap.PROT_READ)
            at += room + PAGE

    def unmap(self) -> None:
        """Free the memory. Its arrays become invalid."""
        _LIBC.munmap(self._base, self._nbytes)


def bytes_at(address: int, nbytes: int) -> NDArray[np.uint8]:
    """Return memory as an array."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))


def _room(nbytes: int) -> int:
    """Return `nbytes` rounded up to whole pages."""
    return -(-aligned(max(nbytes, 1)) // PAGE) * PAGE


def _unnamed() -> BinaryIO:
    if sys.platform == "linux":
        return open(os.memfd_create("rammer-seeded"), "w+b")
    return tempfile.TemporaryFile()


_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0)  # unwritten memory is not reserved
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long)
_LIBC.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_LIBC.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)


def _mmap(address: int, nbytes: int, protection: int, flags: int, file: int, at: int) -> int:
    found: int = _LIBC.mmap(address, nbytes, protection, flags, file, at)
    if found == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), "memory cannot be mapped")
    return found
