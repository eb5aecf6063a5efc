"""Time programs side by side."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np

from rammer.runtime.program import Program
from rammer.vdevice.base import TimedExecutable
from rammer.vdevice.base import random_inputs as random_inputs

MEDIAN_OFF = 1.57  # half the 95 % interval of a median, as a multiple of the quartiles' distance over sqrt(n)


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

    @property
    def spread(self) -> float:
        """Distance of the quartiles, as a fraction of the median."""
        low, median, high = np.quantile(self.seconds, (0.25, 0.5, 0.75))
        return float((high - low) / median)

    @property
    def noise(self) -> float:
        """Fraction by which the median may be off: by its 95 % interval, or as both halves of the samples differ."""
        halves = [float(np.median(half)) for half in np.array_split(self.seconds, 2)]
        return max(MEDIAN_OFF * self.spread / sqrt(len(self.seconds)), abs(halves[0] - halves[1]) / sum(halves))

    def summary(self) -> dict[str, Any]:
        found = {"min_ms": self.min_ms, "median_ms": self.median_ms, "n": len(self.seconds)}
        return {**found, "spread": self.spread, "noise": self.noise}


def repeated(program: Program) -> Callable[[], object]:
    """Return a call that runs a program on seeded inputs."""
    inputs = random_inputs(program.inputs, 0)
    return lambda: program.run(inputs)


def interleaved(runs: Mapping[str, Callable[[], object]], seconds: float) -> dict[str, Samples]:
    """Make the runs in turn for `seconds`, after one warm-up round."""
    samples: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run()
    stop = time.perf_counter() + seconds
    while time.perf_counter() < stop or any(len(s) < 3 for s in samples.values()):
        for name, run in runs.items():
            for _ in range(4):  # several runs in a row: the first has cold caches
                start = time.perf_counter()
                run()
                samples[name].append(time.perf_counter() - start)
    return {name: Samples(s) for name, s in samples.items()}


def profile(programs: Mapping[str, Program], seconds: float) -> None:
    """Measure where the programs' time goes, on vDevices that can, and add it to their reports."""
    for program in programs.values():
        if isinstance(program.executable, TimedExecutable):
            program.profile(random_inputs(program.inputs, 0), seconds=seconds / len(programs))
