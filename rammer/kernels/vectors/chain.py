"""Schedule a product whose rows are computed from another product's rows. Known as: fused attention (FlashAttention).

A block of rows goes through all stages before the next one begins, so that everything between the two products stays in
the private cache. The matrices are read once per block.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from math import prod

from rammer.cost.issue import pass_cycles
from rammer.cost.work import Issued
from rammer.ir.expr import loads
from rammer.ir.index import var
from rammer.ir.tensor import Digit
from rammer.kernels.normal import cleaned
from rammer.kernels.packing import dim_of, panels
from rammer.kernels.problem import WORD, KernelProblem, worth_keeping
from rammer.kernels.product import Product, axes_of, terms
from rammer.kernels.sched import Sched, copy_axes, cuts
from rammer.kernels.schedule import Schedule, distinct
from rammer.kernels.tiling import kept_bytes, task_counts
from rammer.kernels.vectors.contraction import MAX_VECTORS, Block, blocks, cycles

LEAST_ROWS = 16  # rows of a block, if there are as many
MOST_ROWS = 64  # rows of a block: enough arithmetic to hide fetching both matrices


def chained(problem: KernelProblem) -> KernelProblem | None:
    """Return the operation with point-wise stages between its reductions kept in scratch; None without two sums."""
    expr = cleaned(problem.operation.expr)
    if sum(s.combine == "sum" and bool(s.reduce) for s in expr.stages) < 2:
        return None
    behind: set[str] = set()  # a sum, or some other reduction
    for stage in expr.stages:
        if stage.reduce or any(ld.tensor in behind for ld, _ in loads(stage.body)):
            behind.add(stage.name)
    reduced = {ld.tensor for s in expr.stages if s.reduce for ld, _ in loads(s.body)}
    readers = Counter(name for s in expr.stages for name in {ld.tensor for ld, _ in loads(s.body)})
    keep = {s.name for s in expr.stages if s.name in behind & reduced and not s.reduce and readers[s.name] > 1}
    return problem.keeping(worth_keeping(expr) | keep)


def schedules(problem: KernelProblem) -> Iterator[Schedule]:
    """Yield one schedule per task count; none unless the root is such a product."""
    if (both := problem.matched.chain) is None:
        return
    yield from distinct(_schedule(problem, *both, want) for want in task_counts(problem))


def _schedule(problem: KernelProblem, first: Product, last: Product, want: int) -> Schedule | None:
    """Return the two products with blocks of their own. None if scratch does not fit the rows of a block."""
    assert last.row is not None
    row, batch = last.row, batch_axes(problem, last)
    s = Sched(problem).tasks(cuts(problem, (*batch, row)), want)
    height = s.left(row)
    room, least = problem.spec.scratch_bytes, min(height, LEAST_ROWS)
    strided = _is_strided(problem, first)
    once: list[Product] = []  # products whose matrix is copied once for all rows of a task
    for p in (first, last):
        wanted = _in_panels(problem, p, batch) or (strided and p is first)
        left = room - sum(_copied_bytes(problem, one, batch) for one in (*once, p))
        if wanted and _most_rows(problem, row, batch, left) >= least:
            once.append(p)
    most = _most_rows(problem, row, batch, room - sum(_copied_bytes(problem, p, batch) for p in once))
    rows = _rows(problem, (first, last), height, most) if most >= least else 0
    if not rows:
        return None
    own, inner = (_block(problem, p, rows) for p in (last, first))
    s = s.reorder(*batch).split(row, rows)
    s = s.place(problem.placed, {first.stage.name: _nest(Sched(problem, first.stage), first, inner, batch)})
    for p, block in ((first, inner), (last, own)):
        if p in once:
            s = _copy(s, p, block, batch)
    if strided and first not in once:
        squares, order = _squares(problem, first)
        s = s.compute_at(first.w.tensor, squares, depth=0, inside=first.stage.name, order=order)
    return _nest(s, last, own, batch).build(f"{rows}x{own.vectors * problem.lanes}")


def batch_axes(problem: KernelProblem, p: Product) -> list[str]:
    """Return the axes of the root besides the rows and columns of a product."""
    return [a for a, e in problem.root.axes if a not in (p.row, p.lane) and e > 1]


def _most_rows(problem: KernelProblem, row: str, batch: list[str], room: int) -> int:
    """Return how many rows fit `room` bytes of scratch."""
    one = dict.fromkeys(batch, 1)
    sizes = (kept_bytes(problem.placed, {**one, row: n}) for n in range(1, MOST_ROWS + 1))
    return sum(size <= room for size in sizes)


def _rows(problem: KernelProblem, products: tuple[Product, ...], height: int, most: int) -> int:
    """Return how many of a task's rows go through all stages together: in even blocks, with many sums in registers.

    0 if register blocks would reach past the rows that fit.
    """

    def cost(rows: int) -> tuple[int, int]:
        total, sums = 0.0, 0
        for p in products:
            block, width, depth = _block(problem, p, rows), _vectors(problem, p), terms(p)
            whole, rest = divmod(height, rows)
            one, last = (cycles(problem.spec, block, width, n) for n in (rows, rest))
            total += depth * (whole * one + last)
            matrix = WORD * depth * width * problem.lanes  # comes again for each block of rows
            total += -(-height // rows) * pass_cycles(Issued(), problem.spec, sums=False, streamed=matrix)
            sums += block.vectors * block.rows
        return round(total), -sums

    def fits(rows: int) -> bool:
        return all(-(-rows // n) * n <= most for n in (_block(problem, p, rows).rows for p in products))

    return min(filter(fits, range(min(height, most), min(height, most) // 2, -1)), key=cost, default=0)


def _block(problem: KernelProblem, p: Product, rows: int) -> Block:
    """Return the register block of a product of `rows` rows."""
    return blocks(problem, _vectors(problem, p), rows)[0]


def _vectors(problem: KernelProblem, p: Product) -> int:
    return -(-dict(p.stage.axes)[p.lane] // problem.lanes)


def _is_strided(problem: KernelProblem, p: Product) -> bool:
    """Check whether the lanes of a product's matrix are strided in memory."""
    return problem.lane_stride(p.w.tensor, p.w.index, p.lane, p.stage) != 1


