"""Schedule moves that read memory in another order than they write it: square tiles, transposed in scratch."""

from __future__ import annotations

from collections.abc import Iterator

from rammer.ir.expr import Load, loads
from rammer.ir.tile import Kind
from rammer.kernels.problem import KernelProblem
from rammer.kernels.sched import Sched, copy_axes
from rammer.kernels.schedule import Schedule, group
from rammer.kernels.tiling import cut

SIDE = 32  # points of a tile along each side
ROUNDS = (8, 1)  # tasks per vEU that are tried
LEAST = 8  # points of the shortest axis that is tiled


def schedules(problem: KernelProblem, threads: int) -> Iterator[Schedule]:
    """Yield tiles, one schedule per number of tiles in a task; none if all operands have the output's order."""
    root = problem.root
    extents = dict(root.axes)
    last = next((a for a, e in reversed(root.axes) if e > 1), None)
    if root.reduce or problem.placed or last is None or extents[last] < LEAST:
        return
    transposed = [(ld, q) for ld, _ in loads(root.body) if (q := _across(problem, ld, last)) is not None]
    if len(transposed) != 1 or sum(ld.tensor == transposed[0][0].tensor for ld, _ in loads(root.body)) > 1:
        return
    load, side = transposed[0]
    if extents[side] < LEAST:
        return
    rest = [(a, e, 1) for a, e in root.axes if a not in (last, side)]
    tile = (
        Sched(problem).split(side, min(SIDE, extents[side]), Kind.TASK).split(last, min(SIDE, extents[last]), Kind.TASK)
    )
    point = group(copy_axes(problem, load.tensor))
    every = group(list(extents))
    copy = Sched(problem).split(point, threads).bind(point)
    for rounds in ROUNDS:
        s = Sched(problem).nest((*cut(rest, -(-rounds * problem.spec.num_veus // tile.num_tasks)), *tile.loops))
        s = s.compute_at(load.tensor, copy, pad=1).split(every, threads).bind(every)
        yield s.on_threads(threads).build(f"turned{SIDE}_x{threads}")


def _across(problem: KernelProblem, load: Load, last: str) -> str | None:
    """Return the root's axis along which the load is contiguous in memory, if that is not the last one."""
    inputs, root = dict(problem.expr.inputs), problem.root
    if load.dynamic or load.tensor not in inputs or problem.lane_stride(load.tensor, load.index, last, root) in (0, 1):
        return None
    found = (a for a, e in reversed(root.axes) if e > 1)
    return next((a for a in found if problem.lane_stride(load.tensor, load.index, a, root) == 1), None)
