"""Run programs on a GPU: one arena, weights uploaded once, one cooperative launch per rProgram."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rammer import config
from rammer.errors import ArtifactError, DeviceError, InputError, closed
from rammer.ir.tensor import Array, NamedArrays, TensorType
from rammer.vdevice.base import DeviceBuffer, Image, Port, SlotTimes
from rammer.vdevice.image.arena import ARENA, aligned
from rammer.vdevice.simt.codegen.table import LINE
from rammer.vdevice.simt.gpu import Gpu
from rammer.vdevice.simt.runtime.clocks import profiled, slot_times, state_words
from rammer.vdevice.simt.runtime.driver import Driver, Kernel, Resident, run_arguments, uploaded
from rammer.vdevice.simt.runtime.streams import SOURCE, bound_in, checked_streams, failure, port_places

STATE_HEAD = 16  # words that hold the errors of a run


@dataclass(frozen=True, eq=False)
class GpuRoom(DeviceBuffer):
    """An array of the platform that holds a port."""

    type: TensorType
    array: Any
    address: int
    number: int  # of the GPU

    def content(self) -> Array:
        """Return a copy on the host, after all enqueued work. Raises DeviceError."""
        found: Array = self.array.get().view(self.type.dtype.numpy)
        return found


@dataclass
class _Loaded:
    """A program's kernel, state, tables and ports on the GPU."""

    kernel: Kernel
    state: int
    tables: Sequence[int]  # instructions, bounds, waits, arguments
    inputs: Sequence[tuple[Port, int]]
    outputs: Sequence[tuple[Port, int]]
    args: NDArray[np.int64]  # addresses, with all ports in the arena
    pointed: dict[str, int] = field(default_factory=dict)  # addresses of ports outside of the arena
    clocked: tuple[Kernel, int] | None = None  # a second kernel with clocks, and its state
    going: tuple[float, Callable[[], None]] | None = None  # enqueues a run whose watchdog has this limit


