"""The price of an rTask: what it takes with its operands near, and what fetching them from farther adds.

    us = max(near_us + sum over levels of stall * bytes / rate, sum over levels of bytes / rate)

Times with operands near and the stalls belong to the rKernel, rates are the spec's. A kernel whose loads are awaited
one by one stalls for more than the rates say, one that computes while lines are on their way for less (docs/cost.md).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rammer.cost.pieces import Pieces, touches_alone
from rammer.cost.residency import Bytes, Residency, levels
from rammer.ir.device import VDeviceSpec
from rammer.ir.kernel import RKernel
from rammer.ir.plan import ExecutionPlan, Price
from rammer.ir.program import TaskUid

TELLING = 0.1  # of a time in turn that must be fetching, so that it says something about stalls
RUNS = 2  # of a plan on paper: the last one finds what the one before leaves
SWEEPS = 4  # over a kernel's rTasks, until caches hold what they will
MOST_FETCHING = 0.8  # of a time in turn, whatever the rates say
MOST_STALL = 4.0  # times the rates: more is a disturbed measurement


def us_per_byte(spec: VDeviceSpec, veus: int) -> NDArray[np.float64]:
    """What a byte from each of `residency.levels` takes one of `veus` vEUs that all move some: [2, levels].

    First where it is read, then where it is written. What another vEU has written comes as slowly for either.
    """
    found = np.zeros((2, len(levels(spec))))
    for n, (level, written) in enumerate(levels(spec)):
        if level.owner != "veu" or level.managed == "scratch":
            found[:, n] = spec.byte_us(level, veus), spec.byte_us(level, veus, stores=True)
        elif written and level.written_gbps:
            found[:, n] = 1e-3 / level.written_gbps
    return found


def fit(kernel: RKernel, spec: VDeviceSpec, in_turn_us: float, states_us: tuple[float, float] | None) -> Price:
    """The price of a kernel, from times on one vEU, each the mean over its rTasks.

    `in_turn_us`: all rTasks in turn, over and over, so that operands are where the others left them; measured, or an
    estimate that includes fetching them. `states_us`: each rTask several times at once, so that operands are near; and
    all in turn once, with operands in main memory before. None if nobody measured these: then rates are believed.
    """
    touched, in_use = touches_alone(kernel)
    rates, caches = us_per_byte(spec, 1), Residency(spec, in_use)
    nothing = np.zeros(len(levels(spec)))
    cold, *_, warm = (  # the last one finds what all others leave
        sum(((caches.fetch(0, touch) * rates).sum(axis=0) for touch in touched), nothing) / max(len(touched), 1)
        for _ in range(SWEEPS)
    )
    cold_us, between_us = float(cold[-1:].sum()), float(warm[:-1].sum())
    if states_us is None:
        fetching_us = float(warm.sum())
        stall = min(1.0, MOST_FETCHING * in_turn_us / fetching_us) if fetching_us else 1.0
        return Price(in_turn_us - stall * fetching_us, stall, stall)
    near_us, far_us = min(states_us[0], in_turn_us), states_us[1]  # more near than in turn is a disturbed measurement
    memory_stall = _bounded((far_us - near_us) / cold_us) if cold_us else 1.0
    shared_stall = min(memory_stall, 1.0)
    if between_us > TELLING * in_turn_us:
        shared_stall = _bounded((in_turn_us - near_us - memory_stall * float(warm[-1])) / between_us)
    return Price(near_us, shared_stall, memory_stall)


def _bounded(stall: float) -> float:
    return float(min(max(stall, 0.0), MOST_STALL))


def followed(
    plan: ExecutionPlan, order: Sequence[tuple[int, TaskUid]]
) -> tuple[dict[TaskUid, float], dict[TaskUid, Bytes]]:
    """Microseconds of each rTask, and the bytes that it has from each of `residency.levels`, in a run after another.

    `order` has rTasks with their vEUs, in an order in which they may run; all is followed twice.
    """
    pieces = Pieces(plan)
    caches, touched, near = Residency(plan.spec, pieces.in_use), pieces.touched, pieces.near
    for _ in range(RUNS):
        found = [caches.fetch(veu, touched[n][rtask], near[n][rtask]) for veu, (n, rtask) in order]
    moved = np.array(found).reshape(len(order), 2, -1)
    us = (moved * us_per_byte(plan.spec, plan.spec.num_veus)).sum(axis=1)
    prices = [plan.prices[plan.kernels[operator]] for _, (operator, _) in order]
    stalls = np.array([price.shared_stall for price in prices])[:, None].repeat(us.shape[1], axis=1)
    stalls[:, -1:] = np.array([price.memory_stall for price in prices])[:, None]
    near_us = np.array([price.near_us for price in prices])
    all_us = np.maximum(near_us + (us * stalls).sum(axis=1), us.sum(axis=1))
    tasks = [task for _, task in order]
    return dict(zip(tasks, all_us.tolist(), strict=True)), dict(zip(tasks, moved.sum(axis=1), strict=True))
