"""A loaded program: tables, arena, vEU threads. The work is in runtime.c."""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rammer import config
from rammer.errors import ArtifactError, DeviceError, InputError
from rammer.ir.tensor import Array, TensorType
from rammer.vdevice.base import Image, SlotTimes
from rammer.vdevice.cpu.build import RUNTIME, TABLE, fingerprint
from rammer.vdevice.cpu.memory import allocate, gather
from rammer.vdevice.cpu.printer import LINE_BYTES
from rammer.vdevice.cpu.spec import Host, known_arch
from rammer.vdevice.cpu.table import ABI, Table
from rammer.vdevice.library import Library
from rammer.vdevice.placement import ALIGNMENT, ARENA, aligned

PATIENCE_S = 5.0  # how long the end of the process waits for a daemon thread's run
_DONE, _BAD_INDEX, _STALLED, _STUCK = range(4)


class _TableStruct(ctypes.Structure):
    """`table` of runtime.c."""

    _fields_ = (
        ("num_veus", ctypes.c_int64),
        ("num_programs", ctypes.c_int64),
        ("bounds", ctypes.c_void_p),
        ("slots", ctypes.c_void_p),
        ("waits", ctypes.c_void_p),
        ("kernels", ctypes.c_void_p),
        ("args", ctypes.c_void_p),
        ("aheads", ctypes.c_void_p),
        ("scratch", ctypes.c_void_p),
        ("scratch_stride", ctypes.c_int64),
        ("cpus", ctypes.c_void_p),
        ("spin_ns", ctypes.c_int64),
        ("watchdog_ns", ctypes.c_int64),
        ("patience", ctypes.c_int64),
        ("times", ctypes.c_void_p),
    )


class Runtime:
    """The functions of runtime.c."""

    def __init__(self, data: bytes) -> None:
        self.library = library = Library(data)
        pointer, i64 = ctypes.c_void_p, ctypes.c_int64
        self.pool_bytes = library.function("rammer_pool_bytes", i64, i64)
        self.open = library.function("rammer_open", ctypes.c_int, pointer, ctypes.POINTER(_TableStruct))
        self.close = library.function("rammer_close", ctypes.c_int, pointer)
        self.run = library.function("rammer_run", ctypes.c_int, pointer, ctypes.c_int)
        self.report = library.function("rammer_report", ctypes.POINTER(i64), pointer)
        self.now_ns = library.function("rammer_now_ns", i64)
        self.ticks = library.function("rammer_ticks", ctypes.c_uint64)
        self.measure = library.function("rammer_measure", ctypes.c_double, pointer, pointer, pointer, i64, i64)


