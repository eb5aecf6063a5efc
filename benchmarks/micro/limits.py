"""Measure what this machine can do: FMA rate and read bandwidth per memory level, on one core and on all."""

from __future__ import annotations

import functools
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rammer.vdevice.cpu.device import CpuVDevice
from rammer.vdevice.cpu.tune.calibrate import LINE_BYTES, MAX_DRAM_BYTES, Probe


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
    probe = _probe()
    levels = []
    l2, l3 = (_cache_bytes(number) for number in (2, 3))
    # Three quarters of the private level; the shared one well past the private one; memory well past the shared one.
    sizes = [("L2", l2 * threads, l2 * 3 // 4), ("L3", l3, min(8 * l2, l3 // (2 * threads)))]
    sizes.append(
        ("DRAM", 1 << 62, min(max(2 * l3 // threads, 1 << 28), MAX_DRAM_BYTES, _free_bytes() // (4 * threads)))
    )
    for name, holds, window in sizes:
        if window >= LINE_BYTES:
            levels.append(Level(name, holds, probe.read_gbps(window, threads)))
    return Limits(threads, probe.gflops(threads), tuple(levels))


def reference_us(threads: int) -> float:
    """What a loop takes now that computes 100 MFLOP and reads 10 MB from memory, on all threads; takes a second."""
    nbytes = min(MAX_DRAM_BYTES, _free_bytes() // (4 * threads))
    return 1e5 / _probe().gflops(threads) + 1e4 / _probe().read_gbps(nbytes, threads)


@functools.cache
def _probe() -> Probe:
    """The loops, compiled for this host."""
    return CpuVDevice().probe()


def _cache_bytes(number: int) -> int:
    """Size of the first core's cache level, or 0 where the system does not say."""
    for index in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        if (index / "level").read_text().strip() == str(number):
            size = (index / "size").read_text().strip()
            return int(size.removesuffix("K")) << 10
    return 0


def _free_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
