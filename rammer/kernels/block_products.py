"""Schedules for products with weights in blocks: of each block a sum in registers, which is scaled and added.

Weights are decoded in registers, once for the rows of a register block; vectors lie along the columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import NamedTuple

from rammer.ir.expr import Call, Load, Stage, loads
from rammer.ir.index import var, variables
from rammer.ir.tensor import Digit, Layout
from rammer.ir.tile import Kind, Scope
from rammer.kernels.contraction import epilogue_packing
from rammer.kernels.problem import Problem
from rammer.kernels.schedule import At, Loop, Schedule
from rammer.kernels.tiling import cut, task_counts

MOST_SUMS = 12  # of a block, in registers: as many again hold what is added up over blocks
MOST_VECTORS = 8
DECODING = 2.5  # slots that a vector of weights takes before it is multiplied
LATENCY = 4.0  # cycles after which a sum can be added to again
UNROLLED = 8  # terms: those that a word of four bits each holds


class BlockProduct(NamedTuple):
    """A sum over `blocks` of a part, the sum over `terms` of x and decoded weights, times a scale."""

    part: Stage
    lane: str
    row: str | None
    blocks: str
    terms: str


def block_product(problem: Problem) -> BlockProduct | None:
    """The operation as a product with blocks of weights, or None."""
    root = problem.root
    if len(problem.placed) != 1 or len(root.reduce) != 1 or not isinstance(root.body, Call) or root.body.fn != "mul":
        return None
    (part,), ((blocks, _),) = problem.placed, root.reduce
    read = [ld for ld, _ in loads(root.body) if ld.tensor == part.name]
    if len(part.reduce) != 1 or part.combine != "sum" or len(read) != 1 or var(blocks) not in read[0].index:
        return None
    words = [ld for ld, _ in loads(part.body) if ld.tensor in problem.static and len(ld.index) > 1]
    lanes = {a for a, _ in root.axes for ld in words if ld.index[-1] == var(a)}
    if len(lanes) != 1 or not words:
        return None
    (lane,) = lanes
    rows = [a for a, e in root.axes if a != lane and e > 1]
    return BlockProduct(part, lane, rows[-1] if rows else None, blocks, part.reduce[0][0])


def schedules(problem: Problem) -> Iterator[Schedule]:
    """One per task count; nothing if the operation is no such product."""
    p = block_product(problem)
    seen = set()
    for want in task_counts(problem) if p else ():
        assert p is not None
        made = _schedule(problem, p, want)
        if made.loops not in seen:
            seen.add(made.loops)
            yield made


def _schedule(problem: Problem, p: BlockProduct, want: int) -> Schedule:
    extents, lanes = dict(problem.root.axes), problem.lanes
    height, width = extents.get(p.row or "", 1), -(-extents[p.lane] // lanes)
    vectors, rows = _register_block(height, -(-width // want))
    panel = vectors * lanes
    others = [(a, e, problem.span(a)) for a, e in problem.root.axes if a not in (p.lane, p.row) and e > 1]
    by_row = [(p.row, height, -(-rows // problem.span(p.row)) * problem.span(p.row))] if p.row else []
    tasks = cut([(p.lane, extents[p.lane], panel), *others, *by_row], want, problem.spec.num_veus)
    outer = (Loop(p.lane, panel), *(Loop(a) for a, _, _ in others), *((Loop(p.row, rows),) if p.row else ()))
    sums = (
        *((Loop(p.row, 1, Kind.UNROLLED),) if p.row else ()),
        Loop(p.lane, lanes, Kind.UNROLLED),
        Loop(p.lane, 1, Kind.VECTOR),
    )
    around = (*tasks, *outer, Loop(p.blocks))
    steps = tuple(Loop(p.terms, step, Kind.UNROLLED if step < UNROLLED else Kind.SERIAL) for step in (UNROLLED, 4, 1))
    part = At(p.part.name, len(around) - 1, (*steps, *sums), Scope.REGISTER)
    count = prod(-(-extents[lp.axis] // lp.step) for lp in tasks)
    name = f"{problem.operation.kind}_{rows}x{panel}_t{count}"
    packing = (*_panels(problem, p, panel), *epilogue_packing(problem, problem.root, p.lane, panel))
    return Schedule(name, (*around, *sums), (part,), packing)


def _register_block(height: int, width: int) -> tuple[int, int]:
    """Vectors and rows of a register block for so many of both, by what it issues."""

    def cost(vectors: int, rows: int) -> float:
        step = max((DECODING + rows) * vectors / 2, LATENCY)
        return -(-height // rows) * -(-width // vectors) * step

    found = [
        (v, r) for v in range(1, MOST_VECTORS + 1) for r in range(1, min(MOST_SUMS // v, height) + 1) if v <= width
    ]
    return min(found, key=lambda block: (cost(*block), -block[0]))


def _panels(problem: Problem, p: BlockProduct, panel: int) -> tuple[tuple[str, Layout], ...]:
    """Static operands by panels of columns, in the order in which a panel reads them."""
    found: dict[str, Layout] = {}
    for stage in (p.part, problem.root):
        for load, _ in loads(stage.body):
            if problem.packable(load, p.lane) and load.tensor not in found:
                found[load.tensor] = _panel(load, p.lane, panel)
    return tuple(found.items())


def _panel(load: Load, lane: str, panel: int) -> Layout:
    across = next(d for d, ix in enumerate(load.index) if lane in variables(ix))
    rest = tuple(Digit(d) for d in range(len(load.index)) if d != across)
    return Layout((Digit(across, panel), *rest, Digit(across, 1, panel)))
