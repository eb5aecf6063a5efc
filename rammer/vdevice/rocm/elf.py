"""Read kernels and their resources from a code object: the notes of an ELF file."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from rammer.errors import ToolchainError
from rammer.vdevice.simt.machine_code import KernelResources, code_bytes, sections

_MACHINE = 0xE0  # EM_AMDGPU
_NOTES = 7  # SHT_NOTE
_METADATA = 32  # NT_AMDGPU_METADATA
ARCHS = {0x2F: "gfx906", 0x30: "gfx908", 0x3F: "gfx90a", 0x4C: "gfx942", 0x41: "gfx1100", 0x4E: "gfx1201"}


def arch_of(data: bytes) -> str:
    """Return the arch of a code object, or "" if it is not one of ours. Raises ToolchainError."""
    _header(data)
    return ARCHS.get(data[0x30], "")


def read_kernels(data: bytes) -> dict[str, KernelResources]:
    """Return the kernels of a code object by name; registers include accumulators. Raises ToolchainError."""
    _header(data)
    try:
        code = code_bytes(data)
        found = {}
        for kind, _, at, size in sections(data):
            for metadata in _notes(data[at : at + size]) if kind == _NOTES else ():
                for kernel in metadata["amdhsa.kernels"]:
                    found[kernel[".name"]] = _kernel(kernel, code)
    except (struct.error, IndexError, KeyError, TypeError, UnicodeDecodeError) as error:
        raise ToolchainError(f"the code object cannot be read: {error}", hint="please report it") from error
    return found


def _header(data: bytes) -> None:
    if len(data) < 64 or data[:4] != b"\x7fELF" or data[0x12] != _MACHINE:
        raise ToolchainError("the compiler made no code object of an AMD GPU", hint="is RAMMER_HIPCC a HIP compiler?")


def _notes(data: bytes) -> Iterator[dict[str, Any]]:
    at = 0
    while at + 12 <= len(data):
        name_size, size, kind = struct.unpack_from("<III", data, at)
        name = data[at + 12 : at + 12 + name_size].rstrip(b"\0")
        at += 12 + -(-name_size // 4) * 4
        if kind == _METADATA and name == b"AMDGPU":
            yield _unpack(data[at : at + size], 0)[0]
        at += -(-size // 4) * 4


def _kernel(k: dict[str, Any], code: int) -> KernelResources:
    stack, shared = k[".private_segment_fixed_size"], k[".group_segment_fixed_size"]
    return KernelResources(k[".vgpr_count"], 4 * k.get(".vgpr_spill_count", 0), stack, shared, code)


def _unpack(data: bytes, at: int) -> tuple[Any, int]:
    """Decode a MessagePack value; return it and where the next one begins. Covers the tags that LLVM writes."""
    tag = data[at]
    at += 1
    if tag <= 0x7F or tag >= 0xE0:
        return (tag if tag <= 0x7F else tag - 256), at
    if 0x80 <= tag <= 0x8F or tag in (0xDE, 0xDF):
        count, at = _length(data, at, tag & 15 if tag <= 0x8F else None, 2 << (tag == 0xDF))
        mapping = {}
        for _ in range(count):
            key, at = _unpack(data, at)
            mapping[key], at = _unpack(data, at)
        return mapping, at
    if 0x90 <= tag <= 0x9F or tag in (0xDC, 0xDD):
        count, at = _length(data, at, tag & 15 if tag <= 0x9F else None, 2 << (tag == 0xDD))
        items = []
        for _ in range(count):
            item, at = _unpack(data, at)
            items.append(item)
        return items, at
    if 0xA0 <= tag <= 0xBF or tag in (0xD9, 0xDA, 0xDB):
        size, at = _length(data, at, tag & 31 if tag <= 0xBF else None, 1 << (tag - 0xD9 & 3))
        return data[at : at + size].decode(), at + size
    if 0xCC <= tag <= 0xD3:
        width = 1 << (tag & 3)
        return int.from_bytes(data[at : at + width], "big", signed=tag >= 0xD0), at + width
    if tag in (0xC0, 0xC2, 0xC3):
        return {0xC0: None, 0xC2: False, 0xC3: True}[tag], at
    raise TypeError(f"MessagePack tag {tag:#x} at {at - 1}")


def _length(data: bytes, at: int, short: int | None, width: int) -> tuple[int, int]:
    if short is not None:
        return short, at
    return int.from_bytes(data[at : at + width], "big"), at + width
