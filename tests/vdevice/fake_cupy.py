"""A stand-in for cupy without a GPU: device memory is the host's, and a launch runs the program's text on the host.

Only what rammer uses of cupy exists, with the arguments that cupy 14 takes. A cubin is the program's text. `fails`
maps a call's name to the error that it raises; `calls` lists what was called.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np

from rammer.vdevice.simt.emulator.compile import compile_host
from rammer.vdevice.toolchain.library import Library

ENTRY = "rammer_run"


class CUDARuntimeError(RuntimeError):
    """As cupy's: its text begins with the error's name."""


class CUDADriverError(RuntimeError):
    """As cupy's."""


class OutOfMemoryError(MemoryError):
    """As cupy's."""


class Array(np.ndarray[Any, Any]):
    """cupy.ndarray."""

    number = 0

    @property
    def data(self) -> Any:  # type: ignore[override]
        def copy_from_device_async(source: Any, nbytes: int, stream: Any) -> None:
            ctypes.memmove(self.ctypes.data, source.ptr, nbytes)

        return SimpleNamespace(ptr=self.ctypes.data, copy_from_device_async=copy_from_device_async)

    @property
    def device(self) -> Any:
        return SimpleNamespace(id=self.number)

    def set(self, value: Any, stream: Any = None) -> None:
        assert value.dtype == self.dtype and value.shape == self.shape
        self[...] = value

    def get(self, stream: Any = None) -> Any:
        return np.array(self)


def device_array(value: Any) -> Array:
    """A copy on a boundary of 256 bytes."""
    whole = np.zeros(value.nbytes + 256, np.uint8)
    first = -whole.ctypes.data % 256
    out = whole[first : first + value.nbytes].view(value.dtype).reshape(value.shape)
    out[...] = value
    return out.view(Array)


class OnGpu:
    """An array of another library: `how` is "dlpack" or "interface"."""

    def __init__(self, value: Any, how: str = "dlpack", number: int = 0) -> None:
        self.value = device_array(np.ascontiguousarray(value)) if value.flags.c_contiguous else value.view(Array)
        self.value.number = number
        if how == "dlpack":
            self.__dlpack__ = lambda **_: None
            self.__dlpack_device__ = lambda: (2, number)
        else:
            self.__cuda_array_interface__ = {"shape": value.shape, "version": 3}


