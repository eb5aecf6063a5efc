"""Schedule any expression: point-wise, row-wise, windows, moves. Correct for all, good for most."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import lcm, prod

from rammer.ir.expr import Call, Load, Select, Stage, loads, nodes
from rammer.ir.index import Index, bounds, var, variables
from rammer.kernels.lanes import lane_axis, pattern
from rammer.kernels.problem import KernelProblem, all_loads
from rammer.kernels.sched import Sched
from rammer.kernels.schedule import Loop, Schedule
from rammer.kernels.tiling import UNROLL, kept_bytes, lane_packing, output_order, stage_loops, task_counts

FOLDED = 8  # rows: measured for a softmax of 42 (Zen 5): 2.1 times as fast as one, of 4 1.8, of 16 2.0


def schedules(problem: KernelProblem) -> Iterator[Schedule]:
    """Yield one schedule per task count: tasks cut from the output's outer axes, vectors along the best lane axis."""
    yield from _schedules(problem, least_scratch=False)
    if problem.tuning.every_axis:
        for axis, _ in problem.root.axes:
            yield from _schedules(problem, least_scratch=False, first=axis)


def least_scratch_schedules(problem: KernelProblem) -> Iterator[Schedule]:
    """Yield the same schedules with no more in scratch than one row or one vector needs.

    Weights may be read more often.
    """
    return _schedules(problem, least_scratch=True)


def _schedules(problem: KernelProblem, *, least_scratch: bool, first: str = "") -> Iterator[Schedule]:
    root, crossing = problem.root, _crossing(problem)
    sides = [] if root.reduce or problem.placed else _sides(root)
    last, extent = root.axes[-1] if sides else ("", 1)
    lane = crossing[0] if crossing else last if extent > 1 and last not in sides else _lane(problem)
    extents, order = dict(root.axes), [a for a in output_order(problem) if a not in sides]
    unroll = 1
    if lane is not None and lane in dict(root.reduce):
        unroll = UNROLL if dict(root.reduce)[lane] >= UNROLL * problem.lanes else 1
    elif lane is not None and not root.reduce and not crossing and extents[lane] >= 2 * problem.lanes and not sides:
        unroll = 2
    elif lane is not None and root.reduce and not _neighbours(problem, root, lane):
        vectors = extents[lane] // problem.lanes // problem.rtasks
        unroll = next((n for n in (UNROLL, 2) if n <= vectors), 1)  # sums side by side hide the latency of adding
    patterns = {pattern(load, lane or "", problem.lanes) for load, _ in all_loads(root)} - {0, 1}
    unroll = patterns.pop() if len(patterns) == 1 else unroll
    shared = _shared(problem, least_scratch)
    order.sort(key=lambda a: (a not in shared, a != first))
    rows = [a for a in shared if a != lane]
    outputs = any(s.name in dict(problem.expr.outputs) for s in problem.placed)  # stored whole: pieces cannot overhang
    widths = {lane: problem.lanes * unroll}
    grains = [(a, extents[a], problem.grain(a, widths.get(a, 1), exact=outputs)) for a in order]
    if crossing:
        grains = [(a, e, lcm(g, problem.lanes) if a == crossing[1] else g) for a, e, g in grains]
    packing = lane_packing(problem, root, lane) if root.reduce else ()
    seen = set()
    for want in task_counts(problem):
        # Tasks along another axis each recompute the shared stages: that is for vEUs that would be idle.
        often = shared and want > problem.rtasks
        s = Sched(problem).tasks([g for g in grains if not often or g[0] in shared], want)
        if s.loops in seen:
            continue
        seen.add(s.loops)
        tile = (crossing[1], problem.lanes) if crossing else _tile(problem, root, lane, s.steps)
        if outputs:
            tile = None
        outer = [a for a in rows if not tile or a != tile[0]]
        inner_order = [*outer, *(a for a in order if a not in outer)]
        inner = stage_loops(problem, root, lane, order=inner_order, unroll=unroll, tile=tile, sides=sides)
        head, rest = inner[: len(outer)], inner[len(outer) :]
        block = _block(problem, shared, lane, tile, s.steps, problem.lanes * unroll)
        if outer and not block and (count := _together(problem, outer[-1], lane, s.steps)) > 1:
            head, rest = (*head[:-1], Loop(outer[-1], count)), (*head[-1:], *rest)
        s = s.nest((*head, *block)).place(problem.placed).nest(rest).pack(packing)
        yield s.build(f"{lane or 'point'}{problem.lanes * unroll}")


