"""A GPU of each platform that is none: the drivers are real, what they drive runs launches on the host.

Both give tests the same words for what happened, and for what is to fail.
"""

from __future__ import annotations

import ctypes
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from fake_cupy import CUDADriverError, CUDARuntimeError, FakeCupy, OnGpu, OutOfMemoryError
from simt_plans import chain, mirror, placed

from rammer.ir.kernel import ForeignSource
from rammer.ir.plan import ExecutionPlan
from rammer.ir.tensor import Array
from rammer.vdevice.base import Availability, Image
from rammer.vdevice.cuda import device as cuda_device
from rammer.vdevice.cuda import driver as cuda_driver
from rammer.vdevice.rocm import device as rocm_device
from rammer.vdevice.simt.codegen.table import ENTRY
from rammer.vdevice.simt.device import GpuVDevice
from rammer.vdevice.simt.emulator.compile import compile_host
from rammer.vdevice.simt.machine_code import KernelResources, MachineCode
from rammer.vdevice.simt.runtime.executable import GpuExecutable
from rammer.vdevice.toolchain import c_compiler

GRAPH = chain(3)
LANES: Sequence[Any] = [[0, [(1, 1)], 2], [[(0, 0)], 1]]


class FakeGpu(ABC):
    """One platform, and the knobs of a test."""

    target: ClassVar[str]
    compiled: list[str]  # texts

    def vdevice(self, **options: Any) -> GpuVDevice:
        module = cuda_device if self.target == "cuda" else rocm_device
        return GpuVDevice(module.PLATFORM, **options)

    def plan(self, lanes: Any = LANES) -> ExecutionPlan:
        """A program of two vEUs."""
        vdevice, kernel = self.vdevice(), mirror(GRAPH)
        assert isinstance(kernel.body, ForeignSource)
        kernel = replace(kernel, body=replace(kernel.body, language=vdevice.dialect.language))
        plan = placed(GRAPH, [kernel] * 3, lanes)
        return replace(plan, spec=replace(vdevice.spec, num_veus=len(lanes)))

    def image(self, lanes: Any = LANES) -> Image:
        return self.vdevice().build(self.plan(lanes))

    def executable(self, lanes: Any = LANES, **options: Any) -> GpuExecutable:
        return self.vdevice().open(self.image(lanes), **options)

    @abstractmethod
    def count(self, what: str) -> int:
        """How often there was a "launch", "capture", "replay", "memory", "wait" for the current stream."""

    @abstractmethod
    def fail(self, what: str = "", error: str = "") -> None:
        """Let "load", "memory" or "launch" fail from now on, with an error of `ERRORS`; or nothing."""

    @abstractmethod
    def array(self, value: Array, how: str = "dlpack", number: int = 0) -> Any:
        """An array of another library on the GPU; `how` may be "interface"."""

    @abstractmethod
    def elapsed(self, times_ms: Iterator[int]) -> None:
        """What events will have measured, where the fake can say."""

    @abstractmethod
    def blocks(self, count: int) -> None:
        """Blocks that a multiprocessor holds."""


class FakeCuda(FakeGpu):
    """Cupy's stand-in; a cubin is the program's text."""

    target = "cuda"
    NAMES: ClassVar = {
        "launch": "launch",
        "capture": "begin_capture",
        "replay": "Graph.launch",
        "memory": "alloc",
        "wait": "Stream.wait_event",
        "load": "Module.load",
    }
    ERRORS: ClassVar = {
        "other code": CUDADriverError("CUDA_ERROR_NO_BINARY_FOR_GPU: no"),
        "too large": CUDADriverError("CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE: too many"),
        "memory": OutOfMemoryError("Out of memory allocating 5,000 bytes"),
        "uncapturable": CUDADriverError("CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED: no"),
        "new": CUDARuntimeError("cudaErrorNew: what"),
    }

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.cupy, self.compiled = FakeCupy(), []
        patch.setattr(cuda_driver, "_module", lambda: self.cupy)
        here = {"probe": lambda: Availability(True), "compiler": lambda: "NVRTC 0", "compile": self._compile}
        patch.setattr(cuda_device, "PLATFORM", replace(cuda_device.PLATFORM, **here))

    def _compile(self, text: str, arch: str) -> MachineCode:
        self.compiled.append(text)
        return MachineCode(text.encode(), {ENTRY: KernelResources(64, compiler="NVRTC 13.5")})

    def count(self, what: str) -> int:
        return self.cupy.calls.count(self.NAMES[what])

    def fail(self, what: str = "", error: str = "") -> None:
        self.cupy.fails = {self.NAMES[what]: self.ERRORS[error]} if what else {}

    def array(self, value: Array, how: str = "dlpack", number: int = 0) -> OnGpu:
        return OnGpu(value, how, number)

    def elapsed(self, times_ms: Iterator[int]) -> None:
        self.cupy.elapsed_ms = lambda: float(next(times_ms))

    def blocks(self, count: int) -> None:
        self.cupy.blocks_per_sm = count


