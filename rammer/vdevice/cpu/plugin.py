"""The CPU as a vDevice, and rKernels in C for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from rammer.errors import RammerError
from rammer.hookspecs import hookimpl
from rammer.vdevice.base import Availability, Progress, VDeviceEntry, later

if TYPE_CHECKING:
    from rammer.ir.device import VDeviceSpec
    from rammer.ir.kernel import RKernel
    from rammer.ir.operator import Operation


def probe() -> Availability:
    """Whether there is an arch for this machine, and a C compiler; and how many vEUs there are by default."""
    from rammer.vdevice.cpu.host import choose_arch, default_num_veus, host
    from rammer.vdevice.toolchain import c_compiler

    try:
        here = host()
        choose_arch(None, here)
        num_veus, how = default_num_veus(here)
        c_compiler()
    except RammerError as error:
        return Availability(False, error.what, error.hint)
    return Availability(True, f"vEUs by default: {num_veus} ({how})")


def archs() -> Sequence[str]:
    """Instruction sets that this machine runs, the widest first."""
    from rammer.vdevice.cpu.host import ARCHES, host

    here = host()
    return [arch.name for arch in ARCHES.values() if here.runs(arch)]


def calibrate(progress: Progress) -> Sequence[tuple[str, float, float]]:
    """Measure what this machine's cores do, and keep it for later compilations. Raises ToolchainError."""
    from rammer.vdevice.cpu.device import CpuVDevice

    return CpuVDevice().calibrate(progress)


@hookimpl
def rammer_vdevices() -> Iterable[VDeviceEntry]:
    """The CPU."""
    return [
        VDeviceEntry(
            "cpu",
            later("rammer.vdevice.cpu.device", "CpuVDevice"),
            probe,
            "threads of this machine, kernels in C with vector extensions",
            archs,
            calibrate=calibrate,
            runs=later("rammer.vdevice.cpu.runner", "CpuRunner"),
        )
    ]


@hookimpl
def rammer_rkernels(operation: Operation, spec: VDeviceSpec, finer: tuple[int, ...]) -> Iterable[RKernel]:
    """Built-in kernels for every vDevice that takes C."""
    if "c" not in spec.languages:
        return []
    from rammer.kernels import candidates
    from rammer.kernels.problem import Tuning

    found = {kernel.identity: kernel for kernel in candidates(operation, spec)}
    asked = [Tuning(times * spec.num_veus, every_axis=True, small=True) for times in finer]
    for tuning in (Tuning(small=True), *asked) if finer else ():
        for kernel in candidates(operation, spec, tuning):
            found.setdefault(kernel.identity, replace(kernel, finer=True))
    return list(found.values())
