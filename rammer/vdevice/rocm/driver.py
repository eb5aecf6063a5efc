"""Drive AMD GPUs through hip-python, versions 7 and 10: find them, run programs, raise errors as DeviceErrors.

Only this module imports hip-python.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import lru_cache
from math import prod
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from rammer.errors import DeviceError
from rammer.ir.tensor import Array, TensorType
from rammer.vdevice.base import Availability
from rammer.vdevice.rocm import dlpack
from rammer.vdevice.rocm.spec import GPUS, of_device
from rammer.vdevice.simt.codegen.table import ENTRY
from rammer.vdevice.simt.device import EMULATE, no_gpu
from rammer.vdevice.simt.gpu import Gpu
from rammer.vdevice.simt.runtime.driver import Driver, Resident, Way

INSTALL = "pip install hip-python"
INSTALL_ROCM = "install ROCm's HIP runtime (libamdhip64.so); ROCM_PATH or LD_LIBRARY_PATH say where it is"
NODES = ("/dev/kfd", "/dev/dxg")  # of the kernel's driver; under WSL
NON_BLOCKING, LEGACY_STREAM = 1, 1  # hipStreamNonBlocking; a stream of __cuda_array_interface__
UNCACHED = 3  # hipDeviceMallocUncached
COUNTER_KHZ = 100_000  # of the clock that mk_now_ns assumes
HINTS = {
    "hipErrorOutOfMemory": "the model needs more memory than the GPU has free",
    "hipErrorNoBinaryForGpu": "compile with arch= of this GPU",
    "hipErrorInvalidImage": "compile with arch= of this GPU; an older ROCm may need RAMMER_CODE_OBJECT=4",
    "hipErrorCooperativeLaunchTooLarge": "the GPU cannot hold all vEUs at once: is another program using it?",
    "hipErrorStreamCaptureUnsupported": "this ROCm cannot record such launches: RAMMER_GPU_GRAPH=0",
}


def probe() -> Availability:
    """Return whether a GPU, hip-python and ROCm's library are present. Does not start the driver."""
    if not any(Path(n).exists() for n in NODES):
        return no_gpu("this machine has no AMD GPU (there is no /dev/kfd)", EMULATE)
    if importlib.util.find_spec("hip") is None:
        return Availability(False, "an AMD GPU, but the package hip-python is not installed", INSTALL, emulated=True)
    try:
        Hip().count()
    except DeviceError as error:
        return no_gpu(error.what, error.hint or EMULATE)
    return Availability(True)


@lru_cache(maxsize=1)
def _module() -> ModuleType:
    """Import hip-python's module. Raises DeviceError."""
    try:
        module: ModuleType = importlib.import_module("hip").hip
    except (ImportError, AttributeError) as error:
        raise DeviceError(f"an AMD GPU is used through hip-python: {error}", hint=f"{INSTALL}; or {EMULATE}") from error
    return module


class Hip:
    """HIP's functions, with error codes raised as DeviceErrors."""

    def __init__(self) -> None:
        self.module = _module()

    def __call__(self, name: str, *arguments: Any) -> Any:
        """Call a function; return its value besides the error code. Raises DeviceError with HIP's name of the error."""
        try:
            error, *values = getattr(self.module, name)(*arguments)
        except RuntimeError as problem:  # the package loads library and function at the first call
            if "dlsym" in str(problem):
                raise MissingFunction(f"ROCm is too old: it has no {name}", hint="install ROCm 6") from problem
            raise DeviceError(f"ROCm cannot be loaded: {problem}", hint=f"{INSTALL_ROCM}; or {EMULATE}") from problem
        if error != self.module.hipError_t.hipSuccess:
            hint = HINTS.get(error.name, "rocm-smi shows what the GPU does")
            raise HipError(f"{name} failed: {error.name} ({int(error)})", hint=hint)
        return values[0] if values else None

    def count(self) -> int:
        """Return the number of GPUs that the driver shows. Raises DeviceError if it is 0."""
        try:
            count = int(self("hipGetDeviceCount"))
        except DeviceError as error:
            if "hipErrorNoDevice" not in error.what:
                raise
            count = 0
        if not count:
            raise DeviceError(
                "ROCm's library is here, but it finds no AMD GPU",
                hint=f"may this user open /dev/kfd (group render)? Does ROCR_VISIBLE_DEVICES hide it? {EMULATE}",
            )
        return count

    def properties(self, number: int) -> Any:
        """Return `hipDeviceProp_t` of a GPU."""
        return self._filled("hipGetDeviceProperties", "hipDeviceProp_t", number)

    def number_of(self, address: int) -> int:
        """Return the GPU whose memory holds an address."""
        return int(self._filled("hipPointerGetAttributes", "hipPointerAttribute_t", address).device)

    def _filled(self, name: str, struct: str, argument: int) -> Any:
        try:
            return self(name, argument)
        except TypeError:  # version 7 fills a struct argument
            found = getattr(self.module, struct)()
            self(name, found, argument)
            return found

    def attribute(self, name: str, number: int) -> int:
        """Return an attribute of a GPU; 0 if this driver lacks it."""
        try:
            return int(self("hipDeviceGetAttribute", getattr(self.module.hipDeviceAttribute_t, name), number))
        except (DeviceError, AttributeError):
            return 0


