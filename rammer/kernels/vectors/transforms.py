"""Schedule Winograd's transforms as operators: vectors along the channels, one tile row of a block at a time."""

from __future__ import annotations

from collections.abc import Iterator

from rammer.ir.expr import Stage, loads
from rammer.ir.index import var
from rammer.kernels.problem import KernelProblem, all_loads
from rammer.kernels.sched import Sched, begun
from rammer.kernels.schedule import Schedule
from rammer.kernels.tiling import stage_order


def suits(problem: KernelProblem) -> bool:
    """Check whether the operation multiplies tiles of an image by a matrix along their rows, then along their columns.

    Not if a matrix has a single column: that is not a sum.
    """
    if len(problem.placed) != 1 or len(problem.root.reduce) != 1 or len(problem.placed[0].reduce) != 1:
        return False
    whole, (lines,) = problem.unmerged, problem.unmerged.placed
    sources = [[load for load, _ in loads(stage.body)] for stage in (lines, whole.root)]
    matrices = [[ld for ld in read if ld.tensor != lines.name and len(ld.index) == 2] for read in sources]
    tiled = len(whole.root.axes) == 4 and len(lines.axes) == 6  # image, channel, row, column; those of a tile
    return tiled and [len(found) for found in (*sources, *matrices)] == [2, 2, 1, 1]


def schedules(problem: KernelProblem) -> Iterator[Schedule]:
    """Yield for each task count tasks of whole rows of tiles, with vectors along channels if these lie in blocks.

    For problems that `suits` admits, with unmerged axes.
    """
    (lines,), root = problem.placed, problem.root
    _, channel, row, _ = (a for a, _ in root.axes)
    # else rows of a tile share a position; an operator of some rows only adds the number of its first one
    into = any(ix.coef(row) for load, _ in loads(root.body) for ix in load.index)
    extents, lanes = dict(root.axes), problem.lanes if _in_blocks(problem, lines) else 1
    step = 1 if into else lines.shape[-2]
    for s in begun(problem, [(row, extents[row], step)]):
        yield (_input if into else _output)(s, lines, lanes).build(f"{channel}{lanes}")


def _in_blocks(problem: KernelProblem, lines: Stage) -> bool:
    """Check whether vectors of channels are contiguous, in the first stage's input and in the last stage's output."""
    root, channel, c = problem.root, problem.root.axes[1][0], lines.axes[1][0]
    own = tuple(var(a) for a, _ in root.axes)
    if dict(lines.axes)[c] % problem.lanes or problem.lane_stride(root.name, own, channel, root) != 1:
        return False
    read = [load for load, _ in all_loads(lines) if problem.is_known(load.tensor)]
    return {problem.lane_stride(load.tensor, load.index, c, lines) for load in read} <= {0, 1}


def _results(problem: KernelProblem, lines: Stage) -> int:
    """Return how many numbers the second matrix makes of a line."""
    (matrix,) = {load.tensor for load, _ in loads(problem.root.body)} - {lines.name}
    return problem.expr.type_of(matrix).shape[0]


def _blocks(s: Sched, channel: str, lanes: int) -> Sched:
    return s.split(channel, lanes) if lanes > 1 else s


def _along(s: Sched, channel: str, lanes: int) -> Sched:
    return s.vectorize(channel) if lanes > 1 else s.reorder(channel)


def _input(s: Sched, lines: Stage, lanes: int) -> Sched:
    """Transform the input: for a row of tiles, a block of channels and a phase, all rows first, then all columns."""
    image, channel, row, column = (a for a, _ in s.problem.root.axes)
    extents, (taps, _) = dict(lines.axes), s.problem.root.reduce[0]
    _, c, _, _, p, j = (a for a, _ in lines.axes)
    channels, wide = extents[c], _results(s.problem, lines)
    phases = s.extents[channel] // (extents[p] * wide * channels)
    nest = _along(Sched(s.problem, lines).reorder(j, lines.reduce[0][0]).unroll(p), c, lanes)
    s = _blocks(s.reorder(image).split(channel, channels), channel, lanes).reorder(row)
    s = s.compute_at(lines.name, nest, order=stage_order(lines, p, j, c))
    s = s.split(channel, wide * phases * channels).reorder(column, taps).unroll(channel, size=phases * channels)
    return _along(s, channel, lanes)


def _output(s: Sched, lines: Stage, lanes: int) -> Sched:
    """Transform the output tile by tile: its columns first, then its rows."""
    image, channel, row, column = (a for a, _ in s.problem.root.axes)
    _, o, _, _, i, q = (a for a, _ in lines.axes)
    nest = _along(Sched(s.problem, lines).reorder(q, lines.reduce[0][0]).unroll(i), o, lanes)
    s = _blocks(s.reorder(image), channel, lanes).split(row, dict(lines.axes)[i])
    s = s.split(column, _results(s.problem, lines)).compute_at(lines.name, nest, order=stage_order(lines, i, q, o))
    return _along(s.reorder(row, s.problem.root.reduce[0][0]).unroll(column), channel, lanes)
