"""Find the operands of each rTask that are complete before it waits, so that it may load them early."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from rammer.ir.analysis.dependency import Dependencies, overlaps
from rammer.ir.analysis.order import HappensBefore
from rammer.ir.kernel import RKernel
from rammer.ir.plan import ExecutionPlan
from rammer.ir.program import TaskUid
from rammer.ir.tile import TileProgram
from rammer.vdevice.simt.codegen.early import copied, loads_early


def early_operands(plan: ExecutionPlan, rooms: Mapping[RKernel, int]) -> dict[TaskUid, frozenset[int]]:
    """Return, for each rTask, the positions of inputs that it loads before it waits. `rooms`: words per thread.

    rTasks of one kernel load the same inputs early, or its constants alone. So there are at most two texts per kernel.
    """
    useful = {k: inputs for k in dict.fromkeys(plan.kernels) if (inputs := _useful(k, rooms.get(k, 0)))}
    if not useful:
        return {}
    order, dependencies = HappensBefore(plan.programs), Dependencies(plan.graph, plan.kernels)
    wanted: dict[RKernel, dict[TaskUid, frozenset[int]]] = {}
    for n, kernel in enumerate(plan.kernels):
        if kernel in useful:
            static = {p for p in useful[kernel] if kernel.operation.static[p]}
            there = {p: _there(order, dependencies, n, p) for p in useful[kernel] - static}
            for rtask in range(kernel.num_rtasks):
                own = frozenset({*static, *(p for p, known in there.items() if known[rtask])})
                wanted.setdefault(kernel, {})[TaskUid(n, rtask)] = own
    found: dict[TaskUid, frozenset[int]] = {}
    for kernel, tasks in wanted.items():
        ((usual, _),) = Counter(tasks.values()).most_common(1)
        constants = frozenset(p for p in usual if kernel.operation.static[p])
        found |= {uid: usual if usual <= own else constants for uid, own in tasks.items()}
    return found


def loading_early(kernel: RKernel, positions: frozenset[int], room: int) -> RKernel:
    """Return the kernel that loads these inputs before it waits; the same kernel if that does not pay."""
    assert isinstance(kernel.body, TileProgram)
    found = loads_early(kernel.body, _names(kernel.body, positions), room)
    return replace(kernel, body=found[0]) if found else kernel


@lru_cache(maxsize=1 << 12)
def with_constants(kernel: RKernel, room: int) -> RKernel:
    """Return the kernel that loads its constants before it waits; the same kernel if that does not pay."""
    if not isinstance(kernel.body, TileProgram) or kernel.operation.expr.into:
        return kernel
    return loading_early(kernel, _constants(kernel), room)


def _constants(kernel: RKernel) -> frozenset[int]:
    return frozenset(p for p, known in enumerate(kernel.operation.static) if known)


def _names(body: TileProgram, positions: Iterable[int]) -> frozenset[str]:
    return frozenset(body.arguments[body.num_outputs + p].name for p in positions)


def _useful(kernel: RKernel, room: int) -> frozenset[int]:
    """Return the inputs that a kernel would load early if they were complete; none if it has no constants to load."""
    body = kernel.body
    if not isinstance(body, TileProgram) or kernel.operation.expr.into:
        return frozenset()
    early = loads_early(body, _names(body, _constants(kernel)), room)
    if early is None:
        return frozenset()
    wanted = early[1] | copied(body)
    return frozenset(n for n, b in enumerate(body.arguments[body.num_outputs :]) if b.name in wanted)


def _there(order: HappensBefore, dependencies: Dependencies, operator: int, position: int) -> NDArray[np.bool_]:
    """Return, per rTask of an operator, whether an input is complete before the rTask waits."""
    graph, kernels = dependencies.graph, dependencies.kernels
    kernel, tensor = kernels[operator], graph.operators[operator].inputs[position]
    result = np.ones(kernel.num_rtasks, bool)
    for producer, output, start in graph.writers(tensor):
        pairs = overlaps(kernel, position, kernels[producer], output, graph.storage(tensor).offset - start)
        readers = order.slots(*(TaskUid(operator, r) for r in pairs[:, 0].tolist()))
        writers = order.slots(*(TaskUid(producer, r) for r in pairs[:, 1].tolist()))
        result[pairs[~order.before_waits(writers, readers), 0]] = False
    return result
