"""Define tensor types: shape, element type, physical layout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from itertools import zip_longest
from math import prod
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

TensorId: TypeAlias = str
Shape: TypeAlias = tuple[int, ...]
Symbols: TypeAlias = tuple[str | None, ...]  # names of dimensions, or nothing
Array: TypeAlias = NDArray[Any]
NamedArrays: TypeAlias = Mapping[str, Array]
Numbers: TypeAlias = NDArray[np.int64]
ALIGNMENT = 64  # bytes, of every buffer in memory: the widest vector


def aligned_bytes(nbytes: int) -> int:
    """Return the bytes up to where the next buffer may begin."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def row_major(shape: Shape) -> list[int]:
    """Return the row-major strides of a shape, in elements."""
    return [prod(shape[p + 1 :]) for p in range(len(shape))]


class DType(StrEnum):
    """Element types; the value is NumPy's name (types that NumPy lacks come from ml_dtypes)."""

    F16 = "float16"
    BF16 = "bfloat16"
    F32 = "float32"
    F64 = "float64"
    I8 = "int8"
    I16 = "int16"
    I32 = "int32"
    I64 = "int64"
    U8 = "uint8"
    U16 = "uint16"
    U32 = "uint32"
    U64 = "uint64"
    BOOL = "bool"
    I2 = "int2"
    I4 = "int4"
    U2 = "uint2"
    U4 = "uint4"
    F4E2M1 = "float4_e2m1fn"
    F6E2M3 = "float6_e2m3fn"
    F6E3M2 = "float6_e3m2fn"
    F8E4M3FN = "float8_e4m3fn"
    F8E4M3FNUZ = "float8_e4m3fnuz"
    F8E5M2 = "float8_e5m2"
    F8E5M2FNUZ = "float8_e5m2fnuz"
    F8E8M0 = "float8_e8m0fnu"
    C64 = "complex64"
    C128 = "complex128"

    @cached_property
    def numpy(self) -> np.dtype[np.generic]:
        return np.dtype(getattr(ml_dtypes, self.value, self.value))

    @cached_property
    def carrier(self) -> np.dtype[np.generic]:
        """NumPy's own type that can hold elements: unsigned integers of as many bytes for types of ml_dtypes."""
        return np.dtype(f"u{self.itemsize}") if hasattr(ml_dtypes, self.value) else self.numpy

    @property
    def itemsize(self) -> int:
        """Bytes of an element in memory; types of fewer than 8 bits take one."""
        return self.numpy.itemsize

    @cached_property
    def info(self) -> Any:
        """Limits of a type of numbers, as NumPy's finfo and iinfo have them."""
        info: Any = ml_dtypes.finfo if self.is_float else ml_dtypes.iinfo
        return info(self.numpy)

    @cached_property
    def bits(self) -> int:
        """Bits of an element when packed, as in files."""
        return 8 * self.itemsize if self is DType.BOOL or self.is_complex else int(self.info.bits)

    @property
    def is_float(self) -> bool:
        return "float" in self.value

    @property
    def is_complex(self) -> bool:
        return self in (DType.C64, DType.C128)

    @property
    def part(self) -> DType:
        """Type of a complex number's two parts; any other type itself."""
        return {DType.C64: DType.F32, DType.C128: DType.F64}.get(self, self)

    @cached_property
    def epsilon(self) -> float:
        """Step from 1 to the next number, of a float type."""
        return float(self.info.eps)

    @property
    def only_stored(self) -> bool:
        """Return whether elements are only moved and converted: the type has no arithmetic."""
        return self in _ONLY_STORED

    @property
    def accumulator(self) -> DType:
        """Type that sums are held in: float32 for the half types, the type itself otherwise."""
        return DType.F32 if self in (DType.F16, DType.BF16) else self


SMALL = frozenset({DType.I8, DType.U8, DType.I16, DType.U16})  # integers that are computed in int32
_ONLY_STORED = frozenset(
    d for d in DType if d is not DType.BOOL and (d.bits < 8 or d.is_complex or d.value.startswith("float8"))
)


DTYPES = {d.numpy: d for d in DType}


def convert(array: Array, dtype: DType) -> Array:
    """Convert elements as NumPy's astype does; between two types that are only stored, by way of float32."""
    if dtype.only_stored and array.dtype.name in _ONLY_STORED and array.dtype.kind != "c":
        array = array.astype(np.float32)
    return array.astype(dtype.numpy)


