"""Schedules of Winograd's transforms as operators: vectors along the channels, one tile row of a block at a time."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from rammer.ir.expr import Stage, loads
from rammer.ir.index import var
from rammer.ir.tile import Kind
from rammer.kernels.problem import Problem, all_loads
from rammer.kernels.schedule import At, Loop, Schedule
from rammer.kernels.tiling import cut, task_counts

KINDS = frozenset({"input_transform", "output_transform"})


def schedules(problem: Problem) -> Iterator[Schedule]:
    """Of an operation of `KINDS`, with its axes apart: for each task count, tasks of whole rows of tiles, with vectors
    along channels if these lie in blocks. Nothing where a matrix has a single column: that is no sum.
    """
    lines, root = problem.placed[0] if len(problem.placed) == 1 else None, problem.root
    if lines is None or not lines.reduce or not root.reduce:
        return
    _, channel, row, _ = (a for a, _ in root.axes)
    into = "input_transform" in problem.operation.kind.split("+")
    extents, lanes = dict(root.axes), problem.lanes if _in_blocks(problem, lines) else 1
    step = 1 if into else dict(lines.axes)["i"]
    for want in task_counts(problem):
        tasks = cut([(row, extents[row], step)], want, problem.spec.num_veus)
        loops, at = (_input if into else _output)(problem, lines, len(tasks), lanes)
        count = prod(-(-extents[loop.axis] // loop.step) for loop in tasks)
        yield Schedule(f"{problem.operation.kind}_{channel}{lanes}_t{count}", (*tasks, *loops), (at,))


def _in_blocks(problem: Problem, lines: Stage) -> bool:
    """Whether a vector of channels is one of memory, where the first stage reads and where the last one writes."""
    root, channel, c = problem.root, problem.root.axes[1][0], lines.axes[1][0]
    own = tuple(var(a) for a, _ in root.axes)
    if dict(lines.axes)[c] % problem.lanes or problem.lane_stride(root.name, own, channel, root) != 1:
        return False
    read = [load for load, _ in all_loads(lines) if problem.is_known(load.tensor)]
    return {problem.lane_stride(load.tensor, load.index, c, lines) for load in read} <= {0, 1}


def _order(lines: Stage, *last: str) -> tuple[int, ...]:
    axes = [a for a, _ in lines.axes]
    return tuple(axes.index(a) for a in (*(a for a in axes if a not in last), *last))


def _results(problem: Problem, lines: Stage) -> int:
    """How many numbers the second matrix makes of a line."""
    (matrix,) = {load.tensor for load, _ in loads(problem.root.body)} - {lines.name}
    return problem.expr.type_of(matrix).shape[0]


def _along(channel: str, lanes: int) -> Loop:
    return Loop(channel, 1, Kind.VECTOR if lanes > 1 else Kind.SERIAL)


def _input(problem: Problem, lines: Stage, tasks: int, lanes: int) -> tuple[tuple[Loop, ...], At]:
    """Of a row of tiles, a block of channels and a phase: all rows transformed, then all columns."""
    image, channel, row, column = (a for a, _ in problem.root.axes)
    extents, (taps, _) = dict(lines.axes), problem.root.reduce[0]
    _, c, _, _, p, j = (a for a, _ in lines.axes)
    channels, wide = extents[c], _results(problem, lines)
    phases = dict(problem.root.axes)[channel] // (extents[p] * wide * channels)
    blocks = (Loop(channel, lanes),) if lanes > 1 else ()
    outer = (Loop(image), Loop(channel, channels), *blocks, Loop(row))
    inner = (
        Loop(channel, wide * phases * channels),
        Loop(column),
        Loop(taps),
        Loop(channel, phases * channels, Kind.UNROLLED),
        _along(channel, lanes),
    )
    nest = (Loop(j), Loop(lines.reduce[0][0]), Loop(p, 1, Kind.UNROLLED), _along(c, lanes))
    return (*outer, *inner), At(lines.name, tasks + len(outer) - 1, nest, order=_order(lines, p, j, c))


def _output(problem: Problem, lines: Stage, tasks: int, lanes: int) -> tuple[tuple[Loop, ...], At]:
    """Tile by tile: its columns transformed, then its rows."""
    image, channel, row, column = (a for a, _ in problem.root.axes)
    _, o, _, _, i, q = (a for a, _ in lines.axes)
    high, wide = dict(lines.axes)[i], _results(problem, lines)
    blocks = (Loop(channel, lanes),) if lanes > 1 else ()
    outer = (Loop(image), *blocks, Loop(row, high), Loop(column, wide))
    inner = (
        Loop(row),
        Loop(problem.root.reduce[0][0]),
        Loop(column, 1, Kind.UNROLLED),
        _along(channel, lanes),
    )
    nest = (Loop(q), Loop(lines.reduce[0][0]), Loop(i, 1, Kind.UNROLLED), _along(o, lanes))
    return (*outer, *inner), At(lines.name, tasks + len(outer) - 1, nest, order=_order(lines, i, q, o))
