"""Time programs side by side."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rammer.runtime.program import Program
from rammer.vdevice.base import TimedExecutable
from rammer.vdevice.base import random_inputs as random_inputs


@dataclass(frozen=True)
class Samples:
    """Seconds of single runs."""

    seconds: list[float]

    @property
    def median_ms(self) -> float:
        return float(np.median(self.seconds)) * 1e3

    @property
    def min_ms(self) -> float:
        return min(self.seconds) * 1e3

    def summary(self) -> dict[str, Any]:
        return {"min_ms": self.min_ms, "median_ms": self.median_ms, "n": len(self.seconds)}


def interleaved(programs: Mapping[str, Program], seconds: float) -> dict[str, Samples]:
    """Run the programs in turn on the same inputs for `seconds`, after one warm-up round."""
    inputs = {name: random_inputs(p.inputs, 0) for name, p in programs.items()}
    samples: dict[str, list[float]] = {name: [] for name in programs}
    for name, program in programs.items():
        program.run(inputs[name])
    stop = time.perf_counter() + seconds
    while time.perf_counter() < stop or any(len(s) < 3 for s in samples.values()):
        for name, program in programs.items():
            for _ in range(4):  # several runs in a row: the first has cold caches
                start = time.perf_counter()
                program.run(inputs[name])
                samples[name].append(time.perf_counter() - start)
    return {name: Samples(s) for name, s in samples.items()}


def profile(programs: Mapping[str, Program], seconds: float) -> None:
    """Measure where the programs' time goes, on vDevices that can, and add it to their reports."""
    for program in programs.values():
        if isinstance(program.executable, TimedExecutable):
            program.profile(random_inputs(program.inputs, 0), seconds=seconds / len(programs))
