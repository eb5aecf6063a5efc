"""Measure the rates of this machine's cores and caches: `rammer doctor --calibrate`. Uncalibrated specs use estimates.

Known as: microbenchmarks, roofline measurement.
"""

from __future__ import annotations

import bisect
import ctypes
import hashlib
import json
import os
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields
from functools import partial
from itertools import cycle
from math import log
from typing import Any

import numpy as np

from rammer import config, files
from rammer.vdevice.base import Progress, silent
from rammer.vdevice.image.memory import allocate
from rammer.vdevice.toolchain.library import Library

Job = Callable[[int], float]  # repeats work n times and returns its amount

CHUNK_S = 0.00025
WINDOW_CHUNKS = 4  # chunks per window
GOOD = 0.75  # quantile of windows that counts: the machine may be shared, and the best is often an outlier
SEARCH_S = 0.4
MAX_STRIDE_BYTES = 1 << 22
LINE_BYTES = 512  # reads advance by eight vectors
MAX_DRAM_BYTES = 1 << 28  # per thread
TURNS = 250
HANDOVER_WINDOWS = 64  # the best one counts: a preempted thread delays both
ATTEMPTS = 50
MOST_MISSED = 0.99
CALIBRATIONS = "calibrations.json"


@dataclass(frozen=True, slots=True)
class Calibration:
    """Measured rates of this machine's cores, in 1e9 per second, of one core or of all `cores` at once."""

    cores: int
    gflops: float  # of one core
    own_gbps: float  # of its private cache (L2)
    shared_gbps: float  # of the shared cache: one core
    shared_all_gbps: float  # all cores
    memory_gbps: float
    memory_all_gbps: float
    memory_once_gbps: float  # of one core with non-temporal prefetches
    shared_share: float  # of the shared cache that one plan may fill: other processes and conflicts take the rest
    written_gbps: float  # reads of lines that another core has just written
    handover_us: float  # until a core sees another one's store
    ghz: float  # of one core
    own_write_gbps: float
    shared_all_write_gbps: float
    memory_all_write_gbps: float


class Probe:
    """The loops of calibrate.c as machine code for this host. `cpus` are the CPUs to run on, one of each core first."""

    def __init__(self, data: bytes, cpus: Sequence[int]) -> None:
        self._cpus = cpus
        library = Library(data)
        pointer, i64, number = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double
        self._multiply_add = library.function("rammer_multiply_add", number, i64, pointer)
        self._read = library.function("rammer_read", number, pointer, i64, i64, pointer)
        self._read_once = library.function("rammer_read_once", number, pointer, i64, i64, pointer)
        self._count = library.function("rammer_count", number, i64, pointer)
        self._fill = library.function("rammer_fill", number, pointer, i64, i64, pointer)
        self._write = library.function("rammer_write", None, pointer, i64)
        self._take_turns = library.function("rammer_take_turns", None, pointer, i64, i64)

    def gflops(self, cores: int) -> float:
        """Return float32 operations of some cores at once, in 1e9 per second; a multiply-add counts as two."""

        def job() -> Job:
            sink = allocate(64)
            return lambda repeats: float(self._multiply_add(repeats << 10, sink.ctypes.data))

        return steady_rate([job() for _ in range(cores)], 1, self._cpus)

    def ghz(self) -> float:
        """Return the cycles of one core, in 1e9 per second."""
        sink = allocate(64)
        return steady_rate([lambda repeats: float(self._count(repeats << 8, sink.ctypes.data))], 1, self._cpus)

    def read_gbps(self, nbytes: int, cores: int) -> float:
        """Return the read bandwidth of some cores at once, each over `nbytes` of its own, again and again."""
        return steady_rate([_Mover(self._read, _whole(nbytes)).move for _ in range(cores)], 1, self._cpus)

    def read_once_gbps(self, nbytes: int) -> float:
        """Return the read bandwidth of one core with non-temporal prefetches."""
        return steady_rate([_Mover(self._read_once, _whole(nbytes)).move], 1, self._cpus)

    def write_gbps(self, nbytes: int, cores: int) -> float:
        """Return the store bandwidth of some cores at once, each over `nbytes` of its own."""
        return steady_rate([_Mover(self._fill, _whole(nbytes)).move for _ in range(cores)], 1, self._cpus)

    def written_gbps(self, nbytes: int) -> float:
        """Return the bandwidth at which one core reads what another one has just written."""
        nbytes = _whole(nbytes)
        buffer, sink = allocate(nbytes), allocate(64)

        def read(repeats: int) -> None:
            self._read(buffer.ctypes.data, nbytes, repeats, sink.ctypes.data)

        best = 0.0
        with _on(self._cpus[0]) as reader, _on(self._cpus[1]) as writer:
            for _ in range(ATTEMPTS):
                writer.submit(self._write, buffer.ctypes.data, nbytes).result()
                best = max(best, nbytes / reader.submit(_timed, read, 1).result() / 1e9)
        return best

    def handover_us(self) -> float:
        """Return the microseconds until a core sees another one's store: ping-pong latency."""
        lines = allocate(128 * HANDOVER_WINDOWS)

        def take_turns(side: int) -> list[float]:
            pairs = lines.ctypes.data + 128 * np.arange(HANDOVER_WINDOWS)
            return [_timed(partial(self._take_turns, line, TURNS), side) for line in pairs.tolist()]

        with _on(self._cpus[0]) as first, _on(self._cpus[1]) as second:
            both = [worker.submit(take_turns, side) for side, worker in enumerate((first, second))]
            return float(min(map(max, zip(*(one.result() for one in both), strict=True)))) / (2 * TURNS) * 1e6