def _lane(problem: KernelProblem) -> str | None:
    """Return the axis to vectorize: on a core that of a sum's terms, if they are adjacent and fill whole vectors.

    Measured for sums and maxima of 16 and 32 numbers: 1 to 8 times as fast as to gather vectors of results.
    """
    root, lanes = problem.root, problem.lanes
    for axis, extent in root.reduce[-1:] if problem.spec.is_core and lanes > 1 else ():
        steps = {problem.lane_stride(load.tensor, load.index, axis, root) for load, _ in all_loads(root)}
        if steps == {1} and extent % lanes == 0:
            return axis
    return lane_axis(problem, root)


def _sides(root: Stage) -> list[str]:
    """Return the axes of two that choose a result, such as the smaller of a pair: both share their operands."""
    chosen = {r.index for n in nodes(root.body) if isinstance(n, Select) for r in n.where}
    return [a for a, e in root.axes if e == 2 and var(a) in chosen]


def _together(problem: KernelProblem, axis: str, lane: str | None, steps: Mapping[str, int]) -> int:
    """Return how many rows' stages are computed before any root: sums of one row then overlap folds of another."""
    root, one = problem.root, {a: 1 for a, _ in problem.root.axes if a != lane}
    extents = dict((*root.axes, *root.reduce))
    if lane is None or not any(lane_axis(problem, s, one) in dict(s.reduce) for s in problem.placed):
        return 1
    rows = min(extents[axis], steps.get(axis, extents[axis]), FOLDED)
    spec, row = problem.spec, extents[lane] * root.dtype.itemsize  # each is read, kept, and stored
    return max([1, *(n for n in range(2, rows + 1) if spec.holds(spec.l1, n * row, 2 * n * row))])


def _tile(problem: KernelProblem, root: Stage, lane: str | None, steps: dict[str, int]) -> tuple[str, int] | None:
    """Return a register block of a reduction along an output axis: neighbours hide the latency of adding."""
    if not root.reduce or lane is None or lane in dict(root.reduce):
        return None
    if not (others := _neighbours(problem, root, lane)):
        return None
    axis, extent = others[-1]
    extent = min(extent, steps.get(axis, extent))
    return (axis, max(n for n in range(1, min(2 * UNROLL, extent) + 1) if n <= UNROLL or extent % n == 0))


def _neighbours(problem: KernelProblem, root: Stage, lane: str) -> list[tuple[str, int]]:
    """Return output axes besides the lanes, if neighbours along the last one can share a register block; else none.

    Where they share no operand, vectors of one row that lie side by side hide latencies as well, and read long runs.
    """
    others = [(a, e) for a, e in root.axes if a != lane and e > 1]
    if not others or problem.span(others[-1][0]) != 1:
        return []
    shares = any(_shares(load, others[-1][0], root) for load, _ in all_loads(root))
    return others if shares or dict(root.axes)[lane] < UNROLL * problem.lanes else []


def _shares(load: Load, axis: str, root: Stage) -> bool:
    """Return whether neighbours along an axis read common elements: all of them, or those of overlapping windows."""
    inside = {a: (0, 0) for a, _ in root.axes} | {a: (0, e - 1) for a, e in root.reduce}

    def overlap(index: Index) -> bool:
        low, high = bounds(index, inside)
        return 0 < abs(index.coef(axis)) <= high - low

    return all(overlap(index) for index in load.index if axis in variables(index))


