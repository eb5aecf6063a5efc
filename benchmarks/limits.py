"""Measure what this machine can do: FMA rate and read bandwidth per memory level, on one core and on all."""

from __future__ import annotations

import bisect
import ctypes
import functools
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rammer.errors import ToolchainError

SOURCE = Path(__file__).with_name("limits.c")
CHUNK_S = 0.00025
WINDOW_CHUNKS = 4  # short windows, and the best one counts: the machine may be shared
SEARCH_S = 0.4
MAX_STRIDE_BYTES = 1 << 22
LINE_BYTES = 512  # reads go by eight vectors
MAX_DRAM_BYTES = 1 << 28  # per thread


@dataclass(frozen=True, slots=True)
class Level:
    """A memory level: `nbytes` it holds for all threads together, and their joint read rate."""

    name: str
    nbytes: int
    read_gbps: float


@dataclass(frozen=True, slots=True)
class Limits:
    """Best observed rates of `threads` cores, nearest level first."""

    threads: int
    gflops: float
    levels: tuple[Level, ...]

    def level_for(self, nbytes: float) -> Level:
        """The nearest level that holds `nbytes`."""
        return next((level for level in self.levels if nbytes <= level.nbytes), self.levels[-1])

    def best(self, other: Limits) -> Limits:
        """The higher rate of each, of two measurements of one machine."""
        levels = (
            Level(a.name, a.nbytes, max(a.read_gbps, b.read_gbps))
            for a, b in zip(self.levels, other.levels, strict=True)
        )
        return Limits(self.threads, max(self.gflops, other.gflops), tuple(levels))

    def as_json(self) -> dict[str, object]:
        return asdict(self)

    @staticmethod
    def from_json(data: dict[str, Any]) -> Limits:
        """The inverse of `as_json`."""
        return Limits(data["threads"], data["gflops"], tuple(Level(**level) for level in data["levels"]))


