"""Register NVIDIA GPUs as a vDevice, and rKernels in CUDA C++."""

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
    """Register NVIDIA GPUs."""
    summary = 'NVIDIA GPUs; device="emulator" runs their programs on the host'
    open_gpu = later("rammer.vdevice.cuda.device", "open_cuda")
    probe = later("rammer.vdevice.cuda.driver", "probe")
    return [VDeviceEntry("cuda", open_gpu, probe, summary, words=("gpu", "nvidia"))]


@hookimpl
def rammer_rkernels(operation: Operation, spec: VDeviceSpec, tuning: Tuning) -> Iterable[RKernel]:
    """Return built-in kernels for every vDevice that takes CUDA C++."""
    if "cuda" not in spec.languages:
        return []
    from rammer.kernels import candidates

    return candidates(operation, spec, tuning)