def _crossing(problem: KernelProblem) -> tuple[str, str] | None:
    """Return two axes of a transposition: the output is contiguous along the first, its operand along the second."""
    root = problem.root
    if root.reduce or not isinstance(root.body, Load) or root.body.dynamic:
        return None
    own = tuple(var(a) for a, _ in root.axes)
    wide = [a for a, e in root.axes if e > 1]  # parts of squares are copied as squares are
    out = [a for a in wide if problem.lane_stride(root.name, own, a, root) == 1]
    into = [a for a in wide if problem.lane_stride(root.body.tensor, root.body.index, a, root) == 1]
    return (out[0], into[0]) if out and into and out[0] != into[0] else None


def _shared(problem: KernelProblem, least_scratch: bool) -> list[str]:
    """Return the axes along which kept stages are read at the root's own position.

    One point at a time is kept, in cache. Empty if a stage is a product with weights, which whole tiles must share,
    unless scratch is to be spared.
    """
    shared = [a for a, _ in problem.root.axes]
    kept = {s.name for s in problem.placed}
    for stage in problem.stages.values():
        if stage.name in kept and not least_scratch and _is_product(stage):
            return []
        for load, _ in all_loads(stage):
            if load.tensor in kept:
                shared = [a for a in shared if var(a) in load.index and not load.dynamic]
    return shared if problem.placed else []


def _is_product(stage: Stage) -> bool:
    """Check whether a stage sums products of two tensors. The square of one tensor does not count."""
    if not (stage.reduce and isinstance(stage.body, Call) and stage.body.fn == "mul"):
        return False
    a, b = ({load.tensor for load, _ in loads(factor)} for factor in stage.body.args)
    return bool(a and b) and a.isdisjoint(b)


def _block(
    problem: KernelProblem,
    shared: list[str],
    lane: str | None,
    tile: tuple[str, int] | None,
    steps: Mapping[str, int],
    width: int,
) -> tuple[Loop, ...]:
    """Return loops over pieces of the shared axes that hold a register block. Stages are kept for one piece at a time.

    Along the lane axis a piece is as long as the nearest cache allows, so that memory is used in long runs. What stages
    read before the root does stays in the private caches.
    """
    loops = [Loop(*tile)] if tile and tile[0] in shared else []
    if lane is not None and lane in shared:
        extent = min(dict(problem.root.axes)[lane], steps.get(lane, 1 << 62))
        piece = {a: tile[1] if tile and a == tile[0] else 1 for a in shared} | {lane: width}
        spec, each = problem.spec, kept_bytes(problem.placed, piece)  # as many bytes are read and stored meanwhile
        again = max(2 * _read_again(problem, piece), 1)
        vectors = int(min(spec.room(spec.l1) / max(2 * each, 1), spec.room(spec.l2) / again))
        vectors = max(vectors, 1)
        if lane in steps:  # the next piece may be another task's
            vectors = next((n for n in range(vectors, 1, -1) if extent % (n * width) == 0), 1)
        if vectors * width < extent:
            loops.append(Loop(lane, vectors * width))
    return tuple(loops)


def _read_again(problem: KernelProblem, piece: Mapping[str, int]) -> int:
    """Return the bytes of operands of kept stages that the root reduces afterwards, for a piece of its axes."""
    root, before = problem.root, {load.tensor for s in problem.placed for load, _ in all_loads(s)}
    extents = dict((*root.axes, *root.reduce)) | dict(piece)
    sizes = {
        load.tensor: prod(extents[a] for a in {v for ix in load.index for v in variables(ix)})
        for load, _ in all_loads(root)
        if root.reduce and load.tensor in before
    }
    return sum(size * problem.expr.type_of(tensor).dtype.itemsize for tensor, size in sizes.items())