def measure(threads: int) -> Limits:
    """The machine's limits; takes one or two seconds."""
    probe = _load()
    sink = (ctypes.c_float * (64 * threads))()

    def pointer(t: int) -> object:
        return ctypes.byref(sink, 256 * t)

    gflops = _best_rate([functools.partial(_fma, probe, pointer(t)) for t in range(threads)], 1 << 10)
    levels = []
    l2, l3 = (_cache_bytes(number) for number in (2, 3))
    # Three quarters of the private level; the shared one well past the private one; memory well past the shared one.
    sizes = [("L2", l2 * threads, l2 * 3 // 4), ("L3", l3, min(8 * l2, l3 // (2 * threads)))]
    sizes.append(
        ("DRAM", 1 << 62, min(max(2 * l3 // threads, 1 << 28), MAX_DRAM_BYTES, _free_bytes() // (4 * threads)))
    )
    for name, holds, window in sizes:
        if window >= LINE_BYTES:
            readers = [_Reader(probe, window // LINE_BYTES * LINE_BYTES, pointer(t)) for t in range(threads)]
            levels.append(Level(name, holds, _best_rate([reader.read for reader in readers], 1)))
    return Limits(threads, gflops, tuple(levels))


def _fma(probe: ctypes.CDLL, sink: object, repeats: int) -> float:
    return float(probe.fma_flops(repeats, sink))


class _Reader:
    """Reads a buffer over and over, at most MAX_STRIDE_BYTES at a time so that a chunk stays short."""

    def __init__(self, probe: ctypes.CDLL, nbytes: int, sink: object) -> None:
        self._probe, self._sink = probe, sink
        self._stride = min(nbytes, MAX_STRIDE_BYTES)
        self._data = _aligned(nbytes // self._stride * self._stride)
        self._address, self._at = self._data.ctypes.data, 0

    def read(self, repeats: int) -> float:
        """Bytes read."""
        if self._stride == self._data.size:
            return float(self._probe.read_bytes(self._address, self._stride, repeats, self._sink))
        done = 0.0
        for _ in range(repeats):
            done += self._probe.read_bytes(self._address + self._at, self._stride, 1, self._sink)
            self._at = (self._at + self._stride) % self._data.size
        return done


def _best_rate(jobs: list[Callable[[int], float]], repeats: int) -> float:
    """Highest joint rate in units of 1e9 per second; `job(repeats)` returns how much it did."""
    for job in jobs:
        job(1)  # touch the data
    while (took := _timed(jobs[0], repeats)) < CHUNK_S:
        repeats *= 2
    done = jobs[0](repeats)
    chunks = max(WINDOW_CHUNKS, int(SEARCH_S / took))
    return done / best_window_s(_run_together(jobs, repeats, chunks)) / 1e9


def best_window_s(timelines: list[list[tuple[float, float]]]) -> float:
    """Least seconds per chunk of all threads together, over windows of WINDOW_CHUNKS chunks of the first thread.

    A timeline lists the (start, end) of each chunk; chunks that stick out of a window count in part.
    """
    first, best = timelines[0], 0.0
    for i in range(len(first) - WINDOW_CHUNKS + 1):
        start, end = first[i][0], first[i + WINDOW_CHUNKS - 1][1]
        done = 0.0
        for timeline in timelines:
            near = bisect.bisect_left(timeline, end, key=lambda chunk: chunk[0])
            for s, e in reversed(timeline[:near]):  # those that start before the window ends
                if e <= start:
                    break
                done += (min(e, end) - max(s, start)) / (e - s)
        best = max(best, done / (end - start))
    return 1 / best


def _timed(job: Callable[[int], float], repeats: int) -> float:
    start = time.perf_counter()
    job(repeats)
    return time.perf_counter() - start


def _run_together(jobs: list[Callable[[int], float]], repeats: int, chunks: int) -> list[list[tuple[float, float]]]:
    """(start, end) of each of `chunks` chunks, per thread."""
    barrier = threading.Barrier(len(jobs))
    timelines: list[list[tuple[float, float]]] = [[] for _ in jobs]

    def run(i: int) -> None:
        barrier.wait()
        for _ in range(chunks):
            start = time.perf_counter()
            jobs[i](repeats)
            timelines[i].append((start, time.perf_counter()))

    workers = [threading.Thread(target=run, args=(i,)) for i in range(len(jobs))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return timelines


@functools.cache
def _load() -> ctypes.CDLL:
    """Compile the loops for this host."""
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, "limits.so")
        command = [
            sys.executable,
            "-m",
            "ziglang",
            "cc",
            "-O3",
            "-mcpu=native",
            "-mprefer-vector-width=512",
            "-ffp-contract=fast",
            "-shared",
            "-fPIC",
        ]
        result = subprocess.run(
            [*command, str(SOURCE), "-o", str(library)], capture_output=True, text=True, check=False
        )
        if result.returncode:
            raise ToolchainError(f"{SOURCE.name} does not compile:\n{result.stderr}", hint="pip install ziglang")
        probe = ctypes.CDLL(str(library))
    probe.fma_flops.restype = probe.read_bytes.restype = ctypes.c_double
    probe.fma_flops.argtypes = [ctypes.c_long, ctypes.c_void_p]
    probe.read_bytes.argtypes = [ctypes.c_void_p, ctypes.c_long, ctypes.c_long, ctypes.c_void_p]
    return probe


def _aligned(nbytes: int) -> npt.NDArray[np.uint8]:
    """Written memory at a 64-byte boundary."""
    raw = np.ones(nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + nbytes]


def _cache_bytes(number: int) -> int:
    """Size of the first core's cache level, or 0 where the system does not say."""
    for index in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        if (index / "level").read_text().strip() == str(number):
            size = (index / "size").read_text().strip()
            return int(size.removesuffix("K")) << 10
    return 0


def _free_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
