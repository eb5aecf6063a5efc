"""Whether there is an IPU, and which: asked of poptorch where it is installed, which is used for nothing else."""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass

from rammer.errors import DeviceError
from rammer.vdevice.ipu.spec import MODELS, Arch


@dataclass(frozen=True, slots=True)
class Hardware:
    """What is known of the IPUs here. `available` is None without poptorch, `version` 0 if it is not known."""

    available: bool | None
    version: int = 0
    reason: str = ""


def find_hardware() -> Hardware:
    """Ask poptorch. Poplar itself has the last word: an IPU may be there, and taken."""
    if importlib.util.find_spec("poptorch") is None:
        return Hardware(None, reason="poptorch, which could tell, is not installed")
    try:
        poptorch = importlib.import_module("poptorch")
        if not poptorch.ipuHardwareIsAvailable():
            return Hardware(False, reason="poptorch finds none")
        return Hardware(True, max(int(poptorch.ipuHardwareVersion()), 0))
    except (ImportError, OSError, RuntimeError) as error:
        return Hardware(None, reason=f"poptorch, which could tell, fails: {error}")


def require_hardware(arch: Arch) -> Hardware:
    """What poptorch found. Raises DeviceError if that is no IPU, or one of another generation than `arch`."""
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
