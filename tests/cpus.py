"""CPUs to test on, the same on every machine: what it lacks is emulated, caches and numbers of vEUs are made up."""

from __future__ import annotations

from dataclasses import replace

from rammer.ir.device import VDeviceSpec
from rammer.vdevice.cpu.spec import choose_arch, host, make_spec

ARCHS = ("x86-64-avx2", "x86-64-avx512", "x86-64-amx")
KIB = 1 << 10


def runnable(arch: str) -> str:
    """The arch if this machine runs it, else its emulation."""
    return choose_arch(f"{arch}@here", host()).name


def made_up(arch: str, num_veus: int = 2, l2: int = 2048 * KIB, l1: int = 48 * KIB) -> VDeviceSpec:
    """The spec of a server with cores of `arch`, with bytes of their caches."""
    server = replace(host(), ghz=3.0, caches=(l1, l2, 32 << 20))
    return make_spec(choose_arch(f"{arch}@here", server), num_veus, server)
