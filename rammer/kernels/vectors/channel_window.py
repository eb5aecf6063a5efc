"""Schedule sums over neighbouring channels that lie in blocks, such as LRN: copy some places' channels contiguously."""

from __future__ import annotations

from collections.abc import Iterator

from rammer.kernels.problem import KernelProblem
from rammer.kernels.sched import Sched, begun, copy_axes, cuts
from rammer.kernels.schedule import Schedule
from rammer.kernels.tiling import output_order

PLACES = 4  # places that share a register block: their sums hide each other's latency


def schedules(problem: KernelProblem) -> Iterator[Schedule]:
    """Yield schedules with vectors along the channels, by task count; none unless it is such a sum of one operand."""
    if (found := problem.matched.window) is None:
        return
    tensor, dim, channel = found
    lanes, root = problem.lanes, problem.root
    *others, last = (a for a in output_order(problem) if a != channel)
    row_bytes = -(-dict(root.axes)[channel] // lanes) * lanes * root.dtype.itemsize
    most = range(2 * PLACES, dict(root.axes)[last] + PLACES, PLACES)  # as many bytes are read and stored meanwhile
    in_l1 = max((n for n in most if problem.spec.holds(problem.spec.l1, n * row_bytes, n * row_bytes)), default=PLACES)
    axes = copy_axes(problem, tensor)
    rest = [d for d in range(len(axes)) if d != dim]
    copy = Sched(problem).split(axes[dim], lanes).reorder(*(axes[d] for d in rest)).vectorize(axes[dim])
    for s in begun(problem, [*cuts(problem, others), *cuts(problem, [last], PLACES)]):
        own = s.steps.get(last, in_l1)  # no copy hangs over an rTask's places
        kept = next(n for n in range(min(in_l1, own), 0, -PLACES) if own % n == 0)
        s = s.reorder(*others).split(last, kept).compute_at(tensor, copy, order=(*rest, dim))
        s = s.split(channel, lanes).split(last, PLACES).reorder(*dict(root.reduce)).unroll(last).vectorize(channel)
        yield s.build(f"{channel}{lanes}")
