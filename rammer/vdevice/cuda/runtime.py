"""Programs on an NVIDIA GPU. The only file that imports cupy."""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from rammer import config
from rammer.errors import ArtifactError, DeviceError
from rammer.ir.tensor import Array
from rammer.vdevice.base import Availability, Image
from rammer.vdevice.cuda.build import CUBIN
from rammer.vdevice.cuda.spec import Gpu, of_device
from rammer.vdevice.placement import ARENA, aligned
from rammer.vdevice.simt.image import checked_streams, failure, port_places, weight
from rammer.vdevice.simt.megakernel import ENTRY
from rammer.vdevice.simt.table import LINE

INSTALL = "pip install cupy-cuda13x"
EMULATE = 'device="emulator" runs the program on the host'
STATE_HEAD = 16  # words that tell whether a run went well


def probe() -> Availability:
    """Whether cupy, a driver and a device are here. Loads neither cupy nor the driver's state."""
    nodes = ("/dev/nvidia0", "/dev/dxg", "/dev/nvhost-gpu", "/dev/nvgpu")
    if not any(Path(n).exists() for n in nodes):
        return Availability(False, "this machine has no NVIDIA GPU", EMULATE)
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return Availability(False, "there is an NVIDIA GPU, but no driver for it", "install NVIDIA's driver")
    if importlib.util.find_spec("cupy") is None:
        return Availability(False, "there is an NVIDIA GPU, but the package cupy is not installed", INSTALL)
    return Availability(True)


@lru_cache(maxsize=1)
def _cupy() -> ModuleType:
    """Cupy, with a driver behind it. Raises DeviceError."""
    try:
        cupy = importlib.import_module("cupy")
    except ImportError as error:
        raise DeviceError(f"an NVIDIA GPU is used through cupy: {error}", hint=f"{INSTALL}; or {EMULATE}") from error
    if not cupy.cuda.is_available():
        raise DeviceError("cupy finds no NVIDIA GPU and driver", hint=EMULATE)
    return cupy


def find_gpu(number: int) -> Gpu:
    """The GPU with this number. Raises DeviceError."""
    runtime = _cupy().cuda.runtime
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


@contextmanager
def device_errors(cupy: ModuleType, doing: str) -> Iterator[None]:
    """Cupy's errors become ours."""
    cuda = cupy.cuda
    try:
        yield
    except (cuda.runtime.CUDARuntimeError, cuda.driver.CUDADriverError, cuda.memory.OutOfMemoryError) as error:
        memory = isinstance(error, cuda.memory.OutOfMemoryError)
        hint = "the model needs more memory than the GPU has free" if memory else "nvidia-smi shows what the GPU does"
        raise DeviceError(f"the GPU failed to {doing}: {error}", hint=hint) from error


def _load_kernel(cupy: ModuleType, cubin: bytes, shared_bytes: int) -> Any:
    """The entry of a program, which launches cooperatively: refused, not hung, if its blocks cannot all be there."""
    with tempfile.TemporaryDirectory(prefix="rammer-") as folder:
        path = Path(folder, CUBIN)
        path.write_bytes(cubin)
        kernel = cupy.RawModule(path=str(path), enable_cooperative_groups=True).get_function(ENTRY)
        kernel.max_dynamic_shared_size_bytes = shared_bytes
        return kernel


