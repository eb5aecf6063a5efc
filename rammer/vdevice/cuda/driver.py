"""Drive NVIDIA GPUs through cupy: find them, run programs, raise errors as DeviceErrors.

Only this module imports cupy.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from rammer.errors import DeviceError
from rammer.ir.tensor import TensorType
from rammer.vdevice.base import Availability
from rammer.vdevice.cuda.cluster import ClusterLaunch
from rammer.vdevice.cuda.spec import of_device
from rammer.vdevice.simt.codegen.table import ENTRY
from rammer.vdevice.simt.device import EMULATE, no_gpu
from rammer.vdevice.simt.gpu import Gpu
from rammer.vdevice.simt.runtime.driver import Driver, Resident, Way

INSTALL = "pip install cupy-cuda13x"
UPDATE = "update NVIDIA's driver"
NODES = ("/dev/nvidia0", "/dev/dxg", "/dev/nvhost-gpu", "/dev/nvgpu")
LOST = "the process has lost the GPU: start it again; if it happens twice, please report it"
OTHER_CODE = f"compile with arch= of this GPU, or {UPDATE}"
HINTS = {
    "cudaErrorInsufficientDriver": UPDATE,
    "cudaErrorNoDevice": f"does CUDA_VISIBLE_DEVICES hide it? {EMULATE}",
    "cudaErrorDevicesUnavailable": "another process uses the GPU alone",
    "cudaErrorMemoryAllocation": "the model needs more memory than the GPU has free",
    "CUDA_ERROR_OUT_OF_MEMORY": "the model needs more memory than the GPU has free",
    "CUDA_ERROR_NO_BINARY_FOR_GPU": OTHER_CODE,
    "CUDA_ERROR_INVALID_IMAGE": OTHER_CODE,
    "CUDA_ERROR_INVALID_SOURCE": OTHER_CODE,
    "CUDA_ERROR_UNSUPPORTED_PTX_VERSION": UPDATE,
    "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE": "the GPU cannot hold all vEUs at once: is another program using it?",
    "CUDA_ERROR_LAUNCH_TIMEOUT": "the display's driver stops long programs: use a GPU without a display",
    "cudaErrorLaunchTimeout": "the display's driver stops long programs: use a GPU without a display",
    "CUDA_ERROR_ILLEGAL_ADDRESS": LOST,
    "cudaErrorIllegalAddress": LOST,
    "CUDA_ERROR_LAUNCH_FAILED": LOST,
    "cudaErrorLaunchFailure": LOST,
}


def probe() -> Availability:
    """Return whether cupy, a driver and a device are present. Loads neither cupy nor the driver's state."""
    if not any(Path(n).exists() for n in NODES):
        return no_gpu("this machine has no NVIDIA GPU", EMULATE)
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return Availability(False, "there is an NVIDIA GPU, but no driver", "install NVIDIA's driver", emulated=True)
    if importlib.util.find_spec("cupy") is None:
        return Availability(False, "there is an NVIDIA GPU, but cupy is not installed", INSTALL, emulated=True)
    return Availability(True)


@lru_cache(maxsize=1)
def _module() -> ModuleType:
    try:
        return importlib.import_module("cupy")
    except ImportError as error:
        raise DeviceError(f"an NVIDIA GPU is used through cupy: {error}", hint=f"{INSTALL}; or {EMULATE}") from error


def load_cupy() -> ModuleType:
    """Return cupy, checked to have a driver and a GPU. Raises DeviceError."""
    cupy = _module()
    runtime = cupy.cuda.runtime
    version = int(runtime.driverGetVersion())
    if not version:
        raise DeviceError("there is no driver for NVIDIA GPUs", hint=f"install NVIDIA's driver; or {EMULATE}")
    try:
        count = int(runtime.getDeviceCount())
    except runtime.CUDARuntimeError as error:
        what = f"; it is for CUDA {_cuda(version)}" if "Insufficient" in str(error) else ""
        raise DeviceError(f"the driver shows no NVIDIA GPU: {error}{what}", hint=_hint(error)) from error
    if not count:
        raise DeviceError("the driver shows no NVIDIA GPU", hint=HINTS["cudaErrorNoDevice"])
    return cupy


def find_gpu(number: int) -> Gpu:
    """Return the GPU with this number. Raises DeviceError."""
    runtime = load_cupy().cuda.runtime
    count = runtime.getDeviceCount()
    if not 0 <= number < count:
        raise DeviceError(f"no NVIDIA GPU {number}; there are {count}", hint="device= is the GPU's number, from 0")
    properties = runtime.getDeviceProperties(number)
    major, minor = properties["major"], properties["minor"]
    name = properties["name"].decode()
    if (major, minor) < (7, 0):
        raise DeviceError(
            f"{name} is sm_{major}{minor}; programs need sm_70 or later",
            hint="older GPUs do not let the threads of a warp progress on their own",
        )
    return of_device(
        name,
        f"sm_{major}{minor}",
        properties["multiProcessorCount"],
        properties["sharedMemPerBlockOptin"],
        properties["l2CacheSize"],
        properties["totalGlobalMem"],
    )


def check_driver(cupy: ModuleType, compiler: str) -> None:
    """Raise DeviceError if the driver's CUDA is older than the compiler ("NVRTC 13.5"): it cannot load such code."""
    version, made = int(cupy.cuda.runtime.driverGetVersion()), compiler.removeprefix("NVRTC ")
    major = made.partition(".")[0]
    if major.isdecimal() and int(major) > version // 1000:
        raise DeviceError(
            f"the driver is for CUDA {_cuda(version)}; the program's machine code is of {compiler}",
            hint=f"{UPDATE}, or compile with NVRTC {version // 1000}",
        )


