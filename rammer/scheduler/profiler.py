"""The profiler a policy asks, and two of them. Paper: §3.3, "Compile-time profiling"."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from rammer.cost.estimate import estimated_us
from rammer.ir.device import VDeviceSpec
from rammer.ir.kernel import RKernel
from rammer.ir.plan import Price

NOISE = 1.02  # of measured times: measured again, they come out the other way round


class Profiler(Protocol):
    """Times of rKernels on one device. What an rTask occupies is said by the rKernel itself."""

    noise: float
    """The ratio up to which two of its times are equal."""

    def rtask_us(self, kernel: RKernel) -> float:
        """Microseconds of one rTask on one vEU: measured where the device can, else estimated from the spec."""

    def prices(self, kernels: Iterable[RKernel]) -> Mapping[RKernel, Price] | None:
        """What rTasks take by where their operands lie. None where only estimates of that could be had."""


class EstimatingProfiler:
    """Times from the spec alone: `cost.estimate`."""

    noise = 1.0

    def __init__(self, spec: VDeviceSpec) -> None:
        self.spec = spec
        self._known: dict[RKernel, float] = {}

    def rtask_us(self, kernel: RKernel) -> float:
        if (found := self._known.get(kernel)) is None:
            found = self._known[kernel] = estimated_us(kernel, self.spec)
        return found

    def prices(self, kernels: Iterable[RKernel]) -> None:
        """Nothing: a price by place would only add estimates to estimates."""


class MeasuredProfiler:
    """Measured times, and another profiler for what was not measured.

    `price` gives prices for rKernels with their times, all operands where the last run left them; of none if it cannot.
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

    def rtask_us(self, kernel: RKernel) -> float:
        found = self.times.get(kernel)
        return self.fallback.rtask_us(kernel) if found is None else found

    def prices(self, kernels: Iterable[RKernel]) -> Mapping[RKernel, Price] | None:
        wanted = list(dict.fromkeys(kernels))
        unknown = {k: self.rtask_us(k) for k in wanted if k not in self._prices}
        if unknown and self._price:
            self._prices |= self._price(unknown)
        return {k: self._prices[k] for k in wanted} if all(k in self._prices for k in wanted) else None