class FakeCupy:
    """The module, and the knobs of a test."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.fails: dict[str, Exception] = {}
        self.driver_version, self.count, self.blocks_per_sm = 13010, 1, 1
        self.capturing: list[Callable[[], None]] | None = None
        self.elapsed_ms: Callable[[], float] = lambda: 0.5
        self.properties: dict[str, Any] = {
            "name": b"NVIDIA H200",
            "major": 9,
            "minor": 0,
            "multiProcessorCount": 132,
            "sharedMemPerBlockOptin": 227 << 10,
            "l2CacheSize": 50 << 20,
            "totalGlobalMem": 141 << 30,
        }
        fake = self

        class Stream(nullcontext[None]):
            def __init__(self, non_blocking: bool = False) -> None:
                super().__init__()
                fake.note("Stream")

            ptr = 5

            def synchronize(self) -> None:
                fake.note("Stream.synchronize")

            def record(self) -> str:
                return "event"

            def wait_event(self, event: str) -> None:
                fake.note("Stream.wait_event")

            def begin_capture(self) -> None:
                fake.note("begin_capture")
                fake.capturing = []

            def end_capture(self) -> Any:
                fake.note("end_capture")
                assert fake.capturing is not None
                launches, fake.capturing = fake.capturing, None

                def launch(stream: Any) -> None:
                    fake.note("Graph.launch")
                    for one in launches:
                        one()

                return SimpleNamespace(launch=launch)

        class Module:
            def load(self, cubin: bytes) -> None:
                fake.note("Module.load")
                self.library = Library(compile_host(cubin.decode()))

            def get_function(self, name: str) -> Any:
                assert name == ENTRY
                return Function(self.library)

        class Function:
            ptr = 7

            def __init__(self, library: Library) -> None:
                self.library = library  # as cupy's keeps its module
                self.run = library.function("simt_run", ctypes.c_int, ctypes.c_void_p, *(ctypes.c_long,) * 5)

            def __call__(
                self,
                grid: tuple[int, ...],
                block: tuple[int, ...],
                args: tuple[Any, ...],
                shared_mem: int = 0,
                stream: Any = None,
                enable_cooperative_groups: bool = False,
            ) -> None:
                fake.note("launch")
                assert enable_cooperative_groups and shared_mem == fake.shared
                words = [a.ctypes.data if isinstance(a, np.ndarray) else int(a) for a in args]
                assert len(words) == 8
                packed = np.array(words, np.int64)

                def go() -> None:
                    assert self.run(packed.ctypes.data, grid[0], block[0], shared_mem, 1, 0) == 0

                go() if fake.capturing is None else fake.capturing.append(go)

        self.cuda = SimpleNamespace(
            Device=lambda n: nullcontext(),
            MemoryPool=lambda: SimpleNamespace(
                malloc=self._alloc, free_all_blocks=lambda: self.note("free_all_blocks")
            ),
            Stream=Stream,
            Module=Module,
            Event=lambda: SimpleNamespace(record=lambda stream: None, synchronize=lambda: None),
            get_elapsed_time=lambda a, b: self.elapsed_ms(),
            get_current_stream=lambda: Stream(),
            memory=SimpleNamespace(OutOfMemoryError=OutOfMemoryError),
            runtime=SimpleNamespace(
                CUDARuntimeError=CUDARuntimeError,
                driverGetVersion=lambda: self.driver_version,
                getDeviceCount=self._device_count,
                getDeviceProperties=lambda n: self.properties,
                deviceSynchronize=lambda: self.note("deviceSynchronize"),
                memGetInfo=lambda: (3 << 30, 141 << 30),
                memcpyHostToDevice=1,
                memcpyDeviceToHost=2,
                memcpyDeviceToDevice=3,
                memcpyAsync=self._copy,
            ),
            driver=SimpleNamespace(
                CUDADriverError=CUDADriverError,
                CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES=8,
                funcSetAttribute=self._set_attribute,
                occupancyMaxActiveBlocksPerMultiprocessor=lambda f, threads, shared: self.blocks_per_sm,
            ),
        )
        self.shared = 0

    def note(self, name: str) -> None:
        """Count a call; fail if the test wants it."""
        self.calls.append(name)
        if name in self.fails:
            raise self.fails[name]

    def _device_count(self) -> int:
        self.note("getDeviceCount")
        return self.count

    def _alloc(self, nbytes: int) -> Any:
        self.note("alloc")
        memory = device_array(np.full(nbytes, 255, np.uint8))

        def memset_async(value: int, size: int, stream: Any) -> None:
            memory[:size] = value

        return SimpleNamespace(ptr=memory.ctypes.data, memory=memory, memset_async=memset_async)

    def _copy(self, target: int, source: int, nbytes: int, kind: int, stream: int) -> None:
        assert 1 <= kind <= 3 and stream == 5
        ctypes.memmove(target, source, nbytes)

    def _set_attribute(self, function: int, attribute: int, value: int) -> None:
        assert (function, attribute) == (7, 8)
        self.note("funcSetAttribute")
        self.shared = value

    def empty(self, n: int, dtype: Any) -> Array:
        self.note("empty")
        return device_array(np.full(n, 255, dtype))

    def zeros(self, n: Any, dtype: Any) -> Array:
        return device_array(np.zeros(n, dtype))

    def asarray(self, value: Any) -> Array:
        return value.value if isinstance(value, OnGpu) else device_array(np.asarray(value))

    def from_dlpack(self, value: Any) -> Array:
        self.note("from_dlpack")
        return value.value