class HipError(DeviceError):
    """Raised when a function of HIP fails."""


class MissingFunction(HipError):
    """Raised when the library lacks a function."""


def find_gpu(number: int) -> Gpu:
    """Return the GPU with this number. Raises DeviceError."""
    hip = Hip()
    count = hip.count()
    if not 0 <= number < count:
        raise DeviceError(f"no AMD GPU {number}; there are {count}", hint="device= is the GPU's number, from 0")
    p = hip.properties(number)
    arch = _text(p.gcnArchName).split(":")[0]
    known = next((g for g in GPUS.values() if g.arch == arch), None)
    gbps = 2 * p.memoryClockRate * p.memoryBusWidth / 8e6 or (known.dram_gbps if known else 0.0)
    ghz = p.clockRate / 1e6 or (known.ghz if known else 0.0)
    return of_device(_text(p.name), arch, p.multiProcessorCount, p.l2CacheSize, p.totalGlobalMem, gbps, ghz)


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


class RocmKernel:
    """The entry of a program."""

    def __init__(self, driver: RocmDriver, function: Any, threads: int, shared_bytes: int) -> None:
        self._driver, self._function = driver, function
        self._threads, self._shared = threads, shared_bytes

    def most_blocks(self, multiprocessors: int) -> int:
        count = "hipModuleOccupancyMaxActiveBlocksPerMultiprocessor"
        return multiprocessors * int(self._driver.hip(count, self._function, self._threads, self._shared))

    def launch(self, blocks: int, arguments: Sequence[np.generic]) -> None:
        driver = self._driver
        cells = [np.array(a) for a in arguments]
        parameters = (ctypes.c_void_p * len(cells))(*(c.ctypes.data for c in cells))
        shape = (self._function, blocks, 1, 1, self._threads, 1, 1, self._shared, driver.stream, parameters)
        if driver.cooperative:
            try:
                driver.hip("hipModuleLaunchCooperativeKernel", *shape)
                return
            except MissingFunction:  # before ROCm 6: launched as the paper did
                driver.cooperative = False
        driver.hip("hipModuleLaunchKernel", *shape, None)


class RocmArray:
    """An output in the GPU's memory, for other packages: `__dlpack__`, `__cuda_array_interface__`."""

    def __init__(self, hip: Hip, number: int, kind: TensorType) -> None:
        self.dtype: np.dtype[Any] = kind.dtype.carrier
        self.shape, self.number, self._hip = kind.shape, number, hip
        memory = hip("hipMalloc", max(kind.nbytes, 1))
        self.address = int(memory)
        weakref.finalize(self, hip, "hipFree", memory).atexit = False  # the driver may be gone by then

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        data = self.address, False
        return {"shape": self.shape, "typestr": self.dtype.str, "data": data, "strides": None, "version": 3}

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.ROCM, self.number

    def __dlpack__(self, *, stream: Any = None, **_: Any) -> Any:
        """Return a capsule. The array is complete, so `stream` is ignored."""
        return dlpack.lend(self.address, self.number, self.dtype, self.shape, self)

    def get(self) -> Array:
        """Return a copy on the host. Raises DeviceError."""
        found = np.empty(self.shape, self.dtype)
        kind = self._hip.module.hipMemcpyKind.hipMemcpyDeviceToHost
        self._hip("hipMemcpy", found.ctypes.data, self.address, found.nbytes, kind)
        return found


