"""The profiler a policy asks, and two of them. Paper: §3.3, "Compile-time profiling"."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from rammer.cost.estimate import estimated_us
from rammer.cost.price import fit
from rammer.ir.device import VDeviceSpec
from rammer.ir.kernel import RKernel
from rammer.ir.plan import ExecutionPlan, Price

NOISE = 1.02  # of measured times: measured again, they come out the other way round


@dataclass(frozen=True, slots=True)
class Resources:
    """What one rTask occupies on a vEU."""

    threads: int
    scratch_bytes: int


class Profiler(Protocol):
    """Times and resources of rKernels on one device."""

    noise: float
    """The ratio up to which two of its times are equal."""

    def rtask_us(self, kernel: RKernel) -> float:
        """Microseconds of one rTask on one vEU: measured where the device can, else estimated from the spec."""

    def plans_us(self, plans: Sequence[ExecutionPlan]) -> Sequence[float] | None:
        """Microseconds of whole plans, which need no memory yet: measured. None (also of no plans) if it cannot be."""

    def resources(self, kernel: RKernel) -> Resources:
        """What one rTask of the kernel occupies."""


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

    def plans_us(self, plans: Sequence[ExecutionPlan]) -> None:
        """Nothing: what a plan is estimated to take is `simulate(plan)`."""

    def resources(self, kernel: RKernel) -> Resources:
        return Resources(kernel.num_threads, kernel.scratch_bytes)


class MeasuredProfiler:
    """Measured times, and another profiler for what was not measured. `measure` runs plans.

    `states_us`: measured with operands near, and with operands in main memory.
    """

    def __init__(
        self,
        times: Mapping[RKernel, float],
        fallback: Profiler,
        measure: Callable[[Sequence[ExecutionPlan]], Sequence[float] | None] | None = None,
        states_us: Mapping[RKernel, tuple[float, float]] | None = None,
    ) -> None:
        self.times = dict(times)
        self.states_us = dict(states_us or {})
        self.fallback = fallback
        self._measure = measure
        self.noise = NOISE if times else fallback.noise

    def rtask_us(self, kernel: RKernel) -> float:
        found = self.times.get(kernel)
        return self.fallback.rtask_us(kernel) if found is None else found

    def price(self, kernel: RKernel, spec: VDeviceSpec) -> Price:
        """What one rTask takes by where its operands lie, from its measured times."""
        return fit(kernel, spec, self.rtask_us(kernel), self.states_us.get(kernel))

    def plans_us(self, plans: Sequence[ExecutionPlan]) -> Sequence[float] | None:
        return self._measure(plans) if self._measure else None

    def resources(self, kernel: RKernel) -> Resources:
        return self.fallback.resources(kernel)
