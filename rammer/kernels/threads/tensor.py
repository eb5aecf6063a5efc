"""Schedule sums of products by instructions that the threads of a subgroup execute together.

Known as: tensor cores. As in `threads.product`, a task computes a tile of `slow` x `fast` points, with both
operands staged in scratch. Here a subgroup computes blocks of the instruction's size, and each of its threads holds
some points of every block.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product as combinations
from math import prod

from rammer.cost.work import PARTS, WRITTEN, Issued, Work
from rammer.ir.index import Index
from rammer.ir.instruction import Instruction
from rammer.ir.tile import Kind
from rammer.kernels.schedule import Loop, Schedule, group
from rammer.kernels.threads.product import UNROLLS, USUAL, Pair, Staging, ThreadTile, compared, copies
from rammer.kernels.threads.terms import powers

TIMES = (1, 3)  # of powers of two: blocks of a subgroup along a side
MOST_APPLIED = 32  # instructions of a subgroup that are unrolled


def instruction_for(staging: Staging) -> Instruction | None:
    """Return the fastest instruction for the product; None if the vEU has none. Terms must divide by its depth."""
    problem, p = staging.problem, staging.p
    if any(staging.deep in staged.moves[-1] for staged in staging.copies):
        return None  # a window along memory: its terms are points of neighbours, too
    own = p.stage.dtype, *(problem.expr.type_of(ld.tensor).dtype for ld in (p.a, p.b))
    for found in problem.spec.multipliers:
        suits = found.threads == problem.spec.subgroup_size and own == tuple(kind.dtype for _, kind in found.tensors)
        divides = staging.terms % found.extent("term") == 0
        if suits and divides and _divs(found, 0) == _divs(found, 1):
            return found
    return None


def _divs(unit: Instruction, number: int) -> list[int]:
    """Return the digits along the terms of an operand. They must agree, as one nest of loops walks both operands."""
    across, own = unit.digits(unit.meaning.inputs[number][0])
    return sorted((d.div for d in (*across, *own) if d.dim == 1 - number), reverse=True)


def tiles(staging: Staging, unit: Instruction) -> list[ThreadTile]:
    """Return tiles for different numbers of tasks by estimate, those done soonest first."""
    every = chunks(staging, unit)
    usual = [c for c in reversed(every) if c < 2 * USUAL[0] // staging.passes] or every[:1]
    ways = ((_fitted(staging, unit, *way, chunk) for chunk in usual) for way in _divided(staging, unit))
    return compared(ways, partial(chunked, staging), staging.problem.spec)


def chunked(staging: Staging, tile: ThreadTile) -> Iterator[ThreadTile | None]:
    """Yield the tile with chunks of all lengths, ascending; None for those that do not fit."""
    for chunk in chunks(staging, tile.instruction):
        yield _fitted(staging, tile.instruction, tile.groups, tile.blocks, chunk)


def _divided(staging: Staging, unit: Instruction) -> Iterator[tuple[Pair, Pair]]:
    """Yield subgroups per task, and blocks in a subgroup's registers, along both sides; at most the product's size."""
    spec, p = staging.problem.spec, staging.p
    sums, a, b = (unit.registers(name) for name, _ in unit.tensors)
    (_, height), (_, width), _ = unit.axes
    most = [-(-prod(staging.extents[a] for a in axes) // size) for axes, size in ((p.slow, height), (p.fast, width))]
    room = spec.registers * spec.lanes
    sizes = sorted({n * times for n in powers(room // sums) for times in TIMES})
    waves = range(1, spec.max_threads // unit.threads + 1)
    for down, along in combinations(waves, repeat=2):
        if down * along not in waves:
            continue
        for high, broad in combinations(sizes, repeat=2):
            fits = sums * high * broad + a * high + b * broad <= room
            if fits and down * high < 2 * most[0] and along * broad < 2 * most[1]:
                yield (down, along), (high, broad)


def _fitted(staging: Staging, unit: Instruction, waves: Pair, blocks: Pair, chunk: int) -> ThreadTile | None:
    """Return the tile with such a chunk; None if it does not fit the vEU."""
    spec = staging.problem.spec
    (_, height), (_, width), (_, depth) = unit.axes
    steps = staging.steps(waves[0] * blocks[0] * height, waves[1] * blocks[1] * width)
    if staging.nbytes(steps, chunk) > staging.room:
        return None
    (sums, a, b), banks = (unit.registers(name) for name, _ in unit.tensors), spec.issue.banks
    each = max(unit.threads / banks, 1.0)
    held = a * blocks[0] + b * blocks[1]
    split = PARTS * held if unit.split_dtype else 0.0
    own = Issued(split, held * each, made=height * width * depth / unit.gain * prod(blocks))
    joined = together(chunk // depth, blocks)
    product = Work(chunk // depth // joined * staging.passes, sum([own] * joined, Issued()), (), True, {}, {})
    after = Issued(stores=WRITTEN * sums * prod(blocks) * each)
    places = [unit.held(unit.tensors[0][0], Index(), Index(n)) for n in range(sums)]  # of a thread in a block
    rows, columns = (n * len({place[dim] for place in places}) for dim, n in enumerate(blocks))
    added = staging.added(rows, columns)
    us = staging.us(steps, chunk, prod(waves) * unit.threads, product, after, added)
    return ThreadTile(steps, chunk, staging.tasks(steps), us, blocks, waves, unit=unit)


def together(steps: int, blocks: Pair) -> int:
    """Return how many steps of a chunk to unroll: loads of one hide behind the products of another."""
    return next((n for n in UNROLLS[1:] if steps % n == 0 and n * prod(blocks) <= MOST_APPLIED), 1)


def chunks(staging: Staging, unit: Instruction) -> list[int]:
    """Return possible numbers of terms to stage at a time: equal parts of the sum."""
    depth = unit.extent("term")
    return [n for n in range(depth, staging.terms + 1, depth) if staging.terms % n == 0]


def gaps(staging: Staging, tile: ThreadTile) -> list[int]:
    """Return the padding of staged rows, in elements per operand, with the fewest bank conflicts in a subgroup."""
    unit, banks, found = tile.instruction, staging.problem.spec.issue.banks, []
    for dim, (staged, (name, _)) in enumerate(zip(staging.copies, unit.meaning.inputs, strict=True)):
        places = {unit.held(name, Index(thread), Index()) for thread in range(unit.threads)}
        *outer, last = staging.rows(staged, tile.steps, tile.chunk)
        meeting = []
        for gap in range(banks):
            row = prod(outer) * (last + gap)  # from one term to the next
            at = [(place[dim].const + place[1 - dim].const * row) % banks for place in places]
            meeting.append(max(map(at.count, at)))
        found.append(meeting.index(min(meeting)))
    return found


def schedule(staging: Staging, tile: ThreadTile) -> Schedule:
    """Return the loops of a tile."""
    p, deep, unit, chunk, (down, along) = staging.p, staging.deep, tile.instruction, tile.chunk, tile.blocks
    sides = slow, fast = group(p.slow), group(p.fast)
    (height, width, depth) = (extent for _, extent in unit.axes)
    rows, columns = tile.sizes
    (sums, _), (a, _), _ = unit.tensors
    threads, own = unit.digits(sums)
    spread = [d.div for d in unit.digits(a)[0] if d.dim == 1]
    joined = together(chunk // depth, tile.blocks)
    s = staging.begun(tile).split(slow, rows).split(fast, columns).bind(slow, down * height)
    s = s.bind(fast, along * width).nest(Loop(sides[d.dim], d.div, Kind.THREAD) for d in threads).split(deep, chunk)
    s = copies(s, staging, tile, gaps(staging, tile)).reorder(*staging.window).split(deep, joined * depth)
    s = s.unroll(deep if joined > 1 else None, size=depth)
    s = s.unroll(slow, size=height).unroll(fast, size=width)  # blocks of rows, of columns, and the sums of a thread
    s = s.nest(Loop(sides[d.dim], d.div, Kind.UNROLLED) for d in own)
    s = s.nest(Loop(deep, div, Kind.SERIAL if div in spread else Kind.UNROLLED) for div in _divs(unit, 0))
    s = s.on_threads(tile.threads).tensorize(unit)
    return s.build(f"{unit.precision}_{rows}x{columns}_k{chunk}_x{tile.threads}")
