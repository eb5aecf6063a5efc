"""Chains of equal steps, of which a vEU can run one while its neighbour runs another. Beyond the paper."""

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
from rammer.scheduler.select import Market
from rammer.scheduler.timeline import simulate

MANY_NODES = 64  # of one operation: steps of a recurrent network
MAX_TRIALS = 2
MAX_RTASKS = 1 << 14  # of a plan that is drawn more than once


def chains(problem: Problem, market: Market) -> list[tuple[int, ...]]:
    """Operators of an operation of very many nodes with a choice of rKernels; most nodes first, a few such operations.

    With each come others that work with the same weights: the first and the last step of a chain may be different.
    None in plans that would take long to draw again.
    """
    if problem.spec.sync is SyncModel.GLOBAL:
        return []
    operators = problem.graph.operators
    nodes = Counter(op.operation for op in operators)
    options = {operation: market.options(operation) for operation in nodes}
    if sum(options[o].fastest.kernel.num_rtasks * n for o, n in nodes.items()) > MAX_RTASKS:
        return []
    weights: dict[Operation, set[TensorId]] = {}
    for op in operators:
        if (largest := _largest_static(op)) is not None:
            weights.setdefault(op.operation, set()).add(largest)
    open_ones = [o for o in nodes if options[o].fastest != options[o].whole]
    found: list[set[Operation]] = []
    for operation in sorted((o for o in open_ones if nodes[o] >= MANY_NODES), key=lambda o: -nodes[o]):
        if any(operation in steps for steps in found):
            continue
        same = {o for o in open_ones if weights.get(o, set()) & weights.get(operation, set())}
        found.append({operation, *same})
    return [tuple(n for n, op in enumerate(operators) if op.operation in steps) for steps in found[:MAX_TRIALS]]


def feeders(graph: Graph, steps: Collection[int]) -> set[int]:
    """Operators beside a chain whose results its steps read."""
    steps = set(steps)
    return {m for n in steps for m in graph.before[n]} - steps


def _largest_static(op: ROperator) -> TensorId | None:
    """The largest of an operator's weights."""
    nbytes = {tensor: kind.nbytes for tensor, kind in zip(op.inputs, op.operation.inputs, strict=True)}
    return max(op.statics, key=lambda tensor: (nbytes[tensor], tensor), default=None)


def ran_alone(plan: ExecutionPlan) -> set[int]:
    """Operators in whose time another vEU had nothing to do: while only the first chain runs, or the last."""
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
