"""Schedules for sums of products on matrix units, where the vDevice's precision allows them: see `ir.tile.Mma`.

As in `threads_product` a task computes a tile of `slow` x `fast` points, both operands staged in scratch. Here a wave
computes blocks of 16 x 8 points, and each of its threads holds four points of every block.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from rammer.ir.tensor import DType
from rammer.ir.tile import MMA_DEPTH, Kind
from rammer.kernels.problem import Problem
from rammer.kernels.schedule import Loop, Schedule
from rammer.kernels.threads_lower import group
from rammer.kernels.threads_product import Sides, Tile, box, operands

# waves of a task along slow and fast, blocks of 16 and of 8 points that each of them computes
TILES = (
    ((2, 4), (4, 4)),
    ((2, 4), (2, 4)),
    ((2, 2), (2, 4)),
    ((2, 4), (2, 2)),
    ((2, 4), (1, 2)),
    ((2, 2), (1, 4)),
    ((2, 2), (1, 2)),
    ((1, 4), (1, 2)),
    ((1, 8), (1, 1)),
    ((1, 4), (1, 1)),
    ((1, 2), (1, 1)),
)
ROWS, COLUMNS, WAVE = 16, 8, 32  # of a block, and threads that share it
CHUNK = 32  # terms of the sum that are staged at a time
GAP = 8  # elements after each staged row: the threads of a wave then read from different banks
BLOCK_SLOTS, LOAD_SLOTS = 8.0, 4.0  # issue slots of a product of blocks, of a load from scratch


@dataclass(frozen=True)
class Blocks:
    """A tile, and how it is divided."""

    tile: Tile
    waves: tuple[int, int]
    blocks: tuple[int, int]


def offered(problem: Problem, p: Sides) -> bool:
    """Whether the product may be rounded and its terms fill the unit's depth."""
    spec = problem.spec
    depth = MMA_DEPTH.get(spec.precision)
    kinds = {problem.expr.type_of(ld.tensor).dtype for ld in (p.a, p.b)} | {p.stage.dtype}
    return bool(depth) and spec.wave == WAVE and kinds == {DType.F32} and deepest(p)[1] % (depth or 1) == 0


def deepest(p: Sides) -> tuple[str, int]:
    """The longest axis of the sum, whose terms are staged in chunks."""
    return max(p.stage.reduce, key=lambda axis: axis[1])


def tiles(problem: Problem, p: Sides) -> list[Blocks]:
    """Tiles, the cheapest first by a model of the whole operation on all vEUs; each with another number of tasks."""
    extents = dict(p.stage.axes)
    depth = prod(e for _, e in p.stage.reduce)
    fragment = MMA_DEPTH[problem.spec.precision] // 4
    found: dict[int, Blocks] = {}
    for waves, blocks in TILES:
        threads = prod(waves) * WAVE
        if threads > problem.spec.max_threads:
            continue
        size = (waves[0] * blocks[0] * ROWS, waves[1] * blocks[1] * COLUMNS)
        steps = {**box(p, p.slow, size[0]), **box(p, p.fast, size[1]), **dict.fromkeys(p.batch, 1)}
        tasks = prod(-(-extents[a] // s) for a, s in steps.items())
        rounds = -(-tasks // problem.spec.num_veus)
        loads = LOAD_SLOTS * fragment * (2 * blocks[0] + blocks[1])
        copies = LOAD_SLOTS * MMA_DEPTH[problem.spec.precision] * sum(size) / threads
        one = depth / MMA_DEPTH[problem.spec.precision] * (BLOCK_SLOTS * prod(blocks) + loads + copies) * threads
        one /= min(threads / min(problem.spec.max_threads, 256), 1.0) ** 0.5
        tile = Tile(steps, size, (prod(waves), WAVE), 1, tasks, rounds * one, tasks * one)
        if tasks not in found or tile.cost < found[tasks].tile.cost:
            found[tasks] = Blocks(tile, waves, blocks)
    return sorted(found.values(), key=lambda b: b.tile.cost)


def schedules(problem: Problem, p: Sides, chosen: Blocks) -> Iterator[Schedule]:
    """One schedule per chunk of the sum, the best first: few syncs."""
    deep, terms = deepest(p)
    depth = MMA_DEPTH[problem.spec.precision]
    window = [a for a, _ in p.stage.reduce if a != deep]
    most = max(CHUNK // prod(e for a, e in p.stage.reduce if a != deep), depth)
    for chunk in range(most // depth * depth, 0, -depth):
        if terms % chunk == 0:
            yield _schedule(problem, p, chosen, deep, chunk, window)


def _schedule(problem: Problem, p: Sides, chosen: Blocks, deep: str, chunk: int, window: list[str]) -> Schedule:
    spec, tile = problem.spec, chosen.tile
    slow, fast = group(p.slow), group(p.fast)
    (rows, columns), (down, along) = tile.points, chosen.blocks
    depth = MMA_DEPTH[spec.precision]
    tasks = tuple(Loop(a, tile.steps[a], Kind.TASK) for a in (*p.batch, *p.slow, *p.fast))
    loops = (
        *tasks,
        Loop(slow, rows),
        Loop(fast, columns),
        Loop(slow, down * ROWS, Kind.THREAD),
        Loop(fast, along * COLUMNS, Kind.THREAD),
        Loop(slow, 1, Kind.THREAD),
        Loop(fast, 2, Kind.THREAD),
        Loop(deep, chunk),
        *(Loop(a) for a in window),
        Loop(deep, depth),
        Loop(slow, ROWS, Kind.UNROLLED),  # blocks of rows, blocks of columns, halves of rows, columns of a thread,
        Loop(fast, COLUMNS, Kind.UNROLLED),
        Loop(slow, ROWS // 2, Kind.UNROLLED),
        Loop(fast, 1, Kind.UNROLLED),
        Loop(deep, 4, Kind.UNROLLED),  # terms of a thread, and of its neighbours
        Loop(deep, 1),
    )
    threads = prod(chosen.waves) * WAVE
    packing, at = operands(problem, p, tile, loops.index(Loop(deep, chunk)), threads, GAP)
    name = f"{problem.operation.kind}_{spec.precision}_{rows}x{columns}_k{chunk}_x{threads}_t{tile.tasks}"
    return Schedule(name, loops, at, packing, threads=threads, mma=spec.precision)
