"""Find an IPU and its generation through poptorch, if that is installed. Only this module uses poptorch."""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass

from rammer.errors import DeviceError
from rammer.vdevice.ipu.spec import MODELS, IpuModel


@dataclass(frozen=True, slots=True)
class Hardware:
    """Known facts about the IPUs here. `available` is None without poptorch; `version` is 0 if unknown."""

    available: bool | None
    version: int = 0
    reason: str = ""


def find_hardware() -> Hardware:
    """Query poptorch. Poplar may still fail, as a present IPU can be in use."""
    if importlib.util.find_spec("poptorch") is None:
        return Hardware(None, reason="poptorch, which could tell, is not installed")
    try:
        poptorch = importlib.import_module("poptorch")
        if not poptorch.ipuHardwareIsAvailable():
            return Hardware(False, reason="poptorch finds none")
        return Hardware(True, max(int(poptorch.ipuHardwareVersion()), 0))
    except (ImportError, OSError, RuntimeError) as error:
        return Hardware(None, reason=f"poptorch, which could tell, fails: {error}")


def require_hardware(arch: IpuModel) -> Hardware:
    """Return what poptorch found. Raises DeviceError if it finds no IPU, or one of another generation than `arch`."""
    found = find_hardware()
    if found.available is False:
        raise DeviceError(
            f"no IPU here: {found.reason}",
            hint="device='model' runs on Graphcore's IPU Model, device='emulator' on rammer's emulator; poptorch also "
            "finds none where POPTORCH_IPU_MODEL is set",
        )
    if found.version and not str(found.version).startswith(arch.model.version.removeprefix("ipu")):
        others = [m.name for m in MODELS.values() if str(found.version).startswith(m.version.removeprefix("ipu"))]
        raise DeviceError(
            f"the IPU here is an ipu{found.version}, {arch.model.name} is an {arch.model.version}",
            hint=f"use arch={' or '.join(map(repr, others))}" if others else "rammer knows no such IPU",
        )
    return found
