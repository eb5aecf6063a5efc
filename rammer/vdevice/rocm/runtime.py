"""Programs on an AMD GPU. The only file that imports hip-python, of its versions 7 and 10."""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from rammer import config
from rammer.errors import ArtifactError, DeviceError
from rammer.ir.tensor import Array
from rammer.vdevice.base import Availability, Image
from rammer.vdevice.placement import ARENA, aligned
from rammer.vdevice.rocm.build import HSACO
from rammer.vdevice.rocm.elf import arch_of
from rammer.vdevice.rocm.spec import GPUS, Gpu, of_device
from rammer.vdevice.simt.device import EMULATE
from rammer.vdevice.simt.image import checked_streams, failure, port_places, weight
from rammer.vdevice.simt.megakernel import ENTRY
from rammer.vdevice.simt.table import LINE

INSTALL = "pip install hip-python"
INSTALL_ROCM = "install ROCm's HIP runtime (libamdhip64.so); ROCM_PATH or LD_LIBRARY_PATH say where it is"
NODES = ("/dev/kfd", "/dev/dxg")  # of the kernel's driver; under WSL
COUNTER_KHZ = 100_000  # of the clock that mk_now_ns believes in
HINTS = {
    "hipErrorOutOfMemory": "the model needs more memory than the GPU has free",
    "hipErrorNoBinaryForGpu": "compile with arch= of this GPU",
    "hipErrorInvalidImage": "compile with arch= of this GPU; an older ROCm may need RAMMER_CODE_OBJECT=4",
    "hipErrorCooperativeLaunchTooLarge": "the GPU cannot hold all vEUs at once: is another program using it?",
}


def probe() -> Availability:
    """Whether a GPU, hip-python and ROCm's library are here. Does not start the driver."""
    if not any(Path(n).exists() for n in NODES):
        return Availability(False, "this machine has no AMD GPU (there is no /dev/kfd)", EMULATE)
    if importlib.util.find_spec("hip") is None:
        return Availability(False, "there is an AMD GPU, but the package hip-python is not installed", INSTALL)
    try:
        Hip().count()
    except DeviceError as error:
        return Availability(False, error.what, error.hint or EMULATE)
    return Availability(True)


@lru_cache(maxsize=1)
def _module() -> ModuleType:
    """hip-python's module. Raises DeviceError."""
    try:
        module: ModuleType = importlib.import_module("hip").hip
    except (ImportError, AttributeError) as error:
        raise DeviceError(f"an AMD GPU is used through hip-python: {error}", hint=f"{INSTALL}; or {EMULATE}") from error
    return module


class Hip:
    """HIP's functions, whose error codes become DeviceErrors."""

    def __init__(self) -> None:
        self.module = _module()

    def __call__(self, name: str, *arguments: Any) -> Any:
        """What a function gives back beside its error code. Raises DeviceError with HIP's name of the error."""
        try:
            error, *values = getattr(self.module, name)(*arguments)
        except RuntimeError as problem:  # the package loads library and function at the first call
            if "dlsym" in str(problem):
                raise MissingFunction(
                    f"ROCm's library is too old: it has no {name}", hint="install ROCm 6"
                ) from problem
            raise DeviceError(
                f"ROCm's library cannot be loaded: {problem}", hint=f"{INSTALL_ROCM}; or {EMULATE}"
            ) from problem
        if error != self.module.hipError_t.hipSuccess:
            hint = HINTS.get(error.name, "rocm-smi shows what the GPU does")
            raise DeviceError(f"{name} failed: {error.name} ({int(error)})", hint=hint)
        return values[0] if values else None

    def count(self) -> int:
        """GPUs that the driver shows. Raises DeviceError if there is none."""
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
        """`hipDeviceProp_t` of a GPU."""
        try:
            return self("hipGetDeviceProperties", number)
        except TypeError:  # version 7 fills what it is given
            found = self.module.hipDeviceProp_t()
            self("hipGetDeviceProperties", found, number)
            return found

    def attribute(self, name: str, number: int) -> int:
        """An attribute of a GPU; 0 if this driver does not know it."""
        try:
            return int(self("hipDeviceGetAttribute", getattr(self.module.hipDeviceAttribute_t, name), number))
        except (DeviceError, AttributeError):
            return 0


class MissingFunction(DeviceError):
    """The library lacks a function."""


def find_gpu(number: int) -> Gpu:
    """The GPU with this number. Raises DeviceError."""
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


