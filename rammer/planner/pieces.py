"""Split tensors into pieces with separate memory, between elements that no rTask touches together.

An rTask has one address for each of its arguments, so all that it touches of a tensor must be laid out as in the
tensor. Images or rows that different rTasks touch may lie anywhere. A buffer that holds some of them at a time is
enough.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rammer.ir.analysis.storage import Hulls, arguments
from rammer.ir.graph import Graph
from rammer.ir.kernel import RKernel
from rammer.ir.plan import ExecutionPlan, MemoryPlan
from rammer.ir.tensor import TensorId

WORTH_BYTES = 16 << 10  # least bytes of a piece: smaller ones save little
MOST_OF_TENSOR, MOST_OF_PLAN = 64, 1 << 12  # pieces: planning time grows with their number


def cuts(graph: Graph, kernels: Sequence[RKernel], least_bytes: int) -> dict[TensorId, tuple[int, ...]]:
    """Return the first elements of the pieces of every owner that has several, each of at least `least_bytes`.

    Graph inputs and outputs stay whole, as callers see them.
    """
    whole = {graph.storage(t).root for t in (*graph.inputs, *graph.outputs)}
    touched: dict[TensorId, list[Hulls]] = defaultdict(list)
    for n in range(len(graph.operators)):
        for _, root, found in arguments(graph, kernels, n):
            if root not in whole and 2 * least_bytes <= graph.types[root].nbytes:
                touched[root].append(found[found[:, 1] > found[:, 0]])
    begins: dict[TensorId, NDArray[np.int64]] = {}
    for root, some in touched.items():
        spans = np.unique(np.concatenate(some), axis=0)
        separate = spans[1:, 0] >= np.maximum.accumulate(spans[:, 1])[:-1]
        if separate.any():
            begins[root] = np.append(0, spans[1:, 0][separate])
    most = min(MOST_OF_TENSOR, MOST_OF_PLAN // max(len(begins), 1))
    answer = {}
    for root, firsts in begins.items():
        kind = graph.types[root]
        step = max(least_bytes // kind.element_bytes, -(-kind.span // max(most, 1)))
        firsts = firsts[np.unique(firsts // step, return_index=True)[1]]
        if len(firsts) > 1:
            answer[root] = tuple(firsts.tolist())
    return answer


def bases(plan: ExecutionPlan, memory: MemoryPlan, operator: int) -> dict[int, NDArray[np.int64]]:
    """Return, per argument in pieces and per rTask, the byte in the arena or scratch at which its owner would begin."""
    return {
        argument: memory.bases(root, plan.graph.types[root].element_bytes, found[:, 0])
        for argument, root, found in arguments(plan.graph, plan.kernels, operator)
        if root in memory.pieces or root in memory.in_scratch
    }
