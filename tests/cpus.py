"""CPUs to test on, the same on every machine: what it lacks is emulated, caches and numbers of vEUs are made up."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import pytest

from rammer.ir.device import VDeviceSpec
from rammer.vdevice.cpu.host import choose_arch, host
from rammer.vdevice.cpu.spec import make_spec

ARCHS = ("x86-64-avx2", "x86-64-avx512", "x86-64-amx")


def runnable(arch: str) -> str:
    """The arch if this machine runs it, else its emulation."""
    return choose_arch(f"{arch}@here", host()).name


@dataclass(frozen=True)
class MadeUp:
    """A CPU that is made up; the number of vEUs, and KiB of each one's second cache."""

    arch: str
    num_veus: int
    l2: int

    @property
    def caches(self) -> tuple[int, int, int]:
        return (32 if self.l2 < 1024 else 48) << 10, self.l2 << 10, 32 << 20

    @property
    def spec(self) -> VDeviceSpec:
        server = replace(host(), ghz=3.0, caches=self.caches)
        return make_spec(choose_arch(f"{self.arch}@here", server), self.num_veus, server)

    def __str__(self) -> str:
        return f"{self.arch}, {self.num_veus} vEUs, {self.l2} KiB"


# A Latin square: any two of arch, number and size meet. The first three have one of each.
CPUS = [
    MadeUp(ARCHS[row], (2, 4, 8)[(row + turn) % 3], (512, 1024, 2048)[(row + 2 * turn) % 3])
    for turn in range(3)
    for row in range(3)
]


def on_some_cpu(names: Iterable[str]) -> list[object]:
    """Parameters: every name on one CPU in turn; on all others, too, where slow tests run."""
    return [
        pytest.param(name, CPUS[(number + turn) % len(CPUS)], marks=[pytest.mark.slow] * bool(turn))
        for number, name in enumerate(names)
        for turn in range(len(CPUS))
    ]


def on_three_cpus(names: Iterable[str]) -> list[object]:
    """Parameters: every name with every arch, number and size, on three CPUs in turn; slow tests have all nine."""
    return [
        pytest.param(name, cpu, marks=[pytest.mark.slow] * (turn // 3 != number % 3))
        for number, name in enumerate(names)
        for turn, cpu in enumerate(CPUS)
    ]
