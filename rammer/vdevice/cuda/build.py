"""Compile CUDA C++ to machine code with NVRTC. Needs no GPU, driver or header."""

from __future__ import annotations

import importlib
import re
import struct
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from rammer.errors import ToolchainError
from rammer.vdevice.base import Registers
from rammer.vdevice.simt.gpu import Gpu, check_resident
from rammer.vdevice.toolchain import fingerprint, object_store

CUBIN = "program.cubin"
INSTALL = "pip install cuda-bindings nvidia-cuda-nvrtc"
OPTIONS = ("-std=c++17", "--ptxas-options=-v", "--diag-suppress=177")
OWN = {"sm_90": "sm_90a"}  # with instructions that only this arch has: machine code is for one arch anyway
REGISTERS_OF_SM, THREADS_OF_SM = 65536, 2048
_KERNEL = re.compile(  # name, bytes of stack, of spill stores, of spill loads, registers
    r"Compiling entry function '(\w+)'(?:(?!Compiling entry).)*?"
    r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads"
    r"(?:(?!Compiling entry).)*?Used (\d+) registers",
    re.S,
)
_LINE = re.compile(r"program\.cu\((\d+)\): error")


@dataclass(frozen=True, slots=True)
class Resources:
    """Registers and bytes that a thread of the megakernel needs, by ptxas. `code_bytes`: its machine code."""

    registers: int
    stack_bytes: int
    spill_bytes: int
    code_bytes: int
    compiler: str = ""  # "NVRTC 13.5"


@dataclass(frozen=True, slots=True)
class Cubin:
    """Machine code of a program."""

    data: bytes
    resources: Resources
    log: str


def nvrtc() -> ModuleType:
    """Import the bindings of NVRTC. Raises ToolchainError."""
    try:
        return importlib.import_module("cuda.bindings.nvrtc")
    except ImportError as error:
        raise ToolchainError(f"CUDA C++ cannot be compiled: {error}", hint=INSTALL) from error


def nvrtc_version() -> str:
    """Return the version of NVRTC. Raises ToolchainError."""
    bindings = nvrtc()
    try:
        _, major, minor = bindings.nvrtcVersion()
    except RuntimeError as error:  # the bindings load the library at the first call
        raise ToolchainError(f"NVRTC cannot be loaded: {error}", hint=INSTALL) from error
    return f"NVRTC {major}.{minor}"


def compiler_version() -> str:
    """Return the compiler's version and options. Raises ToolchainError."""
    return " ".join((nvrtc_version(), *OPTIONS))


def compile_cubin(text: str, arch: str) -> Cubin:
    """Return machine code for one arch ("sm_90"), cached. Raises ToolchainError with NVRTC's log."""
    version = nvrtc_version()
    key = fingerprint("cubin and log", version, arch, *OPTIONS, text)
    log, _, data = object_store().made(key, lambda: b"\0".join(_compile(text, arch))).partition(b"\0")
    return Cubin(data, _resources(log.decode(), code_bytes(data), version), log.decode())


def _compile(text: str, arch: str) -> tuple[bytes, bytes]:
    """Run NVRTC; return its log and the machine code. Raises ToolchainError."""
    bindings = nvrtc()
    options = [o.encode() for o in (f"-arch={OWN.get(arch, arch)}", *OPTIONS)]
    _, program = bindings.nvrtcCreateProgram(text.encode(), b"program.cu", 0, [], [])
    try:
        (status,) = bindings.nvrtcCompileProgram(program, len(options), options)
        log = _read(bindings.nvrtcGetProgramLogSize, bindings.nvrtcGetProgramLog, program).decode(errors="replace")
        log = log.strip("\0 \n")
        if status != bindings.nvrtcResult.NVRTC_SUCCESS:
            raise ToolchainError(
                f"NVRTC failed for {arch}: {status.name}\n{log[:4000]}{_source_of(log, text)}",
                hint=_hint(bindings, arch),
            )
        data = _read(bindings.nvrtcGetCUBINSize, bindings.nvrtcGetCUBIN, program)
    finally:
        bindings.nvrtcDestroyProgram(program)
    return log.encode(), data


def read_registers(cubin: Cubin) -> dict[str, Registers]:
    """Return registers and spilled bytes of each kernel of a cubin, by name."""
    return {
        name: Registers(int(used), max(int(stores), int(loads)))
        for name, _, stores, loads, used in _KERNEL.findall(cubin.log)
    }


def _read(size: Any, read: Any, program: Any) -> bytes:
    _, count = size(program)
    data = b"\0" * int(count)
    read(program, data)
    return data


def _resources(log: str, code_bytes: int, version: str) -> Resources:
    if not (found := _KERNEL.search(log)):
        raise ToolchainError(f"NVRTC's log tells no registers:\n{log[:2000]}", hint="please report it with the version")
    stack, stores, loads, registers = map(int, found.groups()[1:])
    return Resources(registers, stack, max(stores, loads), code_bytes, version)


def code_bytes(elf: bytes) -> int:
    """Return the bytes of machine code in an ELF file."""
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    size, count, names_at = struct.unpack_from("<HHH", elf, 0x3A)
    sections = [struct.unpack_from("<IIQQQQ", elf, table + n * size) for n in range(count)]
    names = sections[names_at][4]
    return sum(s[5] for s in sections if elf.startswith(b".text.", names + s[0]))


def _source_of(log: str, text: str) -> str:
    """Return our line of text that the compiler's first error names, or ""."""
    if not (found := _LINE.search(log)):
        return ""
    number = int(found[1])
    lines = text.splitlines()
    return f"\nline {number}: {lines[number - 1].strip()}" if number <= len(lines) else ""


def _hint(bindings: ModuleType, arch: str) -> str:
    _, known = bindings.nvrtcGetSupportedArchs()
    if int(arch.removeprefix("sm_")) not in known:
        older = " sm_70 needs nvidia-cuda-nvrtc-cu12 and cuda-bindings<13." if arch == "sm_70" else ""
        return f"this NVRTC knows {', '.join(f'sm_{n}' for n in known)}.{older}"
    return "this text was made by rammer or a plugin: please report it"


def check_fits(num_veus: int, threads: int, shared_bytes: int, gpu: Gpu, needs: Resources) -> None:
    """Raise DeviceError unless every vEU's block fits on the GPU at the same time."""
    granule = -(-needs.registers * 32 // 256) * 256 * -(-threads // 32)  # warps allocate registers in units of 256
    blocks = min(REGISTERS_OF_SM // max(granule, 1), THREADS_OF_SM // threads)
    check_resident(num_veus, threads, shared_bytes, gpu, needs.registers, blocks)