def _in_panels(problem: KernelProblem, p: Product, batch: Collection[str]) -> bool:
    """Check whether a product's matrix is larger than the nearest cache. Its rows are then too strided for a panel."""
    terms, whole = [a for a, _ in p.stage.reduce], _matrix_bytes(p, batch, dict(p.stage.axes)[p.lane])
    found, spec = len(terms) == 1 and p.w.tensor in dict(problem.expr.inputs) and not p.w.dynamic, problem.spec
    return found and all(var(a) in p.w.index for a in (*terms, p.lane)) and not spec.holds(spec.l1, whole, 0.0)


def _matrix_bytes(p: Product, batch: Collection[str], columns: int) -> int:
    """Return the bytes of a product's matrix, for one point of the batch and `columns` columns."""
    axes = axes_of(p.w) - {p.lane, *batch}
    return WORD * columns * prod(e for a, e in (*p.stage.axes, *p.stage.reduce) if a in axes)


def _copied_bytes(problem: KernelProblem, p: Product, batch: Collection[str]) -> int:
    """Return the most bytes of a matrix's copy: the last panel is whole."""
    columns, panel = dict(p.stage.axes)[p.lane], min(MAX_VECTORS, _vectors(problem, p)) * problem.lanes
    return _matrix_bytes(p, batch, -(-columns // panel) * panel if _in_panels(problem, p, batch) else columns)


def _copy(s: Sched, p: Product, block: Block, batch: Collection[str]) -> Sched:
    """Copy a matrix for all rows of a task. A large one is copied in panels of as many columns as a register block."""
    problem, tensor, depth = s.problem, p.w.tensor, len(s.loops) - 2
    nest, order = _squares(problem, p)
    if not _in_panels(problem, p, batch):
        return s.compute_at(tensor, nest, depth=depth, order=order)
    deep = dim_of(p.w, p.stage.reduce[-1][0])
    layout = panels(p.w, p.lane, block.vectors * problem.lanes, [Digit(deep)])
    if _is_strided(problem, p):
        return s.compute_at(tensor, nest, depth=depth, order=order, layout=layout)
    axes = copy_axes(problem, tensor)
    lane = axes.pop(dim_of(p.w, p.lane))
    nest = Sched(problem).reorder(*axes).split(lane, problem.lanes).vectorize(lane)
    return s.compute_at(tensor, nest, depth=depth, layout=layout)


def _squares(problem: KernelProblem, p: Product) -> tuple[Sched, tuple[int, ...]]:
    """Copy a matrix with strided lanes in squares, so that each fetched line is used at once. Return its order, too."""
    lanes, dim = problem.lanes, dim_of(p.w, p.lane)
    *others, last = (a for d, a in enumerate(copy_axes(problem, p.w.tensor)) if d != dim)
    lane = copy_axes(problem, p.w.tensor)[dim]
    nest = Sched(problem).reorder(*others).split(lane, lanes).split(last, lanes).unroll(last).vectorize(lane)
    return nest, (*(d for d in range(len(others) + 2) if d != dim), dim)


def _nest(s: Sched, p: Product, block: Block, around: Collection[str] = ()) -> Sched:
    """Multiply all rows by one panel of a matrix after another. The sums of rows stay in the private cache."""
    s = s.reorder(*(a for a, e in p.stage.axes if a not in (p.row, p.lane, *around) and e > 1))
    s = s.split(p.lane, block.vectors * s.problem.lanes).split(p.row, block.rows).reorder(*dict(p.stage.reduce))
    return s.unroll(p.row if block.rows > 1 else None).vectorize(p.lane, s.problem.lanes)
