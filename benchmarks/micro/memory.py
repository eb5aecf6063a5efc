"""Resident memory of this process."""

from __future__ import annotations

import resource
from pathlib import Path

STATUS = Path("/proc/self/status")


def forget_peak() -> float:
    """Let `peak_mb` count from here on, where the system can; MiB resident now."""
    switch = Path("/proc/self/clear_refs")
    if switch.exists():
        switch.write_text("5")
    return _field("VmRSS") if STATUS.exists() else 0.0


def peak_mb() -> float:
    """Most resident memory since `forget_peak`, in MiB."""
    if STATUS.exists():  # getrusage also counts the parent's memory at the fork
        return _field("VmHWM")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _field(name: str) -> float:
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) / 1024
