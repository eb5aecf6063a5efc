"""Schedules for everything: point-wise, row-wise, windows, moves. Correct for any expression, good for most."""

from __future__ import annotations

from collections.abc import Iterator

from rammer.ir.expr import Call, Load, Stage, loads
from rammer.ir.index import Index, var
from rammer.ir.tile import Kind
from rammer.kernels.problem import Problem
from rammer.kernels.schedule import Loop, Schedule
from rammer.kernels.tiling import cut, lane_axis, output_order, place, stage_loops, task_counts


def schedules(problem: Problem) -> Iterator[Schedule]:
    """One schedule per task count: tasks cut from the outer axes of the output, vectors along the best lane axis."""
    root = problem.root
    lane = lane_axis(problem, root)
    extents = dict(root.axes)
    order = output_order(problem)
    unroll = 1
    if lane is not None and lane in dict(root.reduce):
        unroll = 4 if dict(root.reduce)[lane] >= 4 * problem.lanes else 1
    elif lane is not None and not root.reduce and extents[lane] >= 2 * problem.lanes:
        unroll = 2
    grains = [(a, extents[a], _grain(problem, a, lane, unroll)) for a in order]
    seen = set()
    for want in task_counts(problem):
        tasks = cut(grains, want)
        if tasks in seen:
            continue
        seen.add(tasks)
        steps = {loop.axis: loop.step for loop in tasks}
        tile = _tile(problem, root, lane, steps)
        inner = stage_loops(problem, root, lane, order=order, unroll=unroll, tile=tile)
        depth = len(tasks) - 1
        if problem.placed and _row_wise(problem):
            rows = [a for a in order if a != lane]
            depth += len(rows)
        count = 1
        for loop in tasks:
            count *= -(-extents[loop.axis] // loop.step)
        yield Schedule(
            f"{problem.operation.kind}_{lane or 'point'}{problem.lanes * unroll}_t{count}",
            (*tasks, *inner),
            place(problem, depth),
        )


def _grain(problem: Problem, axis: str, lane: str | None, unroll: int) -> int:
    span = problem.span(axis)
    if axis != lane:
        return span
    width = problem.lanes * unroll
    return -(-width // span) * span


def _tile(problem: Problem, root: Stage, lane: str | None, steps: dict[str, int]) -> tuple[str, int] | None:
    """A register block of a reduction with vectors along an output axis: neighbours hide the latency of adding."""
    if not root.reduce or lane is None or lane in dict(root.reduce):
        return None
    others = [(a, e) for a, e in root.axes if a != lane and e > 1]
    if not others:
        return None
    axis, extent = others[-1]
    extent = min(extent, steps.get(axis, extent))
    if problem.span(axis) > 1:
        return None
    return (axis, max(n for n in range(1, 9) if n <= extent and (extent % n == 0 or n == 4 or n < 4)))


def _row_wise(problem: Problem) -> bool:
    """Whether every kept stage is a row of the root: read at the root's own outer axes, and no product with weights."""
    root = problem.root
    lane = lane_axis(problem, root)
    own = {var(a) for a, _ in root.axes if a != lane} | {Index()}
    for stage in problem.placed:
        if isinstance(stage.body, Call) and stage.body.fn == "mul" and stage.reduce:
            read = {ld.tensor for ld, _ in loads(stage.body)}
            if len(read) > 1:
                return False
        for load, _ in loads(root.body):
            if load.tensor == stage.name and not all(ix in own or ix == var(lane or "") for ix in load.index):
                return False
    return (
        lane is not None and Kind.SERIAL is Loop(lane).kind and isinstance(root, Stage) and not _moves(root, own, lane)
    )


def _moves(root: Stage, own: set[Index], lane: str) -> bool:
    del own, lane
    return any(isinstance(ld, Load) and ld.dynamic for ld, _ in loads(root.body))
