"""AMD GPUs as a vDevice, and rKernels in HIP for it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rammer.hookspecs import hookimpl
from rammer.vdevice.base import Availability, VDevice, VDeviceEntry

if TYPE_CHECKING:
    from rammer.ir.device import VDeviceSpec
    from rammer.ir.kernel import RKernel
    from rammer.ir.operator import Operation


def open_rocm(*, arch: str | None = None, device: str | int | None = None) -> VDevice:
    """A GPU; `arch` compiles for another one, `device` is its number, or "emulator". Raises DeviceError."""
    from rammer.vdevice.rocm.device import PLATFORM
    from rammer.vdevice.simt.device import open_gpu

    return open_gpu(PLATFORM, arch=arch, device=device)


def probe() -> Availability:
    """Whether a GPU, hip-python and ROCm's library are here. The emulator needs none of them."""
    from rammer.vdevice.rocm.driver import probe

    return probe()


@hookimpl
def rammer_vdevices() -> Iterable[VDeviceEntry]:
    """AMD GPUs."""
    summary = 'AMD GPUs; device="emulator" runs their programs on the host'
    return [VDeviceEntry("rocm", open_rocm, probe, summary, words=("gpu", "amd", "hip"))]


@hookimpl
def rammer_rkernels(operation: Operation, spec: VDeviceSpec) -> Iterable[RKernel]:
    """Built-in kernels for every vDevice that takes HIP."""
    if "hip" not in spec.languages:
        return []
    from rammer.kernels import candidates
    from rammer.vdevice.simt.legacy.store import imported

    return [*candidates(operation, spec), *imported(operation, spec, "hip")]
