"""Load a program: build its tables and arena, and run it. The work is in runtime.c; pool.py has the threads."""

from __future__ import annotations

import ctypes
import logging
import threading
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from functools import lru_cache
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from rammer import config
from rammer.errors import ArtifactError, DeviceError, InputError, UnsuitableError, closed
from rammer.ir.tensor import Array, NamedArrays
from rammer.vdevice import forks
from rammer.vdevice.base import Image, SlotTimes, Stepped, StepRows
from rammer.vdevice.cpu.host import Host, known_arch
from rammer.vdevice.cpu.runtime.call import BoundCall, DirectCall, address_of, is_possible
from rammer.vdevice.cpu.runtime.pool import Pool, TableStruct, leak, pool_for, runtime_for
from rammer.vdevice.cpu.runtime.steps import CpuLoopBody
from rammer.vdevice.cpu.runtime.table import ABI, LINE_BYTES, RUNTIME, TABLE, TICKETS, Table, fingerprint
from rammer.vdevice.image.arena import bound_ports
from rammer.vdevice.image.memory import HostBuffers, allocate, gather, reused, tensor_at
from rammer.vdevice.toolchain.library import Library

_DONE, _BAD_INDEX, _STALLED, _STUCK, _LOST, _CLOSED = range(6)
# Scratch begins in the middle of a page. Large arrays of callers begin at its start: loads from them would wait for
# stores to scratch at the same place of another page (Softmax of [1024, 2048] took 1.2 times as long).
HALF_PAGE = 2048
_TIMED, _LATE = 1, 2  # modes: time each slot, without work stealing; _LATE + v: also, vEU v begins last

logger = logging.getLogger(__name__)


@lru_cache(maxsize=64)  # warn once of each
def _warn_oversubscribed(cpus: int, num_veus: int) -> None:
    logger.warning(
        "%d vEUs share the %d CPU%s that this process may use: they wait for each other's turns, and a run may take "
        "a hundred times as long as with %d (threads=, RAMMER_NUM_VEUS)",
        *(num_veus, cpus, "s" * (cpus != 1), cpus),
    )


class RunMemory:
    """Arena and scratch of programs that never run at the same time, and the lock that they take turns with."""

    def __init__(self, headers: Sequence[Mapping[str, Any]]) -> None:
        self.arena = allocate(max((int(h["arena_bytes"]) for h in headers), default=0))
        scratch = max((int(h["scratch_stride"]) * int(h["num_veus"]) for h in headers), default=0)
        self.scratch = allocate(HALF_PAGE + scratch)[HALF_PAGE:]
        self.token = object()  # buffers for state belong to all programs with this token
        self.users: weakref.WeakSet[CpuExecutable] = weakref.WeakSet()
        self._locks: dict[int, threading.Lock] = {}

    def lock(self) -> threading.Lock:
        """Return this process's lock. After a fork it is a new one: a thread that the child lacks may hold the old."""
        return self._locks.setdefault(forks.count, threading.Lock())


