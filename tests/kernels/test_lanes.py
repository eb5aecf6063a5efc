"""Along which axis vectors go: the rule says what is counted of the stage's nest."""

from __future__ import annotations

import pytest
from cpus import MadeUp
from layers import LAYERS, layer
from stages import operations

from rammer.cost.work import Work, work
from rammer.ir.expr import Stage, TensorExpr
from rammer.ir.tensor import TensorType
from rammer.kernels.lanes import lane_axis
from rammer.kernels.lower import draft
from rammer.kernels.problem import KernelProblem, all_loads
from rammer.kernels.schedule import Schedule
from rammer.kernels.tiling import lane_packing, stage_loops

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
        for operation in operations(layer(name), cpu.spec):
            problem = KernelProblem.of(operation, cpu.spec)
            for stage in problem.stages.values():
                axes = [a for a, extent in (*stage.axes, *stage.reduce) if extent > 1]
                lane = lane_axis(problem, stage)
                if lane is not None and len(axes) > 1:
                    least = min(counted(problem, stage, axis) for axis in axes)
                    ratios.append(counted(problem, stage, lane) / least)
    assert len(ratios) > 40 and max(ratios) <= 1.1
    assert sum(ratio > 1 + 1e-9 for ratio in ratios) <= 1
