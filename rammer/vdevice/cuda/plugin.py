"""NVIDIA GPUs as a vDevice, and rKernels in CUDA C++ for it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rammer.errors import DeviceError
from rammer.hookspecs import hookimpl
from rammer.vdevice.base import Availability, VDevice, VDeviceEntry

if TYPE_CHECKING:
    from rammer.ir.device import VDeviceSpec
    from rammer.ir.kernel import RKernel
    from rammer.ir.operator import Operation

REASON = "NVIDIA GPUs are not available yet in this version of rammer"
HINT = 'device="emulator" runs the program on the host'


def open_cuda(*, arch: str | None = None, device: str | int | None = None) -> VDevice:
    """A GPU; `arch` compiles for another one, `device` is its number, or "emulator". Raises DeviceError."""
    from rammer.vdevice.cuda.device import CudaEmulator, emulated_veus

    if str(device).startswith("emulator"):
        return CudaEmulator(arch=arch, num_veus=emulated_veus(str(device)))
    raise DeviceError(f"vDevice 'cuda' (arch={arch}, device={device}): {REASON}", hint=HINT)


@hookimpl
def rammer_vdevices() -> Iterable[VDeviceEntry]:
    """NVIDIA GPUs."""
    return [VDeviceEntry("cuda", open_cuda, lambda: Availability(False, REASON, HINT), "NVIDIA GPUs")]


@hookimpl
def rammer_rkernels(operation: Operation, spec: VDeviceSpec) -> Iterable[RKernel]:
    """Built-in kernels for every vDevice that takes CUDA C++."""
    if "cuda" not in spec.languages:
        return []
    from rammer.kernels import candidates

    return candidates(operation, spec)
