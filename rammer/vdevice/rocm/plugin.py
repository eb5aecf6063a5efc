"""Register AMD GPUs as a vDevice."""

from __future__ import annotations

from collections.abc import Iterable

from rammer.hookspecs import hookimpl
from rammer.vdevice.base import VDeviceEntry, later


@hookimpl
def rammer_vdevices() -> Iterable[VDeviceEntry]:
    """Register AMD GPUs."""
    open_gpu = later("rammer.vdevice.rocm.device", "open_rocm")
    probe = later("rammer.vdevice.rocm.driver", "probe")
    return [VDeviceEntry("rocm", open_gpu, probe, "AMD GPUs", words=("gpu", "amd", "hip"))]
