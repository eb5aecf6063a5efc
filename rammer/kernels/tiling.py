"""Building blocks of schedules: cutting axes into tasks, and the nest of a stage around a lane axis."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import prod

from rammer.ir.expr import Stage
from rammer.ir.tile import Kind
from rammer.kernels.problem import Problem
from rammer.kernels.schedule import At, Loop

TINY_US = 3.0  # below this an operation is not worth a second task


def task_counts(problem: Problem) -> list[int]:
    """How many tasks to aim for: one per vEU first, then finer; one if the operation is tiny."""
    veus = problem.spec.num_veus
    if problem.microseconds < TINY_US or veus == 1:
        return [1]
    return [veus, 4 * veus] if problem.microseconds > 8 * TINY_US else [veus]


def cut(axes: Sequence[tuple[str, int, int]], want: int) -> tuple[Loop, ...]:
    """TASK loops over (axis, extent, granularity), outermost first, that make about `want` tasks of equal size."""
    loops = []
    for axis, extent, grain in axes:
        units = -(-extent // grain)
        if want <= 1 or units <= 1:
            continue
        per_task = _even(units, want)
        parts = -(-units // per_task)
        loops.append(Loop(axis, per_task * grain, Kind.TASK))
        want = -(-want // parts)
    return tuple(loops)


def _even(units: int, want: int) -> int:
    """Units per task: `want` tasks or somewhat more, if that makes them equal."""
    if units <= want:
        return 1
    size = -(-units // want)
    exact = [s for s in range(size, 0, -1) if units % s == 0]
    return exact[0] if exact and exact[0] * 2 > size else size


def output_order(problem: Problem) -> list[str]:
    """Root axes as they lie in the root's memory, outermost first."""
    kind = problem.expr.outputs[-1][1]
    axes = [a for a, _ in problem.root.axes]
    if kind.layout is None:
        return axes
    seen: dict[int, None] = dict.fromkeys(d.dim for d in kind.layout.digits)
    return [axes[d] for d in seen]


def lane_axis(problem: Problem, stage: Stage) -> str | None:
    """The axis along which vectors cost least; later axes win ties. None for a single point."""
    axes = [(a, e) for a, e in (*stage.reduce, *stage.axes) if e > 1]
    if not axes:
        return None
    return min(reversed(axes), key=lambda item: problem.lane_cost(stage, item[0]))[0]


def stage_loops(
    problem: Problem,
    stage: Stage,
    lane: str | None,
    *,
    order: Iterable[str] = (),
    unroll: int = 1,
    tile: tuple[str, int] | None = None,
) -> tuple[Loop, ...]:
    """Serial loops over the axes, the reduction inside, vectors along `lane` innermost.

    `tile` = (axis, n): n neighbours of another output axis share a register block. `unroll`: vectors per step.
    """
    lanes = problem.lanes
    names = list(order) or [a for a, _ in stage.axes]
    names += [a for a, _ in stage.axes if a not in names]
    reduce = [a for a, _ in stage.reduce]
    loops = [Loop(a) for a in names if a != lane and not (tile and a == tile[0])]
    if tile:
        loops.append(Loop(tile[0], tile[1]))
    inner: list[Loop] = []
    if lane is not None:
        width = lanes * unroll
        inner = [Loop(lane, lanes, Kind.UNROLLED)] if unroll > 1 else []
        inner.append(Loop(lane, 1, Kind.VECTOR))
        if lane in reduce:
            reduce = [a for a in reduce if a != lane] + [lane]
            inner.insert(0, Loop(lane, width))
            reduce.remove(lane)
        else:
            loops.append(Loop(lane, width))
    if tile:
        inner.insert(len(inner) - (2 if unroll > 1 else 1) if lane else 0, Loop(tile[0], 1, Kind.UNROLLED))
    return (*loops, *(Loop(a) for a in reduce), *inner)


def stage_order(stage: Stage, lane: str | None) -> tuple[int, ...]:
    """Scratch dimensions with the lane axis innermost."""
    names = [a for a, _ in stage.axes]
    if lane not in names or names[-1] == lane:
        return ()
    p = names.index(lane)
    return (*(q for q in range(len(names)) if q != p), p)


def place(problem: Problem, depth: int) -> tuple[At, ...]:
    """An At for every stage besides the root, with a generic nest, inside loop `depth` of the root."""
    return tuple(place_one(problem, stage, depth) for stage in problem.placed)


def place_one(problem: Problem, stage: Stage, depth: int) -> At:
    lane = lane_axis(problem, stage)
    extents = dict((*stage.axes, *stage.reduce))
    unroll = 4 if lane is not None and extents[lane] >= 4 * problem.lanes and lane in dict(stage.reduce) else 1
    return At(stage.name, depth, stage_loops(problem, stage, lane, unroll=unroll), order=stage_order(stage, lane))


def unique(items: Iterable[tuple[Loop, ...]]) -> Iterator[tuple[Loop, ...]]:
    seen = set()
    for item in items:
        if item not in seen:
            seen.add(item)
            yield item


def size(axes: Iterable[tuple[str, int]]) -> int:
    return prod(e for _, e in axes)
