"""Schedules for sums of products by instructions that a wave's threads execute together.

As in `threads_product` a task computes a tile of `slow` x `fast` points, both operands staged in scratch. Here a wave
computes blocks of points as large as the instruction's, and each of its threads holds some points of every block.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from rammer.ir.instruction import Instruction
from rammer.ir.tile import Kind
from rammer.kernels.problem import Problem
from rammer.kernels.schedule import Loop, Schedule, group
from rammer.kernels.threads_product import Sides, Tile, box, operands

# waves of a task along slow and fast, blocks that each of them computes
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
CHUNK = 32  # terms of the sum that are staged at a time
GAP = 8  # elements after each staged row: the threads of a wave then read from different banks
LOAD_SLOTS = 4.0  # issue slots of a load from scratch


@dataclass(frozen=True)
class Blocks:
    """A tile, and how it is divided."""

    tile: Tile
    waves: tuple[int, int]
    blocks: tuple[int, int]


def instruction_for(problem: Problem, p: Sides) -> Instruction | None:
    """The fastest one for the product, whose terms must fill its depth; None if the vEU has none."""
    own = p.stage.dtype, *(problem.expr.type_of(ld.tensor).dtype for ld in (p.a, p.b))
    for found in problem.spec.multipliers:
        suits = found.threads == problem.spec.wave and own == tuple(kind.dtype for _, kind in found.tensors)
        if suits and deepest(p)[1] % found.extent("term") == 0 and _divs(found, 0) == _divs(found, 1):
            return found
    return None


def _divs(unit: Instruction, number: int) -> list[int]:
    """Of the digits along the terms of an operand: one nest of loops walks both operands."""
    across, own = unit.digits(unit.meaning.inputs[number][0])
    return sorted((d.div for d in (*across, *own) if d.dim == 1 - number), reverse=True)


def deepest(p: Sides) -> tuple[str, int]:
    """The longest axis of the sum, whose terms are staged in chunks."""
    return max(p.stage.reduce, key=lambda axis: axis[1])


def tiles(problem: Problem, p: Sides, unit: Instruction) -> list[Blocks]:
    """Tiles, the cheapest first by a model of the whole operation on all vEUs; each with another number of tasks."""
    extents = dict(p.stage.axes)
    depth = prod(e for _, e in p.stage.reduce)
    (height, width, terms) = (extent for _, extent in unit.axes)
    (a, b) = (unit.registers(name) for name, _ in unit.meaning.inputs)
    slots = height * width * terms / unit.threads / unit.gain
    found: dict[int, Blocks] = {}
    for waves, blocks in TILES:
        threads = prod(waves) * unit.threads
        if threads > problem.spec.max_threads:
            continue
        size = (waves[0] * blocks[0] * height, waves[1] * blocks[1] * width)
        steps = {**box(p, p.slow, size[0]), **box(p, p.fast, size[1]), **dict.fromkeys(p.batch, 1)}
        tasks = prod(-(-extents[a] // s) for a, s in steps.items())
        rounds = -(-tasks // problem.spec.num_veus)
        loads = LOAD_SLOTS * (a * blocks[0] + b * blocks[1])
        copies = LOAD_SLOTS * terms * sum(size) / threads
        one = depth / terms * (slots * prod(blocks) + loads + copies) * threads
        one /= min(threads / min(problem.spec.max_threads, 256), 1.0) ** 0.5
        tile = Tile(steps, size, (prod(waves), unit.threads), 1, tasks, rounds * one, tasks * one)
        if tasks not in found or tile.cost < found[tasks].tile.cost:
            found[tasks] = Blocks(tile, waves, blocks)
    return sorted(found.values(), key=lambda b: b.tile.cost)


def schedules(problem: Problem, p: Sides, unit: Instruction, chosen: Blocks) -> Iterator[Schedule]:
    """One schedule per chunk of the sum, the best first: few syncs."""
    deep, terms = deepest(p)
    depth = unit.extent("term")
    window = [a for a, _ in p.stage.reduce if a != deep]
    most = max(CHUNK // prod(e for a, e in p.stage.reduce if a != deep), depth)
    for chunk in range(most // depth * depth, 0, -depth):
        if terms % chunk == 0:
            yield _schedule(problem, p, unit, chosen, deep, chunk, window)


def _schedule(
    problem: Problem, p: Sides, unit: Instruction, chosen: Blocks, deep: str, chunk: int, window: list[str]
) -> Schedule:
    tile, (down, along) = chosen.tile, chosen.blocks
    sides = slow, fast = group(p.slow), group(p.fast)
    (rows, columns) = tile.points
    (height, width, depth) = (extent for _, extent in unit.axes)
    (sums, _), (a, _), _ = unit.tensors
    threads, own = unit.digits(sums)
    spread = [d.div for d in unit.digits(a)[0] if d.dim == 1]
    tasks = tuple(Loop(a, tile.steps[a], Kind.TASK) for a in (*p.batch, *p.slow, *p.fast))
    loops = (
        *tasks,
        Loop(slow, rows),
        Loop(fast, columns),
        Loop(slow, down * height, Kind.THREAD),
        Loop(fast, along * width, Kind.THREAD),
        *(Loop(sides[d.dim], d.div, Kind.THREAD) for d in threads),
        Loop(deep, chunk),
        *(Loop(a) for a in window),
        Loop(deep, depth),
        Loop(slow, height, Kind.UNROLLED),  # blocks of rows, blocks of columns, and the sums of a thread
        Loop(fast, width, Kind.UNROLLED),
        *(Loop(sides[d.dim], d.div, Kind.UNROLLED) for d in own),
        *(Loop(deep, div, Kind.SERIAL if div in spread else Kind.UNROLLED) for div in _divs(unit, 0)),
    )
    count = prod(tile.threads)
    packing, at = operands(problem, p, tile, loops.index(Loop(deep, chunk)), count, GAP)
    name = f"{problem.operation.kind}_{unit.precision}_{rows}x{columns}_k{chunk}_x{count}_t{tile.tasks}"
    return Schedule(name, loops, at, packing, threads=count, instruction=unit)
