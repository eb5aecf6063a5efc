"""Cut axes into tasks, and build the nest of a stage around a lane axis. Known as: tiling, load balancing."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from math import prod

from rammer.ir.device import VDeviceSpec
from rammer.ir.expr import Stage, loads
from rammer.ir.index import variables
from rammer.ir.tensor import Layout, aligned_bytes
from rammer.ir.tile import Kind
from rammer.kernels.lanes import lane_axis
from rammer.kernels.packing import panels
from rammer.kernels.problem import TASK_MULTIPLE, KernelProblem
from rammer.kernels.schedule import At, Loop

BARRIERS = 4  # a barrier on both sides, which half of an operation's time must save
UNROLL = 4  # vectors of a sum side by side: one's adding hides the latency of another's
MAX_UNROLLED = 80  # statements of a register block whose window is unrolled too
SLACK = 1.05  # gain on the busiest vEU that pays for cutting a second axis: operands are then read more often
# Estimated time on one vEU: up to three times what is measured. Of operations that were measured to take less, in
# 73 models on two vEUs, the better of a coarse and of a finer cut is 0.2 % faster than the coarse one in sum, and the
# finer ones are 16 % of all texts to compile.
MIN_MULTIPLE_US = 800.0
WHOLE = 1.15  # SLACK for leaving the first axis whole, which costs traffic: measured only at 1.33 (ViT's three heads)


def task_counts(problem: KernelProblem) -> list[int]:
    """Return numbers of tasks to aim for: one per vEU (or `tuning.tasks`), then finer; one if the operation is tiny."""
    want = problem.rtasks
    if want == 1 or problem.microseconds <= least_us(problem.spec):
        return [1]
    shortest_us = 0.0 if problem.tuning.small else MIN_MULTIPLE_US
    return [want, TASK_MULTIPLE * want] if problem.microseconds > shortest_us else [want]


def least_us(spec: VDeviceSpec) -> float:
    """Return the time on one vEU above which a second task pays: half of it must save a barrier on both sides."""
    return BARRIERS * spec.barrier_us


def cut(axes: Sequence[tuple[str, int, int]], want: int, veus: int = 1) -> tuple[Loop, ...]:
    """Return TASK loops over (axis, extent, granularity), outermost first: about `want`, all vEUs equally busy."""
    cuttable = [(axis, -(-extent // grain), grain) for axis, extent, grain in axes if extent > grain]
    shares = even_shares([units for _, units, _ in cuttable], want, veus)
    return tuple(Loop(a, s * g, Kind.TASK) for (a, u, g), s in zip(cuttable, shares, strict=True) if s is not None)


def even_shares(units: Sequence[int], want: int, veus: int) -> list[int | None]:
    """Return the units of each axis per task, None where an axis stays whole.

    Axes are cut in order until `want` is met.

    If that balances the vEUs better, the first axis is cut less or not at all, and a second one is cut: into at most
    twice `want` tasks.
    """
    found: list[int | None] = [None] * len(units)
    left = want
    for n, count in enumerate(units):
        if left > 1:
            found[n] = even_share(count, left, veus)
            left //= -(-count // (found[n] or count))
    least = busiest(units, found, veus)
    if want < 2 or veus < 2 or least * veus <= SLACK * prod(units):
        return found
    ways = [(busiest(units, way, veus), pieces(units, way), way) for way in _of_two_axes(units, 2 * want)]
    better = [way for way in ways if (WHOLE if way[2][0] is None else SLACK) * way[0] < least]
    return min(better, key=lambda way: way[:2])[2] if better else found


def _of_two_axes(units: Sequence[int], most: int) -> Iterator[list[int | None]]:
    """Yield all ways to cut one later axis, with or without the first one, into at most `most` tasks."""
    if not units:
        return
    for share in sorted({-(-units[0] // n) for n in range(1, min(units[0], most // 2) + 1)}):
        parts = -(-units[0] // share)
        for n, count in enumerate(units[1:], 1):
            for other in {-(-count // m) for m in range(2, min(count, most // parts) + 1)}:
                first = share if parts > 1 else None
                yield [first, *(other if m == n else None for m in range(1, len(units)))]


def pieces(units: Sequence[int], shares: Sequence[int | None]) -> int:
    """Return the number of tasks of such shares."""
    return prod(-(-u // (s or u)) for u, s in zip(units, shares, strict=True))


def busiest(units: Sequence[int], shares: Sequence[int | None], veus: int) -> int:
    """Return the units on the busiest vEU."""
    return -(-pieces(units, shares) // veus) * prod(s or u for u, s in zip(units, shares, strict=True))


def even_share(units: int, want: int, veus: int = 1) -> int:
    """Return units per task for `want` tasks, or for up to twice as many if that balances the vEUs better."""
    if units <= want:
        return 1
    size = -(-units // want)
    return min(range(size, (size + 1) // 2 - 1, -1), key=lambda s: (busiest([units], [s], veus), -s))


def output_order(problem: KernelProblem) -> list[str]:
    """Return the root's axes in the order of the root's memory, outermost first."""
    kind = problem.expr.outputs[-1][1]
    axes = [a for a, _ in problem.root.axes]
    if kind.layout is None:
        return axes
    seen: dict[int, None] = dict.fromkeys(d.dim for d in kind.layout.digits)
    return [axes[d] for d in seen]


def stage_loops(
    problem: KernelProblem,
    stage: Stage,
    lane: str | None,
    *,
    order: Iterable[str] = (),
    unroll: int = 1,
    tile: tuple[str, int] | None = None,
    sides: Collection[str] = (),
) -> tuple[Loop, ...]:
    """Return serial loops over the axes, then the reduction, and vectors along `lane` innermost.

    `tile` = (axis, n): n neighbours of another output axis share a register block. So do all points of `sides`, which
    are axes. `unroll`: vectors per step.
    """
    lanes = problem.lanes
    names = list(order) or [a for a, _ in stage.axes]
    names += [a for a, _ in stage.axes if a not in names]
    names = [a for a in names if a not in sides]
    reduce = [a for a, _ in stage.reduce]
    loops = [Loop(a, lanes * unroll if a == lane else 1) for a in names if not (tile and a == tile[0])]
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
    if tile:
        inner.insert(len(inner) - (2 if unroll > 1 else 1) if lane else 0, Loop(tile[0], 1, Kind.UNROLLED))
    return (*loops, *_window(stage, reduce, lane, tile), *(Loop(a, 1, Kind.UNROLLED) for a in sides), *inner)


def _window(stage: Stage, reduce: list[str], lane: str | None, tile: tuple[str, int] | None) -> tuple[Loop, ...]:
    """Return the reduction loops besides the lanes'.

    One whose loads neighbours of a register block share is last, unrolled.

    Channels are not shared: unrolled in every piece of the padding, they took clang 5 to 13 s.
    """
    if not reduce:
        return ()
    unrolled = False
    if tile and lane:
        indices = [variables(ix) for load, _ in loads(stage.body) for ix in load.index]
        shared = [a for a in reduce if any({tile[0], a} <= names for names in indices)]
        reduce = [*(a for a in reduce if a not in shared), *shared]
        unrolled = bool(shared) and tile[1] * dict(stage.reduce)[reduce[-1]] <= MAX_UNROLLED
    *outer, last = reduce
    return (*(Loop(a) for a in outer), Loop(last, 1, Kind.UNROLLED if unrolled else Kind.SERIAL))


def lane_packing(problem: KernelProblem, stage: Stage, lane: str | None) -> tuple[tuple[str, Layout], ...]:
    """Return packings, with the lane axis innermost, of static inputs whose lanes are strided."""
    found: dict[str, Layout] = {}
    for load, _ in loads(stage.body):
        if lane is None or not problem.packable(load, lane):
            continue
        if problem.lane_stride(load.tensor, load.index, lane, stage) == 1:
            continue
        found[load.tensor] = panels(load, lane, problem.lanes)
    return tuple(found.items())


def stage_order(stage: Stage, *last: str | None) -> tuple[int, ...]:
    """Return the order of scratch dimensions with some axes innermost; () if that is their own order."""
    names = [a for a, _ in stage.axes]
    inner = [a for a in last if a in names]
    order = tuple(map(names.index, (*(a for a in names if a not in inner), *inner)))
    return order if order != tuple(range(len(names))) else ()


def place_one(problem: KernelProblem, stage: Stage, loops: Sequence[Loop], depth: int) -> At:
    here = {loop.axis: loop.step for loop in loops[: depth + 1]}
    lane = lane_axis(problem, stage, here)
    extents = {a: min(e, here.get(a, e)) for a, e in (*stage.axes, *stage.reduce)}
    unroll = UNROLL if stage.reduce and lane is not None and extents[lane] >= UNROLL * problem.lanes else 1
    return At(stage.name, depth, stage_loops(problem, stage, lane, unroll=unroll), order=stage_order(stage, lane))


def kept_bytes(stages: Iterable[Stage], steps: Mapping[str, int]) -> int:
    """Return the bytes of scratch for stages of which at most `steps` points of some axes are computed at a time."""
    sizes = (prod(min(e, steps.get(a, e)) for a, e in s.axes) * s.dtype.itemsize for s in stages)
    return sum(map(aligned_bytes, sizes))
