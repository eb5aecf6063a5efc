"""RProgramBuilder emits the waits that are needed, and no others."""

from __future__ import annotations

import random

import numpy as np
import pytest

from rammer.errors import ScheduleError
from rammer.ir.analysis.order import HappensBefore
from rammer.ir.program import BarrierRTask, Position, RProgram, RProgramBuilder, RTask, TaskUid


def task(n: int) -> TaskUid:
    return TaskUid(n, 0)


def waits(program: RProgram) -> list[list[tuple[Position, ...]]]:
    return [[s.waits for s in lane if isinstance(s, BarrierRTask)] for lane in program.lanes]


def test_one_wait_per_foreign_veu_its_last_order() -> None:
    builder = RProgramBuilder(3)
    for n in range(4):
        builder.append(task(n), n % 2)
    builder.wait(task(4), [task(0), task(2), task(1)])
    assert builder.append(task(4), 2) == Position(2, 1)
    assert waits(builder.build()) == [[], [], [(Position(0, 1), Position(1, 0))]]


def test_lane_order_and_earlier_barriers_need_no_barrier() -> None:
    builder = RProgramBuilder(3)
    builder.append(task(0), 0)
    builder.wait(task(1), [task(0)])
    builder.append(task(1), 1)
    builder.wait(task(2), [task(0), task(1)])  # 1 implies 0
    builder.append(task(2), 2)
    builder.wait(task(3), [task(0), task(2)])  # known already
    builder.append(task(3), 2)
    assert waits(builder.build()) == [[], [(Position(0, 0),)], [(Position(1, 1),)]]


def test_misuse_is_explained() -> None:
    builder = RProgramBuilder(2)
    builder.append(task(0), 0)
    with pytest.raises(ScheduleError, match="appended twice"):
        builder.append(task(0), 1)
    with pytest.raises(ScheduleError, match="no vEU 2"):
        builder.append(task(1), 2)
    builder.wait(task(1), [task(9)])
    with pytest.raises(ScheduleError, match="has no slot"):
        builder.append(task(1), 1)
    builder.wait(task(5), [task(0)])
    with pytest.raises(ScheduleError, match="never appended"):
        builder.build()


def test_undo_returns_to_the_mark() -> None:
    builder = RProgramBuilder(2)
    builder.append(task(0), 0)
    mark = builder.mark()
    builder.wait(task(1), [task(0)])
    builder.append(task(1), 1)
    builder.undo(mark)
    assert task(1) not in builder
    builder.append(task(1), 1)
    assert builder.build() == RProgram(((RTask(task(0)),), (RTask(task(1)),)))


def test_sync_orders_everything() -> None:
    builder = RProgramBuilder(3)
    builder.append(task(0), 0)
    builder.append(task(1), 1)
    builder.sync()
    builder.wait(task(2), [task(0), task(1)])
    builder.append(task(2), 2)
    program = builder.build()
    assert waits(program) == [[(Position(1, 0),)], [(Position(0, 0),)], [(Position(0, 0), Position(1, 0))]]


@pytest.mark.parametrize("seed", range(20))
def test_every_wait_is_enforced_and_every_barrier_is_minimal(seed: int) -> None:
    """Random waits: all hold in the order of the result, and none does once any single barrier wait is dropped."""
    draw = random.Random(seed)
    builder = RProgramBuilder(draw.randint(1, 5))
    wanted = []
    for n in range(25):
        needed = draw.sample(range(n), min(n, draw.choice((0, 1, 1, 3))))
        builder.wait(task(n), map(task, needed))
        builder.append(task(n), draw.randrange(builder.num_veus))
        wanted += [(m, n) for m in needed]

    def holds(program: RProgram) -> bool:
        order = HappensBefore([program])
        return all(order.before(order.slots(task(m)), order.slots(task(n))).all() for m, n in wanted)

    program = builder.build()
    assert holds(program)
    for veu, lane in enumerate(program.lanes):
        for at, slot in enumerate(lane):
            for wait in slot.waits if isinstance(slot, BarrierRTask) else ():
                less = BarrierRTask(tuple(w for w in slot.waits if w != wait))
                lanes = list(program.lanes)
                lanes[veu] = (*lane[:at], less, *lane[at + 1 :])
                assert not holds(RProgram(tuple(lanes)))


def test_a_global_barrier_waits_for_lanes_that_ran() -> None:
    """Of a thousand lanes few have rTasks in a step: every lane waits for those, and knows all that came before."""
    builder, steps, busy, lanes = RProgramBuilder(1000), 20, 3, 1000
    for step in range(steps):
        for n in range(busy):
            builder.append(TaskUid(step, n), (7 * step + n) % lanes)
        builder.sync()
    program = builder.build()
    slots = [slot for lane in program.lanes for slot in lane]
    assert sum(isinstance(slot, BarrierRTask) for slot in slots) == steps * lanes
    assert sum(len(slot.waits) for slot in slots if isinstance(slot, BarrierRTask)) == steps * busy * (lanes - 1)
    order = HappensBefore([program])
    for step in range(1, steps):
        earlier = order.slots(*(TaskUid(s, n) for s in range(step) for n in range(busy)))
        for n in range(busy):
            assert order.before(earlier, np.repeat(order.slots(TaskUid(step, n)), len(earlier))).all()
