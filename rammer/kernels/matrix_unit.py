"""Schedules of products on a matrix unit that multiplies bf16: of float32 in three parts, as exact. See `PartProduct`.

A task splits some rows of x into parts, by which all panels of weights then pass; these are static and lie in parts.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import NamedTuple

from rammer.ir.expr import Call, Load
from rammer.ir.index import var, variables
from rammer.ir.tensor import PARTS, Digit, DType, Layout
from rammer.ir.tile import UNIT_DEPTH, UNIT_ROWS, Kind
from rammer.kernels.contraction import Product, product
from rammer.kernels.problem import Problem, all_loads
from rammer.kernels.schedule import At, Loop, Schedule
from rammer.kernels.tiling import cut, task_counts

MOST_PADDING = 1.2  # rows that blocks hold, for each that there is
LEAST_US = 150.0  # of one vEU, estimated: out of use the unit sleeps, and takes some microseconds to wake
SPLIT_COLUMNS = 64  # of products that take as long as splitting their rows
MOST_ROWS = 64  # that a step of a chain takes at once
WIDE_COST = 1.07  # measured: of a wide block's sums, relative to a tall block's


class Block(NamedTuple):
    """Sums that the unit's registers hold."""

    rows: int
    columns: int


TALL, WIDE = Block(2 * UNIT_ROWS, 2 * UNIT_ROWS), Block(UNIT_ROWS, 4 * UNIT_ROWS)


def schedules(problem: Problem) -> Iterator[Schedule]:
    """One per task count for a sum of products with its point-wise rest; nothing if the unit does not suit it."""
    p = product(problem, problem.root)
    if p is None or problem.placed or problem.microseconds < LEAST_US or not suits(problem, p):
        return
    if dict(p.stage.axes)[p.lane] < 2 * SPLIT_COLUMNS:
        return
    row, extents = str(p.row), dict(p.stage.axes)
    outer = [a for a in extents if a not in (row, p.lane)]
    seen = set()
    for want in task_counts(problem):
        best = _cheapest(problem, p, want)
        if best is None or best.tasks in seen:
            continue
        seen.add(best.tasks)
        block, around = best.block, (*best.tasks, *(Loop(a) for a in outer))
        strips = () if best.strip is None else (Loop(row, best.strip),)
        panels = (Loop(p.lane, block.columns), *(() if best.strip == block.rows else (Loop(row, block.rows),)))
        loops = (*around, *strips, *panels, *inner_loops(problem, p))
        name = f"{problem.operation.kind}_{block.rows}x{block.columns}_bf16x{PARTS}_t{best.count}"
        yield Schedule(name, loops, (split(p, len(around) + len(strips) - 1),), ((p.w.tensor, packed(p, block)),))


