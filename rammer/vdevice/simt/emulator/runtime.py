"""Run a SIMT program inside this process. Its results and synchronisation are real, its times mean nothing."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Collection
from copy import copy

import numpy as np

from rammer import config
from rammer.errors import DeviceError, closed
from rammer.ir.tensor import Array, NamedArrays
from rammer.vdevice.base import Image, SlotTimes
from rammer.vdevice.image.memory import HostBuffers, allocate, gather, tensor_at
from rammer.vdevice.simt.codegen.table import LINE
from rammer.vdevice.simt.emulator.compile import compile_host
from rammer.vdevice.simt.runtime.clocks import profiled, slot_times, state_words
from rammer.vdevice.simt.runtime.streams import SOURCE, bound_in, checked_streams, failure, port_places
from rammer.vdevice.toolchain.library import Library

_OK, _DIVERGED, _NO_MEMORY = range(3)


class _Arguments(ctypes.Structure):
    """`simt_arguments` of runtime.h."""

    _fields_ = (
        ("stream", ctypes.c_void_p),
        ("bounds", ctypes.c_void_p),
        ("waits", ctypes.c_void_p),
        ("args", ctypes.c_void_p),
        ("state", ctypes.c_void_p),
        ("program", ctypes.c_long),
        ("span", ctypes.c_long),
        ("limit_ns", ctypes.c_ulonglong),
    )


class EmulatorExecutable(HostBuffers):
    """A program ready to run on the host.

    `deterministic`: one OS thread runs all blocks in a fixed order and reports a deadlock exactly; otherwise every
    block is an OS thread. `seed` shuffles the order in which the threads of a block take turns. `poison` fills the
    arena with NaN before every run.
    """

    forks = True

    def __init__(self, image: Image, *, deterministic: bool = True, seed: int = 0, poison: bool = False) -> None:
        self.deterministic, self.seed, self.poison = deterministic, seed, poison
        self.streams = streams = checked_streams(image)
        header = streams.header
        self._text = image.file(SOURCE).decode()
        self._library = Library(compile_host(self._text))
        self._run = _entry(self._library)
        self._clocked: EmulatorExecutable | None = None
        self._weights = gather([image.weight(name) for name in header["weights"]])
        self._arena = allocate(int(header["arena_bytes"]))
        self._state = np.zeros(LINE * (1 + 2 * streams.num_veus), np.uint32)
        self._args = streams.addresses([w.ctypes.data for w in self._weights], self._arena.ctypes.data)
        self._home = self._args.copy()
        self._stream, self._waits, self._bounds = gather([streams.instructions, streams.waits, streams.bounds])
        self._inputs, self._outputs = (
            [(p.name, tensor_at(place, p.type, self._arena, self._weights)) for p, place in places]
            for places in port_places(image, streams)
        )
        self._bindings = bound_in(image, streams)
        self._lock = threading.Lock()
        self._closed = False

    def run(self, inputs: NamedArrays) -> dict[str, Array]:
        """Return outputs by name. Raises InputError for an index out of range, DeviceError if the run stalled."""
        return self.run_bound(inputs, {}, [name for name, _ in self._outputs])

    def run_bound(self, inputs: NamedArrays, rooms: NamedArrays, outputs: Collection[str]) -> dict[str, Array]:
        """Run with `rooms` as memory of ports. Ports that share memory with other tensors are copied. See `run`."""
        with self._lock:
            if self._closed:
                raise closed()
            direct = {name: room.ctypes.data for name, room in rooms.items() if name in self._bindings}
            given = {**inputs, **rooms}
            if self.poison:
                self._arena[:] = 0xFF
            self._args[:] = self._home
            for name, address in direct.items():
                self._args[self._bindings[name].args] = self._bindings[name].offsets + address
            for name, view in self._inputs:
                if name not in direct:
                    np.copyto(view, given[name], casting="no")
            for program in range(self.streams.num_programs):
                self._launch(program)
            self._check()
            return self.handed(self._outputs, rooms, direct, outputs)

    def run_timed(self, inputs: NamedArrays) -> tuple[dict[str, Array], SlotTimes]:
        """Run with the host's clock at every slot: the code path is a GPU's, the times are not."""
        timed = self._profiled()
        return timed.run(inputs), slot_times(self.streams, timed._state, emulated=True)

    def _profiled(self) -> EmulatorExecutable:
        """Return a second program with clocks, which shares all but text and state with this one."""
        with self._lock:
            if self._closed:
                raise closed()
            if self._clocked is None:
                timed = copy(self)
                timed._lock = threading.Lock()
                timed._library = Library(compile_host(profiled(self._text)))
                timed._run = _entry(timed._library)
                timed._state = np.zeros(state_words(self.streams), np.uint32)
                self._clocked = timed
            return self._clocked

    def _launch(self, program: int) -> None:
        streams, header = self.streams, self.streams.header
        arguments = _Arguments(
            stream=self._stream.ctypes.data,
            bounds=self._bounds.ctypes.data + 4 * program * streams.num_veus,
            waits=self._waits.ctypes.data,
            args=self._args.ctypes.data,
            state=self._state.ctypes.data,
            program=program,
            span=streams.span(program),
            limit_ns=int((config.number("RAMMER_WATCHDOG_SECONDS") or 60.0) * 1e9),
        )
        code = self._run(
            arguments,
            streams.num_veus,
            int(header["threads"]),
            int(header["shared_bytes"]),
            int(self.deterministic),
            self.seed,
        )
        if code == _NO_MEMORY:
            raise DeviceError(
                f"the emulator cannot get memory for {streams.num_veus} vEUs of {header['threads']} threads",
                hint="fewer vEUs: device='emulator:4'",
            )
        if self._state[2]:
            self._check()
        if code == _DIVERGED:
            self._state[:] = 0
            raise DeviceError(
                f"rProgram {program}: threads of a vEU wait for others that never reach their block sync",
                hint="a kernel has a block sync under a condition that differs between its threads",
            )

    def _check(self) -> None:
        if error := failure(self.streams, self._state):
            self._state[:] = 0
            raise error

    def close(self) -> None:
        """Free the memory; later runs raise InputError."""
        with self._lock:
            self._closed = True
            self._inputs, self._outputs, self._weights, self._clocked = [], [], [], None
            self._arena = allocate(0)


def _entry(lib: Library) -> Callable[..., int]:
    run: Callable[..., int] = lib.function("simt_run", ctypes.c_int, ctypes.POINTER(_Arguments), *(ctypes.c_long,) * 5)
    return run
