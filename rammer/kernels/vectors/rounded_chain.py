"""Schedule attention whose products are made by a matrix instruction, on operands that are rounded in scratch.

Both matrices are copied once for all rows of a task, as panels of columns. A block of rows goes through all stages. The
second product's rows are copied after the stage that computes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from rammer.ir.expr import Call, Load
from rammer.ir.index import var
from rammer.ir.instruction import Instruction
from rammer.ir.tensor import DType
from rammer.kernels.problem import KernelProblem, all_loads
from rammer.kernels.product import Product
from rammer.kernels.sched import Sched, cuts
from rammer.kernels.schedule import Schedule, distinct
from rammer.kernels.tiling import kept_bytes, task_counts
from rammer.kernels.vectors import chain
from rammer.kernels.vectors.matrix_unit import (
    MatrixUnit,
    copy_of_columns,
    dims,
    in_rows,
    inner_loops,
    moves_two_dims,
    sides,
)


def schedules(problem: KernelProblem, unit: MatrixUnit) -> Iterator[Schedule]:
    """Yield one schedule per task count; none unless the operation is such a chain and the unit copies columns."""
    copies = ((block, copy_of_columns(problem.spec, block)) for block in unit.products)
    by = next((_By(unit, columns, block) for block, columns in copies if columns is not None), None)
    both = problem.matched.chain if by and not unit.exact and not unit.transposed else None
    if by is None or both is None or not _suits(problem, *both, unit):
        return
    yield from distinct(_schedule(problem, *both, by, want) for want in task_counts(problem))


def _suits(problem: KernelProblem, first: Product, last: Product, unit: MatrixUnit) -> bool:
    """Check whether both products are of float32 matrices in plain rows and columns, each read only once."""
    kinds = dict(problem.expr.inputs)
    matrices = first.x.tensor, first.w.tensor, last.w.tensor
    read = [ld.tensor for s in problem.stages.values() for ld, _ in all_loads(s)]
    if any(read.count(name) != 1 or name not in kinds for name in matrices):
        return False
    if any(kinds[name].layout is not None or kinds[name].dtype is not DType.F32 for name in matrices):
        return False
    for p in (first, last):
        factors = p.stage.body.args if isinstance(p.stage.body, Call) else ()
        if not p.is_matrix or not all(isinstance(f, Load) for f in factors) or not moves_two_dims(p, sides(p, unit)[1]):
            return False
        ((deep, _),) = p.stage.reduce
        if not any(problem.lane_stride(p.w.tensor, p.w.index, axis, p.stage) == 1 for axis in (p.lane, deep)):
            return False
    ((deep, _),) = last.stage.reduce
    return in_rows(problem, first, unit) and last.x.index[-2:] == (var(str(last.row)), var(deep))


class _By(NamedTuple):
    """A matrix unit, the instruction that copies columns for it, and the one that multiplies them."""

    unit: MatrixUnit
    columns: Instruction
    block: Instruction


def _schedule(problem: KernelProblem, first: Product, last: Product, by: _By, want: int) -> Schedule | None:
    """Return a schedule. None if scratch does not fit both matrices and the rows of a block."""
    row, batch = str(last.row), chain.batch_axes(problem, last)
    pairs = [(p, sides(p, by.unit)) for p in (first, last)]
    width, height = by.block.extent("column"), by.block.extent("row")
    by_row = row, dict(problem.root.axes)[row], problem.grain(row, height)
    s = Sched(problem).tasks([*cuts(problem, batch), by_row], want)
    most = _most_rows(problem, (first, last), batch, by)
    if not most:
        return None
    rows = -(-s.left(row) // -(-s.left(row) // most))
    rows = -(-rows // height) * height

    def block(s: Sched, p: Product) -> Sched:
        return inner_loops(s.split(p.lane, width).split(row if rows > height else None, height), p)

    product = block(Sched(problem, first.stage).tensorize(by.block), first)
    s = s.reorder(*batch).split(row, rows).place(problem.placed, {first.stage.name: product})
    for p, (rows_of, _) in pairs:
        s = s.compute_at(rows_of.load.tensor, order=dims(p, rows_of), instruction=by.unit.copy)
    for p, (_, columns_of) in pairs:
        order, depth = dims(p, columns_of), len(s.loops) - 2
        s = s.compute_at(columns_of.load.tensor, depth=depth, order=order, instruction=by.columns)
    return block(s.tensorize(by.block), last).build(f"{rows}x{width}_{by.block.precision}")


def _most_rows(problem: KernelProblem, products: tuple[Product, Product], batch: list[str], by: _By) -> int:
    """Return how many rows, in whole blocks, fit scratch beside both matrices; 0 if none does."""
    height = by.block.extent("row")
    sums = height * by.block.extent("column") * DType.F32.itemsize

    def copied(rows: int, deep: int, copy: Instruction) -> int:
        """Return the bytes of rows, or columns, in whole blocks."""
        across, along = (extent for _, extent in copy.axes)
        ((_, kind),) = copy.meaning.outputs
        return -(-rows // across) * across * -(-deep // along) * along * kind.element_bytes

    def needed(rows: int) -> int:
        total = kept_bytes(problem.placed, {**dict.fromkeys(batch, 1), str(products[1].row): rows})
        for p in products:
            ((_, deep),) = p.stage.reduce
            total += copied(dict(p.stage.axes)[p.lane], deep, by.columns) + copied(rows, deep, by.unit.copy) + sums
        return total

    counts = range(height, chain.MOST_ROWS + 1, height)
    return max((n for n in counts if needed(n) <= problem.spec.scratch_bytes), default=0)
