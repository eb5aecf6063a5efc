"""Decode TensorProto: typed fields, raw bytes, external files. Every length is checked before it is used."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from dataclasses import dataclass, field
from math import gcd, prod
from pathlib import PurePosixPath

import numpy as np
from onnx import SparseTensorProto, TensorProto
from onnx.helper import np_dtype_to_tensor_dtype, tensor_dtype_to_field

from rammer.errors import ModelError
from rammer.frontend.onnx.limits import Limits
from rammer.ir.tensor import Array, DType

ELEMENT_TYPES: dict[int, DType] = {int(np_dtype_to_tensor_dtype(dtype.numpy)): dtype for dtype in DType}
CODES = {dtype: code for code, dtype in ELEMENT_TYPES.items()}

# element type -> the typed field that may hold it
_FIELDS = {dtype: tensor_dtype_to_field(code) for code, dtype in ELEMENT_TYPES.items()}
_PATTERNS = frozenset(d for d in DType if d.is_float and (d.only_stored or d is DType.BF16))  # not NumPy's own
_ALL_FIELDS = ("float_data", "double_data", "int64_data", "int32_data", "uint64_data", "string_data")


def element_type(code: int, what: str, *, node: str = "", op: str = "") -> DType:
    """Return the element type of an ONNX data-type number. Raises ModelError for an unknown or unsupported one."""
    if (found := ELEMENT_TYPES.get(code)) is not None:
        return found
    known = code in TensorProto.DataType.values() and code != TensorProto.UNDEFINED
    seen = f"element type {TensorProto.DataType.Name(code)}" if known else f"unknown element type {code}"
    raise ModelError(f"{what} has {seen}", node=node, op=op, hint=f"supported: {', '.join(d.value for d in DType)}")


@dataclass
class ExternalData:
    """Files beside a model. Names must be relative and inside `base_dir`; symbolic and hard links are refused."""

    base_dir: str | None
    limits: Limits
    read_bytes: int = 0
    _locations: dict[str, None] = field(default_factory=dict)  # locations of the files that were read, once each
    _digests: dict[str, str] = field(default_factory=dict)

    @property
    def files(self) -> tuple[str, ...]:
        """Paths of the files that were read."""
        return tuple(os.path.join(self.base_dir or ".", location) for location in self._locations)

    def read(self, tensor: TensorProto, expected: int) -> bytes:
        """Return the `expected` bytes that the tensor's entries point at."""
        what = f"external data of {tensor.name!r}"
        if self.base_dir is None:
            raise ModelError(
                f"{what} lies in another file, but the model was not loaded from a file",
                hint="pass the path of the model, or base_dir=",
            )
        entries = {e.key: e.value for e in tensor.external_data}
        location = entries.get("location", "")
        offset = self._number(entries.get("offset", "0"), f"offset of {what}")
        length = self._number(entries.get("length", str(expected)), f"length of {what}")
        if length != expected:
            raise ModelError(f"{what} has {length} bytes; its shape and element type need {expected}")
        self.read_bytes += length
        if self.read_bytes > self.limits.external_bytes:
            raise ModelError(f"external data exceeds {self.limits.external_bytes}", hint="raise Limits.external_bytes")
        descriptor = self._open(location, what)
        self._locations[location] = None
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
                raise ModelError(f"{what}: {location!r} is not a plain file with a single name", hint="copy the file")
            if offset + length > status.st_size:
                raise ModelError(f"{what}: {offset}…{offset + length} is outside {location!r} ({status.st_size} bytes)")
            if "checksum" in entries:
                self._verify(descriptor, location, entries["checksum"], what)
            data = _read(descriptor, offset, length)
        except OSError as error:
            raise ModelError(f"{what}: cannot read {location!r}: {error.strerror}") from None
        finally:
            os.close(descriptor)
        if len(data) != length:
            raise ModelError(f"{what}: {location!r} ended after {len(data)} of {length} bytes")
        return data

    @staticmethod
    def _number(text: str, what: str) -> int:
        if not re.fullmatch(r"[0-9]{1,18}", text, re.ASCII):
            raise ModelError(f"the {what} is {text[:40]!r}", hint="it must be a non-negative decimal number")
        return int(text)

    def _open(self, location: str, what: str) -> int:
        """Open component by component below base_dir, following no link."""
        parts = PurePosixPath(location).parts
        if not parts or location.startswith("/") or ".." in parts or "\0" in location or "\\" in location:
            raise ModelError(f"{what} points at {location[:200]!r}", hint="give a relative path inside the folder")
        assert self.base_dir is not None
        folder = -1
        try:
            folder = os.open(self.base_dir or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            for part in parts[:-1]:
                inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
                os.close(folder)
                folder = inner
            return os.open(parts[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        except OSError as error:
            raise ModelError(
                f"{what}: cannot open {location[:200]!r}: {error.strerror}",
                hint="the file must lie beside the model; links are not followed",
            ) from None
        finally:
            if folder >= 0:
                os.close(folder)

    def _verify(self, descriptor: int, location: str, checksum: str, what: str) -> None:
        if location not in self._digests:
            digest = hashlib.sha1(usedforsecurity=False)  # the algorithm that ONNX names
            offset = 0
            while block := os.pread(descriptor, 1 << 20, offset):
                digest.update(block)
                offset += len(block)
            self._digests[location] = digest.hexdigest()
        if self._digests[location] != checksum.lower():
            raise ModelError(f"{what}: {location!r} lacks the checksum {checksum[:40]!r}", hint="the file was changed")


def _read(descriptor: int, offset: int, length: int) -> bytes:
    blocks = []
    while length and (block := os.pread(descriptor, min(length, 1 << 30), offset)):
        blocks.append(block)
        offset, length = offset + len(block), length - len(block)
    return b"".join(blocks)


def decode(tensor: TensorProto | SparseTensorProto, external: ExternalData, taken: memoryview | None = None) -> Array:
    """Decode a TensorProto into a read-only array, a SparseTensorProto into a dense one.

    `taken` is its raw data if `take_weights` removed it from the message.

    Every initializer and attribute is decoded here. Raises ModelError for inconsistent data, and for a tensor that does
    not fit in memory.
    """
    if isinstance(tensor, SparseTensorProto):
        return _decode_sparse(tensor, external)
    what = f"tensor {tensor.name!r}"
    try:
        return _decode(tensor, external, taken, what)
    except MemoryError:
        raise ModelError(
            f"{what} of {list(tensor.dims)} elements needs more memory than this process can get",
            hint="give the process more memory, or lower Limits.tensor_bytes to refuse such models early",
        ) from None


def _decode(tensor: TensorProto, external: ExternalData, taken: memoryview | None, what: str) -> Array:
    dtype = element_type(tensor.data_type, what)
    shape, limits = tuple(tensor.dims), external.limits
    if any(d < 0 for d in shape) or len(shape) > limits.rank:
        raise ModelError(f"{what} has dimensions {list(shape[:20])}", hint=f"at most {limits.rank}, none negative")
    count = prod(shape)
    nbytes = _packed_bytes(count, dtype)
    if count * dtype.itemsize > limits.tensor_bytes:
        raise ModelError(
            f"{what} has {count * dtype.itemsize} bytes, the limit is {limits.tensor_bytes}",
            hint="raise Limits.tensor_bytes",
        )
    if tensor.HasField("segment"):
        raise ModelError(f"{what} is stored in segments", hint="store it as raw_data")
    filled = [f for f in _ALL_FIELDS if len(getattr(tensor, f))]
    raw = taken is not None or tensor.HasField("raw_data")
    if tensor.data_location == TensorProto.EXTERNAL:
        if filled or raw:
            raise ModelError(f"{what} is external but also has data inside the model")
        return _from_bytes(external.read(tensor, nbytes), dtype, shape)
    if len(filled) + raw > 1 or (filled and filled[0] != _FIELDS[dtype]):
        seen = ", ".join(filled + ["raw_data"] * raw)
        raise ModelError(f"{what} of type {dtype.value} has data in {seen}", hint=f"use raw_data or {_FIELDS[dtype]}")
    if raw:
        data = tensor.raw_data if taken is None else taken
        if len(data) != nbytes:
            raise ModelError(f"{what} has {len(data)} bytes of data; {dtype.value}{list(shape)} needs {nbytes}")
        return _from_bytes(data, dtype, shape)
    values = getattr(tensor, _FIELDS[dtype])
    in_bytes = dtype.bits in (2, 4)  # each value of the field is one byte of packed elements
    needed = nbytes if in_bytes else count * (1 + dtype.is_complex)  # a complex number is two values
    if len(values) != needed:
        raise ModelError(f"{what} has {len(values)} values; its shape {list(shape)} needs {needed}")
    if in_bytes:
        return _from_bytes(_patterns(values, 8, what).tobytes(), dtype, shape)
    return _from_field(values, dtype, what).reshape(shape)


def _decode_sparse(tensor: SparseTensorProto, external: ExternalData) -> Array:
    what, shape = f"sparse tensor {tensor.values.name!r}", tuple(tensor.dims)
    values, places = decode(tensor.values, external), decode(tensor.indices, external)
    size = prod(shape)
    if any(d < 0 for d in shape) or len(shape) > external.limits.rank or values.ndim != 1:
        raise ModelError(f"{what} has dimensions {list(shape)[:20]} and values of rank {values.ndim}")
    if size * values.itemsize > external.limits.tensor_bytes:
        raise ModelError(f"{what} has {size * values.itemsize} bytes", hint="raise Limits.tensor_bytes")
    if places.dtype != np.int64 or places.shape not in (values.shape, (*values.shape, len(shape))):
        raise ModelError(f"{what} has indices {places.dtype}{list(places.shape)} of {values.size} values")
    axes = places.T if places.ndim == 2 else [places]
    if any((a < 0).any() or (a >= e).any() for a, e in zip(axes, shape if places.ndim == 2 else [size], strict=True)):
        raise ModelError(f"{what} has indices outside of {list(shape)[:20]}")
    dense = np.zeros(shape, values.dtype)
    if places.ndim == 2:
        dense[tuple(axes)] = values
    else:
        dense.reshape(-1)[places] = values
    return dense


def _packed_bytes(count: int, dtype: DType) -> int:
    """Return the bytes of `count` elements in a file; those of fewer than 8 bits are packed."""
    return -(-count * dtype.bits // 8)


def _from_bytes(data: bytes | memoryview, dtype: DType, shape: tuple[int, ...]) -> Array:
    if dtype is DType.BOOL:  # any non-zero byte is true; NumPy must not see other bit patterns
        return np.not_equal(np.frombuffer(data, np.uint8), 0).reshape(shape)
    if dtype.bits < 8:
        return _unpacked(np.frombuffer(data, np.uint8), dtype, prod(shape)).reshape(shape)
    little = np.frombuffer(data, f"<u{dtype.itemsize}" if dtype in _PATTERNS else dtype.numpy.newbyteorder("<"))
    native = little.astype(little.dtype.newbyteorder("="), copy=False)
    return (native.view(dtype.numpy) if dtype in _PATTERNS else native).reshape(shape)


def _unpacked(packed: Array, dtype: DType, count: int) -> Array:
    """Unpack `count` elements of fewer than 8 bits, lowest bits first, into one byte each."""
    group = 8 // gcd(8, dtype.bits)  # elements that fill whole bytes
    nbytes, groups = group * dtype.bits // 8, -(-count // group)
    rows = np.zeros((groups, nbytes), np.uint8)
    rows.reshape(-1)[: packed.size] = packed
    found = np.empty((groups, group), np.uint8)
    for n in range(group):
        byte, shift = divmod(n * dtype.bits, 8)
        found[:, n] = rows[:, byte] >> shift
        if shift + dtype.bits > 8:
            found[:, n] |= rows[:, byte + 1] << (8 - shift)
    found &= (1 << dtype.bits) - 1
    if dtype in (DType.I2, DType.I4):  # sign-extend to 8 bits
        sign = np.uint8(1 << (dtype.bits - 1))
        found = (found ^ sign) - sign
    flat: Array = found.reshape(-1)[:count].view(dtype.numpy)
    return flat


def _patterns(values: object, bits: int, what: str) -> Array:
    """Return bit patterns from a field of wider integers."""
    wide = np.array(values, np.int64)
    if wide.size and not (wide.min() >= 0 and wide.max() < 1 << bits):
        raise ModelError(f"{what} has {bits}-bit patterns outside 0…{(1 << bits) - 1}")
    return wide.astype(np.uint16 if bits > 8 else np.uint8)


def _from_field(values: object, dtype: DType, what: str) -> Array:
    if dtype in _PATTERNS or dtype is DType.F16:
        return _patterns(values, dtype.bits, what).view(dtype.numpy)
    if dtype.is_float:
        return np.array(values, dtype.numpy)
    if dtype.is_complex:
        return np.array(values, f"f{dtype.itemsize // 2}").view(dtype.numpy)
    wide = np.array(values, np.uint64 if _FIELDS[dtype] == "uint64_data" else np.int64)
    if dtype is DType.BOOL:
        return np.not_equal(wide, 0)
    narrow = wide.astype(dtype.numpy)
    if not np.array_equal(narrow, wide):
        raise ModelError(f"{what} has values outside {dtype.value}")
    return narrow
