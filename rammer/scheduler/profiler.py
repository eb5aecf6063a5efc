"""The profiler a policy asks. Paper: §3.3, "Compile-time profiling"."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from rammer.ir.kernel import RKernel


@dataclass(frozen=True, slots=True)
class Resources:
    """What one rTask occupies on a vEU."""

    threads: int
    scratch_bytes: int


class Profiler(Protocol):
    """Times and resources of rKernels on one device."""

    def rtask_us(self, kernel: RKernel) -> float:
        """Microseconds of one rTask on one vEU: measured where the device can, else estimated from the spec."""

    def resources(self, kernel: RKernel) -> Resources:
        """What one rTask of the kernel occupies."""
