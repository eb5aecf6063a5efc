"""Find chains of equal steps, so that vEUs can run different chains at the same time. Beyond the paper.

Example: the layers of an LSTM, where layer 2 runs step t while layer 1 runs step t + 1. Known as: pipelining of stacked
recurrent layers.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Collection
from itertools import chain

from rammer.ir.device import SyncModel
from rammer.ir.graph import Graph
from rammer.ir.operator import Operation, ROperator
from rammer.ir.plan import ExecutionPlan
from rammer.ir.program import RTask
from rammer.ir.tensor import TensorId
from rammer.scheduler.policy import Problem
from rammer.scheduler.select import PriceTable
from rammer.scheduler.timeline import simulate

MANY_NODES = 64  # of one operation, from which on they are taken for steps of a recurrent network
MAX_TRIALS = 2
MAX_RTASKS = 1 << 14  # of a plan that is built more than once


def chains(problem: Problem, prices: PriceTable) -> list[tuple[int, ...]]:
    """Return the operators of each chain.

    A chain has the operators of one operation with at least MANY_NODES nodes and a choice of rKernels. Operations with
    most nodes come first, at most MAX_TRIALS. Operations that share their weights join the chain, as its first and last
    step may differ. Empty for global synchronisation, and for plans that are slow to build again.
    """
    if problem.spec.sync is SyncModel.GLOBAL:
        return []
    operators = problem.graph.operators
    nodes = Counter(op.operation for op in operators)
    options = {operation: prices.options(operation) for operation in nodes}
    if sum(options[o].fastest.kernel.num_rtasks * n for o, n in nodes.items()) > MAX_RTASKS:
        return []
    weights: dict[Operation, set[TensorId]] = {}
    for op in operators:
        if (largest := _largest_static(op)) is not None:
            weights.setdefault(op.operation, set()).add(largest)
    open_ones = [o for o in nodes if options[o].fastest != options[o].fewest_rtasks]
    found: list[set[Operation]] = []
    for operation in sorted((o for o in open_ones if nodes[o] >= MANY_NODES), key=lambda o: -nodes[o]):
        if any(operation in steps for steps in found):
            continue
        same = {o for o in open_ones if weights.get(o, set()) & weights.get(operation, set())}
        found.append({operation, *same})
    return [tuple(n for n, op in enumerate(operators) if op.operation in steps) for steps in found[:MAX_TRIALS]]


def feeders(graph: Graph, steps: Collection[int]) -> set[int]:
    """Return the operators outside of a chain whose results its steps read."""
    steps = set(steps)
    return {m for n in steps for m in graph.before[n]} - steps


def _largest_static(op: ROperator) -> TensorId | None:
    """Return the largest of an operator's weights."""
    nbytes = {tensor: kind.nbytes for tensor, kind in zip(op.inputs, op.operation.inputs, strict=True)}
    return max(op.statics, key=lambda tensor: (nbytes[tensor], tensor), default=None)


def ran_alone(plan: ExecutionPlan) -> set[int]:
    """Return the operators that ran while some vEU was idle: only the first or the last chain was active."""
    found: set[int] = set()
    for program, times in zip(plan.programs, simulate(plan).programs, strict=True):
        busy = [
            [
                (start, end)
                for slot, start, end in zip(lane, at.start_us, at.end_us, strict=True)
                if isinstance(slot, RTask)
            ]
            for lane, at in zip(program.lanes, times.lanes, strict=True)
        ]
        ends = [[end for _, end in spans] for spans in busy]
        for veu, (lane, at) in enumerate(zip(program.lanes, times.lanes, strict=True)):
            for slot, start, end in zip(lane, at.start_us, at.end_us, strict=True):
                if not isinstance(slot, RTask):
                    continue
                for other in chain(range(veu), range(veu + 1, len(busy))):
                    following = bisect_right(ends[other], start)
                    if following == len(ends[other]) or busy[other][following][0] >= end:
                        found.add(slot.uid.operator_id)
                        break
    return found
