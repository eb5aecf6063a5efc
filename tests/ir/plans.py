"""Small plans made by hand, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rammer.ir.device import VDeviceSpec
from rammer.ir.graph import Graph
from rammer.ir.operator import Operations, ROperator
from rammer.ir.ops import OPS
from rammer.ir.plan import ExecutionPlan
from rammer.ir.program import BarrierRTask, Position, RProgram, RTask, Slot, TaskUid
from rammer.ir.tensor import TensorType
from rammer.vdevice.interpreter import numpy_kernel


def slot(text: str | Sequence[tuple[int, int]]) -> Slot:
    """'3.0' is rTask 0 of operator 3; [(0, 1)] is a barrier that waits for prog[0][1]."""
    if isinstance(text, str):
        operator, rtask = text.split(".")
        return RTask(TaskUid(int(operator), int(rtask)))
    return BarrierRTask(tuple(Position(*w) for w in text))


def program(*lanes: Sequence[Any]) -> RProgram:
    return RProgram(tuple(tuple(map(slot, lane)) for lane in lanes))


def chain(*tasks: int) -> Graph:
    """Operators in a row on float32[8]; operator n is cut into tasks[n] rTasks by `plan_of`."""
    kind = TensorType((8,))
    interner = Operations(OPS)
    operation = interner.define("tanh", (kind,))
    nodes = tuple(ROperator(f"node{n}", operation, (f"t{n}",), (f"t{n + 1}",)) for n in range(len(tasks)))
    names = [f"t{n}" for n in range(len(tasks) + 1)]
    return Graph("chain", ("t0",), (names[-1],), nodes, dict.fromkeys(names, kind), {}, interner)


def plan_of(tasks: Sequence[int], *programs: RProgram, **spec: Any) -> ExecutionPlan:
    """A plan of a chain whose operator n has tasks[n] rTasks."""
    graph = chain(*tasks)
    kernels = []
    for op, count in zip(graph.operators, tasks, strict=True):
        kernels.append(numpy_kernel(op.operation, {op.operation.expr.root.axes[0][0]: -(-8 // count)}))
    return ExecutionPlan(graph, VDeviceSpec("test", len(programs[0]), **spec), tuple(kernels), programs)