class GpuExecutable:
    """A program ready to run on a GPU. Arena and weights stay there; a run copies inputs in and outputs out.

    `compile` makes machine code of a text. `graph`: record the launches once and replay them. Its default is
    RAMMER_GPU_GRAPH, and if that is empty, whether the driver `records`. Closes the driver with itself.
    """

    def __init__(
        self,
        image: Image,
        code: bytes,
        gpu: Gpu,
        driver: Driver,
        compile: Callable[[str], bytes],
        *,
        graph: bool | None = None,
    ) -> None:
        self.streams = checked_streams(image)
        self._bindings = bound_in(image, self.streams)
        self._text = image.file(SOURCE).decode()
        self._driver, self._compile = driver, compile
        asked = config.boolean("RAMMER_GPU_GRAPH") if graph is None else graph
        self._recording = driver.records if asked is None else asked
        self._lock = threading.Lock()
        self._loaded: _Loaded | None = None
        try:
            with driver.using("load the program"):
                self._loaded = self._load(image, code, gpu)
        except BaseException:
            self.close()
            raise

    def _load(self, image: Image, code: bytes, gpu: Gpu) -> _Loaded:
        streams, header = self.streams, self.streams.header
        kernel = self._kernel(code)
        room = kernel.most_blocks(gpu.num_multiprocessors)
        if streams.num_veus > room:
            raise DeviceError(
                f"the program has {streams.num_veus} vEUs, {gpu.name} holds {room} of them at once",
                hint="compile it for this GPU: device= without arch=",
            )
        driver, arena_bytes = self._driver, int(header["arena_bytes"])
        packed = [image.weight(name) for name in header["weights"]]
        places = [int(p) for p in np.cumsum([0, *(aligned(w.nbytes) for w in packed)])]
        weights, arena = driver.allocate(places[-1]), self._handed_over(arena_bytes)
        for array, at in zip(packed, places, strict=False):
            driver.write(weights + at, array)

        blocks = {n: (weights + p, places[-1] - p) for n, p in enumerate(places)} | {ARENA: (arena, arena_bytes)}

        def address(port: Port, base: int, offset: int) -> int:
            begin, size = blocks[base]
            if offset + port.type.nbytes > size:
                raise ArtifactError("an input or output lies outside of its memory")
            return begin + offset

        inputs, outputs = ([(p, address(p, *place)) for p, place in some] for some in port_places(image, streams))
        args = streams.addresses([weights + p for p in places[:-1]], arena)
        tables = [uploaded(driver, t) for t in (streams.instructions, streams.bounds, streams.waits, args)]
        state = self._handed_over(4 * LINE * (1 + 2 * streams.num_veus))
        driver.synchronize()
        return _Loaded(kernel, state, tables, inputs, outputs, args)

    def _handed_over(self, nbytes: int) -> int:
        """Allocate memory through which vEUs hand over; zeros, so that no word has come yet."""
        return self._driver.allocate(nbytes, zeros=True, uncached=bool(self.streams.header.get("uncached")))

    def _kernel(self, code: bytes) -> Kernel:
        header = self.streams.header
        sizes = int(header["threads"]), int(header["shared_bytes"]), int(header.get("cluster", 1))
        return self._driver.load(code, *sizes)

    def run(self, inputs: NamedArrays) -> dict[str, Array]:
        """Return outputs by name. Raises InputError for an index out of range, DeviceError if the run failed."""
        return self._run(inputs, {}, None, on_device=False)

    def room(self, kind: TensorType) -> GpuRoom:
        """Return a new room of zeros, in an array of the platform."""
        with self._use("make room for state"):
            array, address = self._driver.array(kind)
            self._driver.write(address, np.zeros(kind.shape, kind.dtype.numpy))
            return GpuRoom(kind, array, address, self._driver.number)

    def fill(self, room: GpuRoom, value: Any) -> None:
        """Copy a value from the host or the GPU into a room of its type. Raises InputError."""
        with self._use("copy the state"):
            self._copy_in(Port("state", room.type), room.address, value, [])

    def run_bound(
        self, inputs: Mapping[str, Any], rooms: Mapping[str, GpuRoom], outputs: Collection[str]
    ) -> dict[str, Any]:
        """Run with `rooms` as memory of ports; as `run_device` if an input lies on the GPU, else as `run`.

        Ports that share memory with other tensors are copied, on the GPU.
        """
        on_device = any(not isinstance(value, np.ndarray) for value in inputs.values())
        return self._run(inputs, rooms, outputs, on_device)

    def _run(
        self, inputs: Mapping[str, Any], rooms: Mapping[str, GpuRoom], outputs: Collection[str] | None, on_device: bool
    ) -> dict[str, Any]:
        """Return all outputs, or some; as arrays of the platform if `on_device`."""
        direct = {name: room.address for name, room in rooms.items() if name in self._bindings}
        with self._use("run the program") as loaded:
            driver, given = self._driver, list[Resident]()  # given: lives until all is done
            if on_device:
                driver.follow()
            self._point(loaded, direct)
            for port, at in loaded.inputs:
                if port.name in inputs:
                    self._copy_in(port, at, inputs[port.name], given)
                elif port.name not in direct:
                    driver.copy(at, rooms[port.name].address, port.type.nbytes)
            self._go(loaded)
            found = {}
            for port, at in loaded.outputs:
                if port.name in rooms and port.name not in direct:
                    driver.copy(rooms[port.name].address, at, port.type.nbytes)
                if outputs is None or port.name in outputs:
                    where = direct.get(port.name, at)
                    found[port.name] = (
                        driver.output(where, port.type)
                        if on_device
                        else driver.read(where, np.empty(port.type.shape, port.type.dtype.numpy))
                    )
            self._check(loaded.state)  # waits for all of it
            return found

    def _copy_in(self, port: Port, at: int, value: Any, given: list[Resident]) -> None:
        """Enqueue a copy of an array to an address; `given` keeps the array alive until that is done."""
        if isinstance(value, np.ndarray):
            self._driver.write(at, value)
        else:
            given.append(self._resident(port, value))
            self._driver.copy(at, given[-1].address, port.type.nbytes)

    def _point(self, loaded: _Loaded, ports: dict[str, int]) -> None:
        """Point these ports to these addresses, and all others to the arena."""
        if ports == loaded.pointed:
            return
        args = loaded.args.copy()
        for name, address in ports.items():
            binding = self._bindings[name]
            args[binding.args] = binding.offsets + address
        self._driver.write(loaded.tables[3], args)
        loaded.pointed = ports

    def _write(self, loaded: _Loaded, inputs: NamedArrays) -> None:
        self._point(loaded, {})
        for port, at in loaded.inputs:
            self._driver.write(at, inputs[port.name])

    def _outputs(self, loaded: _Loaded) -> dict[str, Array]:
        read = self._driver.read
        return {p.name: read(at, np.empty(p.type.shape, p.type.dtype.numpy)) for p, at in loaded.outputs}

    def run_device(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Run with arrays on the GPU (DLPack or `__cuda_array_interface__`), and return the platform's; upload NumPy's.

        The run waits for earlier work on the streams that arrays name, or on the platform's current one. Outputs are
        complete when this returns. Raises InputError for an array of another dtype or shape, or a strided one.
        """
        return self._run(inputs, {}, None, on_device=True)

    def _resident(self, port: Port, value: Any) -> Resident:
        """Return another library's array on this GPU, checked. Raises InputError."""
        try:
            array = self._driver.resident(value)
        except BufferError as error:
            raise InputError(f"input {port.name!r}: cannot be read on the GPU: {error}") from error
        dtype = port.type.dtype
        port.check(dtype.value if array.dtype == dtype.carrier.name else array.dtype, array.shape)
        if array.number != self._driver.number:
            raise InputError(
                f"input {port.name!r}: lies on GPU {array.number}, the program on GPU {self._driver.number}",
                hint="copy it there, or compile with device= of that GPU",
            )
        if not array.contiguous:
            raise InputError(f"input {port.name!r}: is not contiguous", hint="pass .contiguous() of it")
        return array

    def times_us(self, inputs: NamedArrays, repeats: int = 20, before: Callable[[], None] | None = None) -> list[float]:
        """Return microseconds of single runs on the GPU, by events. Copies of inputs and outputs are excluded.

        Inputs are copied before each run, as a run may overwrite them. Then `before` is called, for instance to empty
        caches.
        """
        found = []
        with self._use("run the program") as loaded:
            for _ in range(repeats):
                self._write(loaded, inputs)
                if before is not None:
                    before()
                    self._driver.synchronize()
                found.append(self._driver.time_us(lambda: self._go(loaded)))
            self._check(loaded.state)
        return found

    def run_timed(self, inputs: NamedArrays) -> tuple[dict[str, Array], SlotTimes]:
        """Run with the clocks of every slot, by a second text that records them. Raises ToolchainError.

        The run's time is by events, launches included. Recording costs every slot some stores.
        """
        with self._use("profile the program") as loaded:
            if loaded.clocked is None:
                kernel = self._kernel(self._compile(profiled(self._text)))
                loaded.clocked = kernel, self._handed_over(4 * state_words(self.streams))
            kernel, state = loaded.clocked
            self._write(loaded, inputs)
            total_us = self._driver.time_us(self._launches(loaded, kernel, state, self._limit()))
            self._check(state)
            clocks = self._driver.read(state, np.empty(state_words(self.streams), np.uint32))
            times = slot_times(self.streams, clocks, total_us, ticks_per_ns=self._driver.ticks(1))
            return self._outputs(loaded), times

    def _go(self, loaded: _Loaded) -> None:
        """Enqueue a run: its launches, or the graph of them."""
        limit = self._limit()
        if loaded.going is None or loaded.going[0] != limit:  # arguments are part of a graph
            launches = self._launches(loaded, loaded.kernel, loaded.state, limit)
            loaded.going = limit, self._driver.record(launches) if self._recording else launches
        loaded.going[1]()

    def _limit(self) -> float:
        return self._driver.ticks(1e9 * (config.number("RAMMER_WATCHDOG_SECONDS") or 60.0))

    def _launches(self, loaded: _Loaded, kernel: Kernel, state: int, limit: float) -> Callable[[], None]:
        """Return a function that enqueues a run, one launch per rProgram. Its arguments are made once."""
        streams = self.streams
        table, bounds, waits, args = loaded.tables
        arguments = [
            run_arguments(
                table,
                bounds + streams.bounds.itemsize * program * streams.num_veus,
                waits,
                args,
                state,
                program,
                streams.span(program),
                limit,
            )
            for program in range(streams.num_programs)
        ]

        def launch() -> None:
            for one in arguments:
                kernel.launch(streams.num_veus, one)

        return launch

    def _check(self, state: int) -> None:
        """Wait for the run, and raise what it reports."""
        read = self._driver.read
        head = read(state, np.empty(STATE_HEAD, np.uint32))
        if head[2] or head[3]:
            found = read(state, np.empty(LINE * (1 + 2 * self.streams.num_veus), np.uint32))
            self._driver.write(state, np.zeros_like(found))
            self._driver.synchronize()
            if error := failure(self.streams, found):
                raise error

    @contextmanager
    def _use(self, doing: str) -> Iterator[_Loaded]:
        """Yield the loaded program to one thread at a time, with the GPU current. Raises InputError if closed."""
        with self._lock:
            if self._loaded is None:
                raise closed()
            with self._driver.using(doing):
                yield self._loaded

    def close(self) -> None:
        """Free the GPU's memory; later runs raise InputError."""
        with self._lock:
            self._loaded = None
            self._driver.close()
