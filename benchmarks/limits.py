"""Measure what this machine can do: FMA rate and read bandwidth per memory level, on one core and on all."""

from __future__ import annotations

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

import numpy as np
import numpy.typing as npt

from rammer.errors import ToolchainError

SOURCE = Path(__file__).with_name("limits.c")
WINDOW_S = 0.002  # short, and the best one counts: the machine may be shared
SEARCH_S = 0.3
MIN_WINDOWS = 5
LINE_BYTES = 512  # reads go by eight vectors
MAX_DRAM_BYTES = 1 << 29  # per thread


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


def measure(threads: int) -> Limits:
    """The machine's limits; takes one or two seconds."""
    probe = _load()
    sink = (ctypes.c_float * (64 * threads))()

    def pointer(t: int) -> object:
        return ctypes.byref(sink, 256 * t)

    gflops = _best_rate(threads, lambda t: lambda n: probe.fma_flops(n, pointer(t)), 1 << 16)
    levels = []
    l2, l3 = (_cache_bytes(number) for number in (2, 3))
    # Three quarters of the private level; the shared one well past the private one; memory well past the shared one.
    sizes = [("L2", l2 * threads, l2 * 3 // 4), ("L3", l3, min(8 * l2, l3 // (2 * threads)))]
    sizes.append(
        ("DRAM", 1 << 62, min(max(2 * l3 // threads, 1 << 28), MAX_DRAM_BYTES, _free_bytes() // (4 * threads)))
    )
    for name, holds, window in sizes:
        if window >= LINE_BYTES:
            buffers = [_aligned(window // LINE_BYTES * LINE_BYTES) for _ in range(threads)]

            def reader(t: int, buffers: list[npt.NDArray[np.uint8]] = buffers) -> Callable[[int], float]:
                data, size = buffers[t].ctypes.data, buffers[t].size
                return lambda n: probe.read_bytes(ctypes.c_void_p(data), size, n, pointer(t))

            levels.append(Level(name, holds, _best_rate(threads, reader, 1)))
    return Limits(threads, gflops, tuple(levels))


def _best_rate(threads: int, work: Callable[[int], Callable[[int], float]], repeats: int) -> float:
    """Highest joint rate in units of 1e9 per second; `work(thread)(repeats)` returns how much it did."""
    jobs = [work(t) for t in range(threads)]
    while _run_together(jobs, repeats)[1] < WINDOW_S:
        repeats *= 2
    rate, windows, end = 0.0, 0, time.perf_counter() + SEARCH_S
    while windows < MIN_WINDOWS or time.perf_counter() < end:
        done, seconds = _run_together(jobs, repeats)
        rate = max(rate, done / seconds / 1e9)
        windows += 1
    return rate


def _run_together(jobs: list[Callable[[int], float]], repeats: int) -> tuple[float, float]:
    """Sum of the jobs' work, and the seconds from the common start to the last end."""
    barrier = threading.Barrier(len(jobs))
    results = [(0.0, 0.0, 0.0)] * len(jobs)

    def run(i: int) -> None:
        barrier.wait()
        start = time.perf_counter()
        done = jobs[i](repeats)
        results[i] = done, start, time.perf_counter()

    workers = [threading.Thread(target=run, args=(i,)) for i in range(len(jobs))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return sum(r[0] for r in results), max(r[2] for r in results) - min(r[1] for r in results)


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
