"""Schedules for moves that read memory across the order in which they write it: square tiles turned in scratch."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from rammer.ir.expr import Load, loads
from rammer.ir.tile import Kind
from rammer.kernels.problem import Problem
from rammer.kernels.schedule import At, Loop, Schedule, copied, group
from rammer.kernels.tiling import cut

SIDE = 32  # of a tile
LEAST = 8  # a shorter axis is no side


def schedules(problem: Problem, threads: int) -> Iterator[Schedule]:
    """Nothing if all operands lie as the output does; otherwise tiles, one schedule per number of them in a task."""
    root = problem.root
    extents = dict(root.axes)
    last = next((a for a, e in reversed(root.axes) if e > 1), None)
    if root.reduce or problem.placed or last is None or extents[last] < LEAST:
        return
    turned = [(ld, q) for ld, _ in loads(root.body) if (q := _across(problem, ld, last)) is not None]
    if len(turned) != 1 or sum(ld.tensor == turned[0][0].tensor for ld, _ in loads(root.body)) > 1:
        return
    load, side = turned[0]
    if extents[side] < LEAST:
        return
    rest = [(a, e, 1) for a, e in root.axes if a not in (last, side)]
    tile = (Loop(side, min(SIDE, extents[side]), Kind.TASK), Loop(last, min(SIDE, extents[last]), Kind.TASK))
    tiles = prod(-(-extents[lp.axis] // lp.step) for lp in tile)
    point = group(a for a, _ in copied(load.tensor, problem.expr.type_of(load.tensor)).axes)
    every = group(list(extents))
    for rounds in (8, 1):
        tasks = (*cut(rest, -(-rounds * problem.spec.num_veus // tiles)), *tile)
        count = prod(-(-extents[lp.axis] // lp.step) for lp in tasks)
        yield Schedule(
            f"{problem.operation.kind}_turned{SIDE}_x{threads}_t{count}",
            (*tasks, Loop(every, threads), Loop(every, 1, Kind.THREAD)),
            (At(load.tensor, len(tasks) - 1, (Loop(point, threads), Loop(point, 1, Kind.THREAD)), pad=1),),
            threads=threads,
        )


def _across(problem: Problem, load: Load, last: str) -> str | None:
    """The root's axis along which the load lies in memory, if that is not the last one."""
    inputs = dict(problem.expr.inputs)
    root = problem.root
    if load.dynamic or load.tensor not in inputs or problem.lane_stride(load.tensor, load.index, last, root) in (0, 1):
        return None
    found = (a for a, e in reversed(root.axes) if e > 1)
    return next((a for a in found if problem.lane_stride(load.tensor, load.index, a, root) == 1), None)
