"""Register Graphcore IPUs as a vDevice, and rKernels for them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rammer.errors import RammerError
from rammer.hookspecs import hookimpl
from rammer.vdevice.base import Availability, VDeviceEntry, later

if TYPE_CHECKING:
    from rammer.ir.device import VDeviceSpec
    from rammer.ir.kernel import RKernel, Tuning
    from rammer.ir.operator import Operation


def probe() -> Availability:
    """Return whether an SDK is present, or a C++ compiler for the emulator."""
    from rammer.vdevice.ipu.sdk import find_sdk, host_cxx

    if find_sdk() is not None:
        return Availability(True)
    try:
        host_cxx()
    except RammerError as error:
        return Availability(False, error.what, error.hint)
    return Availability(True, "this machine has no Poplar SDK", "programs run in the emulator", emulated=True)


@hookimpl
def rammer_vdevices() -> Iterable[VDeviceEntry]:
    """Register the IPU."""
    open_ipu = later("rammer.vdevice.ipu.device", "IpuVDevice")
    return [VDeviceEntry("ipu", open_ipu, probe, "Graphcore IPUs through Poplar")]


@hookimpl
def rammer_rkernels(operation: Operation, spec: VDeviceSpec, tuning: Tuning) -> Iterable[RKernel]:
    """Return built-in kernels whose rTasks fit a tile; with `tuning.task_multiples`, also some that trade time."""
    if "poplar" not in spec.languages:
        return []
    from rammer.vdevice.ipu.kernels import kernels, trade_offs

    usual = kernels(operation, spec)
    known = {kernel.identity for kernel in usual}
    return (
        [*usual, *(k for k in trade_offs(operation, spec) if k.identity not in known)]
        if tuning.task_multiples
        else usual
    )