def _whole(nbytes: int) -> int:
    return nbytes // LINE_BYTES * LINE_BYTES


def _on(cpu: int) -> ThreadPoolExecutor:
    """Return an executor of one thread that is pinned to a CPU."""
    return ThreadPoolExecutor(1, initializer=_stay_on, initargs=(cpu,))


def _stay_on(cpu: int) -> None:
    """Pin this thread to one CPU, if the system can."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {cpu})


class _Mover:
    """Reads or fills a buffer repeatedly, at most MAX_STRIDE_BYTES at a time so that a chunk stays short."""

    def __init__(self, move: Callable[..., float], nbytes: int) -> None:
        self._move, self._sink = move, allocate(64)
        self._stride = min(nbytes, MAX_STRIDE_BYTES)
        self._data = allocate(nbytes // self._stride * self._stride)
        self._data[:] = 1  # touch all pages
        self._at = 0

    def move(self, repeats: int) -> float:
        """Move the buffer `repeats` times. Returns the bytes moved."""
        address, sink = self._data.ctypes.data, self._sink.ctypes.data
        if self._stride == self._data.size:
            return float(self._move(address, self._stride, repeats, sink))
        done = 0.0
        for _ in range(repeats):
            done += self._move(address + self._at, self._stride, 1, sink)
            self._at = (self._at + self._stride) % self._data.size
        return done


def steady_rate(jobs: Sequence[Job], repeats: int, cpus: Sequence[int]) -> float:
    """Return the undisturbed joint rate of jobs in 1e9 units per second, each on its own CPU if there are enough.

    `job(repeats)` returns the amount of its work.
    """
    for job in jobs:
        job(1)  # touch the data
    while (took := _timed(jobs[0], repeats)) < CHUNK_S:
        repeats *= 2
    done = jobs[0](repeats)
    return done / window_s(_run_together(jobs, repeats, max(WINDOW_CHUNKS, int(SEARCH_S / took)), cpus)) / 1e9


def window_s(timelines: list[list[tuple[float, float]]]) -> float:
    """Return seconds per chunk of all threads together, in a good window of WINDOW_CHUNKS chunks of the first thread.

    A timeline lists the (start, end) of each chunk. Chunks that overlap a window's border count in part.
    """
    first, rates = timelines[0], []
    for i in range(len(first) - WINDOW_CHUNKS + 1):
        start, end = first[i][0], first[i + WINDOW_CHUNKS - 1][1]
        done = 0.0
        for timeline in timelines:
            at = bisect.bisect_left(timeline, end, key=lambda chunk: chunk[0])
            for s, e in reversed(timeline[:at]):  # those that start before the window ends
                if e <= start:
                    break
                done += (min(e, end) - max(s, start)) / (e - s)
        rates.append(done / (end - start))
    return 1 / float(np.quantile(rates, GOOD))


def _timed(job: Callable[[int], object], number: int) -> float:
    start = time.perf_counter()
    job(number)
    return time.perf_counter() - start


def _run_together(jobs: Sequence[Job], times: int, chunks: int, cpus: Sequence[int]) -> list[list[tuple[float, float]]]:
    """Return the (start, end) of each of `chunks` chunks, per thread."""
    barrier = threading.Barrier(len(jobs))

    def run(job: Job, cpu: int) -> list[tuple[float, float]]:
        _stay_on(cpu)
        barrier.wait()
        timeline = []
        for _ in range(chunks):
            start = time.perf_counter()
            job(times)
            timeline.append((start, time.perf_counter()))
        return timeline

    with ThreadPoolExecutor(len(jobs)) as pool:
        return list(pool.map(run, jobs, cycle(cpus)))


def calibrate(probe: Probe, caches: tuple[int, int, int], cores: int, progress: Progress = silent) -> Calibration:
    """Measure all rates with `cores` cores, in some seconds. `caches`: bytes of L1d and L2 of a core, and of L3."""
    _, l2, l3 = caches
    shared = max(min(8 * l2, l3 // (2 * cores)), 2 * l2)  # well beyond the private cache
    memory = min(max(2 * l3 // cores, 1 << 27), MAX_DRAM_BYTES)
    found: dict[str, float] = {}

    def shared_share() -> float:
        """Return the usable part of L3, by how often a loop over as many bytes misses (`cost/residency`)."""
        rates = found["shared_gbps"], found["memory_gbps"], probe.read_gbps(max(l3, 2 * l2), 1)
        hit, miss, both = (1 / rate for rate in rates)
        missed = min(max((both - hit) / max(miss - hit, 1e-9), 0.0), MOST_MISSED)
        return -missed / log(1 - missed) if missed else 1.0

    steps: list[tuple[str, Callable[[], float]]] = [
        ("gflops", lambda: probe.gflops(1)),
        ("own_gbps", lambda: probe.read_gbps(l2 * 3 // 4, 1)),
        ("shared_gbps", lambda: probe.read_gbps(shared, 1)),
        ("shared_all_gbps", lambda: probe.read_gbps(shared, cores)),
        ("memory_gbps", lambda: probe.read_gbps(memory, 1)),
        ("memory_all_gbps", lambda: probe.read_gbps(memory, cores)),
        ("memory_once_gbps", lambda: probe.read_once_gbps(memory)),
        ("shared_share", shared_share),
        ("written_gbps", lambda: probe.written_gbps(l2 // 4) if cores > 1 else 0.0),
        ("handover_us", lambda: probe.handover_us() if cores > 1 else 0.0),
        ("ghz", probe.ghz),
        ("own_write_gbps", lambda: probe.write_gbps(l2 * 3 // 4, 1)),
        ("shared_all_write_gbps", lambda: probe.write_gbps(shared, cores)),
        ("memory_all_write_gbps", lambda: probe.write_gbps(memory, cores)),
    ]
    for done, (name, measure) in enumerate(steps):
        found[name] = round(measure(), 4)
        progress("calibrate", done + 1, len(steps))
    return Calibration(cores, **found)


def known_calibration(machine: str) -> Calibration | None:
    """Return the calibration of this `machine` (a name of its CPU), None if there is none.

    Warns if the stored one is damaged, or of a version that measured other rates.
    """
    path = config.cache_dir() / CALIBRATIONS
    try:
        kept = dict(json.loads(path.read_text()))
        known = dict(kept.get(machine, {}))
        lacking = [name for name in (*(field.name for field in fields(Calibration)), "seal") if name not in known]
        numbers: dict[str, Any] = {field.name: known.get(field.name) for field in fields(Calibration)}
        if machine not in kept:
            return None
        if not lacking and known["seal"] == _seal(machine, numbers):
            return Calibration(**numbers)
        why = f"was calibrated without {', '.join(lacking)}" if lacking else "has a calibration that is damaged"
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, RecursionError) as error:  # a file of another form
        why = f"has no calibration: {path} is damaged ({error})"
    warnings.warn(f"{machine} {why}: usual numbers count; run `rammer doctor --calibrate`", RuntimeWarning, 2)
    return None


def keep_calibration(machine: str, found: Calibration) -> None:
    """Store the rates for later specs of this `machine`."""
    path = config.cache_dir() / CALIBRATIONS
    try:
        known = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        known = {}
    numbers = asdict(found)
    kept = {**(known if isinstance(known, dict) else {}), machine: {**numbers, "seal": _seal(machine, numbers)}}
    files.write(path, json.dumps(kept, indent=1))


def _seal(machine: str, numbers: Mapping[str, object]) -> str:
    """Return a hash of the rates and their types, which detects damage."""
    return hashlib.sha256(repr((machine, sorted(numbers.items()))).encode()).hexdigest()[:16]
