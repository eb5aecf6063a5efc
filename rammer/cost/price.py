"""Compute the price of an rTask: its time with operands in the private cache, plus fetching them from farther levels.

    us = max(warm_us + sum over levels of stall * fetch_us, sum over levels of fetch_us)

`warm_us` and the stalls belong to the rKernel; the rates are the spec's. A kernel that waits for its loads one by one
has a stall above 1. One that computes during a fetch has a stall below 1 (docs/cost.md).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rammer.cost.pieces import PieceUse, touches_alone
from rammer.cost.residency import Residency, levels
from rammer.ir.device import MemoryLevel, VDeviceSpec
from rammer.ir.kernel import RKernel
from rammer.ir.plan import ExecutionPlan, Price, States
from rammer.ir.program import TaskUid

RUNS = 2  # simulated runs of a plan: the last one finds the caches as the one before leaves them
SWEEPS = 4  # over a kernel's rTasks, until the contents of caches are stable
MOST_FETCHING = 0.8  # largest part of the time of rTasks in turn that counts as fetching
MOST_STALL = 4.0  # times the rates: more is a disturbed measurement


def us_per_byte(spec: VDeviceSpec, veus: int) -> NDArray[np.float64]:
    """Return microseconds per byte from each of `residency.levels` as an array [2, levels]. `veus` vEUs fetch at once.

    Row 0 is for reads, row 1 for writes. Data that another vEU wrote come equally slowly for both.
    """
    found = np.zeros((2, len(levels(spec))))
    for n, (level, written) in enumerate(levels(spec)):
        if level.owner != "veu" or level.managed == "scratch":
            found[:, n] = spec.byte_us(level, veus), spec.byte_us(level, veus, stores=True)
        elif written and level.written_gbps:
            found[:, n] = 1e-3 / level.written_gbps
    return found


def fit(kernel: RKernel, spec: VDeviceSpec, in_turn_us: float, states: States | None) -> Price:
    """Return the price of a kernel, from times on one vEU. Each time is the mean over the rTasks.

    `in_turn_us`: all rTasks in turn, repeatedly, so that operands lie where the other rTasks left them. It is measured,
    or an estimate that includes fetching. `states`: times with operands in the private cache (each rTask several times
    in a row), in shared caches, and in main memory (all rTasks once). None if these are not measured: then fetching
    takes as long as the rates say.
    """
    touched, in_use = touches_alone(kernel)
    rates, caches = us_per_byte(spec, 1), Residency(spec, in_use)
    nothing = np.zeros(len(levels(spec)))

    def sweep() -> NDArray[np.float64]:
        us = sum(((caches.fetch(0, touch) * rates).sum(axis=0) for touch in touched), nothing)
        return us / max(len(touched), 1)

    cold, last = sweep(), nothing
    for _ in range(SWEEPS - 1):  # the last one finds what all others leave
        if states:
            caches.flush_private(0)
        last = sweep()
    if states is None:
        fetching_us = float(last.sum())
        stall = min(1.0, MOST_FETCHING * in_turn_us / fetching_us) if fetching_us else 1.0
        return Price(in_turn_us - stall * fetching_us, stall, stall)
    warm_us = min(states.warm_us, in_turn_us)  # if warm runs take longer, the measurement was disturbed
    memory_us, shared_us = float(last[-1:].sum()), float(last[:-1].sum())
    memory_stall = _bounded((states.cold_us - warm_us) / float(cold[-1])) if cold[-1:].any() else 1.0
    shared_stall = min(memory_stall, 1.0)
    if shared_us:
        shared_stall = _bounded((states.shared_us - warm_us - memory_stall * memory_us) / shared_us)
    return Price(warm_us, shared_stall, memory_stall)


def _bounded(stall: float) -> float:
    return float(min(max(stall, 0.0), MOST_STALL))


class Fetches:
    """The bytes that a plan's rTasks fetch in one run after another, and the time of each rTask that follows.

    `order` lists rTasks with their vEUs, in an order in which they may run; it is simulated twice. `moved` holds the
    bytes of each rTask from each of `residency.levels`.
    """

    def __init__(self, plan: ExecutionPlan, order: Sequence[tuple[int, TaskUid]]) -> None:
        self._spec = plan.spec
        pieces = PieceUse(plan)
        caches, touched, in_scratch = Residency(plan.spec, pieces.in_use), pieces.touched, pieces.in_scratch
        for _ in range(RUNS):
            found = [caches.fetch(veu, touched[n][rtask], in_scratch[n][rtask]) for veu, (n, rtask) in order]
        self._bytes = np.array(found).reshape(len(order), 2, -1)
        self._alone_us = (self._bytes * us_per_byte(plan.spec, 1)).sum(axis=1)
        self._veus = np.array([veu for veu, _ in order], np.int64)
        prices = [plan.prices[plan.kernels[operator]] for _, (operator, _) in order]
        self._warm_us = np.array([price.warm_us for price in prices])
        self._stalls = np.array([price.shared_stall for price in prices])[:, None].repeat(self._bytes.shape[2], axis=1)
        self._stalls[:, -1:] = np.array([price.memory_stall for price in prices])[:, None]
        self.moved: NDArray[np.float64] = self._bytes.sum(axis=1)

    def us(self, begin_us: Sequence[float] | None = None, end_us: Sequence[float] | None = None) -> list[float]:
        """Return the microseconds of each rTask: alone, or beside all fetches between its begin and its end."""
        fetch_us = self._alone_us
        if begin_us is not None and end_us is not None:
            fetch_us = fetch_us.copy()
            times = np.array([begin_us, end_us])
            for n, (level, _) in enumerate(levels(self._spec)):
                if level.owner != "veu":
                    fetch_us[:, n] = self._together(n, level, times)
        found = np.maximum(self._warm_us + (fetch_us * self._stalls).sum(axis=1), fetch_us.sum(axis=1))
        us: list[float] = found.tolist()
        return us

    def _together(self, number: int, level: MemoryLevel, times: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the microseconds of each rTask's bytes from a level that vEUs share.

        That is how long the level is busy with the fetches of all vEUs meanwhile, and at most as if each fetched as
        much.
        """
        sharing = level.sharing(self._spec.num_veus)
        each_us = np.array([level.busy_us(), level.busy_us(stores=True)])
        own_us = self._bytes[:, :, number] @ each_us
        busy_us = np.zeros(len(own_us))
        groups = self._veus // sharing
        for group in {*groups.tolist()}:
            some = np.flatnonzero((groups == group) & (own_us > 0) & (times[1] > times[0]))  # none in no time
            busy_us[some] = _meanwhile(own_us[some], times[:, some])
        together_us: NDArray[np.float64] = np.maximum(self._alone_us[:, number], np.minimum(busy_us, own_us * sharing))
        return together_us


def _meanwhile(work: NDArray[np.float64], times: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return how much of all work is done between each one's begin and end, if each is done evenly.

    `times`: [2, count].
    """
    rates = work / (times[1] - times[0])
    at = times.reshape(-1)
    order = np.argsort(at)
    going = np.concatenate([rates, -rates])[order].cumsum()
    done = np.zeros(len(at))
    done[order[1:]] = (going[:-1] * np.diff(at[order])).cumsum()
    return done[len(work) :] - done[: len(work)]
