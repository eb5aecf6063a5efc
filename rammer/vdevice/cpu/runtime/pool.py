"""Pool the vEU threads of this process. Programs on the same CPUs share one pool and take turns.

Known as: thread pool with pinned workers.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import threading
import weakref
from functools import cached_property
from typing import Any, TypeAlias
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from rammer.errors import DeviceError
from rammer.vdevice.cpu.runtime.table import MAX_VEUS
from rammer.vdevice.image.memory import Bytes, allocate
from rammer.vdevice.toolchain.library import Library

PATIENCE_S = 5.0  # how long the end of the process waits for a daemon thread's run
_TURN_BYTES = 4096  # more than `turn` of runtime.c

Cpus: TypeAlias = NDArray[np.int64]


_TABLE = """num_veus num_programs *bounds *slots *waits *kernels *args *aheads *scratch scratch_stride num_cpus *cpus
spin_ns watchdog_ns patience *times *report keeps_subnormals"""  # fields of `table`, of which some are pointers


class TableStruct(ctypes.Structure):
    """`table` of runtime.c."""

    _fields_ = tuple((n.strip("*"), ctypes.c_void_p if n.startswith("*") else ctypes.c_int64) for n in _TABLE.split())


class Runtime:
    """The functions of runtime.c."""

    def __init__(self, data: bytes) -> None:
        self.library = library = Library(data)
        pointer, i64 = ctypes.c_void_p, ctypes.c_int64
        self.pool_bytes = library.function("rammer_pool_bytes", i64, i64)
        self.open = library.function("rammer_open", None, pointer, pointer)
        self.grow = library.function("rammer_grow", ctypes.c_int, pointer, i64, pointer)
        self.close = library.function("rammer_close", ctypes.c_int, pointer, i64)
        self.run = library.function("rammer_run", ctypes.c_int, pointer, pointer, ctypes.c_int)
        self.sleepers = library.function("rammer_sleepers", i64, pointer)
        self.in_vain = library.function("rammer_in_vain", i64, pointer, i64)
        self.helped = library.function("rammer_helped", i64, pointer, i64)
        self.now_ns = library.function("rammer_now_ns", i64)
        self.ticks = library.function("rammer_ticks", ctypes.c_uint64)

    def run_slots(self, table: int, slots: NDArray[np.int64]) -> int:
        """Run slots, rows of [slot, vEU], in this thread. Returns the first with a bad index, or -1."""
        pointer, i64 = ctypes.c_void_p, ctypes.c_int64
        run = self.library.function("rammer_run_slots", i64, pointer, pointer, i64)  # runtimes of old programs lack it
        return int(run(table, slots.ctypes.data, len(slots)))

    @cached_property
    def steps(self) -> Any:
        """The function that takes steps of a loop; runtimes of old programs lack it."""
        return self.library.function("rammer_steps", ctypes.c_int, *((ctypes.c_void_p,) * 4), ctypes.c_int64)


class Pool:
    """Threads of vEUs 1, 2, …; vEU 0 is the calling thread. They end when no program refers to the pool.

    `lost`: a thread did not return from a kernel, and the pool runs nothing more.
    """

    def __init__(self, runtime: Runtime, cpus: tuple[int, ...], turn: Bytes, most_veus: int = MAX_VEUS) -> None:
        self.runtime, self.cpus, self.turn = runtime, cpus, turn
        self.lost = False
        self.num_veus = 1
        self._memory = allocate(runtime.pool_bytes(most_veus))  # outlives the threads: a run may be late
        self.address = self._memory.ctypes.data
        runtime.open(self.address, turn.ctypes.data)
        weakref.finalize(self, _end, runtime, self.address, os.getpid(), (self._memory, turn))

    def grow(self, num_veus: int, cpus: Cpus) -> None:
        """Start the threads that a program of `num_veus` vEUs still lacks. Raises DeviceError."""
        if num_veus <= self.num_veus:
            return
        if self.runtime.grow(self.address, num_veus, cpus.ctypes.data):
            raise DeviceError(f"cannot start {num_veus} threads", hint="lower RAMMER_NUM_VEUS, or raise ulimit -u")
        self.num_veus = num_veus


class _Process:
    """State shared by the programs of a process."""

    def __init__(self, runtimes: WeakValueDictionary[bytes, Runtime]) -> None:
        self.lock = threading.Lock()
        self.runtimes = runtimes
        self.pools: WeakValueDictionary[tuple[Runtime, tuple[int, ...], bool], Pool] = WeakValueDictionary()

    def pool(self, runtime: Runtime, allowed: tuple[int, ...], pinned: bool) -> Pool:
        key = runtime, allowed, pinned
        found = self.pools.get(key)
        if found is None or found.lost:
            turns = (p.turn for p in self.pools.values() if not set(allowed).isdisjoint(p.cpus))
            turn = next(turns, None)
            found = self.pools[key] = Pool(runtime, allowed, allocate(_TURN_BYTES) if turn is None else turn)
        return found


_process = _Process(WeakValueDictionary())


def _forget() -> None:
    """Drop the pools in a forked child: it has none of the threads, and inherited locks may be held forever."""
    global _process
    _process = _Process(_process.runtimes)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def runtime_for(data: bytes) -> Runtime:
    """Return the runtime loaded from these bytes, one for all programs with equal bytes. Raises DeviceError."""
    key = hashlib.sha256(data).digest()
    with _process.lock:
        found = _process.runtimes.get(key)
        if found is None:
            found = _process.runtimes[key] = Runtime(data)
        return found


def pool_for(runtime: Runtime, allowed: tuple[int, ...], cpus: Cpus, num_veus: int) -> Pool:
    """Return this process's pool for a program of `num_veus` vEUs on `cpus` (-1: unpinned) among those `allowed`.

    Programs share a pool if they have the same runtime and may use the same CPUs. Pools with CPUs in common take turns.
    A program of one vEU runs in the calling thread and shares nothing. Raises DeviceError.
    """
    with _process.lock:
        if num_veus == 1:
            return Pool(runtime, (), allocate(_TURN_BYTES), 1)
        pool = _process.pool(runtime, allowed, bool(cpus[0] >= 0))
        pool.grow(num_veus, cpus)
        return pool


def leak(*used: object) -> None:
    """Leak these objects: a thread that did not return still uses their memory and code."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(used))


def _end(runtime: Runtime, address: int, pid: int, memory: object) -> None:
    """Stop the threads of a pool when it is collected, or when the process ends.

    At the end of the process a daemon thread may still be in a run; no further run begins.
    """
    if os.getpid() == pid and not runtime.close(address, int(PATIENCE_S * 1e9)):
        leak(runtime, memory)
