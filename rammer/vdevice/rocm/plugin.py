"""Register AMD GPUs as a vDevice, and rKernels in HIP."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rammer.hookspecs import hookimpl
from rammer.vdevice.base import VDeviceEntry, later

if TYPE_CHECKING:
    from rammer.ir.device import VDeviceSpec
    from rammer.ir.kernel import RKernel, Tuning
    from rammer.ir.operator import Operation


@hookimpl
def rammer_vdevices() -> Iterable[VDeviceEntry]:
    """Register AMD GPUs."""
    summary = 'AMD GPUs; device="emulator" runs their programs on the host'
    open_gpu = later("rammer.vdevice.rocm.device", "open_rocm")
    probe = later("rammer.vdevice.rocm.driver", "probe")
    return [VDeviceEntry("rocm", open_gpu, probe, summary, words=("gpu", "amd", "hip"))]


@hookimpl
def rammer_rkernels(operation: Operation, spec: VDeviceSpec, tuning: Tuning) -> Iterable[RKernel]:
    """Return built-in kernels for every vDevice that takes HIP."""
    if "hip" not in spec.languages:
        return []
    from rammer.kernels import candidates

    return candidates(operation, spec, tuning)
