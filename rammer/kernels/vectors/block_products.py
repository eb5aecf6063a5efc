"""Schedule products with block-quantised weights: each block is summed in registers, then scaled and added.

Weights are decoded in registers, once for the rows of a register block; vectors lie along the columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import NamedTuple

from rammer.cost.issue import pass_cycles
from rammer.cost.work import Issued
from rammer.ir.device import VDeviceSpec
from rammer.ir.expr import Call, Stage, loads
from rammer.ir.index import var
from rammer.ir.tensor import ALIGNMENT, DType, Layout
from rammer.ir.tile import Kind, Scope
from rammer.kernels.packing import panels
from rammer.kernels.problem import KernelProblem
from rammer.kernels.product import SUMS
from rammer.kernels.sched import Sched, cuts
from rammer.kernels.schedule import Schedule, distinct
from rammer.kernels.tiling import stage_loops, task_counts
from rammer.kernels.vectors.contraction import MAX_VECTORS, epilogue_packing

DECODING = 2.5  # instructions for a vector of weights before it is multiplied
DECODING_BYTES = 1.5  # and for one of four terms in each lane
UNROLLED = 8  # terms: those that a word of four bits each holds


class BlockProduct(NamedTuple):
    """A stage that sums over `blocks` a scale times `part`. A part sums products of x and decoded weights.

    Without `blocks` there is one block.
    """

    stage: Stage
    part: Stage
    lane: str
    row: str | None
    blocks: str | None

    @property
    def exact(self) -> bool:
        """Check whether parts are sums of integers."""
        return not self.part.dtype.is_float


def block_product(problem: KernelProblem) -> BlockProduct | None:
    """Return the operation as a product with blocks of weights, or None.

    The product is the root, or an output that a point-wise root reads at its own position.
    """
    stage = problem.matched.shown
    if len(problem.expr.outputs) > 1 + (stage is not problem.root):
        return None
    if len(stage.reduce) > 1 or (stage.reduce and not (isinstance(stage.body, Call) and stage.body.fn == "mul")):
        return None
    blocks = stage.reduce[0][0] if stage.reduce else None
    read = {ld.tensor for ld, _ in loads(stage.body)}
    for part in problem.placed:
        words = [ld for ld, _ in loads(part.body) if ld.tensor in problem.static and len(ld.index) > 1]
        lanes = {a for a, _ in stage.axes for ld in words if ld.index[-1] == var(a)}
        integers = all(dict(problem.expr.inputs)[ld.tensor].dtype is DType.I32 for ld in words)
        if len(lanes) == 1 and integers and part.reduce and part.combine == "sum" and part.name in read:
            (lane,) = lanes
            rows = [a for a, e in stage.axes if a != lane and e > 1]
            return BlockProduct(stage, part, lane, rows[-1] if rows else None, blocks)
    return None


def schedules(problem: KernelProblem) -> Iterator[Schedule]:
    """Yield one schedule per task count; none if the operation is not such a product."""
    if (p := block_product(problem)) is not None:
        yield from distinct(_schedule(problem, p, want) for want in task_counts(problem))


def _schedule(problem: KernelProblem, p: BlockProduct, want: int) -> Schedule:
    extents, lanes = dict(problem.root.axes), problem.lanes
    height, width = extents.get(p.row or "", 1), -(-extents[p.lane] // lanes)
    room = _room(problem, p)
    vectors, rows = _register_block(problem.spec, min(height, room), -(-width // want), p.exact)
    panel = vectors * lanes
    others = [a for a, e in problem.root.axes if a not in (p.lane, p.row) and e > 1]
    by_row = [(p.row, height, problem.grain(p.row, rows))] if p.row else []

    def sums(s: Sched) -> Sched:
        return s.unroll(p.row).vectorize(p.lane, lanes)

    s = Sched(problem).tasks([(p.lane, extents[p.lane], panel), *cuts(problem, others), *by_row], want)
    strip = p.row if p.row and room < s.left(p.row) else None
    s = s.reorder(*others).split(strip, room // rows * rows)
    for stage in (s for s in problem.placed if s not in (p.stage, p.part)):
        lane, _ = (*stage.axes, *stage.reduce)[-1]  # the axis that is summed later, or here
        s = s.compute_at(stage.name, stage_loops(problem, stage, lane))
    s, part = s.split(p.lane, panel).split(p.row, rows), sums(_terms(Sched(problem, p.part)))
    if p.stage is problem.root:
        s = s.reorder(p.blocks).compute_at(p.part.name, part, scope=Scope.REGISTER)
    else:  # a register block is stored, and its reader follows
        before = Sched(problem, p.stage).reorder(p.blocks)
        s = s.compute_at(p.stage.name, sums(before))
        depth = len(before.loops) - 1
        s = s.compute_at(p.part.name, part, depth=depth, scope=Scope.REGISTER, inside=p.stage.name)
    s = sums(s).pack(_panels(problem, p, panel)).pack(epilogue_packing(problem, p.stage, p.lane, panel))
    return s.build(f"{rows}x{panel}")


def _terms(s: Sched) -> Sched:
    """Loop over the terms of a block. Those of one word are unrolled."""
    assert s.stage
    (words, _), *within = s.stage.reduce
    if not within:
        return s.split(words, UNROLLED).split(words, 4, Kind.UNROLLED).unroll(words)
    return s.reorder(words).unroll(*dict(within))


def _room(problem: KernelProblem, p: BlockProduct) -> int:
    """Return how many rows fit scratch with the stages that are computed before the product; at least one."""
    before = [s for s in problem.placed if s not in (p.part, p.stage) and p.row in dict(s.axes)]
    each = sum(prod(e for a, e in s.axes if a != p.row) * s.dtype.itemsize for s in before)
    room = problem.spec.scratch_bytes - len(before) * ALIGNMENT
    return max(room // each, 1) if each else dict(problem.root.axes).get(p.row or "", 1)


def _register_block(spec: VDeviceSpec, height: int, width: int, exact: bool) -> tuple[int, int]:
    """Return the vectors and rows of a register block with the least cost by issue slots."""
    decoding = DECODING_BYTES if exact else DECODING
    sums = int(spec.registers * SUMS)  # totals over blocks go through memory

    def cost(vectors: int, rows: int) -> float:
        step = pass_cycles(Issued(arithmetic=(decoding + rows) * vectors), spec, sums=True)
        return -(-height // rows) * -(-width // vectors) * step

    most = min(MAX_VECTORS, width)
    found = [(v, r) for v in range(1, most + 1) for r in range(1, min(sums // v, height) + 1)]
    return min(found, key=lambda block: (cost(*block), -block[0]))


def _panels(problem: KernelProblem, p: BlockProduct, panel: int) -> list[tuple[str, Layout]]:
    """Return static operands in panels of columns, in the order in which a panel reads them."""
    read = (load for stage in (p.part, p.stage) for load, _ in loads(stage.body))
    return [(load.tensor, panels(load, p.lane, panel)) for load in read if problem.packable(load, p.lane)]
