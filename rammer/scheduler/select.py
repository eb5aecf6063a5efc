"""Price the rKernels of operations, and choose the vEU of each rTask. Paper: §3.3, SelectvEU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from operator import attrgetter
from typing import Literal, NamedTuple, TypeAlias

from rammer.cost.statics import statics_us, streamed_bytes
from rammer.cost.weights import by_weights, kept_operations
from rammer.errors import ScheduleError
from rammer.ir.kernel import RKernel
from rammer.ir.operator import Operation
from rammer.ir.plan import Offer
from rammer.ir.remembered import memoized
from rammer.scheduler.assembly import Assembly, Needs
from rammer.scheduler.policy import Problem

SelectBy: TypeAlias = Literal["interplay", "fastest", "efficient"]  # how a wave gets its rKernels

TIE_US = 1e-6  # starts closer than this are equal: below any clock's resolution, above rounding


@dataclass(frozen=True, slots=True)
class Option:
    """An rKernel with its prices in µs: one rTask, alone on the whole device, and summed over all its rTasks."""

    kernel: RKernel
    rtask_us: float
    unshared_us: float
    work_us: float


@dataclass(frozen=True, slots=True)
class Options:
    """The rKernels of an operation that a policy considers, and lower bounds over all of them."""

    fastest: Option  # least time when launched alone
    efficient: Option  # least time of one rTask × num_rtasks
    fewest_rtasks: Option  # the fewest rTasks; an rKernel's own time excludes communication, which may dominate
    first: Option  # the generator's best guess
    least_rtask_us: float
    least_work_us: float

    def only(self, option: Option) -> Options:
        """Return the same with a single rKernel to choose."""
        return replace(self, fastest=option, efficient=option)


class PriceTable:
    """Price the candidates of each distinct operation, once."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._streamed = streamed_bytes(problem.graph)
        self._kept = kept_operations(problem.graph, problem.spec)
        self._times: dict[RKernel, float] = {}
        self._price_cold_weights()

    def _price_cold_weights(self) -> None:
        """Let measured stalls for weights in DRAM decide between rKernels.

        An rKernel that prefetches lines while it computes stalls less than another one that reads as much.
        """
        spec, profiler = self.problem.spec, self.problem.profiler
        found = [self._open([k for k in options if k.fits(spec)]) for options in self.problem.candidates.values()]
        for kernel, price in (profiler.prices(chain.from_iterable(found)) or {}).items():
            stalls = price.shared_stall, price.memory_stall
            self._times[kernel] = self._unshared_us(kernel) + statics_us(kernel, spec, self._streamed, stalls)

    def rtask_us(self, kernel: RKernel) -> float:
        """Return the profiler's time plus the cost of weights that other operators evict, memoized.

        Raises ScheduleError if the profiler returns a time that is negative or not finite.
        """
        if (found := self._times.get(kernel)) is None:
            found = self._unshared_us(kernel)
            found = self._times[kernel] = found + statics_us(kernel, self.problem.spec, self._streamed)
        return found

    def repeated_us(self, kernel: RKernel) -> float:
        """Return `rtask_us` of an rTask whose vEU may have its weights from an earlier one."""
        us = self.rtask_us(kernel)
        return by_weights(kernel, us, self.problem.spec).resident_us if kernel.operation in self._kept else us

    def _unshared_us(self, kernel: RKernel) -> float:
        found = float(self.problem.profiler.rtask_us(kernel))
        if not 0.0 <= found < float("inf"):
            raise ScheduleError(
                f"rKernel {kernel.name!r}: the profiler says {found} µs for one rTask",
                hint="a profiler must answer with a finite number of microseconds",
            )
        return found

    def _open(self, kernels: Sequence[RKernel]) -> list[RKernel]:
        """Return the rKernels of an operation whose stalls for weights in DRAM may decide which is fastest."""
        if len(kernels) < 2:
            return []
        least = min(self._on_device(k, self.rtask_us(k)) for k in kernels)
        found = [k for k in kernels if self._on_device(k, self._unshared_us(k)) <= least]
        return found if len(found) > 1 and any(self.rtask_us(k) > self._unshared_us(k) for k in found) else []

    def _on_device(self, kernel: RKernel, us: float) -> float:
        """Return the µs of all rTasks of an rKernel if one takes `us`."""
        return us * -(-kernel.num_rtasks // self.problem.spec.num_veus)

    @memoized
    def options(self, operation: Operation) -> Options:
        """Return the rKernels to consider. Raises ScheduleError if no candidate fits the device."""
        fitting, noise = self.fitting(operation), self.problem.profiler.noise
        barrier_us = self.problem.spec.barrier_us

        def work_us(option: Option) -> float:
            return option.work_us + option.kernel.num_rtasks * barrier_us

        return Options(
            fastest=_least(fitting, attrgetter("unshared_us"), noise),
            efficient=_least(fitting, work_us, noise),
            fewest_rtasks=min(fitting, key=lambda o: (o.kernel.num_rtasks, o.work_us)),
            first=fitting[0],
            least_rtask_us=min(o.rtask_us if o.kernel.num_rtasks else 0.0 for o in fitting),
            least_work_us=min(o.work_us for o in fitting),
        )

    @memoized
    def fitting(self, operation: Operation) -> list[Option]:
        """Return the candidates that fit the device, in the generator's order.

        Raises ScheduleError if there are none.
        """
        spec = self.problem.spec
        candidates = self.problem.candidates.get(operation, ())
        kernels = [kernel for kernel in candidates if kernel.fits(spec)]
        if not kernels:
            needs = "{0.name} ({0.num_threads} threads, {0.scratch_bytes} bytes of scratch)"
            seen = ", ".join(map(needs.format, candidates))
            raise ScheduleError(
                f"{operation.kind}: no rKernel fits vDevice {spec.name!r} "
                f"({spec.max_threads} threads, {spec.scratch_bytes} bytes of scratch); candidates: {seen or 'none'}",
                hint="offer a smaller tiling through rammer_rkernels",
            )
        times = {kernel: self.repeated_us(kernel) for kernel in kernels}
        return [Option(k, us, self._on_device(k, us), us * k.num_rtasks) for k, us in times.items()]

    def offers(self, operation: Operation) -> tuple[Offer, ...]:
        """Return the candidates of an operation with their prices, the fastest on the whole device first."""
        options = self.options(operation)
        best = {
            "fastest alone": options.fastest,
            "least work": options.efficient,
            "one with the fewest rTasks": options.fewest_rtasks,
            "generator's first": options.first,
        }
        return tuple(
            Offer(
                *(o.kernel.name, o.kernel.num_rtasks, o.rtask_us, o.unshared_us, o.work_us),
                tuple(role for role, other in best.items() if other.kernel is o.kernel),
            )
            for o in sorted(self.fitting(operation), key=attrgetter("unshared_us"))
        )

    @cached_property
    def later_work_us(self) -> list[float]:
        """Lower bound of the vEU time of all later waves, by wave, whatever rKernels they use."""
        graph, left_us = self.problem.graph, [0.0]
        for wave in reversed(graph.wavefronts()):
            work_us = sum(self.options(graph.operators[n].operation).least_work_us for n in wave)
            left_us.append(left_us[-1] + work_us)
        return left_us[-2::-1]


def _least(options: Sequence[Option], price: Callable[[Option], float], noise: float) -> Option:
    """Return the cheapest option; within `noise` the one with the fewest rTasks, then the generator's first."""
    limit = min(map(price, options)) * noise
    return min((o for o in options if price(o) <= limit), key=lambda o: o.kernel.num_rtasks)


class Assignment(NamedTuple):
    """A vEU, when the rTask starts there, and why it was chosen."""

    veu: int
    start_us: float
    reason: str


def select_veu(assembly: Assembly, needs: Needs, home: int | None = None) -> Assignment:
    """Return the vEU that can start the rTask earliest, including waits for operands and the cost of a barrier.

    Ties go to `home`, where its static weights were used last, then to the vEU that made an operand, then to the first.
    """
    starts = assembly.starts_us(needs)
    earliest = float(starts.min())
    if home is not None and starts[home] <= earliest + TIE_US:
        return Assignment(home, float(starts[home]), "static weights")
    early = starts <= earliest + TIE_US
    if needs.front is not None:
        made_here = needs.front.lanes[early[needs.front.lanes]]
        if made_here.size:
            veu = needs.veu if early[needs.veu] else int(made_here[0])
            return Assignment(veu, float(starts[veu]), "operand")
    veu = int(early.argmax())
    return Assignment(veu, float(starts[veu]), "earliest")


def count(reasons: Iterable[str]) -> str:
    """Return how often each reason occurred, most frequent first."""
    tally = sorted(Counter(reasons).items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{n} × {reason}" for reason, n in tally)


def wave_bound_us(options: Sequence[Options], num_veus: int) -> float:
    """Return a lower bound in µs of every schedule of the wave, whatever its rKernels."""
    if not options:
        return 0.0
    return max(max(o.least_rtask_us for o in options), sum(o.least_work_us for o in options) / num_veus)