class Way:
    """A product cut into tasks and blocks, and what it costs: sums and splits of all, those past the edge too."""

    def __init__(self, problem: Problem, p: Product, block: Block, tasks: tuple[Loop, ...]) -> None:
        self.block, self.tasks = block, tasks
        extents = dict(p.stage.axes)
        size = {**extents, **{lp.axis: min(lp.step, extents[lp.axis]) for lp in tasks}}
        self.count = prod(-(-extents[lp.axis] // lp.step) for lp in tasks)
        rows = -(-size[str(p.row)] // block.rows) * block.rows
        self.padding = rows * -(-extents[str(p.row)] // size[str(p.row)]) / extents[str(p.row)]
        columns = size[p.lane] * (1.0 if block == TALL else WIDE_COST) + SPLIT_COLUMNS
        others = prod(e for a, e in size.items() if a not in (p.row, p.lane))
        rounds = -(-self.count // problem.spec.num_veus)
        self.cost = rounds * others * rows * columns
        self.strip: int | None = block.rows  # rows that are split at once; None: all of a task
        if not near(problem, p):  # as few passes of the weights as possible
            most = problem.spec.scratch_bytes * 3 // 4 // split_bytes(p, block.rows) * block.rows
            self.strip = most if most < rows else None


def near(problem: Problem, p: Product) -> bool:
    """Whether weights in parts stay in the vEU's cache."""
    weights = dict(problem.expr.inputs)[p.w.tensor]
    return prod(weights.shape) * PARTS * DType.BF16.itemsize <= problem.spec.own_cache


def split_bytes(p: Product, rows: int) -> int:
    """Bytes of rows in parts."""
    ((_, depth),) = p.stage.reduce
    return rows * depth * PARTS * DType.BF16.itemsize


def suits(problem: Problem, p: Product) -> bool:
    """Whether the vEU has a unit that can compute a product."""
    stage, extents = p.stage, dict(p.stage.axes)
    if (
        problem.spec.parts != PARTS
        or problem.lanes != UNIT_DEPTH // 2
        or p.row is None
        or p.mixed
        or len(stage.reduce) != 1
    ):
        return False
    ((_, depth),) = stage.reduce
    kinds = dict(problem.expr.inputs)
    if not isinstance(stage.body, Call) or not all(isinstance(a, Load) and a.tensor in kinds for a in stage.body.args):
        return False  # padding, or an operand that is computed here
    if {kinds[p.x.tensor].dtype, kinds[p.w.tensor].dtype, stage.dtype} != {DType.F32} or depth % UNIT_DEPTH:
        return False
    whole = p.group == extents[p.lane] and p.row_group == extents[p.row]
    readers = sum(ld.tensor == p.x.tensor for s in problem.stages.values() for ld, _ in all_loads(s))
    packable = problem.packable(p.w, p.lane) and all(ix == var(n) for ix in p.w.index for n in variables(ix))
    fits = split_bytes(p, TALL.rows) <= problem.spec.scratch_bytes // 2
    return whole and packable and readers == 1 and fits and bool(fitting(p)) and _in_rows(problem, p)


def gates_block(problem: Problem, p: Product) -> Block | None:
    """The block of a product whose rows a task takes all at once; None if they do not suit the unit."""
    if not suits(problem, p) or not near(problem, p):
        return None
    extents, walked = dict(p.stage.axes), set().union(*map(variables, p.x.index))
    if any(extents.get(n, 1) > 1 for n in walked if n != p.row):
        return None  # a batch of rows, of which one copy holds one
    rows = extents[str(p.row)]
    fits = [b for b in fitting(p) if -(-rows // b.rows) * b.rows <= MOST_PADDING * rows]
    return fits[-1] if fits and rows <= MOST_ROWS else None


def fitting(p: Product) -> list[Block]:
    """Blocks whose columns divide the product's, the better first."""
    return [block for block in (TALL, WIDE) if dict(p.stage.axes)[p.lane] % block.columns == 0]


def inner_loops(problem: Problem, p: Product) -> tuple[Loop, ...]:
    """The loops of a block: over its terms, and over its sums where they are used."""
    ((deep, _),) = p.stage.reduce
    lanes = problem.lanes
    return Loop(deep), Loop(str(p.row)), Loop(p.lane, lanes, Kind.UNROLLED), Loop(p.lane, 1, Kind.VECTOR)


def split(p: Product, depth: int) -> At:
    """The copy of x in parts inside loop `depth`."""
    return At(p.x.tensor, depth, order=_dims(p), parts=PARTS)


def packed(p: Product, block: Block) -> Layout:
    """The layout of weights in parts: what a block takes at once lies in one piece."""
    ((deep, _),) = p.stage.reduce
    dim = {n: d for d, ix in enumerate(p.w.index) for n in variables(ix)}
    lane, k = dim[p.lane], dim[deep]
    rest = tuple(Digit(d) for d in range(len(p.w.index)) if d not in (lane, k))
    return Layout(
        (
            *rest,
            Digit(lane, block.columns),
            Digit(k, UNIT_DEPTH),
            Digit(lane, UNIT_ROWS, block.columns // UNIT_ROWS),
            Digit(k, 2, UNIT_DEPTH // 2),
            Digit(lane, 1, UNIT_ROWS),
            Digit(k, 1, 2),
        ),
        PARTS,
    )


def _dims(p: Product) -> tuple[int, int]:
    """The dimensions of x along which its rows and its terms are counted."""
    ((deep, _),) = p.stage.reduce
    return p.x.index.index(var(str(p.row))), p.x.index.index(var(deep))


def _in_rows(problem: Problem, p: Product) -> bool:
    """Whether rows are equally far apart, and terms lie beside each other: all of a row's, or 16 in channel blocks."""
    ((deep, _),) = p.stage.reduce
    moving = [ix for ix in p.x.index if variables(ix) & {str(p.row), deep}]
    if sorted(moving, key=str) != sorted((var(str(p.row)), var(deep)), key=str):
        return False
    row, column = _dims(p)
    layout = dict(problem.expr.inputs)[p.x.tensor].layout
    if layout is None:
        return column == len(p.x.index) - 1
    digits = [d for d in layout.digits if d.dim == column]
    blocks = digits == [Digit(column, UNIT_ROWS), Digit(column, 1, UNIT_ROWS)] and layout.digits[-1].dim == column
    return blocks and [d for d in layout.digits if d.dim == row] == [Digit(row)]


def _cheapest(problem: Problem, p: Product, want: int) -> Way | None:
    """Tasks by rows if blocks fit them, as who reads single rows need not wait for all of them; else by columns."""
    for by_rows in (True, False):
        ways = [Way(problem, p, block, _cut(problem, p, block, want, by_rows)) for block in fitting(p)]
        if fits := [way for way in ways if way.padding <= MOST_PADDING]:
            return min(fits, key=lambda way: way.cost)
    return None


def _cut(problem: Problem, p: Product, block: Block, want: int, by_rows: bool) -> tuple[Loop, ...]:
    extents = dict(p.stage.axes)
    span = problem.span(str(p.row))
    rows = (str(p.row), extents[str(p.row)], span * -(-block.rows // span) if span > 1 else block.rows)
    columns = (p.lane, extents[p.lane], block.columns * max(problem.span(p.lane), 1))
    others = [(a, e, problem.span(a)) for a, e in extents.items() if a not in (p.lane, p.row)]
    axes = [*others, rows, columns] if by_rows else [columns, *others, rows]
    return cut(axes, want, problem.spec.num_veus)