class CpuExecutable:
    """A program ready to run. Threads take turns; it survives a fork (the child gets threads of its own).

    `poison` fills the arena and all scratch with NaN before every run, for tests.
    """

    def __init__(self, image: Image, host: Host) -> None:
        table = _checked_table(image, host)
        header = table.header
        self._table = table
        self._num_veus = int(header["num_veus"])
        self._host = host
        self.poison = False

        self._runtime = Runtime(image.files[RUNTIME])
        names = dict.fromkeys(k[0] for k in header["kernels"])
        self._libraries = {name: Library(_file(image, f"{name}.so")) for name in names}
        self._kernels = np.array([self._address(name, symbol) for name, symbol, _ in header["kernels"]], np.uint64)
        self._weights = gather([_weight(image, name) for name in header["weights"]])
        self._arena = allocate(int(header["arena_bytes"]))
        self._stride = aligned(int(header["scratch_bytes"])) + ALIGNMENT
        self._scratch = allocate(self._stride * self._num_veus)
        bases = np.array([*(w.ctypes.data for w in self._weights), self._arena.ctypes.data], np.int64)
        sizes = np.array([*(w.nbytes for w in self._weights), self._arena.nbytes], np.int64)
        if np.any(table.arg_offset > sizes[table.arg_base]):
            raise ArtifactError("an argument lies outside of its memory", hint="compile the model again")
        self._args = bases[table.arg_base] + table.arg_offset  # ARENA is -1: the last
        ahead_base, ahead_offset, lines = table.aheads.T
        if np.any(ahead_offset + LINE_BYTES * lines > sizes[ahead_base] + LINE_BYTES):
            raise ArtifactError("what is asked for ahead lies outside of its memory", hint="compile the model again")
        self._aheads = np.stack([bases[ahead_base] + ahead_offset, lines], axis=1)
        self._times = np.zeros((len(table.slots), 2), np.uint64)
        self._inputs = [
            (p.name, self._view(place, p.type)) for p, place in zip(image.inputs, header["inputs"], strict=True)
        ]
        self._outputs = [
            (p.name, self._view(place, p.type)) for p, place in zip(image.outputs, header["outputs"], strict=True)
        ]
        self._closed = False
        self._restarting = threading.Lock()
        self._start()

    def _address(self, library: str, symbol: str) -> int:
        try:
            return self._libraries[library].address(symbol)
        except AttributeError as error:
            raise ArtifactError(f"the code has no kernel {symbol!r}", hint="compile the model again") from error

    def _view(self, place: Sequence[int], kind: TensorType) -> Array:
        base, offset = place
        block = self._arena if base == ARENA else self._weights[base].reshape(-1).view(np.uint8)
        if offset + kind.nbytes > len(block):
            raise ArtifactError("an input or output lies outside of its memory", hint="compile the model again")
        return block[offset : offset + kind.nbytes].view(kind.dtype.numpy).reshape(kind.shape)

    def _start(self) -> None:
        """Start the vEU threads, in this process."""
        cpus = self._host.cpus
        enough = len(cpus) >= self._num_veus
        pinned = enough and self._num_veus > 1 and config.get("RAMMER_PIN") != "0"
        veu_cpus = np.array(cpus[: self._num_veus] if pinned else [-1] * self._num_veus, np.int64)
        spin_ms = config.number("RAMMER_SPIN_MS") or 0.0
        table = self._table
        arrays: tuple[Array, ...] = (
            np.ascontiguousarray(table.bounds),
            np.ascontiguousarray(table.slots),
            np.ascontiguousarray(table.waits),
            self._kernels,
            self._args,
            self._aheads,
            self._scratch,
            veu_cpus,
            self._times,
        )
        bounds, slots, waits, kernels, args, aheads, scratch, places, times = (a.ctypes.data for a in arrays)
        struct = _TableStruct(
            num_veus=self._num_veus,
            num_programs=int(table.header["num_programs"]),
            bounds=bounds,
            slots=slots,
            waits=waits,
            kernels=kernels,
            args=args,
            aheads=aheads,
            scratch=scratch,
            scratch_stride=self._stride,
            cpus=places,
            spin_ns=int((spin_ms if enough else min(spin_ms, 0.2)) * 1e6),
            watchdog_ns=int((config.number("RAMMER_WATCHDOG_SECONDS") or 60.0) * 1e9),
            patience=4096 if enough else 32,
            times=times,
        )
        memory = allocate(self._runtime.pool_bytes(self._num_veus))
        self._pool = memory.ctypes.data
        if self._runtime.open(self._pool, struct):
            raise DeviceError(
                f"cannot start {self._num_veus} threads", hint="fewer vEUs: RAMMER_NUM_VEUS, or device=…; or ulimit -u"
            )
        self._clock = (self._runtime.now_ns(), self._runtime.ticks())
        self._pid = os.getpid()
        self._lock = threading.Lock()
        keep = (memory, arrays, self._weights, self._arena, self._libraries, self._runtime)
        self._stop = weakref.finalize(self, _abandon, self._lock, self._runtime, self._pool, self._pid, keep)

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Outputs by name. Raises InputError for an index out of range, DeviceError if the run stalled."""
        if os.getpid() != self._pid:
            self._restart()
        with self._lock:
            self._run(inputs, 0)
            return {name: view.copy() for name, view in self._outputs}

    def run_timed(self, inputs: Mapping[str, Array]) -> tuple[dict[str, Array], SlotTimes]:
        """As `run`, with the begin and end of every slot. Copying inputs and outputs is not in it."""
        if os.getpid() != self._pid:
            self._restart()
        with self._lock:
            self._times[:] = 0
            self._run(inputs, 1)
            begin, end = (int(t) for t in self._runtime.report(self._pool)[6:8])
            outputs = {name: view.copy() for name, view in self._outputs}
            us_per_tick = self._us_per_tick()
            times = (self._times - np.uint64(begin)).astype(np.float64) * us_per_tick
        return outputs, SlotTimes(
            self._by_lane(times), self._by_lane(self._table.operators), (end - begin) * us_per_tick
        )

    def _by_lane(self, slots: NDArray[Any]) -> tuple[tuple[NDArray[Any], ...], ...]:
        """An array of all slots, cut into rPrograms and lanes."""
        bounds, veus = self._table.bounds, self._num_veus
        return tuple(
            tuple(slots[bounds[p * veus + v] : bounds[p * veus + v + 1]] for v in range(veus))
            for p in range((len(bounds) - 1) // veus)
        )

    def _run(self, inputs: Mapping[str, Array], timed: int) -> None:
        if self._closed:
            raise DeviceError("the program is closed", hint="compile or load it again")
        if self.poison:
            self._arena[:] = 0xFF
            self._scratch[:] = 0xFF
        for name, view in self._inputs:
            np.copyto(view, inputs[name], casting="no")
        if code := self._runtime.run(self._pool, timed):
            raise self._failure(code)

    def _failure(self, code: int) -> InputError | DeviceError:
        report = self._runtime.report(self._pool)
        if code == _BAD_INDEX:
            operator = self._operator(int(report[0]))
            return InputError(
                f"{operator}: index out of range", hint="an input that is used as an index is too large or too small"
            )
        program, veu, order, on_veu, on_order, begun = (int(n) for n in report[:6])
        where = f"rProgram {program}: vEU {veu}"
        if code == _STALLED:
            operator = self._operator(int(self._table.bounds[program * self._num_veus + on_veu]) + on_order)
            return DeviceError(
                f"{where}, order {order}, waited in vain for vEU {on_veu}, order {on_order} ({operator}); "
                f"that vEU has begun {begun} of its slots",
                hint="a slow machine needs a larger RAMMER_WATCHDOG_SECONDS; otherwise the plan has a deadlock",
            )
        return DeviceError(
            f"{where} does not come back from its rTask, the slot of order {begun - 1}",
            hint="compile again; a larger RAMMER_WATCHDOG_SECONDS if the machine is slow",
        )

    def _operator(self, slot: int) -> str:
        number = int(self._table.operators[slot]) if 0 <= slot < len(self._table.operators) else -1
        return str(self._table.header["operators"][number]) if number >= 0 else "a barrier"

    def _us_per_tick(self) -> float:
        ns, ticks = self._clock
        while (now := self._runtime.now_ns()) - ns < 5_000_000:  # long enough to tell the rate
            pass
        return float((now - ns) / 1000 / (self._runtime.ticks() - ticks))

    def _restart(self) -> None:
        """After a fork: the parent's threads are not here."""
        with self._restarting:
            if os.getpid() != self._pid and not self._closed:
                self._stop.detach()
                self._start()

    def close(self) -> None:
        """Join the threads; later runs raise DeviceError."""
        if os.getpid() != self._pid:
            self._stop.detach()
            self._closed = True
            return
        with self._lock:
            self._closed = True
            if found := self._stop.detach():
                _, runtime, pool, _, keep = found[2]
                _close(runtime, pool, keep)
            self._inputs, self._outputs, self._weights = [], [], []
            self._arena = self._scratch = allocate(0)


