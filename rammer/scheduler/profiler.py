"""The profiler a policy asks, and two of them. Paper: §3.3, "Compile-time profiling"."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Protocol

from rammer.cost.price import fit
from rammer.ir.device import VDeviceSpec
from rammer.ir.kernel import RKernel
from rammer.ir.operator import flops
from rammer.ir.plan import ExecutionPlan, Price
from rammer.ir.tile import Apply, Body, For, Kind, TileProgram, statements
from rammer.scheduler.thread_time import thread_us

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
    """Times from the spec alone: arithmetic at peak, or bytes at the rate of the level that holds them, if slower.

    A roofline, hence optimistic; good enough to compare tilings of one operation. Many threads: see `thread_time`.
    """

    noise = 1.0

    def __init__(self, spec: VDeviceSpec) -> None:
        self.spec = spec
        self._known: dict[RKernel, float] = {}

    def rtask_us(self, kernel: RKernel) -> float:
        if (found := self._known.get(kernel)) is None:
            body = kernel.body
            if isinstance(body, TileProgram) and body.num_threads > 1:
                found = thread_us(body, self.spec, self._rate_gbps(_nbytes(kernel)))
            else:
                found = max(self._arithmetic_us(kernel), self._memory_us(kernel))
            self._known[kernel] = found
        return found

    def plans_us(self, plans: Sequence[ExecutionPlan]) -> None:
        """Nothing: what a plan is estimated to take is `simulate(plan)`."""

    def resources(self, kernel: RKernel) -> Resources:
        return Resources(kernel.num_threads, kernel.scratch_bytes)

    def _arithmetic_us(self, kernel: RKernel) -> float:
        work = flops(kernel.operation.expr) * tile_share(kernel)
        slower = self.spec.lanes if isinstance(kernel.body, TileProgram) and not is_vectorised(kernel.body.body) else 1
        rate = self.spec.peak_gflops
        if isinstance(kernel.body, TileProgram):
            gains = [s.instruction.gain for s in statements(kernel.body.body) if isinstance(s, Apply)]
            rate *= max(gains, default=1.0)
        return work * slower / (max(rate, 1e-9) * 1e3)

    def _memory_us(self, kernel: RKernel) -> float:
        """Each rTask writes its tile, and reads its share of every input, at least."""
        everything = _nbytes(kernel)
        rate = self._rate_gbps(everything)
        return everything * tile_share(kernel) / (rate * 1e3) if rate else 0.0

    def _rate_gbps(self, nbytes: int) -> float:
        """What one vEU gets from the nearest level that holds `nbytes`; 0 if the spec does not say."""
        veus = max(self.spec.num_veus, 1)
        rate = 0.0
        for level in self.spec.memory:
            private = level.owner == "veu"
            rate = level.read_gbps if private else level.read_gbps / veus
            if level.nbytes * (veus if private else 1) >= nbytes:
                break
        return rate


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
        in_turn_us = self.rtask_us(kernel)
        near_us, far_us = self.states_us.get(kernel, (in_turn_us, None))
        return fit(kernel, spec, near_us, in_turn_us, far_us)

    def plans_us(self, plans: Sequence[ExecutionPlan]) -> Sequence[float] | None:
        return self._measure(plans) if self._measure else None

    def resources(self, kernel: RKernel) -> Resources:
        return self.fallback.resources(kernel)


def _nbytes(kernel: RKernel) -> int:
    """All that the operation reads and writes."""
    return sum(t.nbytes for t in (*kernel.input_types(), *kernel.operation.outputs))


def tile_share(kernel: RKernel) -> float:
    """The part of the operation's points that one full rTask computes; more than 1/num_rtasks where tiles overhang."""
    extents = prod(extent for _, extent in kernel.operation.expr.root.axes)
    if not extents or not kernel.num_rtasks:
        return 0.0
    return prod(high - low for low, high in kernel.box(0).values()) / extents


def is_vectorised(body: Body) -> bool:
    """Whether any loop of a tile program is a vector loop."""
    return any(isinstance(s, For) and s.kind is Kind.VECTOR for s in statements(body))