class OnRocm:
    """An array of another library: `how` is "dlpack" or "interface"."""

    def __init__(self, value: Array, how: str, number: int) -> None:
        os.environ["STUB_GPU"] = str(number)
        self.value = value  # of the host, which is the stub's GPU
        if how == "dlpack":
            self.__dlpack__ = lambda stream: value.__dlpack__()
            self.__dlpack_device__ = lambda: (10, number)
        else:
            self.__cuda_array_interface__ = value.__array_interface__


class FakeRocm(FakeGpu):
    """A stub of AMD's library, through hip-python where it is installed; a code object names a library of the host."""

    target = "rocm"
    NAMES: ClassVar = {
        "load": "hipModuleLoadData",
        "memory": "hipMalloc",
        "launch": "hipModuleLaunchCooperativeKernel",
    }
    ERRORS: ClassVar = {"other code": 209, "too large": 720, "memory": 2, "uncapturable": 900, "new": 719}
    COUNTS: ClassVar = {"capture": "captures", "replay": "replays", "memory": "mallocs", "wait": "waits"}

    def __init__(self, patch: pytest.MonkeyPatch, library: ctypes.CDLL, folder: Path) -> None:
        self.library, self.compiled, self.folder, self._patch = library, [], folder, patch
        here = {"probe": lambda: Availability(True), "compile": self._compile}
        patch.setattr(rocm_device, "PLATFORM", replace(rocm_device.PLATFORM, **here))
        patch.setenv("STUB_GPU", "0")
        self.fail()
        for name in ("launches", "cooperative", "captures", "replays", "mallocs", "waits", "uncached"):
            self.cell(name).value = 0
        self.blocks(1)

    def _compile(self, text: str, arch: str) -> MachineCode:
        path = self.folder / f"{len(self.compiled)}.so"
        path.write_bytes(compile_host(text))
        self.compiled.append(text)
        head = bytearray(b"\x7fELF".ljust(64, b"\0"))
        head[0x12], head[0x30] = 0xE0, 0x2F  # AMDGPU, gfx906
        return MachineCode(bytes(head) + os.fsencode(path) + b"\0", {ENTRY: KernelResources(64)})

    def cell(self, name: str) -> ctypes.c_int:
        return ctypes.c_int.in_dll(self.library, f"stub_{name}")

    def count(self, what: str) -> int:
        return int(self.cell(self.COUNTS.get(what, "launches")).value)

    def fail(self, what: str = "", error: str = "") -> None:
        self._patch.setenv("STUB_FAIL", self.NAMES[what] if what else "")
        self._patch.setenv("STUB_CODE", str(self.ERRORS[error]) if what else "1")

    def array(self, value: Array, how: str = "dlpack", number: int = 0) -> OnRocm:
        return OnRocm(value, how, number)

    def elapsed(self, times_ms: Iterator[int]) -> None:
        """The stub's events are always half a millisecond apart."""

    def blocks(self, count: int) -> None:
        self.cell("blocks").value = count


def stub_library(folder: Path) -> ctypes.CDLL:
    """The stub, where hip-python looks for AMD's library."""
    (folder / "lib").mkdir()
    path = folder / "lib" / "libamdhip64.so"
    text = Path(__file__).with_name("hip_stub.c").read_text()
    path.write_bytes(c_compiler().compile_shared(text, ("-Wl,-soname,libamdhip64.so",)))
    return ctypes.CDLL(str(path), mode=os.RTLD_GLOBAL)  # hip-python 7 opens what has this name already