def _close(runtime: Runtime, pool: int, keep: tuple[object, ...]) -> None:
    if not runtime.close(pool):
        _keep_for_good(runtime, keep)


def _abandon(lock: threading.Lock, runtime: Runtime, pool: int, pid: int, keep: tuple[object, ...]) -> None:
    """Stop the threads of a program that is forgotten, or alive when the process ends.

    Then a daemon thread may still run it. The lock is not given back: no run begins after this.
    """
    if os.getpid() != pid:
        return
    if lock.acquire(timeout=PATIENCE_S):
        _close(runtime, pool, keep)
    else:
        _keep_for_good(runtime, keep)


def _keep_for_good(*used: object) -> None:
    """A thread that does not come back still uses this memory and code."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(used))


def _file(image: Image, name: str) -> bytes:
    if name not in image.files:
        raise ArtifactError(f"the program lacks its file {name!r}", hint="compile the model again")
    return image.files[name]


def _weight(image: Image, name: str) -> Array:
    if name not in image.weights:
        raise ArtifactError(f"the program lacks its constant {name!r}", hint="compile the model again")
    return image.weights[name]


def _checked_table(image: Image, host: Host) -> Table:
    if image.target != "cpu":
        raise ArtifactError(f"a program for {image.target!r}, not for the CPU", hint="load it with its own vDevice")
    table = Table.from_bytes(_file(image, TABLE))
    arch = known_arch(str(table.header.get("arch")))
    if table.header.get("abi") != ABI or arch is None or image.fingerprint != fingerprint(arch.name):
        raise ArtifactError(
            f"the program was built as {image.fingerprint!r}, for another version of rammer",
            hint="compile the model again with this version",
        )
    if not host.runs(arch):
        raise ArtifactError(
            f"the program is for {arch.name!r}: {host.lacks(arch)}",
            hint="compile it on this machine, or with arch= of this machine",
        )
    _file(image, RUNTIME)
    ports = len(table.header["inputs"]) == len(image.inputs) and len(table.header["outputs"]) == len(image.outputs)
    if not ports:
        raise ArtifactError("the table has other inputs and outputs than the program", hint="compile the model again")
    return table


__all__ = ["CpuExecutable", "Library", "Runtime"]
