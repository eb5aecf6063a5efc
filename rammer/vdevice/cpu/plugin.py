"""Register the CPU as a vDevice."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rammer.errors import RammerError, has_compiler
from rammer.hookspecs import hookimpl
from rammer.vdevice.base import Availability, Progress, VDeviceEntry, later

NOT_CALIBRATED = "not calibrated: `rammer doctor --calibrate` improves estimates"


def probe() -> Availability:
    """Return whether this machine has a known arch and a C compiler, the default number of vEUs, and calibration."""
    from rammer.vdevice.cpu.host import choose_arch, default_num_veus, host
    from rammer.vdevice.toolchain import c_compiler

    try:
        here = host()
        choose_arch(None, here)
        num_veus, how = default_num_veus(here)
        found = f"vEUs by default: {num_veus} ({how})"
        if has_compiler():  # saved programs need neither a C compiler nor rates
            from rammer.vdevice.cpu.tune.calibrate import known_calibration

            c_compiler()
            calibrated = known_calibration(here.name)
            found += f"\n{'calibrated' if calibrated else NOT_CALIBRATED}"
    except RammerError as error:
        return Availability(False, error.what, error.hint)
    return Availability(True, found)


def archs() -> Sequence[str]:
    """Return the instruction sets that this machine runs, widest first."""
    from rammer.vdevice.cpu.host import ARCHES, host

    here = host()
    return [arch.name for arch in ARCHES.values() if here.runs(arch)]


def calibrate(progress: Progress) -> Sequence[tuple[str, float, float]]:
    """Measure the rates of this machine's cores and store them for later compilations. Raises ToolchainError."""
    from rammer.vdevice.cpu.device import CpuVDevice

    return CpuVDevice().calibrate(progress)


@hookimpl
def rammer_vdevices() -> Iterable[VDeviceEntry]:
    """Return the CPU's entry."""
    return [
        VDeviceEntry(
            "cpu",
            later("rammer.vdevice.cpu.device", "CpuVDevice"),
            probe,
            "threads of this machine, kernels in C with vector extensions",
            archs,
            calibrate=calibrate,
            runs=later("rammer.vdevice.cpu.runtime.runner", "CpuRunner"),
        )
    ]
