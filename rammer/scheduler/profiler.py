"""Provide times of rTasks to policies, measured or estimated. Paper: §3.3, "Compile-time profiling"."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from rammer.cost.estimate import estimated_us
from rammer.ir.device import VDeviceSpec
from rammer.ir.kernel import RKernel
from rammer.ir.plan import Price
from rammer.ir.remembered import memoized

NOISE = 1.02  # ratio of measured times within which a second measurement may reverse their order


class Profiler(Protocol):
    """Times of rKernels on one device. The resources of an rTask are fields of the rKernel."""

    noise: float
    """The ratio up to which two of its times are equal."""

    def rtask_us(self, kernel: RKernel) -> float:
        """Return the µs of one rTask on one vEU: measured where the device can, else estimated from the spec."""

    def prices(self, kernels: Iterable[RKernel]) -> Mapping[RKernel, Price] | None:
        """Return the times of rTasks by where their operands lie, or None if they could only be estimated."""


class EstimatingProfiler:
    """Times from the spec alone, by `cost.estimate`."""

    noise = 1.0

    def __init__(self, spec: VDeviceSpec) -> None:
        self.spec = spec

    @memoized
    def rtask_us(self, kernel: RKernel) -> float:
        return estimated_us(kernel, self.spec)

    def prices(self, kernels: Iterable[RKernel]) -> None:
        """Return None: estimated prices would only add up estimates."""


class MeasuredProfiler:
    """Measured times, with another profiler for rKernels that were not measured.

    `price` maps rKernels and their times to prices, with all operands where the last run left them. It returns an empty
    mapping if it cannot.
    """

    def __init__(
        self,
        times: Mapping[RKernel, float],
        fallback: Profiler,
        price: Callable[[Mapping[RKernel, float]], Mapping[RKernel, Price]] | None = None,
    ) -> None:
        self.times = dict(times)
        self.fallback = fallback
        self._price = price
        self._prices: dict[RKernel, Price] = {}
        self.noise = NOISE if times else fallback.noise

    def as_measured(self) -> MeasuredProfiler:
        """Return the same times and prices, of which no more are measured."""
        found = MeasuredProfiler(self.times, self.fallback)
        found._prices = self._prices
        return found

    def rtask_us(self, kernel: RKernel) -> float:
        found = self.times.get(kernel)
        return self.fallback.rtask_us(kernel) if found is None else found

    def prices(self, kernels: Iterable[RKernel]) -> Mapping[RKernel, Price] | None:
        wanted = list(dict.fromkeys(kernels))
        unknown = {k: self.rtask_us(k) for k in wanted if k not in self._prices}
        if unknown and self._price:
            self._prices |= self._price(unknown)
        return {k: self._prices[k] for k in wanted} if all(k in self._prices for k in wanted) else None
