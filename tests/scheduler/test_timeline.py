"""The simulation of a plan, by hand-computed examples."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
from jobs import Job, make_problem

from rammer.errors import ScheduleError
from rammer.ir.device import VDeviceSpec
from rammer.ir.plan import ExecutionPlan
from rammer.ir.program import BarrierRTask, Position, RProgram, RTask, TaskUid
from rammer.scheduler.assembly import Assembly
from rammer.scheduler.hand_overs import longest_chain
from rammer.scheduler.timeline import simulate, walk


def plan_of(*programs: RProgram, launch_us: float = 3.0, barrier_us: float = 0.5) -> ExecutionPlan:
    """Operator a: 2 rTasks of 4 µs; operator b: 1 rTask of 2 µs."""
    spec = VDeviceSpec("two", 2, launch_us=launch_us, barrier_us=barrier_us)
    problem = make_problem([Job("a", ((2, 4.0),)), Job("b", ((1, 2.0),), ("a",))], spec)
    kernels = tuple(problem.candidates[op.operation][0] for op in problem.graph.operators)
    times = {k: problem.profiler.rtask_us(k) for k in kernels}
    return ExecutionPlan(problem.graph, spec, kernels, programs, rtask_us=times)


def task(operator_id: int, rtask_id: int = 0) -> RTask:
    return RTask(TaskUid(operator_id, rtask_id))


def wait(veu: int, order: int) -> BarrierRTask:
    return BarrierRTask((Position(veu, order),))


def test_one_program() -> None:
    timeline = simulate(plan_of(RProgram(((task(0, 0), wait(1, 0), task(1)), (task(0, 1),)))))
    (program,) = timeline.programs
    assert (program.launch_at_us, program.begin_us, program.end_us) == (0.0, 3.0, 9.5)
    assert program.lanes[0].start_us == (3.0, 7.0, 7.5) and program.lanes[0].end_us == (7.0, 7.5, 9.5)
    assert timeline.total_us == 9.5 and timeline.launch_us == 3.0
    assert timeline.busy_us == (6.0, 4.0) and timeline.barrier_us == (0.5, 0.0)
    assert timeline.utilisation == pytest.approx(10 / 19)
    assert timeline.overhead == pytest.approx((3.0 * 2 + 0.5) / 19)


def test_a_barrier_shows_its_wait() -> None:
    (program,) = simulate(plan_of(RProgram(((wait(1, 1), task(1)), (task(0, 0), task(0, 1)))))).programs
    assert (program.lanes[0].start_us, program.lanes[0].end_us) == ((3.0, 11.5), (11.5, 13.5))


class Counted(tuple[Position, ...]):
    """Waits that count how often one is looked at from behind."""

    looks = 0

    def __reversed__(self) -> Iterator[Position]:
        for number in range(len(self) - 1, -1, -1):
            Counted.looks += 1
            yield self[number]


def test_global_barriers_of_many_lanes_cost_no_more_than_their_waits() -> None:
    """Each wait is looked at once: again and again from the first on, 30 barriers of 30 lanes took millions."""
    lanes, rounds = 30, 30
    ends = [Counted(Position(u, 2 * r) for u in range(lanes)) for r in range(rounds)]
    program = RProgram(
        tuple(tuple(s for r in range(rounds) for s in (task(0), BarrierRTask(ends[r]))) for _ in range(lanes))
    )
    done = walk(program, 0, lambda now, veu, uid: now + veu, lambda now, _, waits: max(now, *(end for _, end in waits)))
    assert [lane[-1] for lane in done] == [rounds * (lanes - 1)] * lanes
    assert Counted.looks == lanes * rounds * lanes


def test_programs_run_one_after_another() -> None:
    first, second = RProgram(((task(0, 0),), (task(0, 1),))), RProgram(((task(1),), ()))
    timeline = simulate(plan_of(first, second), lambda kernel: 1.0)
    assert [(p.launch_at_us, p.end_us) for p in timeline.programs] == [(0.0, 4.0), (4.0, 8.0)]


@pytest.mark.parametrize("calls", [False, True])
def test_what_the_caller_has_for_itself_is_no_launch(calls: bool) -> None:
    together, alone = RProgram(((task(0, 0),), (task(0, 1),))), RProgram(((task(0, 0), task(0, 1), task(1)), ()))
    plan = plan_of(together, alone)
    plan = replace(plan, spec=replace(plan.spec, calls=calls))
    timeline = simulate(plan)
    assert timeline.total_us == 3.0 + 4.0 + 10.0 + (0.0 if calls else 3.0)
    assert timeline.launch_us == (3.0 if calls else 6.0)


def test_the_longest_chain_counts_what_passes_from_one_veu_to_another() -> None:
    """A wait for what is long done, or several of one moment, are no links; a launch hands over to all."""
    forth_and_back = RProgram(((task(0, 0), wait(1, 1), task(1)), (wait(0, 0), task(0, 1))))
    assert longest_chain(plan_of(forth_and_back)).hops == 2
    late = RProgram(((task(0, 0), wait(1, 0), task(1)), (task(0, 1),)))
    assert longest_chain(plan_of(late)).hops == 1
    assert longest_chain(plan_of(late, RProgram(((task(1),), ())))).hops == 2
    assert longest_chain(plan_of(RProgram(((task(0, 0), task(0, 1), task(1)), ())))) == (0, 0)


@pytest.mark.parametrize(
    "lanes",
    [
        ((wait(1, 1), task(0, 0)), (wait(0, 1), task(0, 1))),  # each waits for the other
        ((task(0, 0), wait(1, 5)), (task(0, 1),)),  # no such slot
        ((wait(0, 1), task(0, 0)), ()),  # for itself
    ],
)
def test_deadlocks_are_errors(lanes: tuple[tuple[RTask | BarrierRTask, ...], ...]) -> None:
    with pytest.raises(ScheduleError, match=r"barriers wait for each other, or for no slot: prog\[0\]\[\d\]"):
        simulate(plan_of(RProgram(lanes)))


def test_a_hundred_thousand_slots() -> None:
    """Linear: lanes that wait for each other at every step."""
    lanes = tuple(
        tuple(slot for n in range(25_000) for slot in ([wait(1 - v, 2 * n - 1)] if n else [task(0)]) + [task(0, v)])
        for v in range(2)
    )
    assert simulate(plan_of(RProgram(lanes), launch_us=0.0)).total_us == pytest.approx(25_001 * 4.0 + 24_999 * 0.5)


@pytest.mark.parametrize("seed", range(30))
def test_the_price_of_an_assembly_is_what_the_simulation_says(seed: int) -> None:
    """Also after trials that were taken back, and with global barriers in between."""
    pick = random.Random(seed)
    spec = VDeviceSpec("some", pick.randint(1, 4), launch_us=2.0, calls=seed % 2 == 1, barrier_us=0.3)
    problem = make_problem([Job(f"op{n}", ((1, pick.uniform(0.5, 9.0)),)) for n in range(30)], spec)
    kernels = tuple(problem.candidates[op.operation][0] for op in problem.graph.operators)
    times = {k: problem.profiler.rtask_us(k) for k in kernels}
    assembly, placed = Assembly(spec), list[TaskUid]()

    def place(number: int) -> None:
        needs = assembly.needs(pick.sample(placed, min(len(placed), pick.randint(0, 4))))
        assembly.place(TaskUid(number, 0), pick.randrange(spec.num_veus), times[kernels[number]], needs)

    for number in range(30):
        before, before_us = assembly.mark(), assembly.time_us
        if pick.random() < 0.4:
            place(number)
            if pick.random() < 0.2:
                assembly.sync()
            assembly.undo(before)
            assert assembly.time_us == before_us
        if placed and seed % 3 == 0 and pick.random() < 0.1:
            assembly.sync()
        place(number)
        placed.append(TaskUid(number, 0))
    plan = ExecutionPlan(problem.graph, spec, kernels, (assembly.build(),), rtask_us=times)
    assert simulate(plan).total_us == pytest.approx(assembly.time_us)
