"""The price of an rTask: what it takes with its operands near, and what fetching them from farther adds.

    us = near_us + stall * sum over levels of bytes / rate

`near_us` and `stall` belong to the rKernel. Rates are the spec's. A kernel whose loads are awaited one by one stalls
for more than the rates say, one that computes while lines are on their way for less.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rammer.cost.pieces import Pieces, touches_alone
from rammer.cost.residency import Residency, levels
from rammer.ir.device import VDeviceSpec
from rammer.ir.kernel import RKernel
from rammer.ir.plan import ExecutionPlan, Price
from rammer.ir.program import TaskUid

MOST_FETCHING = 0.8  # of a measured time, whatever the rates say
APART = 0.3  # of what fetching everything takes: less between two measured times says nothing about stalls
MOST_STALL = 4.0  # times the rates: more is a disturbed measurement


def us_per_byte(spec: VDeviceSpec, veus: int) -> NDArray[np.float64]:
    """What a byte from each of `residency.levels` takes one of `veus` vEUs that fetch at the same time."""
    found = []
    for level, written in levels(spec):
        if level.owner == "veu":
            gbps = level.written_gbps if written else 0.0
        else:
            gbps = min(r for r in (level.read_gbps / veus, level.veu_gbps or np.inf) if r)
        found.append(1e-3 / gbps if gbps else 0.0)
    return np.array(found)


def fit(kernel: RKernel, spec: VDeviceSpec, in_turn_us: float, far_us: float | None) -> Price:
    """The price of a kernel of which two times are measured on one vEU, each the mean of its rTasks in turn.

    `in_turn_us`: over and over, so that operands are where the rTasks themselves left them. `far_us`: once, with all
    operands in main memory before; None if nobody measured it.
    """
    touched, pieces = touches_alone(kernel)
    caches, rates = Residency(spec, pieces), us_per_byte(spec, 1)
    fetched_us = []
    for _ in range(2):
        fetched_us.append(sum(float(caches.fetch(0, touch) @ rates) for touch in touched) / max(len(touched), 1))
    cold_us, warm_us = fetched_us
    stall = 1.0
    if far_us is not None and cold_us - warm_us > APART * cold_us:
        stall = min(max((far_us - in_turn_us) / (cold_us - warm_us), 0.0), MOST_STALL)
    if stall * warm_us > MOST_FETCHING * in_turn_us:  # it fetches faster than the rates say
        stall = MOST_FETCHING * in_turn_us / warm_us
    return Price(in_turn_us - stall * warm_us, stall)


class Meter:
    """Prices the rTasks of a plan in the order in which they run, and counts their bytes from each level."""

    def __init__(self, plan: ExecutionPlan) -> None:
        self._prices = [plan.prices[kernel] for kernel in plan.kernels]
        pieces = Pieces(plan)
        self._touched = [pieces.of(operator) for operator in range(len(plan.kernels))]
        self._caches = Residency(plan.spec, pieces.count)
        self._rates = us_per_byte(plan.spec, plan.spec.num_veus)

    @property
    def moved(self) -> NDArray[np.int64]:
        """Bytes from each of `residency.levels` so far."""
        return self._caches.moved

    def __call__(self, veu: int, task: TaskUid) -> float:
        """Microseconds of the next rTask of a vEU."""
        moved = self._caches.fetch(veu, self._touched[task.operator_id][task.rtask_id])
        price = self._prices[task.operator_id]
        return price.near_us + price.stall * float(moved @ self._rates)
