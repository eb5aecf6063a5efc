"""Compile CUDA C++ to machine code with NVRTC. Needs no GPU, driver or header."""

from __future__ import annotations

import importlib
import re
from types import ModuleType
from typing import Any

from rammer.errors import ToolchainError
from rammer.vdevice.simt.gpu import Gpu, check_resident
from rammer.vdevice.simt.machine_code import KernelResources, MachineCode, code_bytes
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


def compile_cubin(text: str, arch: str) -> MachineCode:
    """Return machine code for one arch ("sm_90"), cached. Raises ToolchainError with NVRTC's log."""
    version = nvrtc_version()
    key = fingerprint("cubin and log", version, arch, *OPTIONS, text)
    log, _, data = object_store().made(key, lambda: b"\0".join(_compile(text, arch))).partition(b"\0")
    code = code_bytes(data)
    kernels = {
        name: KernelResources(int(used), max(int(stores), int(loads)), int(stack), 0, code, version)
        for name, stack, stores, loads, used in _KERNEL.findall(log.decode())
    }
    return MachineCode(data, kernels)


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


def _read(size: Any, read: Any, program: Any) -> bytes:
    _, count = size(program)
    data = b"\0" * int(count)
    read(program, data)
    return data


def _source_of(log: str, text: str) -> str:
    """Return our line of text that the compiler's first error names, or ""."""
    if not (found := _LINE.search(log)):
        return ""
    number, lines = int(found[1]), text.splitlines()
    return f"\nline {number}: {lines[number - 1].strip()}" if number <= len(lines) else ""


def _hint(bindings: ModuleType, arch: str) -> str:
    _, known = bindings.nvrtcGetSupportedArchs()
    if int(arch.removeprefix("sm_")) not in known:
        older = " sm_70 needs nvidia-cuda-nvrtc-cu12 and cuda-bindings<13." if arch == "sm_70" else ""
        return f"this NVRTC knows {', '.join(f'sm_{n}' for n in known)}.{older}"
    return "this text was made by rammer or a plugin: please report it"


def check_fits(num_veus: int, threads: int, shared_bytes: int, gpu: Gpu, needs: KernelResources) -> None:
    """Raise DeviceError unless every vEU's block fits on the GPU at the same time."""
    granule = -(-needs.registers * 32 // 256) * 256 * -(-threads // 32)  # warps allocate registers in units of 256
    blocks = min(REGISTERS_OF_SM // max(granule, 1), THREADS_OF_SM // threads)
    check_resident(num_veus, threads, shared_bytes, gpu, needs.registers, blocks)