def _cuda(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"


def _hint(error: Exception) -> str:
    return HINTS.get(str(error).partition(":")[0], "nvidia-smi shows what the GPU does")


@contextmanager
def device_errors(cupy: ModuleType, doing: str) -> Iterator[None]:
    """Raise cupy's errors as DeviceErrors."""
    cuda = cupy.cuda
    try:
        yield
    except cuda.memory.OutOfMemoryError as error:
        free, total = (n >> 20 for n in cuda.runtime.memGetInfo())
        raise DeviceError(
            f"the GPU has no memory to {doing}: {error}; {free} of {total} MiB are free",
            hint="the model needs more memory than the GPU has free",
        ) from error
    except (cuda.runtime.CUDARuntimeError, cuda.driver.CUDADriverError) as error:
        raise DeviceError(f"the GPU failed to {doing}: {error}", hint=_hint(error)) from error


class CudaKernel:
    """The entry of a program."""

    def __init__(
        self, cupy: ModuleType, cubin: bytes, threads: int, shared_bytes: int, stream: Any, cluster: int
    ) -> None:
        driver, module = cupy.cuda.driver, cupy.cuda.Module()
        module.load(cubin)
        self._function = module.get_function(ENTRY)
        self._threads, self._shared, self._stream = threads, shared_bytes, stream
        most = driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        driver.funcSetAttribute(self._function.ptr, most, shared_bytes)
        self._occupancy = driver.occupancyMaxActiveBlocksPerMultiprocessor
        self._clusters = None
        if cluster > 1:
            self._clusters = ClusterLaunch(self._function.ptr, threads, shared_bytes, cluster, stream.ptr)

    def most_blocks(self, multiprocessors: int) -> int:
        if self._clusters:
            return self._clusters.most_blocks()
        return multiprocessors * int(self._occupancy(self._function.ptr, self._threads, self._shared))

    def launch(self, blocks: int, arguments: Sequence[np.generic]) -> None:
        if self._clusters:
            self._clusters.launch(blocks, arguments)
            return
        self._function(
            (blocks,),
            (self._threads,),
            tuple(arguments),
            shared_mem=self._shared,
            stream=self._stream,
            enable_cooperative_groups=True,
        )


class CudaDriver(Driver):
    """A GPU through cupy. Memory comes from a private pool: other code may use the process's pool."""

    records = True  # a single launch takes 16.6 us, mostly on the host; a node of a graph 1.1 us (H200)

    def __init__(self, number: int) -> None:
        self.number = number
        self._cupy = cupy = load_cupy()
        self._device = cupy.cuda.Device(number)
        self._held: list[Any] = []  # memory
        self._pool = cupy.cuda.MemoryPool()
        with self.using("make a stream"):
            self._stream = cupy.cuda.Stream(non_blocking=True)

    @contextmanager
    def using(self, doing: str) -> Iterator[None]:
        with device_errors(self._cupy, doing), self._device:
            yield

    def load(self, code: bytes, threads: int, shared_bytes: int, cluster: int = 1) -> CudaKernel:
        return CudaKernel(self._cupy, code, threads, shared_bytes, self._stream, cluster)

    def allocate(self, nbytes: int, *, zeros: bool = False, uncached: bool = False) -> int:
        assert not uncached  # no NVIDIA GPU needs it
        with self._stream:
            memory = self._pool.malloc(max(nbytes, 1))
        self._held.append(memory)
        if zeros:
            memory.memset_async(0, max(nbytes, 1), self._stream)
        return int(memory.ptr)

    def enqueue_copy(self, target: int, source: int, nbytes: int, way: Way) -> None:
        runtime = self._cupy.cuda.runtime
        runtime.memcpyAsync(target, source, nbytes, getattr(runtime, f"memcpy{way}"), self._stream.ptr)

    def finish(self) -> None:
        self._stream.synchronize()

    def array(self, kind: TensorType) -> tuple[Any, int]:
        with self._stream:
            found = self._cupy.empty(kind.shape, kind.dtype.carrier)
        return found, int(found.data.ptr)

    def synchronize(self) -> None:
        self._cupy.cuda.runtime.deviceSynchronize()

    def time_us(self, enqueue: Callable[[], None]) -> float:
        cuda = self._cupy.cuda
        begin, end = cuda.Event(), cuda.Event()
        begin.record(self._stream)
        enqueue()
        end.record(self._stream)
        end.synchronize()
        return 1000 * float(cuda.get_elapsed_time(begin, end))

    def record(self, enqueue: Callable[[], None]) -> Callable[[], None]:
        with self._stream:
            self._stream.begin_capture()
            try:
                enqueue()
            except BaseException:
                with suppress(RuntimeError):  # end the capture, but report the first error
                    self._stream.end_capture()
                raise
            graph = self._stream.end_capture()
        return lambda: graph.launch(self._stream)

    def resident(self, value: Any) -> Resident:
        cupy = self._cupy
        try:
            with self._stream:
                array = cupy.from_dlpack(value) if hasattr(value, "__dlpack__") else cupy.asarray(value)
        except (BufferError, RuntimeError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, cupy.cuda.runtime.CUDARuntimeError):
                raise
            raise BufferError(str(error)) from error
        number, in_order = int(array.device.id), bool(array.flags.c_contiguous)
        return Resident(int(array.data.ptr), array.dtype.name, array.shape, number, in_order, array)

    def follow(self) -> None:
        self._stream.wait_event(self._cupy.cuda.get_current_stream().record())

    def ticks(self, nanoseconds: float) -> float:
        return nanoseconds

    def close(self) -> None:
        self._held.clear()
        self._pool.free_all_blocks()
