"""Programs on an NVIDIA GPU: one arena, weights uploaded once, one cooperative launch per rProgram."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from rammer import config
from rammer.errors import ArtifactError, DeviceError, InputError
from rammer.ir.tensor import Array
from rammer.vdevice.base import Image, Port, SlotTimes
from rammer.vdevice.cuda.build import CUBIN, RESOURCES, Resources, check_fits, compile_cubin
from rammer.vdevice.cuda.driver import Kernel, check_driver, device_errors, load_cupy
from rammer.vdevice.cuda.spec import Gpu
from rammer.vdevice.placement import ARENA, aligned
from rammer.vdevice.simt.clocks import profiled, slot_times, state_words
from rammer.vdevice.simt.image import SOURCE, checked_streams, failure, port_places, weight
from rammer.vdevice.simt.table import LINE

STATE_HEAD = 16  # words that tell whether a run went well
HELD = ("_weights", "_arena", "_state", "_args", "_stream_table", "_waits", "_bounds", "_kernel", "_graph", "_clocked")


class CudaExecutable:
    """A program ready to run on a GPU: arena and weights lie there, a run copies inputs in and outputs out.

    `graph`: launches are recorded once as a CUDA graph and replayed; RAMMER_CUDA_GRAPH is its default.
    """

    def __init__(self, image: Image, number: int, gpu: Gpu, *, graph: bool | None = None) -> None:
        self.streams = checked_streams(image)
        self._closed = False
        self._lock = threading.Lock()
        self._number = number
        self._graph: Any = None
        self._clocked: tuple[Kernel, Any] | None = None  # a second kernel with clocks, and its state
        self._graph_limit = 0
        self._recording = config.get("RAMMER_CUDA_GRAPH") == "1" if graph is None else graph
        resources = _checked(image, gpu)
        self._text = image.files[SOURCE].decode()
        self._cupy = cupy = load_cupy()
        check_driver(cupy, resources.compiler)
        self._device = cupy.cuda.Device(number)
        try:
            with self._errors("load"):
                self._load(image, gpu)
        except BaseException:
            self.close()
            raise

    def _load(self, image: Image, gpu: Gpu) -> None:
        cupy, streams, header = self._cupy, self.streams, self.streams.header
        self._kernel = Kernel(cupy, image.files[CUBIN], int(header["threads"]), int(header["shared_bytes"]))
        room = self._kernel.blocks_per_sm() * gpu.num_sms
        if streams.num_veus > room:
            raise DeviceError(
                f"the program has {streams.num_veus} vEUs, {gpu.name} holds {room} of them at once",
                hint="compile it for this GPU: device= without arch=",
            )
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
        constants = [first + int(p) for p in places[:-1]]
        self._args = cupy.asarray(streams.addresses(constants, self._arena.data.ptr))
        self._stream_table = cupy.asarray(np.ascontiguousarray(streams.instructions))
        self._waits = cupy.asarray(np.ascontiguousarray(streams.waits))
        self._bounds = cupy.asarray(np.ascontiguousarray(streams.bounds))
        self._inputs, self._outputs = (
            [(p, self._view(places, place, p)) for p, place in some] for some in port_places(image, streams)
        )
        cupy.cuda.runtime.deviceSynchronize()

    def _view(self, places: Array, place: tuple[int, int], port: Port) -> Any:
        base, offset = place
        block, at = (self._arena, offset) if base == ARENA else (self._weights, int(places[base]) + offset)
        if at + port.type.nbytes > block.size:
            raise ArtifactError("an input or output lies outside of its memory", hint="compile the model again")
        return block[at : at + port.type.nbytes].view(_bits(port)).reshape(port.type.shape)

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Outputs by name. Raises InputError for an index out of range, DeviceError if the run failed."""
        with self._lock, self._errors("run"):
            self._upload(inputs)
            self._go()
            self._check()
            return {p.name: view.get(self._stream).view(p.type.dtype.numpy) for p, view in self._outputs}

    def _upload(self, inputs: Mapping[str, Array]) -> None:
        for port, view in self._inputs:
            view.set(inputs[port.name].view(view.dtype), self._stream)

    def run_device(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """As `run`, from arrays on the GPU (DLPack or `__cuda_array_interface__`) to cupy's; NumPy's are uploaded.

        Whatever was enqueued before on the streams that arrays name, or on cupy's current one, comes first; outputs
        are there when this returns. Raises InputError for an array of another dtype or shape, or not contiguous.
        """
        cupy = self._cupy
        with self._lock, self._errors("run"):
            self._stream.wait_event(cupy.cuda.get_current_stream().record())
            with self._stream:
                for port, view in self._inputs:
                    given = inputs[port.name]
                    if isinstance(given, np.ndarray):
                        view.set(given.view(view.dtype), self._stream)
                    else:
                        array = self._array(port, given)
                        view.data.copy_from_device_async(array.data, view.nbytes, self._stream)
                self._go()
                found = {p.name: view.copy() for p, view in self._outputs}
                self._check()  # waits for all of it
            return found

    def _array(self, port: Port, given: Any) -> Any:
        """Somebody's array on this GPU as one of cupy's, not copied."""
        cupy = self._cupy
        try:
            array = cupy.from_dlpack(given) if hasattr(given, "__dlpack__") else cupy.asarray(given)
        except (BufferError, RuntimeError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, cupy.cuda.runtime.CUDARuntimeError):
                raise
            raise InputError(f"input {port.name!r}: cannot be read on the GPU: {error}") from error
        dtype = array.dtype.name
        port.check("bfloat16" if dtype == "uint16" and port.type.dtype.value == "bfloat16" else dtype, array.shape)
        if int(array.device.id) != self._number:
            raise InputError(
                f"input {port.name!r}: lies on GPU {array.device.id}, the program on GPU {self._number}",
                hint="copy it there, or compile with device= of that GPU",
            )
        if not array.flags.c_contiguous:
            raise InputError(f"input {port.name!r}: is not contiguous", hint="pass .contiguous() of it")
        return array

    def times_us(
        self, inputs: Mapping[str, Array], repeats: int = 20, before: Callable[[], None] | None = None
    ) -> list[float]:
        """Microseconds of single runs on the GPU, by events. Copying inputs and outputs is not in them.

        Inputs are copied before each run, as it may write over their memory; then `before` is called: to empty caches,
        for instance.
        """
        cupy, found = self._cupy, []
        with self._lock, self._errors("run"):
            for _ in range(repeats):
                self._upload(inputs)
                if before is not None:
                    before()
                    cupy.cuda.runtime.deviceSynchronize()
                begin, end = cupy.cuda.Event(), cupy.cuda.Event()
                begin.record(self._stream)
                self._go()
                end.record(self._stream)
                end.synchronize()
                found.append(1000 * float(cupy.cuda.get_elapsed_time(begin, end)))
            self._check()
        return found

    def run_timed(self, inputs: Mapping[str, Array]) -> tuple[dict[str, Array], SlotTimes]:
        """As `run`, with the clocks of every slot, by a text of its own that records them. Raises ToolchainError.

        The run's time is by events, launches included; recording costs every slot some stores.
        """
        cupy, streams = self._cupy, self.streams
        with self._lock, self._errors("profile"):
            if self._clocked is None:
                header = streams.header
                cubin = compile_cubin(profiled(self._text), str(header["arch"]))
                kernel = Kernel(cupy, cubin.data, int(header["threads"]), int(header["shared_bytes"]))
                self._clocked = kernel, cupy.zeros(state_words(streams), np.uint32)
                cupy.cuda.runtime.deviceSynchronize()  # zeros are of another stream
            kernel, state = self._clocked
            self._upload(inputs)
            begin, end = cupy.cuda.Event(), cupy.cuda.Event()
            begin.record(self._stream)
            self._launch(_limit_ns(), kernel, state)
            end.record(self._stream)
            end.synchronize()
            self._check(state)
            outputs = {p.name: view.get(self._stream).view(p.type.dtype.numpy) for p, view in self._outputs}
            total_us = 1000 * float(cupy.cuda.get_elapsed_time(begin, end))
            return outputs, slot_times(streams, state.get(self._stream), total_us)

    def _go(self) -> None:
        """Enqueue a run: its launches, or the graph of them."""
        limit_ns = _limit_ns()
        if not self._recording:
            self._launch(limit_ns, self._kernel, self._state)
            return
        if self._graph is None or self._graph_limit != limit_ns:  # arguments are part of a graph
            self._graph, self._graph_limit = self._recorded(limit_ns), limit_ns
        self._graph.launch(self._stream)

    def _recorded(self, limit_ns: int) -> Any:
        with self._stream:
            self._stream.begin_capture()
            try:
                self._launch(limit_ns, self._kernel, self._state)
            except BaseException:
                with suppress(RuntimeError):  # the stream must not stay in capture; the first error is the one to see
                    self._stream.end_capture()
                raise
            return self._stream.end_capture()

    def _launch(self, limit_ns: int, kernel: Kernel, state: Any) -> None:
        streams = self.streams
        for program in range(streams.num_programs):
            arguments = (
                self._stream_table,
                self._bounds[program * streams.num_veus :],
                self._waits,
                self._args,
                state,
                np.int32(program),
                np.int32(streams.span(program)),
                np.uint64(limit_ns),
            )
            kernel.launch(streams.num_veus, arguments, self._stream)

    def _check(self, state: Any = None) -> None:
        """Wait for the run and raise what it reports."""
        state = self._state if state is None else state
        head = state[:STATE_HEAD].get(self._stream)
        if head[2] or head[3]:
            found = state.get(self._stream)
            state.set(np.zeros_like(found), self._stream)
            self._stream.synchronize()
            if error := failure(self.streams, found):
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
            for name in HELD:
                setattr(self, name, None)
            self._inputs, self._outputs = [], []
            self._cupy.get_default_memory_pool().free_all_blocks()


def _checked(image: Image, gpu: Gpu) -> Resources:
    """What the image's machine code needs. Raises ArtifactError, DeviceError for code that this GPU cannot run."""
    header = checked_streams(image).header
    if CUBIN not in image.files:
        raise ArtifactError(
            "the program holds no machine code for a GPU", hint='it was compiled with device="emulator": again without'
        )
    if header["arch"] != gpu.arch:
        raise ArtifactError(
            f"the program is for {header['arch']}, {gpu.name} is {gpu.arch}", hint=f"compile with arch={gpu.arch!r}"
        )
    try:
        resources = Resources(**json.loads(image.files[RESOURCES]))
    except (KeyError, ValueError, TypeError) as error:
        raise ArtifactError(
            f"the program's file {RESOURCES!r} is damaged: {error}", hint="compile the model again"
        ) from error
    check_fits(int(header["num_veus"]), int(header["threads"]), int(header["shared_bytes"]), gpu, resources)
    return resources


def _limit_ns() -> int:
    return int((config.number("RAMMER_WATCHDOG_SECONDS") or 60.0) * 1e9)


def _bits(port: Port) -> np.dtype[Any]:
    """The dtype of a port for cupy, which knows no bfloat16: its bits are moved."""
    dtype = port.type.dtype.numpy
    return np.dtype(np.uint16) if dtype.name == "bfloat16" else dtype
