"""The builder of schedules: what it derives by itself, and that a nest it makes computes its operation."""

from __future__ import annotations

import pytest
from kernel_harness import SLOW_SPEC, check, operation

from rammer.ir.expr import Load
from rammer.ir.index import var
from rammer.ir.tensor import Digit, Layout, TensorType
from rammer.ir.tile import Kind
from rammer.ir.verify.kernel import prove
from rammer.kernels.packing import panels
from rammer.kernels.problem import KernelProblem
from rammer.kernels.sched import Sched, begun, copy_axes, cuts
from rammer.kernels.schedule import At, Loop, Schedule
from rammer.kernels.tiling import task_counts


@pytest.fixture
def problem() -> KernelProblem:
    """A product of 75 rows, 200 terms and 96 columns."""
    return KernelProblem.of(operation("matmul", TensorType((75, 200)), TensorType((200, 96))), SLOW_SPEC)


def test_names_depths_and_counts_are_derived(problem: KernelProblem) -> None:
    (row, _), (lane, _) = problem.root.axes
    ((deep, _),) = problem.root.reduce
    tasks = Sched(problem).tasks(cuts(problem, [row], 4), want=3)
    begun_here = tasks.split(lane, 32).reorder(None, row).split(None, 7)
    assert [tasks.left(axis) for axis in (row, lane, deep)] == [28, 96, 200]
    assert [begun_here.left(axis) for axis in (row, lane, deep)] == [1, 32, 200]
    assert begun_here.steps == {row: 1, lane: 32}
    layout = Layout((Digit(1), Digit(0)))
    s = begun_here.compute_at("b", Sched(problem).reorder("b0").vectorize("b1"), order=(1, 0)).reorder(deep)
    s = s.compute_at("a", depth=0, pad=3).vectorize(lane, 16).pack([("b", layout)]).pack([("b", Layout((Digit(0),)))])
    assert s.on_threads(2).build("1x32") == Schedule(
        "matmul_1x32_t3",
        (
            Loop(row, 28, Kind.TASK),
            Loop(lane, 32),
            Loop(row),
            Loop(deep),
            Loop(lane, 16, Kind.UNROLLED),
            Loop(lane, 1, Kind.VECTOR),
        ),
        (At("b", 2, (Loop("b0"), Loop("b1", 1, Kind.VECTOR)), order=(1, 0)), At("a", 0, pad=3)),
        (("b", layout),),
        threads=2,
    )
    assert (tasks.stages, tasks.packing, len(tasks.loops)) == ((), (), 1)  # verbs leave what they begin with alone


def test_each_way_to_cut_is_begun_once(problem: KernelProblem) -> None:
    (row, extent), _ = problem.root.axes
    assert len(task_counts(problem)) == 2
    assert [s.num_tasks for s in begun(problem, cuts(problem, [row]))] == [3, 15]
    assert [s.loops for s in begun(problem, [(row, extent, extent)])] == [()]


def test_panels_hold_the_given_digits_and_leave_the_rest_outside() -> None:
    load = Load("w", (var("n"), var("k"), var("o")))
    assert panels(load, "o", 8) == Layout((Digit(2, 8), Digit(0), Digit(1), Digit(2, 1, 8)))
    assert panels(load, "o", 8, [Digit(1)]) == Layout((Digit(0), Digit(2, 8), Digit(1), Digit(2, 1, 8)))
    assert panels(load, "n", 4, []) == Layout((Digit(1), Digit(2), Digit(0, 4), Digit(0, 1, 4)))


def test_a_nest_by_hand_computes_its_operation(problem: KernelProblem) -> None:
    (row, _), (lane, _) = problem.root.axes
    ((deep, _),) = problem.root.reduce
    ((weights, _),) = [x for x in problem.expr.inputs if len(x[1].shape) == 2 and x[1].shape[0] == 200]
    terms, columns = copy_axes(problem, weights)
    copy = Sched(problem).reorder(terms).vectorize(columns)
    kernels = []
    for s in begun(problem, cuts(problem, [row], 5)):
        s = s.split(lane, 32).compute_at(weights, copy, order=(0, 1)).split(row, 5).split(deep, 8).reorder(deep)
        kernels.append(problem.kernel(s.unroll(row).vectorize(lane, 16).build("5x32")))
    assert not any(finding.broken for kernel in kernels for finding in prove(kernel))
    check(problem.operation, kernels, spec=SLOW_SPEC)
