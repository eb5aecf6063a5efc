"""Schedules for everything: point-wise, row-wise, windows, moves. Correct for any expression, good for most."""

from __future__ import annotations

from collections.abc import Iterator
from math import lcm

from rammer.ir.expr import Call, Load, Stage, loads
from rammer.ir.index import var
from rammer.kernels.problem import Problem
from rammer.kernels.schedule import Schedule
from rammer.kernels.tiling import cut, lane_axis, lane_packing, output_order, place, stage_loops, task_counts


def schedules(problem: Problem) -> Iterator[Schedule]:
    """One schedule per task count: tasks cut from the outer axes of the output, vectors along the best lane axis."""
    root = problem.root
    crossing = _crossing(problem)
    lane = crossing[0] if crossing else lane_axis(problem, root)
    extents = dict(root.axes)
    order = output_order(problem)
    unroll = 1
    if lane is not None and lane in dict(root.reduce):
        unroll = 4 if dict(root.reduce)[lane] >= 4 * problem.lanes else 1
    elif lane is not None and not root.reduce and not crossing and extents[lane] >= 2 * problem.lanes:
        unroll = 2
    grains = [(a, extents[a], _grain(problem, a, lane, unroll)) for a in order]
    if crossing:
        grains = [(a, e, lcm(g, problem.lanes) if a == crossing[1] else g) for a, e, g in grains]
    packing = lane_packing(problem, root, lane) if root.reduce else ()
    seen = set()
    for want in task_counts(problem):
        tasks = cut(grains, want, problem.spec.num_veus)
        if tasks in seen:
            continue
        seen.add(tasks)
        steps = {loop.axis: loop.step for loop in tasks}
        tile = _tile(problem, root, lane, steps)
        rows = _rows(problem, lane)
        if crossing:
            tile = (crossing[1], problem.lanes)
        inner = stage_loops(
            problem, root, lane, order=[*rows, *(a for a in order if a not in rows)], unroll=unroll, tile=tile
        )
        depth = len(tasks) - 1 + len(rows)
        count = 1
        for loop in tasks:
            count *= -(-extents[loop.axis] // loop.step)
        name = f"{problem.operation.kind}_{lane or 'point'}{problem.lanes * unroll}_t{count}"
        yield Schedule(name, (*tasks, *inner), place(problem, depth), packing)


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


def _crossing(problem: Problem) -> tuple[str, str] | None:
    """The two axes of a transposition: along the first the output lies in memory, along the second the only operand."""
    root = problem.root
    if root.reduce or not isinstance(root.body, Load) or root.body.dynamic:
        return None
    own = tuple(var(a) for a, _ in root.axes)
    wide = [a for a, e in root.axes if e >= problem.lanes]
    out = [a for a in wide if problem.lane_stride(root.name, own, a, root) == 1]
    into = [a for a in wide if problem.lane_stride(root.body.tensor, root.body.index, a, root) == 1]
    return (out[0], into[0]) if out and into and out[0] != into[0] else None


def _rows(problem: Problem, lane: str | None) -> list[str]:
    """Outer axes that every kept stage shares with the root: a row at a time is computed, in scratch that stays near.

    None if a stage is a product with weights, which whole tiles must share.
    """
    root = problem.root
    rows = [a for a, _ in root.axes if a != lane]
    for stage in problem.placed:
        product = isinstance(stage.body, Call) and stage.body.fn == "mul" and stage.reduce
        if product and len({ld.tensor for ld, _ in loads(stage.body)}) > 1:
            return []
        for load, _ in loads(root.body):
            if load.tensor == stage.name:
                rows = [a for a in rows if var(a) in load.index and not load.dynamic]
    return rows if problem.placed else []