@dataclass(frozen=True, slots=True)
class Digit:
    """One physical dimension: logical[dim] // div % mod; mod 0 means no modulo.

    `pitch`: the stride in elements, if elements of other tensors lie between; 0: contiguous.
    """

    dim: int
    div: int = 1
    mod: int = 0
    pitch: int = 0


@dataclass(frozen=True, slots=True)
class Encoding:
    """An element as the sum of `parts` numbers of a narrower type: its value rounded, the rest rounded, and so on.

    An instruction may cut digits off where this rounds: only the sum matters. Every `block` elements lie as first
    parts, second parts, ….
    """

    dtype: DType
    parts: int
    block: int

    def __str__(self) -> str:
        return f"{self.dtype.name.lower()}x{self.parts}"

    @property
    def nbytes(self) -> int:
        """Bytes of an element."""
        return self.parts * self.dtype.itemsize

    def encode(self, array: Array) -> Array:
        """Return the parts of an array of a whole number of blocks: [block, part, element]."""
        left = array.reshape(-1, self.block).astype(np.float32)
        out = np.empty((len(left), self.parts, self.block), self.dtype.numpy)
        for part in range(self.parts):
            out[:, part] = left.astype(self.dtype.numpy)
            left -= out[:, part].astype(np.float32)
        return out

    def decode(self, array: Array) -> Array:
        """Return the elements, flat, of what `encode` made."""
        whole: Array = array.reshape(-1, self.parts, self.block).astype(np.float32).sum(axis=1).reshape(-1)
        return whole


