"""Schedule a product whose rows are computed from another product's rows on many threads: attention.

A task takes some rows through all stages, and what lies between the two products stays in scratch. Both matrices are
copied there in panels: columns of the first product, terms of the second one. Known as: fused attention.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product as combinations
from math import ceil, prod
from typing import NamedTuple

from rammer.ir.expr import Load
from rammer.ir.tile import Kind
from rammer.kernels.packing import dim_of
from rammer.kernels.problem import WORD, KernelProblem
from rammer.kernels.product import Product, terms
from rammer.kernels.sched import Sched, copy_axes
from rammer.kernels.schedule import Loop, Schedule, group
from rammer.kernels.threads.terms import ROUNDS, powers, stage_loops
from rammer.kernels.tiling import kept_bytes
from rammer.kernels.vectors.chain import batch_axes

MOST_ROWS = 64  # of a task
MOST_SUMS = 64  # of a thread
POINTS = range(1, 17)  # of a thread along a side
LEAST = 32  # columns or terms of a panel: a copy costs two syncs


class Share(NamedTuple):
    """How threads share a product: cycles, points of each along rows and columns, threads per sum.

    A panel of the matrix is in scratch at once: columns, or terms, of which threads take `step` together. `words`: of
    scratch, for the panel and to combine sums.
    """

    cycles: float
    rows: int
    columns: int
    split: int
    step: int
    panel: int
    words: int


def schedules(problem: KernelProblem, most: int) -> Iterator[Schedule]:
    """Yield schedules of different numbers of rows; none unless the root is such a product."""
    both = problem.matched.chain
    if both is None or any(len(p.stage.reduce) != 1 for p in both):
        return
    row, batch, extents = str(both.last.row), batch_axes(problem, both.last), dict(problem.root.axes)
    counts = (n * problem.spec.num_veus // prod(extents[a] for a in batch) for n in ROUNDS)
    for rows in sorted({min(ceil(extents[row] / max(count, 1)), MOST_ROWS) for count in counts}):
        steps, wave = {**dict.fromkeys(batch, 1), row: rows}, problem.spec.subgroup_size
        found = (_schedule(problem, *both, steps, n) for n in range(wave, most + 1, wave))
        yield from sorted(filter(None, found), key=lambda s: problem.unshared_us(s, 1))[:1]


def _schedule(
    problem: KernelProblem, first: Product, last: Product, steps: dict[str, int], threads: int
) -> Schedule | None:
    """Return the loops of tasks of such steps; None if scratch does not fit them."""
    rows, lanes, row = steps[str(last.row)], problem.spec.lanes, last.row
    room = (problem.spec.scratch_bytes - kept_bytes(problem.placed, steps)) // WORD
    if (outer := _share(problem, last, rows, threads, room // 2, across=False)) is None:
        return None
    width = dict(first.stage.axes)[first.lane]
    gap = pad(outer.panel * ceil(width / outer.panel), lanes)
    long = [p.name for p in problem.placed if p.axes[-1][0] == first.lane]
    room -= outer.words + rows * (len(long) * (outer.panel - 1 + gap) + terms(first) + pad(terms(first), lanes))
    if (inner := _share(problem, first, rows, threads, room, across=True)) is None:
        return None
    (deep, _), (key, _) = first.stage.reduce[0], last.stage.reduce[0]
    s = Sched(problem, first.stage).split(first.lane, inner.panel)
    s = _copy(s, first.w, deep, threads).split(first.lane, inner.step).bind(row, inner.rows).bind(first.lane)
    product = s.split(deep, lanes).unroll(deep, row).unroll(first.lane, size=inner.step // inner.columns)
    s = _copy(Sched(problem).nest(Loop(a, n, Kind.TASK) for a, n in steps.items()), first.x, deep, threads)
    for stage in problem.placed:
        loops = product if stage is first.stage else stage_loops(problem, stage, steps, threads, {})
        s = s.compute_at(stage.name, loops, pad=gap if stage.name in long else 0, depth=len(steps) - 1)
    beside = min(outer.columns, lanes)
    s = s.bind(key if outer.split > 1 else None, lanes).bind(row, outer.rows).bind(last.lane, beside)
    s = _copy(s.split(key, outer.panel), last.w, last.lane, threads).split(key, outer.step).unroll(key, row)
    s = s.unroll(last.lane, size=beside * threads * outer.rows // (rows * outer.split))
    s = s.unroll(last.lane if beside > 1 else None)
    return s.on_threads(threads).build(f"{rows}x{inner.panel}x{outer.panel}_s{outer.split}_x{threads}")


def pad(extent: int, lanes: int) -> int:
    """Return elements to add to a row in scratch so that vectors of adjacent rows begin in different banks."""
    return (-(-extent // lanes) | 1) * lanes - extent


def _copy(s: Sched, load: Load, along: str, threads: int) -> Sched:
    """Copy an operand inside the innermost loop so far, with an axis innermost, by vectors if it lies so in memory."""
    axes, lanes, dim = copy_axes(s.problem, load.tensor), s.problem.spec.lanes, dim_of(load, along)
    extent, every = s.problem.expr.type_of(load.tensor).shape[dim], group(axes)
    wide = lanes if dim == len(axes) - 1 and extent % lanes == 0 else 1
    nest = Sched(s.problem).split(every, wide * threads).bind(every, wide)
    nest = nest.vectorize(every) if wide > 1 else nest
    order = (*(d for d in range(len(axes)) if d != dim), dim)
    return s.compute_at(load.tensor, nest, order=order, pad=pad(extent, lanes))


def _share(problem: KernelProblem, p: Product, rows: int, threads: int, room: int, *, across: bool) -> Share | None:
    """Return the fastest way to share a product. `across`: panels are columns, with their terms innermost."""
    spec, length, width, found = problem.spec, terms(p), dict(p.stage.axes)[p.lane], []
    lanes, wave, extent, inside = spec.lanes, spec.subgroup_size, *((width, length) if across else (length, width))
    inside += pad(inside, lanes)
    for r, c in combinations((r for r in POINTS if rows % r == 0), POINTS):
        along = threads * r // rows if across else ceil(width / c)
        split, rest = divmod(threads, max(along * rows // r, 1))
        beside, step = min(c, lanes), along * c if across else split * lanes
        tree = threads * r * c if split > 1 else 0
        most = (room - tree) // inside
        fits = most >= min(LEAST, extent) and r * c <= MOST_SUMS and step - along < extent
        if rest or not fits or split not in ((1,) if across else powers(threads)) or (not across and c % beside):
            continue
        panel = ceil(extent / ceil(extent / most) / step) * step
        if panel <= most:
            loads, wide = (c, lanes) if across else (c * lanes // beside, beside)
            transfers = r + loads * max(min(along, wave) * wide / spec.issue.banks, 1.0)
            each = threads / wave * (r * c * lanes / spec.issue.arithmetic + transfers / spec.issue.loads)
            passes = ceil(extent / step) * (ceil(length / lanes) if across else 1)
            cycles = passes * (each + spec.issue.latency) + 2 * tree / wave
            found.append(Share(cycles, r, c, split, step, panel, tree + inside * panel))
    return min(found, default=None)