class RocmExecutable:
    """A program ready to run on a GPU: arena and weights lie there, a run copies inputs in and outputs out."""

    def __init__(self, image: Image, number: int, gpu: Gpu) -> None:
        self.streams = streams = checked_streams(image)
        self._header = header = streams.header
        if HSACO not in image.files:
            raise ArtifactError(
                "the program holds no machine code for a GPU",
                hint='it was compiled with device="emulator": again without',
            )
        code = image.files[HSACO]
        if header["arch"] != gpu.arch or arch_of(code) != gpu.arch:
            raise ArtifactError(
                f"the program is for {header['arch']}, {gpu.name} is {gpu.arch}", hint=f"compile with arch={gpu.arch!r}"
            )
        self._hip = hip = Hip()
        self._number = number
        self._lock = threading.Lock()
        self._cooperative = bool(hip.properties(number).cooperativeLaunch)
        khz = hip.attribute("hipDeviceAttributeWallClockRate", number) or COUNTER_KHZ
        self._ticks = khz / COUNTER_KHZ
        with ExitStack() as held:
            hip("hipSetDevice", number)
            module = hip("hipModuleLoadData", code)
            held.callback(hip, "hipModuleUnload", module)
            self._function = hip("hipModuleGetFunction", module, ENTRY.encode())
            weights = [np.ascontiguousarray(weight(image, name)) for name in header["weights"]]
            places = np.cumsum([0, *(aligned(w.nbytes) for w in weights)])
            self._places = [int(p) for p in places]
            self._weights = self._memory(held, self._places[-1])
            for w, at in zip(weights, self._places, strict=False):
                self._write(self._weights + at, w)
            self._arena = self._memory(held, int(header["arena_bytes"]))
            self._zeros = np.zeros(LINE * (1 + 2 * streams.num_veus), np.uint32)
            self._state = self._upload(held, self._zeros)
            constants = [self._weights + p for p in self._places[:-1]]
            self._args = self._upload(held, streams.addresses(constants, self._arena))
            self._stream = self._upload(held, streams.instructions)
            self._waits = self._upload(held, streams.waits)
            self._bounds = self._upload(held, streams.bounds)
            sizes = {ARENA: int(header["arena_bytes"]), **{n: w.nbytes for n, w in enumerate(weights)}}
            self._inputs, self._outputs = (
                [(p, self._place(sizes, place, p.type.nbytes)) for p, place in some]
                for some in port_places(image, streams)
            )
            self._held = held.pop_all()

    def _memory(self, held: ExitStack, nbytes: int) -> int:
        pointer = self._hip("hipMalloc", max(nbytes, 256))
        held.callback(self._hip, "hipFree", pointer)
        return int(pointer)

    def _upload(self, held: ExitStack, array: Array) -> int:
        at = self._memory(held, array.nbytes)
        self._write(at, np.ascontiguousarray(array))
        return at

    def _write(self, at: int, array: Array) -> None:
        if array.nbytes:
            kind = self._hip.module.hipMemcpyKind.hipMemcpyHostToDevice
            self._hip("hipMemcpy", at, array.ctypes.data, array.nbytes, kind)

    def _read(self, array: Array, at: int) -> Array:
        if array.nbytes:
            kind = self._hip.module.hipMemcpyKind.hipMemcpyDeviceToHost
            self._hip("hipMemcpy", array.ctypes.data, at, array.nbytes, kind)
        return array

    def _place(self, sizes: Mapping[int, int], place: tuple[int, int], nbytes: int) -> int:
        base, offset = place
        if offset + nbytes > aligned(sizes[base]):
            raise ArtifactError("an input or output lies outside of its memory", hint="compile the model again")
        return (self._arena if base == ARENA else self._weights + self._places[base]) + offset

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Outputs by name. Raises InputError for an index out of range, DeviceError if the run failed."""
        with self._lock:
            self._begin()
            self._copy(inputs)
            self._enqueue()
            self._check()
            return {p.name: self._read(np.empty(p.type.shape, p.type.dtype.numpy), at) for p, at in self._outputs}

    def _copy(self, inputs: Mapping[str, Array]) -> None:
        for port, at in self._inputs:
            self._write(at, np.ascontiguousarray(inputs[port.name]))

    def times_us(self, inputs: Mapping[str, Array], repeats: int = 20) -> list[float]:
        """Microseconds of single runs on the GPU, by events. Copying inputs and outputs is not in them.

        Inputs are copied before each run, as it may write over their memory.
        """
        hip, found = self._hip, []
        with self._lock, ExitStack() as held:
            self._begin()
            begin, end = hip("hipEventCreate"), hip("hipEventCreate")
            for event in (begin, end):
                held.callback(hip, "hipEventDestroy", event)
            for _ in range(repeats):
                self._copy(inputs)
                hip("hipEventRecord", begin, None)
                self._enqueue()
                hip("hipEventRecord", end, None)
                hip("hipEventSynchronize", end)
                found.append(1000 * float(hip("hipEventElapsedTime", begin, end)))
            self._check()
        return found

    def _begin(self) -> None:
        if self._held is None:
            raise DeviceError("the program is closed", hint="compile or load it again")
        self._hip("hipSetDevice", self._number)

    def _enqueue(self) -> None:
        streams = self.streams
        seconds = config.number("RAMMER_WATCHDOG_SECONDS") or 60.0
        for program in range(streams.num_programs):
            cells = [
                *(ctypes.c_uint64(p) for p in (self._stream, self._bounds + 4 * program * streams.num_veus)),
                *(ctypes.c_uint64(p) for p in (self._waits, self._args, self._state)),
                ctypes.c_int32(program),
                ctypes.c_int32(streams.span(program)),
                ctypes.c_uint64(int(seconds * 1e9 * self._ticks)),
            ]
            self._launch(cells)

    def _launch(self, cells: Sequence[Any]) -> None:
        """Launch all vEUs at once. Where HIP can, cooperatively: it then refuses, and does not hang, if the GPU cannot
        hold them all.
        """
        parameters = (ctypes.c_void_p * len(cells))(*(ctypes.addressof(c) for c in cells))
        threads, shared = int(self._header["threads"]), int(self._header["shared_bytes"])
        shape = (self._function, self.streams.num_veus, 1, 1, threads, 1, 1, shared, None, parameters)
        if self._cooperative:
            try:
                self._hip("hipModuleLaunchCooperativeKernel", *shape)
                return
            except MissingFunction:
                self._cooperative = False
        self._hip("hipModuleLaunchKernel", *shape, None)

    def _check(self) -> None:
        """Wait for the run and raise what it reports."""
        state = self._read(np.empty_like(self._zeros), self._state)
        if state[2] or state[3]:
            self._write(self._state, self._zeros)
            if error := failure(self.streams, state):
                raise error

    def close(self) -> None:
        """Free the GPU's memory; later runs raise DeviceError."""
        with self._lock:
            held, self._held = self._held, None  # type: ignore[assignment]
            if held:
                held.close()
