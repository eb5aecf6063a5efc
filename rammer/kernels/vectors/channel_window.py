"""Schedules of sums over neighbouring channels that lie in blocks: channels of a few places are copied side by side."""

from __future__ import annotations

from collections.abc import Iterator
from math import lcm, prod

from rammer.ir.expr import loads
from rammer.ir.index import variables
from rammer.ir.tile import Kind
from rammer.kernels.problem import Problem
from rammer.kernels.schedule import At, Loop, Schedule, copied
from rammer.kernels.tiling import cut, output_order, task_counts

PLACES = 4  # that share a register block: their sums hide each other's latency


def schedules(problem: Problem) -> Iterator[Schedule]:
    """For each task count: vectors along the channels; nothing for what is no such sum of one operand."""
    if (found := _window(problem)) is None:
        return
    tensor, dim, channel = found
    root, extents, lanes = problem.root, dict(problem.root.axes), problem.lanes
    *others, last = (a for a in output_order(problem) if a != channel)
    row_bytes = -(-extents[channel] // lanes) * lanes * root.dtype.itemsize
    near = max(problem.spec.near_bytes // 2 // row_bytes // PLACES, 1) * PLACES
    kind = problem.expr.type_of(tensor)
    axes = [a for a, _ in copied(tensor, kind).axes]
    rest = [d for d in range(kind.rank) if d != dim]
    nest = (Loop(axes[dim], lanes), *(Loop(axes[d]) for d in rest), Loop(axes[dim], 1, Kind.VECTOR))
    grains = [(a, extents[a], problem.span(a)) for a in others]
    grains.append((last, extents[last], lcm(problem.span(last), PLACES)))
    for tasks in dict.fromkeys(cut(grains, want, problem.spec.num_veus) for want in task_counts(problem)):
        own = {loop.axis: loop.step for loop in tasks}.get(last, near)  # no copy hangs over an rTask's places
        kept = next(n for n in range(min(near, own), 0, -PLACES) if own % n == 0)
        outer = (*map(Loop, others), Loop(last, kept))
        sums = (Loop(channel, lanes), Loop(last, PLACES), *(Loop(a) for a, _ in root.reduce))
        inner = (*sums, Loop(last, 1, Kind.UNROLLED), Loop(channel, 1, Kind.VECTOR))
        copy = At(tensor, len(tasks) + len(outer) - 1, nest, order=(*rest, dim))
        count = prod(-(-extents[loop.axis] // loop.step) for loop in tasks)
        yield Schedule(f"{problem.operation.kind}_{channel}{lanes}_t{count}", (*tasks, *outer, *inner), (copy,))


def _window(problem: Problem) -> tuple[str, int, str] | None:
    """The operand, its dimension of channels, and the axis along which the result's vectors lie, if it is so read."""
    root, read = problem.root, [load for load, _ in loads(problem.root.body)]
    if not root.reduce or problem.placed or len({load.tensor for load in read}) != 1 or len(root.axes) < 2:
        return None
    load = read[0]
    kind = dict(problem.expr.inputs).get(load.tensor)
    summed = {a for a, _ in root.reduce}
    along = [(d, variables(ix)) for d, ix in enumerate(load.index) if summed & variables(ix)]
    if kind is None or kind.layout is None or len(along) != 1 or any(ld.dynamic for ld in read):
        return None
    dim, names = along[0]
    channels = names - summed
    blocked = [d.div for d in kind.layout.digits if d.dim == dim] == [problem.lanes, 1]
    if len(channels) != 1 or not blocked or kind.layout.digits[-1].dim != dim:
        return None
    (channel,) = channels
    return load.tensor, dim, channel
