"""Schedule point-wise roots over products: recurrent cells, and products that a point-wise or row-wise root reads.

Each task owns some units: all gates of a unit are computed where its state is. Weights are packed in order of use.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import lcm, prod
from typing import NamedTuple

from rammer.ir.index import variables
from rammer.ir.instruction import Instruction
from rammer.ir.tensor import Digit
from rammer.kernels.lanes import lane_axis
from rammer.kernels.packing import panels
from rammer.kernels.problem import KernelProblem
from rammer.kernels.product import Product
from rammer.kernels.sched import Cut, Sched, cuts
from rammer.kernels.schedule import Loop, Schedule, distinct
from rammer.kernels.tiling import kept_bytes, stage_loops, stage_order, task_counts
from rammer.kernels.vectors import matrix_unit
from rammer.kernels.vectors.contraction import SPARE, Block, blocks
from rammer.kernels.vectors.matrix_unit import MatrixUnit

ACCUMULATORS = 16  # enough to hide the latency of adding, and as many streams as a hardware prefetcher follows
MOST_GATES = 4
UNITS = (4, 2, 1)  # vectors of units of a task
ENOUGH_ROWS = 8  # sums per weight with which reading the weights costs little beside arithmetic


class Cell(NamedTuple):
    """A point-wise root, the products that it reads, and its axis of units.

    `unit` and `blocks`: the matrix unit, if any.
    """

    problem: KernelProblem
    products: Mapping[str, Product]
    lane: str
    unit: MatrixUnit | None
    blocks: Mapping[str, Instruction]  # the unit's instruction for each product


def schedules(problem: KernelProblem, unit: MatrixUnit | None = None) -> Iterator[Schedule]:
    """Yield one schedule per task count, cut by units first; none if no stage is a product.

    With `unit` it computes the products; none unless it suits all of them.
    """
    products, lane = problem.matched.cell, lane_axis(problem, problem.root)
    if not products or lane is None:
        return
    found = {name: matrix_unit.gates_block(problem, p, unit) for name, p in products.items()} if unit else {}
    blocks = {name: block for name, block in found.items() if block}
    if len(blocks) < len(found):
        return
    cell = Cell(problem, products, lane, unit, blocks)
    yield from distinct(_schedule(cell, s) for s in (_cut(cell, want) for want in _counts(cell)) if s is not None)


def _counts(cell: Cell) -> list[int]:
    """Return the numbers of tasks to aim for, the best guess first."""
    problem = cell.problem
    counts = task_counts(problem)
    if counts != [1] and _weights_resident(problem, cell.products.values()):
        counts = [counts[0], 1]  # chains side by side, one on each vEU, do without barriers
    if counts != [1] and any(len(s.axes) and _reads_all(problem, s.name) for s in problem.placed):
        counts = [counts[0], 1]  # every task would recompute the shared stages
    return counts


def _cut(cell: Cell, want: int) -> Sched | None:
    """Return loops over about `want` tasks and the pieces of each; None if the unit's blocks do not divide them."""
    problem, lane, lanes = cell.problem, cell.lane, cell.problem.lanes
    extents = dict(problem.root.axes)
    vectors = -(-extents[lane] // lanes)
    grain = lanes * max((v for v in UNITS if vectors % (v * want) == 0), default=1) if want > 1 else lanes
    stored = any(s.name in dict(problem.expr.outputs) for s in problem.placed)  # these must not overhang
    grain = problem.grain(lane, grain, exact=stored)
    if cell.blocks:
        grain = max(block.extent("column") for block in cell.blocks.values())
        if extents[lane] % (grain * want):
            return None
    rows = cuts(problem, (a for a in extents if a != lane))
    units = (lane, extents[lane], grain)
    # A task of rows reads its own results of the step before: without a barrier or another vEU's cache lines.
    by_rows = not cell.blocks and _independent_rows(problem, cell.products.values(), want)
    axes = [*rows, units] if by_rows else [units, *rows]
    s = _tasks(problem, axes, want)
    pieces = () if cell.blocks else _pieces(s, lane)
    if pieces:  # a task ends where a piece ends: stores beyond it would overwrite another task's results
        size = {lp.axis: lp.step for lp in pieces}
        s = _tasks(problem, [(a, e, lcm(g, size.get(a, 1))) for a, e, g in axes], want)
    return s.nest(pieces)


def _tasks(problem: KernelProblem, axes: list[Cut], want: int) -> Sched:
    """Cut tasks along one axis if it can be cut. Along two, several tasks would read every weight."""
    s = Sched(problem).tasks(axes[:1], want)
    return s if s.loops else s.tasks(axes, want)


def _schedule(cell: Cell, s: Sched) -> Schedule:
    problem, unit, lane = cell.problem, cell.unit, cell.lane
    for stage in problem.placed:
        p = cell.products.get(stage.name)
        if p is None:
            s = s.place([stage])
        else:
            s = _unit_gates(s, p, unit, cell.blocks[stage.name]) if unit else _gates(s, p)
    s = s.nest(stage_loops(problem, problem.root, lane))
    return s.build(f"{lane}{problem.lanes}{f'_{unit.operands}' if unit else ''}")


def _pieces(s: Sched, lane: str) -> tuple[Loop, ...]:
    """Return loops inside a task over pieces whose stages fit the scratch. Rows are halved first.

    Each piece of rows reads the task's weights again; each piece of units reads again what all units share.
    """
    problem = s.problem
    steps = {a: s.left(a) for a, _ in problem.root.axes}
    piece = dict(steps)
    rows = [a for a in piece if a != lane]
    shared = any(_reads_all(problem, s.name) for s in problem.placed)

    def kept() -> int:
        return kept_bytes(problem.placed, {a: n for a, n in piece.items() if a != lane or not shared})

    while kept() > problem.spec.scratch_bytes:
        axis = max(rows, key=lambda a: piece[a], default=lane)
        if piece[axis] == 1:
            axis = lane
        if axis == lane and (shared or piece[lane] <= problem.lanes):
            break  # more than a row needs
        half = -(-piece[axis] // 2)
        piece[axis] = -(-half // problem.lanes) * problem.lanes if axis == lane else half
    return tuple(Loop(a, piece[a]) for a in (*rows, lane) if piece[a] < steps[a])


def _unit_gates(s: Sched, p: Product, unit: MatrixUnit, block: Instruction) -> Sched:
    """Copy x for the matrix unit, and compute a product by it, inside a task."""
    nest = Sched(s.problem, p.stage).reorder(*(a for a, _ in p.stage.axes if a not in (p.lane, p.row)))
    nest = nest.split(p.lane, block.extent("column")).split(p.row, block.extent("row"))
    nest = matrix_unit.inner_loops(nest, p).tensorize(block)
    s = matrix_unit.encoded(s, p, unit).compute_at(p.stage.name, nest, order=stage_order(p.stage, p.lane))
    _, still = matrix_unit.sides(p, unit)
    return s.pack([(still.load.tensor, matrix_unit.packed(p, unit, block))])


def _independent_rows(problem: KernelProblem, products: Iterable[Product], want: int) -> bool:
    """Check whether each task can own enough rows, and its private cache holds the weights, which it reads whole."""
    shared = {p.row for p in products}
    extents = dict(problem.root.axes)
    (row,) = shared if len(shared) == 1 else (None,)
    if row not in extents or not _weights_resident(problem, products):
        return False
    return extents[row] % want == 0 and extents[row] // want >= ENOUGH_ROWS


def _weights_resident(problem: KernelProblem, products: Iterable[Product]) -> bool:
    """Check whether all weights stay in the private cache from step to step, while all other data of a step pass."""
    weights, spec = {p.w.tensor for p in products}, problem.spec
    sizes = {name: kind.nbytes for name, kind in (*problem.expr.inputs, *problem.expr.outputs)}
    resident = sum(sizes[name] for name in weights & sizes.keys())
    return spec.holds(spec.l2, resident, sum(sizes.values()) - resident)


def _reads_all(problem: KernelProblem, name: str) -> bool:
    """Check whether a product reads a kept stage along its reduction. Then every task needs all of that stage."""
    return any(name in (p.x.tensor, p.w.tensor) for p in problem.matched.products.values())


def _gates(s: Sched, p: Product) -> Sched:
    """Compute a product inside a task.

    Gates, rows and vectors share a register block, up to its size. Enough rows fill it with a single gate, so that a
    panel of that gate's weights stays in L1.
    """
    problem, lanes, extents = s.problem, s.problem.lanes, dict(p.stage.axes)
    by_weight = [a for a in extents if a != p.lane and any(a in variables(ix) for ix in p.w.index)]
    gates = prod(extents[a] for a in by_weight)
    height, units = (min(extents[a], s.steps.get(a, extents[a])) if a else 1 for a in (p.row, p.lane))
    together = by_weight if gates <= MOST_GATES and height < ENOUGH_ROWS else []
    vectors = -(-min(units, p.group) // lanes)
    limit = min(ACCUMULATORS, problem.spec.registers - SPARE)
    if together:
        rows = min(height, max(limit // gates, 1))
        even = [Block(v, rows) for v in range(max(limit // (gates * rows), 1), 0, -1) if vectors % v == 0]
    else:
        even = [b for b in blocks(problem, vectors, height) if vectors % b.vectors == 0 and b.vectors * b.rows <= limit]
    panel, rows = (lanes * even[0].vectors, even[0].rows) if even else (lanes, 1)
    reduce = [a for a, _ in p.stage.reduce]
    nest = Sched(problem, p.stage).reorder(*(a for a in extents if a not in (p.lane, p.row, *together)))
    nest = nest.split(p.lane, panel).split(p.row, rows).reorder(*reduce)
    nest = nest.unroll(*together, p.row if rows > 1 else None).vectorize(p.lane, lanes)
    if problem.packable(p.w, p.lane):
        dim = {n: d for d, ix in enumerate(p.w.index) for n in variables(ix)}
        inner = dict.fromkeys(dim[a] for a in (*reduce, *together) if a in dim)  # several axes may walk along one
        s = s.pack([(p.w.tensor, panels(p.w, p.lane, panel, [*map(Digit, inner)]))])
    return s.compute_at(p.stage.name, nest, order=stage_order(p.stage, p.lane))
