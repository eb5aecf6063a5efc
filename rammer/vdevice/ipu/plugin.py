"""Graphcore IPUs as a vDevice: announced, not available yet."""

from __future__ import annotations

from collections.abc import Iterable

from rammer.errors import DeviceError
from rammer.hookspecs import hookimpl
from rammer.vdevice.base import Availability, VDevice, VDeviceEntry

REASON = "Graphcore IPUs are not available yet in this version of rammer"
HINT = 'use target="cpu"'


def open_ipu(*, arch: str | None = None, device: str | int | None = None) -> VDevice:
    """Raises DeviceError: there is no backend yet."""
    raise DeviceError(f"vDevice 'ipu' (arch={arch}, device={device}): {REASON}", hint=HINT)


@hookimpl
def rammer_vdevices() -> Iterable[VDeviceEntry]:
    """The vDevice's name, and why it cannot be used."""
    return [VDeviceEntry("ipu", open_ipu, lambda: Availability(False, REASON, HINT), "Graphcore IPUs")]
