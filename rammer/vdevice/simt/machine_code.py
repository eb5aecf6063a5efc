"""Represent machine code for a GPU: an ELF file, and what each of its kernels needs."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rammer.errors import ToolchainError
from rammer.vdevice.simt.codegen.table import ENTRY

EXECUTABLE = 4  # SHF_EXECINSTR


@dataclass(frozen=True, slots=True)
class KernelResources:
    """What a kernel needs, as its compiler says: of a thread, but for `shared_bytes`, which are of a block.

    `code_bytes`: machine code of the whole file. `compiler`: that of the driver must be as new ("NVRTC 13.5").
    """

    registers: int
    spill_bytes: int = 0
    stack_bytes: int = 0
    shared_bytes: int = 0
    code_bytes: int = 0
    compiler: str = ""


@dataclass(frozen=True, slots=True)
class MachineCode:
    """The result of compiling a text. `kernels`: by name."""

    data: bytes
    kernels: Mapping[str, KernelResources]

    @property
    def resources(self) -> KernelResources:
        """Return what the megakernel needs. Raises ToolchainError if there is none."""
        if ENTRY not in self.kernels:
            raise ToolchainError(
                f"the machine code has no kernel {ENTRY!r}, only {sorted(self.kernels)}", hint="please report it"
            )
        return self.kernels[ENTRY]


def sections(elf: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Yield kind, flags, offset and size of every section. Raises struct.error for a damaged file."""
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    size, count = struct.unpack_from("<HH", elf, 0x3A)
    for n in range(count):
        _, kind, flags, _, offset, length = struct.unpack_from("<IIQQQQ", elf, table + n * size)
        yield kind, flags, offset, length


def code_bytes(elf: bytes) -> int:
    """Return the bytes of machine code."""
    return sum(size for _, flags, _, size in sections(elf) if flags & EXECUTABLE)
