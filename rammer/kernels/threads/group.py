"""Schedule products by instructions of groups (several subgroups), which read both operands from scratch.

Known as: asynchronous matrix instructions of a thread group. A task computes a tile of rows x columns. Chunk by chunk,
both operands are copied to scratch, rounded, in the instruction's layout. A group then multiplies all terms of the
chunk at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product as combinations
from math import prod

from rammer.ir.expr import Load
from rammer.ir.index import var, variables
from rammer.ir.kernel import RKernel
from rammer.ir.tensor import Digit, DType, Layout
from rammer.ir.tile import Apply, Kind, TileProgram, statements
from rammer.kernels.problem import KernelProblem
from rammer.kernels.product import SUMS
from rammer.kernels.sched import Sched, copy_axes
from rammer.kernels.schedule import Loop, Schedule
from rammer.kernels.threads.product import REFINED, STAGED, Sides, ThreadTile, before, sides

MOST_TERMS = 128  # terms of a chunk


@dataclass(frozen=True)
class RowOperand:
    """An operand: the dimension of its rows (or columns), that of its terms, and whether it is packed."""

    load: Load
    line: int
    term: int
    packed: bool


@dataclass(frozen=True)
class MatrixProduct:
    """A product of two matrices, for each point of the batch."""

    problem: KernelProblem
    sides: Sides
    row: str
    column: str
    term: str
    operands: tuple[RowOperand, RowOperand]

    @property
    def extents(self) -> dict[str, int]:
        """Extents of all axes."""
        return dict((*self.sides.stage.axes, *self.sides.stage.reduce))


def product(problem: KernelProblem) -> MatrixProduct | None:
    """Return the root as a product of float32 matrices in memory, or None."""
    p = sides(problem)
    if p is None or p.limits or not p.slow or len(p.stage.reduce) != 1 or p.stage.dtype is not DType.F32:
        return None
    ((term, _),) = p.stage.reduce
    row, column = max(p.slow, key=dict(p.stage.axes).__getitem__), p.fast[-1]
    inputs = dict(problem.expr.inputs)
    operands = []
    for load, line in ((p.a, row), (p.b, column)):
        kind = inputs.get(load.tensor)
        if kind is None or kind.dtype is not DType.F32 or kind.layout is not None:
            return None
        dims = [[d for d, ix in enumerate(load.index) if axis in variables(ix)] for axis in (line, term)]
        if any(len(found) != 1 for found in dims) or dims[0] == dims[1]:
            return None
        (across,), (deep,) = dims
        if load.index[across] != var(line) or load.index[deep] != var(term):
            return None
        operands.append(RowOperand(load, across, deep, problem.packable(load, term)))
    return MatrixProduct(problem, p, row, column, term, (operands[0], operands[1]))


def in_groups(kernel: RKernel) -> bool:
    """Check whether an rKernel multiplies by groups."""
    body = kernel.body
    return isinstance(body, TileProgram) and any(
        isinstance(s, Apply) and s.instruction.staged for s in statements(body.body)
    )


def tiles(p: MatrixProduct) -> list[ThreadTile]:
    """Return tiles for different numbers of tasks by the counted work of drafts, those done soonest first.

    Drafted are those that copy the fewest bytes per product; of these, the longest chunks and the most threads.
    """
    least: dict[int, tuple[float, int, int]] = {}
    found: dict[int, list[ThreadTile]] = {}
    for tile in _divided(p):
        (rows, columns), (_, kind) = tile.sizes, tile.instruction.tensors[1]
        copied = kind.element_bytes * (1 / rows + 1 / columns), -tile.chunk, -tile.threads
        if copied < least.setdefault(tile.tasks, copied):
            least[tile.tasks], found[tile.tasks] = copied, []
        if copied == least[tile.tasks]:
            found.setdefault(tile.tasks, []).append(tile)
    drafts = ([replace(t, us=p.problem.unshared_us(schedule(p, t), t.tasks)) for t in same] for same in found.values())
    soonest = (min(same, key=lambda tile: tile.us) for same in drafts)
    return sorted(soonest, key=lambda tile: tile.alone_us(p.problem.spec))[:REFINED]


def _divided(p: MatrixProduct) -> Iterator[ThreadTile]:
    """Yield all tiles whose sums fit registers and whose chunks fit scratch, and which do not exceed the product."""
    spec, extents = p.problem.spec, p.extents
    for unit in (i for i in spec.multipliers if i.staged):
        (_, kind), (_, depth) = unit.tensors[1], unit.axes[2]
        count = spec.max_threads // unit.threads
        shapes = [(n, m) for n in range(1, count + 1) for m in range(1, count + 1) if n * m <= count]
        for groups, blocks in combinations(shapes, ((1, 1), (2, 1), (1, 2))):
            if unit.registers("sums") * prod(blocks) > spec.registers * spec.lanes * SUMS:
                continue
            for chunk in range(depth, min(extents[p.term], MOST_TERMS) + 1, depth):
                tile = ThreadTile({}, chunk, 0, 0.0, blocks, groups, unit=unit)
                rows, columns = tile.sizes
                steps = {a: {p.row: rows, p.column: columns}.get(a, 1) for a, _ in p.sides.stage.axes}
                fits = (rows + columns) * chunk * kind.element_bytes <= spec.scratch_bytes * STAGED
                filled = rows < 2 * extents[p.row] and columns < 2 * extents[p.column]
                if extents[p.term] % chunk == 0 and fits and filled:
                    yield replace(tile, steps=steps, tasks=prod(-(-extents[a] // n) for a, n in steps.items()))


def schedule(p: MatrixProduct, tile: ThreadTile) -> Schedule:
    """Return the loops of a tile."""
    unit, (rows, columns), (down, along) = tile.instruction, tile.sizes, tile.blocks
    (_, height), (_, width), _ = unit.axes
    across, own = unit.digits("sums")
    axes = p.row, p.column
    s = before(Sched(p.problem).nest(Loop(a, n, Kind.TASK) for a, n in tile.steps.items()), p.sides, tile)
    s = s.bind(p.row, down * height).bind(p.column, along * width)
    s = s.nest(Loop(axes[d.dim], d.div, Kind.THREAD) for d in across).split(p.term, tile.chunk)
    for number, operand in enumerate(p.operands):
        nest, layout = _copied(p, tile, number)
        s = s.compute_at(operand.load.tensor, nest, layout=layout)
        if operand.packed:
            rest = (Digit(d) for d in range(len(operand.load.index)) if d not in (operand.line, operand.term))
            s = s.pack([(operand.load.tensor, Layout((*rest, *layout.digits)))])  # the copy's layout, piece by piece
    s = s.unroll(p.row, size=height).unroll(p.column, size=width)
    s = s.nest(Loop(axes[d.dim], d.div, Kind.UNROLLED) for d in own).reorder(p.term)
    s = s.on_threads(tile.threads).tensorize(unit)
    return s.build(f"{unit.precision}_g{rows}x{columns}_k{tile.chunk}_x{tile.threads}")


def _copied(p: MatrixProduct, tile: ThreadTile, number: int) -> tuple[Sched, Layout]:
    """Return the copy of an operand and its layout.

    Neighbouring threads write adjacent elements, or read them if transposed.
    """
    operand, lanes, threads = p.operands[number], p.problem.spec.lanes, tile.threads
    (_, kind), lines = tile.instruction.meaning.inputs[number], tile.sizes[number]
    names = copy_axes(p.problem, operand.load.tensor)
    line, term = names[operand.line], names[operand.term]
    assert kind.layout is not None  # pieces of eight rows of 16 bytes
    whole = kind.layout.digits[0].div  # terms in a row of a piece
    inside = whole // lanes  # vectors in a row of a piece
    beside = min(lines, threads // inside)
    parts = (Loop(line, 1, Kind.THREAD), *((Loop(term, lanes, Kind.THREAD),) if inside > 1 else ()))
    transposed = not operand.packed and operand.term != len(names) - 1
    s = Sched(p.problem).split(line, beside).split(term, threads // (inside * beside) * whole).bind(term, whole)
    s = s.nest(parts[::-1] if transposed else parts).vectorize(term)
    k, m = operand.term, operand.line
    return s, Layout((Digit(k, whole), Digit(m, 8), Digit(m, 1, 8), Digit(k, 1, whole)), kind.layout.encoding)
