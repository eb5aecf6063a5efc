"""Schedules of Winograd's transforms as operators: vectors along the channels, one tile row of a block at a time."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from rammer.ir.expr import Stage
from rammer.ir.index import var
from rammer.ir.tile import Kind
from rammer.kernels.problem import Problem, all_loads
from rammer.kernels.schedule import At, Loop, Schedule
from rammer.kernels.tiling import cut, task_counts

KINDS = frozenset({"input_transform", "output_transform"})


def schedules(problem: Problem) -> Iterator[Schedule]:
    """For each task count, tasks of whole rows of tiles; nothing for other operators, or where channels lie apart."""
    if not KINDS & {*problem.operation.kind.split("+")} or len(problem.placed) != 1:
        return
    lines, root = problem.placed[0], problem.root
    if problem.spans or not root.reduce or not _in_blocks(problem, lines):
        return
    _, channel, row, _ = (a for a, _ in root.axes)
    into = "input_transform" in problem.operation.kind.split("+")
    extents = dict(root.axes)
    step = 1 if into else dict(lines.axes)["i"]
    for want in task_counts(problem):
        tasks = cut([(row, extents[row], step)], want, problem.spec.num_veus)
        loops, at = _input(problem, lines, len(tasks)) if into else _output(problem, lines, len(tasks))
        count = prod(-(-extents[loop.axis] // loop.step) for loop in tasks)
        yield Schedule(f"{problem.operation.kind}_{channel}{problem.lanes}_t{count}", (*tasks, *loops), (at,))


def _in_blocks(problem: Problem, lines: Stage) -> bool:
    """Whether a vector of channels is one of memory, where the first stage reads and where the last one writes."""
    root, channel = problem.root, problem.root.axes[1][0]
    own = tuple(var(a) for a, _ in root.axes)
    if problem.lane_stride(root.name, own, channel, root) != 1:
        return False
    c = lines.axes[1][0]
    read = [load for load, _ in all_loads(lines) if problem.is_known(load.tensor)]
    return {problem.lane_stride(load.tensor, load.index, c, lines) for load in read} <= {0, 1}


def _order(lines: Stage, *last: str) -> tuple[int, ...]:
    axes = [a for a, _ in lines.axes]
    return tuple(axes.index(a) for a in (*(a for a in axes if a not in last), *last))


def _input(problem: Problem, lines: Stage, tasks: int) -> tuple[tuple[Loop, ...], At]:
    """Of a row of tiles, a block of channels and a phase: all rows transformed, then all columns."""
    (image, channel, row, column), lanes = (a for a, _ in problem.root.axes), problem.lanes
    extents, (taps, wide) = dict(lines.axes), problem.root.reduce[0]
    _, c, _, _, p, j = (a for a, _ in lines.axes)
    channels = extents[c]
    phases = dict(problem.root.axes)[channel] // (extents[p] * wide * channels)
    outer = (Loop(image), Loop(channel, channels), Loop(channel, lanes), Loop(row))
    inner = (
        Loop(channel, wide * phases * channels),
        Loop(column),
        Loop(taps),
        Loop(channel, phases * channels, Kind.UNROLLED),
        Loop(channel, 1, Kind.VECTOR),
    )
    nest = (Loop(j), Loop(lines.reduce[0][0]), Loop(p, 1, Kind.UNROLLED), Loop(c, 1, Kind.VECTOR))
    return (*outer, *inner), At(lines.name, tasks + len(outer) - 1, nest, order=_order(lines, p, j, c))


def _output(problem: Problem, lines: Stage, tasks: int) -> tuple[tuple[Loop, ...], At]:
    """Tile by tile: its columns transformed, then its rows."""
    (image, channel, row, column), lanes = (a for a, _ in problem.root.axes), problem.lanes
    _, o, _, _, i, q = (a for a, _ in lines.axes)
    high = dict(lines.axes)[i]
    wide = (problem.root.reduce[0][1] + 1) // 2
    outer = (Loop(image), Loop(channel, lanes), Loop(row, high), Loop(column, wide))
    inner = (
        Loop(row),
        Loop(problem.root.reduce[0][0]),
        Loop(column, 1, Kind.UNROLLED),
        Loop(channel, 1, Kind.VECTOR),
    )
    nest = (Loop(q), Loop(lines.reduce[0][0]), Loop(i, 1, Kind.UNROLLED), Loop(o, 1, Kind.VECTOR))
    return (*outer, *inner), At(lines.name, tasks + len(outer) - 1, nest, order=_order(lines, i, q, o))
