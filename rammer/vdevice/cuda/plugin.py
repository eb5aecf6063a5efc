"""Register NVIDIA GPUs as a vDevice."""

from __future__ import annotations

from collections.abc import Iterable

from rammer.hookspecs import hookimpl
from rammer.vdevice.base import VDeviceEntry, later


@hookimpl
def rammer_vdevices() -> Iterable[VDeviceEntry]:
    """Register NVIDIA GPUs."""
    open_gpu = later("rammer.vdevice.cuda.device", "open_cuda")
    probe = later("rammer.vdevice.cuda.driver", "probe")
    return [VDeviceEntry("cuda", open_gpu, probe, "NVIDIA GPUs", words=("gpu", "nvidia"))]
