"""Assign rTasks to instances of sub-graphs, and order the instances. Paper: GraphTurbo §3.3.

An instance is a slice of a group's result with everything inside of the group that the slice needs. Its rTasks are a
subset of the operators' own. Rows beside a split that two slices need are computed once, by the first slice; the other
one waits for it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rammer.ir.analysis.dependency import Dependencies
from rammer.ir.kernel import RKernel
from rammer.scheduler.graphturbo.split import LayerGroup, Split

Slices = NDArray[np.int64]  # the slice of each rTask of an operator


class Instance(NamedTuple):
    """One slice of a group: the rTasks of its operators, in the order of the graph."""

    group: int
    part: int
    rtasks: Mapping[int, NDArray[np.int64]]


def instances(
    groups: Sequence[LayerGroup],
    splits: Sequence[Split | None],
    kernels: Mapping[int, RKernel],
    dependencies: Dependencies,
) -> tuple[list[Instance], list[set[int]]]:
    """Return the instances of all groups, group by group, and for each one those that it reads from.

    Slices finer than the rTasks of the result's rKernel are merged with those that share an rTask with them.
    """
    slices: dict[int, Slices] = {}
    for group, split in zip(groups, splits, strict=True):
        slices |= _slices(group, split, kernels, dependencies)
    found: list[Instance] = []
    number: dict[int, Slices] = {}  # the instance of each operator's rTasks
    for n, group in enumerate(groups):
        used = np.unique(np.concatenate([slices[operator] for operator in group.layers]))
        for operator in group.layers:
            number[operator] = len(found) + np.searchsorted(used, slices[operator])
        for part in used.tolist():
            rtasks = {op: np.flatnonzero(slices[op] == part) for op in group.layers}
            found.append(Instance(n, part, {op: some for op, some in rtasks.items() if len(some)}))
    producers: list[set[int]] = [set() for _ in found]
    for operator, mine in number.items():
        for producer, pairs in dependencies.edges(operator):
            edges = np.unique(np.stack([mine[pairs[:, 0]], number[producer][pairs[:, 1]]], 1), axis=0)
            for consumer, needed in edges.tolist():
                if consumer != needed:
                    producers[consumer].add(needed)
    return found, producers


def _slices(
    group: LayerGroup, split: Split | None, kernels: Mapping[int, RKernel], dependencies: Dependencies
) -> dict[int, Slices]:
    """Return, for each operator's rTasks, the first slice that needs them."""
    factor = split.factor if split else 1
    found = {n: np.full(kernels[n].num_rtasks, factor - 1, np.int64) for n in group.layers}
    if split and factor > 1:
        found[group.result] = np.array(_slices_of_result(kernels[group.result], split), np.int64)
    for n in reversed(group.layers):
        for producer, pairs in dependencies.edges(n):
            if producer in found:
                np.minimum.at(found[producer], pairs[:, 1], found[n][pairs[:, 0]])
    return found


def _slices_of_result(kernel: RKernel, split: Split) -> list[int]:
    axes = [(*kernel.operation.expr.root.axes[axis], count) for axis, count in split.parts.items()]
    found = []
    for rtask in range(kernel.num_rtasks):
        box, part = kernel.box(rtask), 0
        for axis, extent, count in axes:
            part = part * count + min(box[axis][0], extent - 1) * count // extent
        found.append(part)
    return found


def breadth_first(producers: Sequence[set[int]]) -> list[int]:
    """Return all instances of one group before those of the next, as they are numbered."""
    return list(range(len(producers)))


def depth_first(producers: Sequence[set[int]]) -> list[int]:
    """Return an order that runs the consumers of an instance as soon as they are ready. Paper: GraphTurbo, Algorithm 3.

    Whenever a producer finishes, each of its consumers moves to the end of the ready list, even if it was in it.
    """
    missing = [len(needed) for needed in producers]
    consumers: dict[int, list[int]] = defaultdict(list)
    for instance, needed in enumerate(producers):
        for producer in needed:
            consumers[producer].append(instance)
    ready = {instance: None for instance, number in enumerate(missing) if not number}
    order = []
    while ready:
        chosen = next(instance for instance in reversed(ready) if not missing[instance])
        del ready[chosen]
        order.append(chosen)
        for consumer in consumers[chosen]:
            missing[consumer] -= 1
            ready.pop(consumer, None)
            ready[consumer] = None
    return order
