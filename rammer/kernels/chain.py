"""Schedules for a product whose rows were computed from those of another product: attention, with its weights in scratch.

A block of rows goes through all stages before the next one begins, so that what lies between the two products stays in
the vEU's own cache. The matrices pass by once for each block.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from math import prod

from rammer.ir.expr import loads
from rammer.ir.tile import Kind
from rammer.kernels.contraction import Block, blocks
from rammer.kernels.normal import cleaned
from rammer.kernels.problem import Problem, worth_keeping
from rammer.kernels.product import Product, product
from rammer.kernels.schedule import At, Loop, Schedule
from rammer.kernels.tiling import cut, kept_bytes, place_one, task_counts

MOST_ROWS = 48  # of a block: enough arithmetic to hide fetching both matrices


def chained(problem: Problem) -> Problem | None:
    """The operation, with everything kept that several stages read behind a reduction; None if it has no two sums."""
    expr = cleaned(problem.operation.expr)
    if sum(s.combine == "sum" and bool(s.reduce) for s in expr.stages) < 2:
        return None
    readers = Counter(name for s in expr.stages for name in {ld.tensor for ld, _ in loads(s.body)})
    behind: set[str] = set()
    for stage in expr.stages:
        if stage.reduce or any(ld.tensor in behind for ld, _ in loads(stage.body)):
            behind.add(stage.name)
    keep = {s.name for s in expr.stages if s.name in behind and not s.reduce and readers[s.name] > 1}
    return Problem.of(problem.operation, problem.spec, keep=worth_keeping(expr) | keep, wanted=problem.wanted)


def schedules(problem: Problem) -> Iterator[Schedule]:
    """Nothing if the root is no such product; else one schedule per task count."""
    last = product(problem, problem.root)
    if last is None or last.row is None or last.x.tensor not in problem.stages:
        return
    found = [p for s in problem.placed if (p := product(problem, s)) is not None]
    if len(found) != 1 or found[0].row != last.row or any(last.row not in dict(s.axes) for s in problem.placed):
        return
    seen = set()
    for want in task_counts(problem):
        schedule = _schedule(problem, found[0], last, want)
        if schedule is not None and schedule.loops not in seen:
            seen.add(schedule.loops)
            yield schedule


def _schedule(problem: Problem, first: Product, last: Product, want: int) -> Schedule | None:
    """The two products with blocks of their own. None where scratch has no room for the rows of a block."""
    row, lanes, extents = last.row, problem.lanes, dict(problem.root.axes)
    assert row is not None
    own, inner = (_block(problem, p, min(extents[row], MOST_ROWS)) for p in (last, first))
    grain = max(own.rows, inner.rows)
    batch = [a for a in extents if a not in (row, last.lane) and extents[a] > 1]
    alone = dict.fromkeys(batch, 1)
    rows = max(
        (n for n in range(grain, MOST_ROWS + 1, grain) if _kept(problem, {**alone, row: n}) <= problem.spec.scratch_bytes),
        default=0,
    )
    if not rows:
        return None
    axes = [*((a, extents[a], problem.span(a)) for a in batch), (row, extents[row], grain)]
    tasks = cut(axes, want, problem.spec.num_veus)
    around = (*tasks, *(Loop(a) for a in batch), Loop(row, rows))
    depth = len(around) - 1
    stages = tuple(
        At(s.name, depth, _nest(problem, first, inner))
        if s.name == first.stage.name
        else place_one(problem, s, around, depth)
        for s in problem.placed
    )
    count = prod(-(-extents[lp.axis] // lp.step) for lp in tasks)
    name = f"{problem.operation.kind}_{rows}x{own.vectors * lanes}_t{count}"
    return Schedule(name, (*around, *_nest(problem, last, own, {*batch})), stages)


def _kept(problem: Problem, steps: dict[str, int]) -> int:
    return kept_bytes(problem.placed, steps)


def _block(problem: Problem, p: Product, rows: int) -> Block:
    """The register block of a product of so many rows."""
    return blocks(problem, -(-dict(p.stage.axes)[p.lane] // problem.lanes), rows)[0]


def _nest(problem: Problem, p: Product, block: Block, around: set[str] | None = None) -> tuple[Loop, ...]:
    """Rows pass by panels of a matrix: in each panel all rows, as they are near."""
    assert p.row is not None
    batch = [a for a, _ in p.stage.axes if a not in (p.row, p.lane) and a not in (around or ())]
    return (
        *(Loop(a) for a in batch),
        Loop(p.lane, block.vectors * problem.lanes),
        Loop(p.row, block.rows),
        *(Loop(a) for a, _ in p.stage.reduce),
        *((Loop(p.row, 1, Kind.UNROLLED),) if block.rows > 1 else ()),
        Loop(p.lane, problem.lanes, Kind.UNROLLED),
        Loop(p.lane, 1, Kind.VECTOR),
    )