class CudaExecutable:
    """A program ready to run on a GPU: arena and weights lie there, a run copies inputs in and outputs out."""

    def __init__(self, image: Image, number: int, gpu: Gpu) -> None:
        self.streams = streams = checked_streams(image)
        header = streams.header
        if CUBIN not in image.files:
            raise ArtifactError(
                "the program holds no machine code for a GPU",
                hint='it was compiled with device="emulator": again without',
            )
        if header["arch"] != gpu.arch:
            raise ArtifactError(
                f"the program is for {header['arch']}, {gpu.name} is {gpu.arch}", hint=f"compile with arch={gpu.arch!r}"
            )
        self._cupy = cupy = _cupy()
        self._device = cupy.cuda.Device(number)
        self._lock = threading.Lock()
        self._closed = False
        with self._errors("load"):
            self._kernel = _load_kernel(cupy, image.files[CUBIN], int(header["shared_bytes"]))
            self._stream = cupy.cuda.Stream(non_blocking=True)
            sizes = [aligned(weight(image, name).nbytes) for name in header["weights"]]
            places = np.cumsum([0, *sizes])
            self._weights = cupy.empty(max(int(places[-1]), 1), np.uint8)
            for name, at in zip(header["weights"], places, strict=False):
                flat = np.ascontiguousarray(weight(image, name)).reshape(-1).view(np.uint8)
                self._weights[at : at + flat.nbytes].set(flat)
            self._arena = cupy.empty(max(int(header["arena_bytes"]), 1), np.uint8)
            self._state = cupy.zeros(LINE * (1 + 2 * streams.num_veus), np.uint32)
            first = self._weights.data.ptr
            bases = np.array([*(first + int(p) for p in places[:-1]), self._arena.data.ptr], np.int64)
            self._args = cupy.asarray(bases[streams.arg_base] + streams.arg_offset)  # ARENA is -1: the last
            self._stream_table = cupy.asarray(np.ascontiguousarray(streams.instructions))
            self._waits = cupy.asarray(np.ascontiguousarray(streams.waits))
            self._bounds = cupy.asarray(np.ascontiguousarray(streams.bounds))
            self._inputs, self._outputs = (
                [
                    (p.name, self._view(places, place, p.type.nbytes, p.type.dtype.numpy, p.type.shape))
                    for p, place in some
                ]
                for some in port_places(image, streams)
            )
            self._dtypes = {p.name: p.type.dtype.numpy for p in image.outputs}
            cupy.cuda.runtime.deviceSynchronize()

    def _view(self, places: Array, place: tuple[int, int], nbytes: int, dtype: np.dtype, shape: tuple[int, ...]) -> Any:
        base, offset = place
        block, at = (self._arena, offset) if base == ARENA else (self._weights, int(places[base]) + offset)
        if at + nbytes > block.size:
            raise ArtifactError("an input or output lies outside of its memory", hint="compile the model again")
        if dtype.name == "bfloat16":
            dtype = np.dtype(np.uint16)  # cupy knows no bfloat16: its bits are moved
        return block[at : at + nbytes].view(dtype).reshape(shape)

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Outputs by name. Raises InputError for an index out of range, DeviceError if the run failed."""
        with self._lock, self._errors("run"):
            for name, view in self._inputs:
                view.set(inputs[name].view(view.dtype), self._stream)
            self._launch()
            return {p: view.get(self._stream).view(self._dtypes[p]) for p, view in self._outputs}

    def run_device(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """As `run`, from arrays on the GPU (`__cuda_array_interface__` or DLPack) to cupy's, never over the host."""
        cupy = self._cupy
        with self._lock, self._errors("run"), self._stream:
            for name, view in self._inputs:
                given = inputs[name]
                array = cupy.asarray(given) if hasattr(given, "__cuda_array_interface__") else cupy.from_dlpack(given)
                cupy.copyto(view, array, casting="no")
            self._launch()
            found = {p: view.copy() for p, view in self._outputs}
            self._stream.synchronize()
            return found

    def times_us(self, repeats: int = 20) -> list[float]:
        """Microseconds of single runs on the GPU, by events; inputs are what they were last."""
        cupy, found = self._cupy, []
        with self._lock, self._errors("run"):
            for _ in range(repeats):
                begin, end = cupy.cuda.Event(), cupy.cuda.Event()
                begin.record(self._stream)
                self._enqueue()
                end.record(self._stream)
                end.synchronize()
                found.append(1000 * cupy.cuda.get_elapsed_time(begin, end))
            self._check()
        return found

    def _launch(self) -> None:
        self._enqueue()
        self._check()

    def _enqueue(self) -> None:
        streams, header = self.streams, self.streams.header
        limit_ns = np.uint64(int((config.number("RAMMER_WATCHDOG_SECONDS") or 60.0) * 1e9))
        for program in range(streams.num_programs):
            arguments = (
                self._stream_table,
                self._bounds[program * streams.num_veus :],
                self._waits,
                self._args,
                self._state,
                np.int32(program),
                np.int32(streams.span(program)),
                limit_ns,
            )
            threads = int(header["threads"])
            shared = int(header["shared_bytes"])
            self._kernel((streams.num_veus,), (threads,), arguments, shared_mem=shared, stream=self._stream)

    def _check(self) -> None:
        """Wait for the run and raise what it reports."""
        head = self._state[:STATE_HEAD].get(self._stream)
        if head[2] or head[3]:
            state = self._state.get(self._stream)
            self._state.fill(0)
            self._cupy.cuda.runtime.deviceSynchronize()
            if error := failure(self.streams, state):
                raise error

    @contextmanager
    def _errors(self, doing: str) -> Iterator[None]:
        """The device in use; cupy's errors become ours."""
        if self._closed:
            raise DeviceError("the program is closed", hint="compile or load it again")
        with device_errors(self._cupy, f"{doing} the program"), self._device:
            yield

    def close(self) -> None:
        """Free the GPU's memory; later runs raise DeviceError."""
        with self._lock:
            self._closed = True
            for name in ("_weights", "_arena", "_state", "_args", "_stream_table", "_waits", "_bounds", "_kernel"):
                setattr(self, name, None)
            self._inputs, self._outputs = [], []


class KernelTimer:
    """Times tasks of one compiled text: every vEU runs some of them in turn, waiting for nobody. `nbytes` is the most
    memory that one kernel's arguments take.
    """

    def __init__(self, number: int, cubin: bytes, threads: int, shared_bytes: int, num_veus: int, nbytes: int) -> None:
        self._cupy = cupy = _cupy()
        self._device = cupy.cuda.Device(number)
        self._num_veus, self._threads, self._shared = num_veus, threads, shared_bytes
        with device_errors(cupy, "load kernels"), self._device:
            self._kernel = _load_kernel(cupy, cubin, shared_bytes)
            self._stream = cupy.cuda.Stream(non_blocking=True)
            self._memory = cupy.zeros(max(nbytes, 1), np.uint8)  # zeros are valid indices, and no slow numbers
            self._state = cupy.zeros(LINE * (1 + 2 * num_veus), np.uint32)
            self._waits = cupy.zeros((1, 2), np.int32)

    def launch_us(self, streams: Array, bounds: Array, offsets: Sequence[int], rounds: int = 3) -> float:
        """Least microseconds of a launch; `offsets` are the bytes where arguments begin."""
        cupy, found = self._cupy, []
        with device_errors(cupy, "time kernels"), self._device:
            args = cupy.asarray(self._memory.data.ptr + np.array(offsets, np.int64))
            table, lanes = cupy.asarray(streams), cupy.asarray(bounds)
            cupy.cuda.runtime.deviceSynchronize()
            limit_ns = np.uint64(10**9)
            head = (table, lanes, self._waits, args, self._state, np.int32(0), np.int32(len(streams)), limit_ns)
            for _ in range(1 + rounds):
                begin, end = cupy.cuda.Event(), cupy.cuda.Event()
                begin.record(self._stream)
                self._kernel((self._num_veus,), (self._threads,), head, shared_mem=self._shared, stream=self._stream)
                end.record(self._stream)
                end.synchronize()
                found.append(1000 * cupy.cuda.get_elapsed_time(begin, end))
        return float(min(found[1:]))
