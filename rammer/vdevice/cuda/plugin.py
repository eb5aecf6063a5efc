"""NVIDIA GPUs as a vDevice, and rKernels in CUDA C++ for it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rammer.hookspecs import hookimpl
from rammer.vdevice.base import Availability, VDevice, VDeviceEntry

if TYPE_CHECKING:
    from rammer.ir.device import VDeviceSpec
    from rammer.ir.kernel import RKernel
    from rammer.ir.operator import Operation


def open_cuda(*, arch: str | None = None, device: str | int | None = None) -> VDevice:
    """A GPU; `arch` compiles for another one, `device` is its number, or "emulator". Raises DeviceError."""
    from rammer.vdevice.cuda.device import PLATFORM
    from rammer.vdevice.simt.device import open_gpu

    return open_gpu(PLATFORM, arch=arch, device=device)


def probe() -> Availability:
    """Whether cupy, a driver and a GPU are here. The emulator needs none of them."""
    from rammer.vdevice.cuda.driver import probe

    return probe()


@hookimpl
def rammer_vdevices() -> Iterable[VDeviceEntry]:
    """NVIDIA GPUs."""
    summary = 'NVIDIA GPUs; device="emulator" runs their programs on the host'
    return [VDeviceEntry("cuda", open_cuda, probe, summary, words=("gpu", "nvidia"))]


@hookimpl
def rammer_rkernels(operation: Operation, spec: VDeviceSpec) -> Iterable[RKernel]:
    """Built-in kernels for every vDevice that takes CUDA C++."""
    if "cuda" not in spec.languages:
        return []
    from rammer.kernels import candidates
    from rammer.vdevice.simt.legacy.store import imported

    return [*candidates(operation, spec), *imported(operation, spec, "cuda")]
