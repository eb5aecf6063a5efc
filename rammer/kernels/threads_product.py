"""Schedules for sums of products on many threads: tiles of the output in registers, both operands staged in scratch.

A task computes a tile of `slow` x `fast` points; of these each thread holds a block of neighbours along `slow` and of
equally spaced ones along `fast`, the side that lies along memory. Convolutions are the same thing: padding is a stage
of its own, so that the staged box of x holds zeros where x ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product as combinations
from math import prod

from rammer.ir.expr import Call, Cast, Const, Load, Range, Scalar, Select, Stage, loads
from rammer.ir.index import bounds, simplify, substitute, var, variables
from rammer.ir.simplify import scalar_conditions
from rammer.ir.tensor import Digit, DType, Layout
from rammer.ir.tile import Kind
from rammer.kernels.problem import Problem
from rammer.kernels.schedule import At, Loop, Schedule, copied, group

# (slow, fast) points of a task, (slow, fast) points of a thread, threads that share each sum
TILES = (
    ((128, 128), (8, 8), 1),
    ((64, 128), (8, 4), 1),
    ((64, 64), (4, 4), 1),
    ((32, 128), (4, 4), 1),
    ((32, 64), (4, 4), 1),
    ((32, 64), (4, 4), 2),
    ((32, 32), (4, 4), 4),
    ((32, 32), (4, 2), 1),
    ((16, 64), (4, 4), 4),
    ((16, 64), (4, 2), 1),
    ((16, 32), (4, 2), 4),
    ((16, 32), (2, 2), 1),
    ((16, 32), (4, 4), 1),
    ((16, 16), (4, 2), 8),
    ((8, 32), (4, 2), 8),
    ((8, 32), (2, 1), 1),
    ((8, 16), (2, 2), 8),
    ((8, 16), (2, 2), 1),
)
CHUNK = 48  # terms of the sum that are staged at a time
MIN_POINTS = (4, 8)  # fewer slow or fast points are no tile
MIN_TERMS = 8
MAX_UNROLLED = 256  # products of a thread in one piece of code


@dataclass(frozen=True)
class Sides:
    """The output axes of a product by the operand that moves with them. `limits`: tiles of an axis must divide it."""

    stage: Stage
    slow: tuple[str, ...]
    fast: tuple[str, ...]
    batch: tuple[str, ...]
    a: Load  # moves with slow
    b: Load  # moves with fast
    limits: dict[str, int]


def padded(problem: Problem) -> Problem:
    """The problem with padding of operands moved into stages of their own, which cover what is read and no more."""
    keep = set(problem.keep)
    stages: list[Stage] = []
    for stage in problem.expr.stages:
        if stage.reduce and isinstance(stage.body, Call) and stage.body.fn == "mul":
            args = []
            for n, arg in enumerate(stage.body.args):
                arg, made = _unpadded(problem, arg, stage, f"{stage.name}_p{n}")
                args.append(arg)
                if made is not None:
                    stages.append(made)
                    keep.add(made.name)
            stage = replace(stage, body=Call("mul", tuple(args)))
        stages.append(stage)
    return replace(problem, expr=replace(problem.expr, stages=tuple(stages)), keep=frozenset(keep))


def _unpadded(problem: Problem, value: Scalar, reader: Stage, name: str) -> tuple[Scalar, Stage | None]:
    match value:
        case Cast(arg):
            arg, made = _unpadded(problem, arg, reader, name)
            return replace(value, arg=arg), made
        case Select(where, Load(tensor, index, ()), Const(0)):
            pass
        case _:
            return value, None
    kind = problem.expr.type_of(tensor)
    env = {a: (0, e - 1) for a, e in (*reader.axes, *reader.reduce)}
    spans = [bounds(ix, env) for ix in index]
    at = {ix: d for d, ix in enumerate(index)}
    if any(r.index not in at or (r.low, r.high) != (0, kind.shape[at[r.index]]) for r in where):
        return value, None
    axes = tuple((f"p{d}", high - low + 1) for d, (low, high) in enumerate(spans))
    place = tuple(var(a) + low for (a, _), (low, _) in zip(axes, spans, strict=True))
    guards = tuple(Range(place[at[r.index]], r.low, r.high) for r in where)
    made = Stage(name, axes, Select(guards, Load(tensor, place), Const(0.0)), dtype=kind.dtype)
    return Load(name, tuple(ix - low for ix, (low, _) in zip(index, spans, strict=True))), made


def sides(problem: Problem) -> Sides | None:
    """The root as a product that is worth tiling, or None."""
    stage = problem.root
    if stage.combine != "sum" or not stage.reduce or not stage.dtype.is_float or list(scalar_conditions(stage.body)):
        return None
    if not (isinstance(stage.body, Call) and stage.body.fn == "mul"):
        return None
    first, second = (_only_load(arg) for arg in stage.body.args)
    if first is None or second is None or first.tensor == second.tensor:
        return None
    if any(s.reduce or s.name not in (first.tensor, second.tensor) for s in problem.placed):
        return None
    others = [ld.tensor for s in problem.placed for ld, _ in loads(s.body)]
    others += [ld.tensor for ld, _ in loads(stage.epilogue)] if stage.epilogue is not None else []
    if first.tensor in others or second.tensor in others:
        return None
    moves: dict[str, list[str]] = {"first": [], "second": [], "both": []}
    limits: dict[str, int] = {}
    for axis, extent in stage.axes:
        ins = [any(axis in variables(ix) for ix in ld.index) for ld in (first, second)]
        if all(ins):
            side = next((n for n, ld in enumerate((first, second)) if _steady(ld, stage, axis, extent)), None)
            if side is None:
                moves["both"].append(axis)
                continue
            limits[axis] = _steady((first, second)[side], stage, axis, extent)
            ins[side] = False
        moves["first" if ins[0] else "second" if ins[1] else "both"].append(axis)
    extents = dict(stage.axes)
    last = next((a for a, e in reversed(stage.axes) if e > 1), None)
    if last in moves["first"]:
        first, second = second, first
        moves["first"], moves["second"] = moves["second"], moves["first"]
    if last not in moves["second"]:
        return None
    slow, fast = (tuple(a for a in moves[s] if extents[a] > 1) for s in ("first", "second"))
    sizes = [prod(limits.get(a, extents[a]) for a in axes) for axes in (slow, fast)]
    if sizes[0] < MIN_POINTS[0] or sizes[1] < MIN_POINTS[1] or prod(e for _, e in stage.reduce) < MIN_TERMS:
        return None
    batch = tuple(a for a in extents if a not in slow and a not in fast)
    return Sides(stage, slow, fast, batch, first, second, limits)


def _only_load(value: Scalar) -> Load | None:
    found = [ld for ld, _ in loads(value)]
    return found[0] if len(found) == 1 and not found[0].dynamic else None


def _steady(load: Load, stage: Stage, axis: str, extent: int) -> int:
    """The largest run of `axis` inside of which the load stands still (a group of a convolution); 0 if none."""
    env = {a: (0, max(e - 1, 0)) for a, e in (*stage.axes, *stage.reduce)}
    for size in range(extent // 2, MIN_POINTS[0] - 1, -1):
        if extent % size == 0:
            inside = {axis: var("_g") * size + var("_l")}
            limits = {**env, "_g": (0, extent // size - 1), "_l": (0, size - 1)}
            if not any("_l" in variables(simplify(substitute(ix, inside), limits)) for ix in load.index):
                return size
    return 0


@dataclass(frozen=True)
class Tile:
    """Steps of the tasks per axis, points of a thread, and threads, along slow and fast.

    `cost` models the operation alone on all vEUs, `work` the time of all its tasks together.
    """

    steps: dict[str, int]
    points: tuple[int, int]
    threads: tuple[int, int]
    split: int  # threads that share each sum
    tasks: int
    cost: float
    work: float


def tiles(problem: Problem, p: Sides) -> list[Tile]:
    """Tiles, the cheapest first by a model of the whole operation on all vEUs; each with another number of tasks."""
    extents = dict(p.stage.axes)
    depth = prod(e for _, e in p.stage.reduce)
    deep = max(e for _, e in p.stage.reduce)
    most = min(problem.spec.max_threads, 256)
    found: dict[int, Tile] = {}
    for (slow, fast), points, split in TILES:
        if (slow // points[0]) * (fast // points[1]) * split > most or 2 * split > deep:
            continue
        steps = {**box(p, p.slow, slow), **box(p, p.fast, fast), **dict.fromkeys(p.batch, 1)}
        held = [prod(steps[a] for a in axes) for axes in (p.slow, p.fast)]
        points = (min(points[0], held[0]), min(points[1], held[1]))
        threads = [-(-h // n) for h, n in zip(held, points, strict=True)]
        wave = problem.spec.wave
        while prod(threads) * split % wave and threads[0] * (threads[1] + 1) * split <= most:
            threads[1] += 1
        if prod(threads) * split > most or prod(threads) * split % min(wave, most):
            continue
        tasks = prod(-(-extents[a] // s) for a, s in steps.items())
        rounds = -(-tasks // problem.spec.num_veus)
        shared = prod(points) / (prod(points) + 2.0 * sum(points))  # of the instructions, those that multiply
        busy = min(prod(threads) * split / most, 1.0) ** 0.5
        tree = 8.0 * split if split > 1 else 0.0
        one = prod(threads) * prod(points) * (depth / shared + tree) / busy
        tile = Tile(steps, points, (threads[0], threads[1]), split, tasks, rounds * one, tasks * one)
        if tasks not in found or tile.cost < found[tasks].cost:
            found[tasks] = tile
    return sorted(found.values(), key=lambda t: t.cost)


def box(p: Sides, axes: tuple[str, ...], size: int) -> dict[str, int]:
    """Steps of at most `size` points in all that waste little at the edges, long along memory."""
    extents = dict(p.stage.axes)
    options = []
    for a in axes:
        limit = p.limits.get(a, extents[a])
        sizes = {min(1 << n, limit) for n in range(size.bit_length())} | {-(-limit // n) for n in range(1, 9)}
        options.append([s for s in sorted(sizes, reverse=True) if s <= size and (a not in p.limits or limit % s == 0)])
    best: tuple[float, tuple[int, ...]] = (-1.0, ())
    for steps in combinations(*options):
        if prod(steps) > size:
            continue
        count = prod(-(-extents[a] // s) for a, s in zip(axes, steps, strict=True))
        used = prod(extents[a] for a in axes) / (count * size)
        score = used * min(steps[-1] / min(8, extents[axes[-1]]), 1.0) ** 0.25 + 1e-3 * sum(steps) / size
        best = max(best, (score, steps))
    return dict(zip(axes, best[1], strict=True))


def schedules(problem: Problem, p: Sides, tile: Tile) -> Iterator[Schedule]:
    """One schedule per chunk of the sum, the best first: few syncs, no rest."""
    terms = dict(p.stage.reduce)
    deep = max(terms, key=lambda a: terms[a])
    window = [a for a in terms if a != deep]
    most = max(min(CHUNK // prod(terms[a] for a in window), terms[deep]), tile.split)
    fitting = range(tile.split, most + 1, tile.split)
    even = max((c for c in fitting if terms[deep] % c == 0), default=1)
    chunk = even if 3 * even > most else fitting[-1]
    while chunk >= tile.split:
        yield _schedule(problem, p, tile, deep, chunk, window)
        chunk = chunk // 2 // tile.split * tile.split


def _schedule(problem: Problem, p: Sides, tile: Tile, deep: str, chunk: int, window: list[str]) -> Schedule:
    slow, fast = group(p.slow), group(p.fast)
    (rows, columns), (down, along) = tile.points, tile.threads
    threads = down * along * tile.split
    terms = chunk // tile.split
    tasks = tuple(Loop(a, tile.steps[a], Kind.TASK) for a in (*p.batch, *p.slow, *p.fast))
    loops = (
        *tasks,
        Loop(slow, down * rows),
        Loop(fast, along * columns),
        *((Loop(deep, terms, Kind.THREAD),) if tile.split > 1 else ()),
        Loop(slow, rows, Kind.THREAD),
        Loop(fast, 1, Kind.THREAD),
        Loop(deep, chunk),
        *(Loop(deep, n, kind) for n, kind in _inner(terms, rows * columns, window)),
        *(Loop(a) for a in window),
        Loop(slow, 1, Kind.UNROLLED),
        Loop(fast, along, Kind.UNROLLED),
    )
    packing, at = operands(problem, p, tile, loops.index(Loop(deep, chunk)), threads)
    name = f"{problem.operation.kind}_{down * rows}x{along * columns}_k{chunk}_s{tile.split}_x{threads}_t{tile.tasks}"
    return Schedule(name, loops, at, packing, threads=threads)


def _inner(chunk: int, points: int, window: list[str]) -> tuple[tuple[int, Kind], ...]:
    """Steps of the terms of a chunk: some are unrolled, so that loads of one hide behind products of another."""
    together = next((n for n in (8, 4, 2) if chunk % n == 0 and n * points <= MAX_UNROLLED and not window), 1)
    return ((together, Kind.SERIAL), (1, Kind.UNROLLED)) if together > 1 else ((1, Kind.SERIAL),)


def operands(
    problem: Problem, p: Sides, tile: Tile, depth: int, threads: int, pad: int | None = None
) -> tuple[tuple[tuple[str, Layout], ...], tuple[At, ...]]:
    """How constants are packed, and copies of both factors inside loop number `depth`; `pad` instead of their own."""
    packing, at = [], []
    for load, axes in ((p.a, p.slow), (p.b, p.fast)):
        order = scratch_order(load, axes)
        names = copied_axes(problem, load.tensor)
        free = load.tensor in problem.static and problem.expr.type_of(load.tensor).layout is None
        if free and order != tuple(range(len(order))):
            packing.append((load.tensor, Layout(tuple(Digit(d) for d in order))))
            names = [names[d] for d in order]
        how, own = copying(problem, p, load, tile, names, order[-1], threads)
        at.append(At(load.tensor, depth, how, order=order, pad=own if pad is None else pad))
    return tuple(packing), tuple(at)


def copying(
    problem: Problem, p: Sides, load: Load, tile: Tile, names: list[str], last: int, threads: int
) -> tuple[tuple[Loop, ...], int]:
    """The loops that stage an operand, `names` in order of memory, and the padding of its rows in scratch.

    Dimension `last` is innermost in scratch. By vectors where it is so in memory too; otherwise threads are neighbours
    in short runs of both orders, and rows are padded, so that few of them meet in one bank.
    """
    lanes, every = problem.spec.lanes, group(names)
    plain = (Loop(every, threads), Loop(every, 1, Kind.THREAD))
    if load.tensor in problem.stages or problem.expr.type_of(load.tensor).dtype is not DType.F32:
        return plain, 0
    if not names[-1].endswith(str(last)):
        return (Loop(names[-1], 2 * lanes), *plain), lanes
    axis = next(iter(variables(load.index[last])), "")
    whole = tile.steps.get(axis, 1) % lanes == 0 and dict(p.stage.axes).get(axis, 1) % lanes == 0
    if load.index[last] != var(axis) or not whole:
        return plain, 0
    return (Loop(every, lanes * threads), Loop(every, lanes, Kind.THREAD), Loop(every, 1, Kind.VECTOR)), 0


def copied_axes(problem: Problem, tensor: str) -> list[str]:
    """Axes of the stage that copies an operand, or of the operand if it is a stage."""
    stage = problem.stages.get(tensor) or copied(tensor, problem.expr.type_of(tensor))
    return [a for a, _ in stage.axes]


def scratch_order(load: Load, axes: tuple[str, ...]) -> tuple[int, ...]:
    """Dimensions of the staged box, those that move with the tile innermost."""
    moves = [bool(variables(ix) & set(axes)) for ix in load.index]
    return tuple(sorted(range(len(moves)), key=lambda d: (moves[d], d)))
