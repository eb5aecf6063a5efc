"""Along which axis vectors go: the rule says what is counted of the stage's nest."""

from __future__ import annotations

import pytest
from cpus import MadeUp
from kernel_harness import operation
from layers import LAYERS, layer
from stages import operations

from rammer.cost.work import Work, work
from rammer.ir.expr import Stage, TensorExpr
from rammer.ir.tensor import DType, TensorType
from rammer.kernels.lanes import lane_axis
from rammer.kernels.lower import draft
from rammer.kernels.problem import KernelProblem, all_loads
from rammer.kernels.schedule import Kind, Schedule
from rammer.kernels.tiling import lane_packing, stage_loops
from rammer.kernels.vectors import generic

CPUS = (MadeUp("x86-64-avx2", 2, 256), MadeUp("x86-64-avx512", 4, 1024))


def issued(found: Work) -> float:
    own = found.issued.arithmetic + found.issued.loads + found.issued.stores
    return found.trips * (own + sum(map(issued, found.loops)))


def counted(problem: KernelProblem, stage: Stage, lane: str) -> float:
    """Instructions of a nest of the stage alone, vectors along a lane axis."""
    outputs, read = dict(problem.expr.outputs), [ld.tensor for ld, _ in all_loads(stage)]
    inputs = tuple((n, problem.expr.type_of(n)) for n in dict.fromkeys(read) if n != stage.name and problem.is_known(n))
    kind = outputs.get(stage.name, TensorType(stage.shape, stage.dtype))
    expr = TensorExpr("alone", inputs, problem.expr.stages, ((stage.name, kind),))
    schedule = Schedule("alone", stage_loops(problem, stage, lane), (), lane_packing(problem, stage, lane))
    return issued(work(draft(expr, schedule, [stage]), problem.spec))


@pytest.mark.parametrize("cpu", CPUS, ids=str)
def test_no_other_axis_issues_less(cpu: MadeUp) -> None:
    """Of any stage but one, whose epilogue the rule leaves out: it issues a tenth more at most."""
    ratios = []
    for name in LAYERS:
        for one in operations(layer(name), cpu.spec):
            problem = KernelProblem.of(one, cpu.spec)
            for stage in problem.stages.values():
                axes = [a for a, extent in (*stage.axes, *stage.reduce) if extent > 1]
                lane = lane_axis(problem, stage)
                if lane is not None and len(axes) > 1:
                    least = min(counted(problem, stage, axis) for axis in axes)
                    ratios.append(counted(problem, stage, lane) / least)
    assert len(ratios) > 40 and max(ratios) <= 1.1
    assert sum(ratio > 1 + 1e-9 for ratio in ratios) <= 1


@pytest.mark.parametrize(("terms", "vectors"), [(16, "k"), (96, "k"), (33, "a"), (5, "a")])
@pytest.mark.parametrize("dtype", [DType.F32, DType.I64], ids=lambda d: d.value)
@pytest.mark.parametrize("cpu", CPUS, ids=str)
def test_adjacent_terms_are_loaded_in_whole_vectors(cpu: MadeUp, dtype: DType, terms: int, vectors: str) -> None:
    """Of sums and maxima of short rows. Where they do not fill vectors, the rule for all stages decides."""
    op = operation("reduce", TensorType((28, 75, terms), dtype), fn="max", axes=(2,), keepdims=False)
    problem = KernelProblem.of(op, cpu.spec)
    for made in generic.schedules(problem):
        (lane,) = {loop.axis for loop in made.loops if loop.kind is Kind.VECTOR}
        whole = vectors == "k"
        assert lane == (problem.root.reduce[0][0] if whole else lane_axis(problem, problem.root))
