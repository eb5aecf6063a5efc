"""Find which tensors own memory, and which elements of it each rTask accesses. The planner and the proof share it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from rammer.ir.analysis.dependency import read_elements, written_elements
from rammer.ir.analysis.order import HappensBefore
from rammer.ir.graph import Graph
from rammer.ir.kernel import ForeignSource, RKernel
from rammer.ir.plan import ExecutionPlan
from rammer.ir.program import TaskUid
from rammer.ir.remembered import remembered
from rammer.ir.tensor import Layout, Numbers, TensorId


def memory_owners(graph: Graph) -> list[TensorId]:
    """Return tensors that own memory in the arena: inputs, outputs and intermediates, without views and constants."""
    used = [*graph.inputs, *graph.outputs]
    for op in graph.operators:
        used += [*op.inputs, *op.outputs]
    roots = dict.fromkeys(graph.storage(t).root for t in used)
    return [r for r in roots if r not in graph.constants]


def direct_ports(graph: Graph, least_bytes: int | None) -> list[TensorId]:
    """Return unchanged inputs, and outputs, of at least `least_bytes`: they may stay in the caller's memory."""
    if least_bytes is None:
        return []
    changed = {graph.storage(op.outputs[0]).root for op in graph.operators if op.operation.expr.in_place}
    ports = [*(t for t in graph.inputs if t not in changed), *graph.outputs]
    return [t for t in ports if graph.types[t].nbytes >= least_bytes]


def constant_key(graph: Graph, tensor: TensorId, layout: Layout | None) -> tuple[tuple[TensorId, Layout | None], int]:
    """Return what kernels that read a constant in `layout` share: (tensor, layout), and its first element there.

    A view in its root's own layout lies inside the root. In any other layout it is a constant of its own.
    """
    root, offset = graph.storage(tensor)
    if layout == graph.types[tensor].layout:
        return (root, graph.types[root].layout), offset
    return (tensor, layout), 0


Hulls = NDArray[np.int64]  # [rTasks, 2] first element, and the end of the last one; both 0 for none


@remembered(1 << 13)
def hulls(kernel: RKernel, argument: int) -> Hulls:
    """Return the range of physical elements of an argument (outputs, then inputs) that each rTask accesses."""
    outputs = len(kernel.operation.outputs)
    elements = written_elements(kernel, argument) if argument < outputs else read_elements(kernel, argument - outputs)
    ends = [(int(s[0, 0]), int(s[-1, 1])) if len(s) else (0, 0) for s in elements.sets]
    return np.array([ends[n] for n in elements.chosen], np.int64).reshape(-1, 2)


def arguments(
    graph: Graph, kernels: Sequence[RKernel] | Mapping[int, RKernel], operator: int
) -> Iterator[tuple[int, TensorId, Hulls]]:
    """Yield, for each argument that is not constant: (argument, owner of its memory, range of each rTask there)."""
    op = graph.operators[operator]
    for argument, tensor in enumerate((*op.outputs, *op.inputs)):
        root, offset = graph.storage(tensor)
        if root not in graph.constants:
            found = hulls(kernels[operator], argument)
            yield argument, root, found + offset * (found[:, 1:] > found[:, :1])


def accesses(plan: ExecutionPlan, order: HappensBefore, owners: Collection[TensorId]) -> dict[TensorId, Numbers]:
    """Return [n, 3] for each owner: the first element that an rTask accesses, the end of its last one, its slot."""
    graph = plan.graph
    found: dict[TensorId, list[Numbers]] = {owner: [np.zeros((0, 3), np.int64)] for owner in owners}
    for n, (op, kernel) in enumerate(zip(graph.operators, plan.kernels, strict=True)):
        if found.keys().isdisjoint(graph.storage(t).root for t in (*op.outputs, *op.inputs)):
            continue
        slots = order.slots(*(TaskUid(n, r) for r in range(kernel.num_rtasks)))
        for _, root, hull in arguments(graph, plan.kernels, n):
            if root in found:
                some = hull[:, 1] > hull[:, 0]
                found[root].append(np.column_stack((hull[some], slots[some])))
    return {owner: np.concatenate(rows) for owner, rows in found.items()}


def must_be_seen(plan: ExecutionPlan) -> dict[TensorId, str]:
    """Return the owners that may not lie in scratch, each with the reason."""
    graph, found = plan.graph, dict[TensorId, str]()
    for op, kernel in zip(graph.operators, plan.kernels, strict=True):
        if kernel.operation.expr.into or isinstance(kernel.body, ForeignSource):
            changes = f"{op.name!r} changes something in place"
            why = changes if kernel.operation.expr.into else f"{kernel.name!r} is foreign text"
            found |= {graph.storage(t).root: why for t in (*op.outputs, *op.inputs)}
    ports = {graph.storage(t).root: "it is an input or output" for t in (*graph.inputs, *graph.outputs)}
    return found | ports | dict.fromkeys(graph.constants, "it is a constant")