class CpuExecutable(HostBuffers):
    """A program ready to run. Threads take turns; programs on the same CPUs share vEU threads and take turns, too.

    It survives a fork: the child starts its own threads. Programs may share `memory`.

    `poison` fills the arena and all scratch with NaN before each run, for tests.
    """

    def __init__(self, image: Image, host: Host, memory: RunMemory | None = None) -> None:
        table = _checked_table(image, host)
        header = table.header
        self._table = table
        self._num_veus = int(header["num_veus"])
        self._host = host
        self.poison = False

        self._runtime = runtime_for(image.files[RUNTIME])
        names = dict.fromkeys(k[0] for k in header["kernels"])
        self._libraries = {name: Library(image.file(f"{name}.so")) for name in names}
        self._kernels = np.array([self._kernel(name, symbol) for name, symbol, _ in header["kernels"]], np.uint64)
        self._weights = gather([image.weight(name) for name in header["weights"]])
        self._memory = memory or RunMemory([header])
        self.keeper = self._memory.token
        self._arena = self._memory.arena[: int(header["arena_bytes"])]
        self._stride = int(header["scratch_stride"])
        self._scratch = self._memory.scratch[: self._stride * self._num_veus]
        bases = np.array([*(w.ctypes.data for w in self._weights), self._arena.ctypes.data], np.int64)
        sizes = np.array([*(w.nbytes for w in self._weights), self._arena.nbytes], np.int64)
        if np.any(table.arg_offset > sizes[table.arg_base]):
            raise ArtifactError("an argument lies outside of its memory")
        self._args = bases[table.arg_base] + table.arg_offset  # ARENA is -1: the last
        ahead_base, ahead_offset, lines = table.aheads.T
        if np.any(ahead_offset + LINE_BYTES * lines > sizes[ahead_base] + LINE_BYTES):
            raise ArtifactError("what is asked for ahead lies outside of its memory")
        self._aheads = np.stack([bases[ahead_base] + ahead_offset, lines], axis=1)
        places = zip((*image.inputs, *image.outputs), (*header["inputs"], *header["outputs"]), strict=True)
        ports = [(port.name, port.type.nbytes, place) for port, place in places]
        self._bindings = bound_ports(ports, header["alone"], table.arg_base, table.arg_offset)
        self._direct = frozenset(header["direct"]) & self._bindings.keys()
        self._pointed: dict[str, int] = {}  # addresses of ports that lie outside of the arena; -1: not known
        self._times = np.zeros((len(table.slots), 2), np.uint64)
        self._inputs, self._outputs = (
            [(p.name, tensor_at(at, p.type, self._arena, self._weights)) for p, at in zip(ports, places, strict=True)]
            for ports, places in ((image.inputs, header["inputs"]), (image.outputs, header["outputs"]))
        )
        self._makers = {port.name: reused(port.type) for port in image.outputs if port.name in self._direct}
        self._anywhere = dict.fromkeys(self._direct, -1)
        self._stuck: CpuExecutable | None = None  # the program in this memory that a thread does not come back from
        self._restarting = threading.Lock()
        self._pool_at = ctypes.c_void_p()
        self._bind()
        self._call = self._one_step()
        self._begin(self._find_pool())
        self._memory.users.add(self)

    def _kernel(self, library: str, symbol: str) -> int:
        try:
            return self._libraries[library].address(symbol)
        except AttributeError as error:
            raise ArtifactError(f"the code has no kernel {symbol!r}") from error

    def _bind(self) -> None:
        """Fill `_struct`, the program as runtime.c sees it, and keep its arrays alive in `_arrays`."""
        allowed = self._host.cpus
        enough = len(allowed) >= self._num_veus
        if not enough:
            _warn_oversubscribed(len(allowed), self._num_veus)
        pinned = allowed if self._num_veus > 1 and config.boolean("RAMMER_PIN") else ()
        self._cpus = np.full(max(self._num_veus, len(pinned)), -1, np.int64)
        self._cpus[: len(pinned)] = pinned
        self._report = np.zeros(9, np.int64)
        spin_ms = config.number("RAMMER_SPIN_MS") or 0.0
        table = self._table
        slots = np.array(table.slots)
        if not config.boolean("RAMMER_HAND_OVER"):
            slots[:, TICKETS] = 0
        self._arrays: dict[str, Array] = {
            "bounds": np.ascontiguousarray(table.bounds),
            "slots": slots,
            "waits": np.ascontiguousarray(table.waits),
            "kernels": self._kernels,
            "args": self._args,
            "aheads": self._aheads,
            "scratch": self._scratch,
            "cpus": self._cpus,
            "times": self._times,
            "report": self._report,
        }
        self._struct = struct = TableStruct(
            **{name: array.ctypes.data for name, array in self._arrays.items()},
            num_veus=self._num_veus,
            num_programs=int(table.header["num_programs"]),
            scratch_stride=self._stride,
            num_cpus=len(self._cpus),
            spin_ns=int((spin_ms if enough else min(spin_ms, 0.2)) * 1e6),
            watchdog_ns=int((config.number("RAMMER_WATCHDOG_SECONDS") or 60.0) * 1e9),
            patience=4096 if enough else 32,
            keeps_subnormals=int(bool(config.boolean("RAMMER_SUBNORMALS") or table.header.get("keeps_subnormals"))),
        )
        self._address = ctypes.addressof(struct)

    def _find_pool(self) -> Pool:
        return pool_for(self._runtime, self._host.cpus, self._cpus, self._num_veus)

    def _one_step(self) -> DirectCall | None:
        """Return the call that is one C function, or None if call.c cannot read the ports' arrays."""
        if not is_possible(view for _, view in self._inputs):
            return None
        direct = {name: self._bindings[name] for name in self._direct}
        ports = self._inputs, self._outputs
        return DirectCall(self._runtime.library, self._pool_at, self._address, self._args, *ports, direct, self._makers)

    def _use(self, pool: Pool | None) -> None:
        """Run on this pool's threads from now on. None closes the program."""
        self._pool = pool
        self._pool_at.value = pool.address if pool else None
        if pool is None:
            self._call = None

    def _begin(self, pool: Pool | None) -> None:
        """Prepare to run in this process. Without a pool the program is closed."""
        self._use(pool)
        self._clock = (self._runtime.now_ns(), self._runtime.ticks())
        self._lock = self._memory.lock()
        self._forks = forks.count

    def try_run(self, inputs: Any) -> dict[str, Array] | None:
        """Check the inputs and run. Returns None unless they are arrays of exactly the ports' types."""
        with self._lock if self._forks == forks.count else self._renewed():
            if self._call is None or self.poison:
                return None
            if self._pointed is not self._anywhere:
                self._point({})
                self._pointed = self._anywhere
            found = self._call.function(inputs)
            if type(found) is not int:
                return found  # type: ignore[no-any-return]  # a dict, or None
            return None if found == _LOST else self._ended(found)

    def run(self, inputs: NamedArrays) -> dict[str, Array]:
        """Return outputs by name. Raises InputError for an index out of range, DeviceError if the run stalled."""
        with self._lock if self._forks == forks.count else self._renewed():
            made = {name: make() for name, make in self._makers.items()}
            if self.poison:
                for array in made.values():
                    array.view(np.uint8)[...] = 0xFF
            direct = self._addresses({**inputs, **made})
            self._point(direct)
            self._run([(view, inputs[name]) for name, view in self._inputs if name not in direct])
            return {name: made[name] if name in made else view.copy() for name, view in self._outputs}

    def bind(self, inputs: NamedArrays, outputs: NamedArrays) -> Callable[[], None]:
        """Return a call on fixed arrays that looks up and allocates nothing."""
        arrays = [*inputs.values(), *outputs.values()]
        separate = {n: a for n, a in outputs.items() if sum(np.may_share_memory(a, other) for other in arrays) == 1}
        direct = self._addresses({**inputs, **separate})
        read = [(view, inputs[name]) for name, view in self._inputs if name not in direct]
        written = [(outputs[name], view) for name, view in self._outputs if name not in direct]

        made = None
        if is_possible(array for pair in (*read, *written) for array in pair):
            made = BoundCall(self._runtime.library, self._pool_at, self._address, read, written)

        def call() -> None:
            with self._lock if self._forks == forks.count else self._renewed():
                self._point(direct)
                if made is not None and self._is_ready():
                    code = made.function()
                    if code is None:
                        return
                    if code != _LOST:
                        self._ended(code)
                self._run(read)
                for array, view in written:
                    array[...] = view

        return call

    def _is_ready(self) -> bool:
        """Return whether a run needs no preparation."""
        return not (self._pool is None or self._stuck or self.poison)

    def run_bound(self, inputs: NamedArrays, rooms: NamedArrays, outputs: Collection[str]) -> dict[str, Array]:
        """Run with ports in `rooms`. A room is copied if its port shares its memory with other tensors."""
        with self._lock if self._forks == forks.count else self._renewed():
            direct = {name: room.ctypes.data for name, room in rooms.items() if name in self._bindings}
            given = {**inputs, **rooms}
            self._point(direct)
            self._run([(view, given[name]) for name, view in self._inputs if name not in direct])
            return self.handed(self._outputs, rooms, direct, outputs)

    def steps(self, rows: Mapping[str, StepRows], again: str | None) -> CpuLoopBody:
        """Return the program as the body of a loop."""
        bound = self._bindings, self._direct, self._args
        return CpuLoopBody(self._inputs, self._outputs, rows, again, *bound, self._take_steps)

    def _take_steps(self, loop: int, progress: int, end: int, pointed: dict[str, int]) -> None:
        with self._lock if self._forks == forks.count else self._renewed():
            if self._pointed is not pointed:
                self._point({})
                self._pointed = pointed
            self._run_by(lambda pool: self._runtime.steps(pool, self._address, loop, progress, end))

    def _addresses(self, arrays: NamedArrays) -> dict[str, int]:
        """Return the addresses of arrays that need no copy."""
        return {
            name: address_of(array)
            for name in self._direct
            if (array := arrays.get(name)) is not None and array.flags.c_contiguous and array.flags.aligned
        }

    def _point(self, ports: dict[str, int]) -> None:
        """Point these ports at these addresses, and all others at the arena."""
        if ports != self._pointed:
            for name, _ in ports.items() ^ self._pointed.items():
                bound = self._bindings[name]
                self._args[bound.args] = bound.offsets + ports.get(name, self._arena.ctypes.data + bound.home)
            self._pointed = ports

    def run_timed(self, inputs: NamedArrays) -> tuple[dict[str, Array], SlotTimes]:
        """Run with the begin and end of each slot, without work stealing.

        Copying inputs and outputs is not included.
        """
        with self._lock if self._forks == forks.count else self._renewed():
            self._times[:] = 0
            self._point({})
            self._run([(view, inputs[name]) for name, view in self._inputs], _TIMED)
            begin, end = (int(t) for t in self._report[6:8])
            outputs = {name: view.copy() for name, view in self._outputs}
            us_per_tick = self._us_per_tick()
            # Clocks of cores differ by some ticks: a slot may seem to begin before the run does.
            times = (self._times - np.uint64(begin)).view(np.int64) * us_per_tick
        operators = self._by_lane(self._table.operators)
        return outputs, SlotTimes(self._by_lane(times), operators, (end - begin) * us_per_tick)

    def stepped(self, inputs: NamedArrays) -> Stepped:
        """Return a stepper that runs single slots in this thread. Memory that was not written is NaN.

        No other thread may run the program meanwhile. Raises InputError for an index out of range.
        """
        self._point({})
        self._arena[:] = 0xFF
        self._scratch[:] = 0xFF
        for name, view in self._inputs:
            view[...] = inputs[name]

        def run(slots: NDArray[np.int64]) -> None:
            program, veu, order = slots.T
            numbers = self._table.bounds[program * self._num_veus + veu] + order
            failed = self._runtime.run_slots(self._address, np.ascontiguousarray(np.stack([numbers, veu], 1)))
            if failed >= 0:
                self._report[0] = failed
                raise self._failure(_BAD_INDEX)

        return Stepped(self._arena, tuple(self._scratch.reshape(self._num_veus, -1)), run)

    def run_late(self, inputs: NamedArrays, veu: int) -> dict[str, Array]:
        """Run, but start one vEU only when the others cannot go on without it. Work stealing is off."""
        with self._lock if self._forks == forks.count else self._renewed():
            self._point({})
            self._run([(view, inputs[name]) for name, view in self._inputs], _LATE + veu)
            return {name: view.copy() for name, view in self._outputs}

    def _by_lane(self, slots: NDArray[Any]) -> tuple[tuple[NDArray[Any], ...], ...]:
        """Split an array of all slots into rPrograms and lanes."""
        bounds, veus = self._table.bounds, self._num_veus
        return tuple(
            tuple(slots[bounds[p * veus + v] : bounds[p * veus + v + 1]] for v in range(veus))
            for p in range((len(bounds) - 1) // veus)
        )

    def _renewed(self) -> threading.Lock:
        """Return the lock, after a forked child has found a new pool: it has none of its parent's threads."""
        with self._restarting:
            if self._forks != forks.count:
                self._begin(self._pool and self._find_pool())
        return self._lock

    def _run(self, read: Sequence[tuple[Array, Array]], how: int = 0) -> None:
        """Copy `read` (pairs of view and array) into the program's memory, and run it in mode `how`."""
        if self.poison:
            self._arena[:] = 0xFF
            self._scratch[:] = 0xFF
        for view, array in read:
            view[...] = array
        self._run_by(lambda pool: self._runtime.run(pool, self._address, how))

    def _run_by(self, run: Callable[[int], int]) -> None:
        """Run by a function of the pool's address that returns a code. Raises the error of a failed run."""
        pool = self._pool
        if pool is None:
            raise closed()
        if self._stuck:
            raise self._stuck._failure(_STUCK)
        while (code := run(pool.address)) == _LOST:
            pool.lost = True  # by another program
            pool = self._find_pool()
            self._use(pool)
        if code:
            self._ended(code)

    def _ended(self, code: int) -> NoReturn:
        """Raise the error of a failed run. A stuck thread also marks the pool as lost and keeps its memory alive."""
        if code == _CLOSED and threading.current_thread().daemon:
            raise SystemExit  # the process ends: end this daemon thread without a traceback
        if code == _STUCK and self._pool:
            self._pool.lost = True
            leak(self._struct, self._arrays, self._weights, self._arena, self._libraries, self._pool)
            for user in self._memory.users:
                user._stuck, user._call = self, None
        raise self._failure(code)

    def _failure(self, code: int) -> InputError | DeviceError:
        if code == _CLOSED:
            return DeviceError("the process ends", hint="run no programs in atexit functions")
        if code == _BAD_INDEX:
            operator = self._operator(int(self._report[0]))
            return InputError(f"{operator}: index out of range", hint="an input used as an index is too large or small")
        program, veu, order, on_veu, on_order, begun = (int(n) for n in self._report[:6])
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
        while (now := self._runtime.now_ns()) - ns < 5_000_000:  # long enough to measure the rate
            pass
        return float((now - ns) / 1000 / (self._runtime.ticks() - ticks))

    def close(self) -> None:
        """Release the threads, which end if no other program shares them. Later runs raise InputError."""
        with self._lock if self._forks == forks.count else nullcontext():
            self._use(None)
            self._inputs, self._outputs, self._weights, self._arrays = [], [], [], {}
            self._arena = self._scratch = allocate(0)
            self._memory = RunMemory(())


def _checked_table(image: Image, host: Host) -> Table:
    if image.target != "cpu":
        raise ArtifactError(f"a program for {image.target!r}, not for the CPU", hint="load it with its own vDevice")
    table = Table.from_bytes(image.file(TABLE))
    arch = known_arch(str(table.header.get("arch")))
    image.check_fingerprint(fingerprint(arch.name) if arch and table.header.get("abi") == ABI else "")
    assert arch is not None
    if not host.runs(arch):
        raise UnsuitableError(
            f"the program is for {arch.name!r}: {host.lacks(arch)}",
            hint="compile it on this machine, or with arch= of this machine",
        )
    image.file(RUNTIME)
    ports = len(table.header["inputs"]) == len(image.inputs) and len(table.header["outputs"]) == len(image.outputs)
    if not ports:
        raise ArtifactError("the table has other inputs and outputs than the program")
    return table
