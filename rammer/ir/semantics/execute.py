"""Compute one rTask at a time in NumPy: all that a vDevice with the language "numpy" needs."""

from __future__ import annotations

from rammer.ir.plan import ExecutionPlan
from rammer.ir.program import TaskUid
from rammer.ir.semantics.evaluate import Memory, evaluate_box


def compute_rtask(plan: ExecutionPlan, task: TaskUid, memory: Memory) -> None:
    """Read the rTask's inputs from `memory`, compute its box, and write just that box of every output."""
    op, kernel = plan.graph.operators[task.operator_id], plan.kernels[task.operator_id]
    names = (name for name, _ in op.operation.expr.inputs)
    inputs = {name: memory.read(tensor) for name, tensor in zip(names, op.inputs, strict=True)}
    box = kernel.box(task.rtask_id)
    for tensor, value in zip(op.outputs, evaluate_box(op.operation.expr, inputs, box), strict=True):
        memory.write_box(tensor, box, value)