@dataclass(frozen=True, slots=True)
class Layout:
    """Order of a logical tensor in memory: physical dimensions as digits of logical ones, row-major.

    NCHW16c is (n, c//16, h, w, c%16). Blocks that reach past the logical edge are padding: a kernel may write anything
    finite there, and must never depend on what it reads there.
    """

    digits: tuple[Digit, ...]
    encoding: Encoding | None = None

    def physical_shape(self, shape: Shape) -> Shape:
        return tuple(d.mod or -(-shape[d.dim] // d.div) for d in self.digits)

    def strides(self, shape: Shape) -> list[int]:
        """Return the stride of each physical dimension, in elements."""
        found: list[int] = []
        size = 1
        for digit, extent in zip(reversed(self.digits), reversed(self.physical_shape(shape)), strict=True):
            found.append(digit.pitch or size)
            size = found[-1] * extent
        return found[::-1]

    @property
    def pitched(self) -> bool:
        """Return whether elements of other tensors lie between those of the tensor."""
        return any(d.pitch for d in self.digits)

    def with_strides(self, shape: Shape, strides: Sequence[int]) -> Layout:
        """Return the same digits of a tensor of shape `shape`, with these strides where an extent is not 1."""
        digits: list[Digit] = []
        size, physical = 1, self.physical_shape(shape)
        for digit, extent, stride in zip(reversed(self.digits), reversed(physical), reversed(strides), strict=True):
            pitch = 0 if extent == 1 or stride == size else stride
            digits.append(replace(digit, pitch=pitch))
            size = (pitch or size) * extent
        return replace(self, digits=tuple(reversed(digits)))

    def pads(self, shape: Shape) -> bool:
        """Return whether the physical tensor holds more elements than the logical one."""
        return prod(self.physical_shape(shape)) != prod(shape)


def channel_blocked(rank: int, block: int, *, batch_first: bool = False) -> Layout:
    """Return CN…{block}c: channels (dimension 1) in blocks of `block`, innermost.

    Whole blocks are outermost, before the batch: concatenations and slices of channels are contiguous for any batch.
    With `batch_first` (NC…{block}c) images are outermost, and such slices have a pitch.
    """
    outer = (Digit(0), Digit(1, block)) if batch_first else (Digit(1, block), Digit(0))
    return Layout((*outer, *(Digit(d) for d in range(2, rank)), Digit(1, 1, block)))


def pack(array: Array, layout: Layout) -> Array:
    """Bring an array into a layout; blocks past the edge hold zeros."""
    if layout.encoding:
        return layout.encoding.encode(pack(array, replace(layout, encoding=None)))
    shape = layout.physical_shape(array.shape)
    logical: list[Array | int] = [0] * array.ndim
    for p, digit in enumerate(layout.digits):
        axis = np.arange(shape[p]).reshape([-1 if q == p else 1 for q in range(len(shape))])
        logical[digit.dim] = logical[digit.dim] + axis * digit.div
    inside = np.array(True)
    clipped = []
    for index, extent in zip(logical, array.shape, strict=True):
        if np.max(index, initial=0) >= extent:
            inside = inside & (np.asarray(index) < extent)
        clipped.append(np.minimum(index, max(extent - 1, 0)))
    packed = np.broadcast_to(array[tuple(clipped)], shape)
    return np.ascontiguousarray(packed if inside.all() else np.where(inside, packed, np.zeros((), array.dtype)))


def unpack(array: Array, layout: Layout, shape: Shape) -> Array:
    """Return the logical array of shape `shape` from a physical one."""
    if layout.encoding:
        return unpack(layout.encoding.decode(array), replace(layout, encoding=None), shape)
    grid = np.ogrid[tuple(slice(e) for e in shape)]
    index = tuple(grid[d.dim] // d.div % d.mod if d.mod else grid[d.dim] // d.div for d in layout.digits)
    if layout.pitched:
        places = zip(index, layout.strides(shape), strict=True)
        return np.ascontiguousarray(array.reshape(-1)[sum(at * stride for at, stride in places)])
    return np.ascontiguousarray(array.reshape(layout.physical_shape(shape))[index])


@dataclass(frozen=True, slots=True)
class TensorType:
    """Shape and element type of a tensor, and its physical layout (None: row-major)."""

    shape: Shape
    dtype: DType = DType.F32
    layout: Layout | None = None

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of logical elements."""
        return prod(self.shape)

    @property
    def physical_shape(self) -> Shape:
        return self.layout.physical_shape(self.shape) if self.layout else self.shape

    @property
    def strides(self) -> list[int]:
        """Stride of each physical dimension, in elements."""
        return self.layout.strides(self.shape) if self.layout else row_major(self.shape)

    @property
    def span(self) -> int:
        """Elements in memory from the first to the last, padding and gaps included."""
        if self.layout is None or not self.layout.pitched:
            return prod(self.physical_shape)
        if not self.size:
            return 0
        return sum((e - 1) * s for e, s in zip(self.physical_shape, self.strides, strict=True)) + 1

    @property
    def runs(self) -> NDArray[np.int64]:
        """Ranges [low, high) of elements in memory that are its own, padding included; [n, 2], ascending."""
        if self.layout is None or not self.layout.pitched:
            return np.array([[0, self.span]])
        last = max(p for p, d in enumerate(self.layout.digits) if d.pitch)
        places = np.ogrid[tuple(slice(e) for e in self.physical_shape[: last + 1])]
        first = np.ravel(sum(at * stride for at, stride in zip(places, self.strides, strict=False)))
        return np.stack([first, first + prod(self.physical_shape[last + 1 :])], 1)

    @property
    def element_bytes(self) -> int:
        """Bytes in memory of an element."""
        encoding = self.layout.encoding if self.layout else None
        return encoding.nbytes if encoding else self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes in memory from the first to the last, padding and gaps included."""
        return self.span * self.element_bytes

    @property
    def filled_bytes(self) -> int:
        """Bytes in memory that are its own, padding included."""
        return prod(self.physical_shape) * self.element_bytes

    def __str__(self) -> str:
        return self.text()

    def text(self, symbols: Symbols = ()) -> str:
        """Return element type and extents, with the names that a model has for these: float32[batch=8×128]."""
        named = [f"{s}={e}" if s else str(e) for s, e in zip_longest(symbols, self.shape)]
        return f"{self.dtype.value}[{'×'.join(named) or 'scalar'}]"


def element(kind: TensorType, places: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Return which element of a tensor's memory holds each place; `places` has an index array per dimension."""
    index = list(places)
    if kind.layout is not None:
        index = [places[d.dim] // d.div % d.mod if d.mod else places[d.dim] // d.div for d in kind.layout.digits]
    return sum((at * stride for at, stride in zip(index, kind.strides, strict=True)), np.zeros((), np.int64))