class RocmDriver(Driver):
    """A GPU through hip-python. Its resources are freed with it."""

    records = False  # older versions cannot record cooperative launches

    def __init__(self, number: int) -> None:
        self.number = number
        self.hip = hip = Hip()
        self.cooperative = bool(hip.properties(number).cooperativeLaunch)
        self._khz = hip.attribute("hipDeviceAttributeWallClockRate", number) or COUNTER_KHZ
        self._held = ExitStack()
        try:
            with self.using("make a stream"):
                self.stream = hip("hipStreamCreateWithFlags", NON_BLOCKING)
                self._held.callback(hip, "hipStreamDestroy", self.stream)
                self._events = [self._event(), self._event()]
        except BaseException:
            self.close()
            raise

    def _event(self) -> Any:
        event = self.hip("hipEventCreate")
        self._held.callback(self.hip, "hipEventDestroy", event)
        return event

    @contextmanager
    def using(self, doing: str) -> Iterator[None]:
        try:
            self.hip("hipSetDevice", self.number)
            yield
        except HipError as error:
            raise DeviceError(f"the GPU failed to {doing}: {error.what}", hint=error.hint) from error

    def load(self, code: bytes, threads: int, shared_bytes: int, cluster: int = 1) -> RocmKernel:
        assert cluster == 1  # no AMD GPU has clusters
        module = self.hip("hipModuleLoadData", code)
        self._held.callback(self.hip, "hipModuleUnload", module)
        return RocmKernel(self, self.hip("hipModuleGetFunction", module, ENTRY.encode()), threads, shared_bytes)

    def allocate(self, nbytes: int, *, zeros: bool = False, uncached: bool = False) -> int:
        how = ("hipExtMallocWithFlags", max(nbytes, 1), UNCACHED) if uncached else ("hipMalloc", max(nbytes, 1))
        memory = self.hip(*how)
        self._held.callback(self.hip, "hipFree", memory)
        if zeros:
            self.hip("hipMemsetAsync", int(memory), 0, max(nbytes, 1), self.stream)
        return int(memory)

    def enqueue_copy(self, target: int, source: int, nbytes: int, way: Way) -> None:
        kind = getattr(self.hip.module.hipMemcpyKind, f"hipMemcpy{way}")
        self.hip("hipMemcpyAsync", target, source, nbytes, kind, self.stream)
        if way == "HostToDevice":  # it may read the source later
            self.finish()

    def finish(self) -> None:
        self.hip("hipStreamSynchronize", self.stream)

    def array(self, kind: TensorType) -> tuple[RocmArray, int]:
        found = RocmArray(self.hip, self.number, kind)
        return found, found.address

    def synchronize(self) -> None:
        self.hip("hipDeviceSynchronize")

    def time_us(self, enqueue: Callable[[], None]) -> float:
        begin, end = self._events
        self.hip("hipEventRecord", begin, self.stream)
        enqueue()
        self.hip("hipEventRecord", end, self.stream)
        self.hip("hipEventSynchronize", end)
        return 1000 * float(self.hip("hipEventElapsedTime", begin, end))

    def record(self, enqueue: Callable[[], None]) -> Callable[[], None]:
        hip = self.hip
        hip("hipStreamBeginCapture", self.stream, hip.module.hipStreamCaptureMode.hipStreamCaptureModeRelaxed)
        try:
            enqueue()
        except BaseException:
            with suppress(HipError):  # end the capture, but report the first error
                hip("hipGraphDestroy", hip("hipStreamEndCapture", self.stream))
            raise
        graph = hip("hipStreamEndCapture", self.stream)
        self._held.callback(hip, "hipGraphDestroy", graph)
        ready = hip("hipGraphInstantiateWithFlags", graph, 0)
        self._held.callback(hip, "hipGraphExecDestroy", ready)
        return lambda: hip("hipGraphLaunch", ready, self.stream)

    def resident(self, value: Any) -> Resident:
        try:
            return self._lent(value) if hasattr(value, "__dlpack__") else self._interface(value)
        except (RuntimeError, TypeError, ValueError, AttributeError, KeyError) as error:
            raise BufferError(str(error)) from error

    def _lent(self, value: Any) -> Resident:
        """Read an array by DLPack. Its owner makes our stream wait for its writers."""
        where, number = value.__dlpack_device__()
        if where != dlpack.ROCM:
            raise BufferError(f"it lies on a device of DLPack's type {int(where)}, AMD GPUs are {dlpack.ROCM}")
        capsule = value.__dlpack__(stream=int(self.stream))
        tensor = dlpack.borrow(capsule)
        shape = tuple(tensor.shape[: tensor.rank])
        strides = tuple(tensor.strides[: tensor.rank]) if tensor.strides else None
        at = (tensor.data or 0) + tensor.offset
        return Resident(at, tensor.dtype, shape, int(number), _in_order(shape, strides), capsule)

    def _interface(self, value: Any) -> Resident:
        """Read an array by `__cuda_array_interface__`, version 3, which ROCm's packages provide too."""
        described = value.__cuda_array_interface__
        shape, dtype = tuple(described["shape"]), np.dtype(described["typestr"])
        (address, _), strides = described["data"], described.get("strides")
        if (stream := described.get("stream")) is not None:
            self.hip("hipStreamSynchronize", None if stream == LEGACY_STREAM else stream)
        units = tuple(n // dtype.itemsize for n in strides) if strides else None
        return Resident(address, dtype.name, shape, self.hip.number_of(address), _in_order(shape, units), value)

    def follow(self) -> None:
        self.hip("hipEventRecord", self._events[0], None)  # of the null stream
        self.hip("hipStreamWaitEvent", self.stream, self._events[0], 0)

    def ticks(self, nanoseconds: float) -> float:
        return nanoseconds * self._khz / COUNTER_KHZ

    def close(self) -> None:
        self._held.close()


def _in_order(shape: Sequence[int], strides: Sequence[int] | None) -> bool:
    """Return whether elements lie in C order without gaps; strides are in elements."""
    pairs = enumerate(zip(shape, strides or (), strict=False))
    return all(extent <= 1 or stride == prod(shape[n + 1 :]) for n, (extent, stride) in pairs)
