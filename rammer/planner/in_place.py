"""Find in-place results: a result may reuse an operand's memory if each rTask reads exactly the elements it writes.

Then an element's place is free when it is written, although other rTasks have yet to read other elements.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np

from rammer.ir.analysis.order import HappensBefore, Slots
from rammer.ir.expr import Load, nodes
from rammer.ir.kernel import ForeignSource, RKernel
from rammer.ir.plan import ExecutionPlan
from rammer.ir.program import TaskUid
from rammer.ir.remembered import remembered
from rammer.ir.tensor import TensorId
from rammer.ir.tile import Apply, Store, TileProgram, statements

WORTH_BYTES = 4096  # least bytes of a tensor: smaller ones are close anyway


@remembered(1 << 12)
def replaced(program: TileProgram) -> frozenset[str]:
    """Return the inputs of which each element is read only by the statement that stores the result's same element.

    Empty if there are several results, or if the result is also read.
    """
    if program.num_outputs != 1:
        return frozenset()
    out, *inputs = program.arguments
    found = {b.name for b in inputs if (b.size, b.dtype, b.encoding) == (out.size, out.dtype, out.encoding)}
    for stmt in statements(program.body):
        if isinstance(stmt, Apply):
            elsewhere = {operand.buffer for operand in stmt.operands}
        elif isinstance(stmt, Store):
            own = None if stmt.dynamic or stmt.buffer != out.name else (stmt.index,)
            values = (stmt.value, *(d.value for d in stmt.dynamic))
            read = [part for value in values for part in nodes(value) if isinstance(part, Load)]
            elsewhere = {ld.tensor for ld in read if ld.tensor == out.name or ld.index != own or ld.dynamic}
        else:
            continue
        if out.name in elsewhere:
            return frozenset()
        found -= elsewhere
    return frozenset(found)


def replaced_inputs(kernel: RKernel) -> list[int]:
    """Return the numbers of a kernel's inputs whose memory its result may reuse."""
    if isinstance(kernel.program, ForeignSource):
        return []
    found = replaced(kernel.program)
    return [n for n, buffer in enumerate(kernel.program.arguments[1:]) if buffer.name in found]


def in_place_pairs(plan: ExecutionPlan, order: HappensBefore) -> Iterator[tuple[TensorId, TensorId]]:
    """Yield (operand, result), both owners of memory: the result may be in place of the operand, in the plan's order.

    All other readers of the operand must precede every write of the result. The operand's writers need no check: an
    element is read before its place is written, and was written before that (R104).
    """
    if not plan.spec.in_place:
        return
    graph = plan.graph
    kept = {graph.storage(t).root for t in (*graph.inputs, *graph.outputs)} | graph.constants.keys()
    kept |= {graph.storage(op.outputs[0]).root for op in graph.operators if op.operation.expr.into}
    readers: dict[TensorId, set[int]] = {}
    for n, op in enumerate(graph.operators):
        for t in op.inputs:
            readers.setdefault(graph.storage(t).root, set()).add(n)
    for n, (op, kernel) in enumerate(zip(graph.operators, plan.kernels, strict=True)):
        result = op.outputs[0]
        size = graph.types[result].nbytes
        if len(op.outputs) > 1 or size < WORTH_BYTES or result in kept or graph.storage(result).root != result:
            continue
        inputs = replaced_inputs(kernel)
        for root in dict.fromkeys(graph.storage(op.inputs[k]).root for k in inputs):
            every = [k for k, t in enumerate(op.inputs) if graph.storage(t).root == root]
            whole = all(k in inputs and not graph.storage(op.inputs[k]).offset for k in every)
            alike = whole and root not in kept and graph.types[root].nbytes == size
            if alike and _all_before(order, plan, readers[root] - {n}, n):
                yield root, result


def _all_before(order: HappensBefore, plan: ExecutionPlan, first: Collection[int], second: int) -> bool:
    """Return whether every rTask of some operators happens before every rTask of another one."""
    begun = _slots(order, plan, second)
    program = order.program[begun].min()
    needs = order.known(begun[order.program[begun] == program]).min(axis=0)
    done = np.concatenate([np.zeros(0, np.int64), *(_slots(order, plan, n) for n in first)])
    same = (order.program[done] == program) & (order.order[done] < needs[order.veu[done]])
    return bool(np.all((order.program[done] < program) | same))


def _slots(order: HappensBefore, plan: ExecutionPlan, operator: int) -> Slots:
    return order.slots(*(TaskUid(operator, r) for r in range(plan.kernels[operator].num_rtasks)))
