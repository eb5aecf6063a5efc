"""Schedules for products with weights in blocks: of each block a sum in registers, which is scaled and added.

Weights are decoded in registers, once for the rows of a register block; vectors lie along the columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import NamedTuple

from rammer.cost.issue import pass_cycles
from rammer.cost.work import Issued
from rammer.ir.device import VDeviceSpec
from rammer.ir.expr import Call, Load, Stage, loads
from rammer.ir.index import var, variables
from rammer.ir.tensor import Digit, DType, Layout
from rammer.ir.tile import Kind, Scope
from rammer.kernels.problem import Problem
from rammer.kernels.schedule import At, Loop, Schedule, distinct
from rammer.kernels.tiling import cut, stage_loops, task_counts
from rammer.kernels.vectors.contraction import MAX_VECTORS, epilogue_packing

DECODING = 2.5  # instructions for a vector of weights before it is multiplied
DECODING_BYTES = 1.5  # and for one of four terms in each lane
UNROLLED = 8  # terms: those that a word of four bits each holds


class BlockProduct(NamedTuple):
    """A stage that sums over `blocks` a part, which is a sum of products of x and decoded weights, times a scale.

    Without `blocks` there is one.
    """

    stage: Stage
    part: Stage
    lane: str
    row: str | None
    blocks: str | None

    @property
    def exact(self) -> bool:
        """Whether parts are sums of whole numbers."""
        return not self.part.dtype.is_float


def block_product(problem: Problem) -> BlockProduct | None:
    """The operation as a product with blocks of weights, or None.

    It is the root, or an output that a point-wise root reads at its own position.
    """
    shown = [s for s in problem.placed if s.name in dict(problem.expr.outputs)]
    stage = shown[0] if shown and not problem.root.reduce else problem.root
    if len(shown) > 1 or stage.axes != problem.root.axes or (shown and stage is problem.root):
        return None
    if len(stage.reduce) > 1 or (stage.reduce and not (isinstance(stage.body, Call) and stage.body.fn == "mul")):
        return None
    own = tuple(var(a) for a, _ in stage.axes)
    if shown and any(ld.tensor == stage.name and ld.index != own for ld, _ in loads(problem.root.body)):
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


def schedules(problem: Problem) -> Iterator[Schedule]:
    """One per task count; nothing if the operation is no such product."""
    if (p := block_product(problem)) is not None:
        yield from distinct(_schedule(problem, p, want) for want in task_counts(problem))


def _schedule(problem: Problem, p: BlockProduct, want: int) -> Schedule:
    extents, lanes = dict(problem.root.axes), problem.lanes
    height, width = extents.get(p.row or "", 1), -(-extents[p.lane] // lanes)
    room = _room(problem, p)
    vectors, rows = _register_block(problem.spec, min(height, room), -(-width // want), p.exact)
    panel = vectors * lanes
    others = [(a, e, problem.span(a)) for a, e in problem.root.axes if a not in (p.lane, p.row) and e > 1]
    by_row = [(p.row, height, -(-rows // problem.span(p.row)) * problem.span(p.row))] if p.row else []
    tasks = cut([(p.lane, extents[p.lane], panel), *others, *by_row], want, problem.spec.num_veus)
    whole = min((height, *(lp.step for lp in tasks if lp.axis == p.row)))
    strip = (Loop(str(p.row), room // rows * rows),) if room < whole else ()
    outer = (*(Loop(a) for a, _, _ in others), *strip)
    panels = (Loop(p.lane, panel), *((Loop(p.row, rows),) if p.row else ()))
    sums = (
        *((Loop(p.row, 1, Kind.UNROLLED),) if p.row else ()),
        Loop(p.lane, lanes, Kind.UNROLLED),
        Loop(p.lane, 1, Kind.VECTOR),
    )
    around, blocks = (*tasks, *outer, *panels), (Loop(p.blocks),) if p.blocks else ()
    own = (p.stage, p.part)
    before = len(tasks) + len(outer) - 1
    stages = [At(s.name, before, _along_terms(problem, s)) for s in problem.placed if s not in own]
    if p.stage is problem.root:
        around = (*around, *blocks)
        stages.append(At(p.part.name, len(around) - 1, (*_terms(p.part), *sums), Scope.REGISTER))
    else:  # a register block is stored, and what reads it follows
        stages.append(At(p.stage.name, len(around) - 1, (*blocks, *sums)))
        stages.append(At(p.part.name, len(blocks) - 1, (*_terms(p.part), *sums), Scope.REGISTER, inside=p.stage.name))
    count = prod(-(-extents[lp.axis] // lp.step) for lp in tasks)
    name = f"{problem.operation.kind}_{rows}x{panel}_t{count}"
    packing = (*_panels(problem, p, panel), *epilogue_packing(problem, p.stage, p.lane, panel))
    return Schedule(name, (*around, *sums), tuple(stages), packing)


def _along_terms(problem: Problem, stage: Stage) -> tuple[Loop, ...]:
    """The nest of a stage that prepares x: vectors lie along what is summed later, or here."""
    lane, _ = (*stage.axes, *stage.reduce)[-1]
    return stage_loops(problem, stage, lane)


def _terms(part: Stage) -> tuple[Loop, ...]:
    """Loops over the terms of a block: those that a word holds are unrolled."""
    if len(part.reduce) == 1:
        ((terms, _),) = part.reduce
        return tuple(Loop(terms, n, Kind.UNROLLED if n < UNROLLED else Kind.SERIAL) for n in (UNROLLED, 4, 1))
    (words, _), *within = part.reduce
    return (Loop(words), *(Loop(a, 1, Kind.UNROLLED) for a, _ in within))


def _room(problem: Problem, p: BlockProduct) -> int:
    """Rows of which scratch holds what is computed before they are multiplied; at least one."""
    before = [s for s in problem.placed if s not in (p.part, p.stage) and p.row in dict(s.axes)]
    each = sum(prod(e for a, e in s.axes if a != p.row) * s.dtype.itemsize for s in before)
    return max(problem.spec.scratch_bytes * 3 // 4 // each, 1) if each else dict(problem.root.axes).get(p.row or "", 1)


def _register_block(spec: VDeviceSpec, height: int, width: int, exact: bool) -> tuple[int, int]:
    """Vectors and rows of a register block for so many of both, by what it issues."""
    decoding = DECODING_BYTES if exact else DECODING
    sums = spec.registers * 3 // 4  # the others hold what is decoded; what is added up over blocks goes through memory

    def cost(vectors: int, rows: int) -> float:
        step = pass_cycles(Issued(arithmetic=(decoding + rows) * vectors), spec, sums=True)
        return -(-height // rows) * -(-width // vectors) * step

    most = min(MAX_VECTORS, width)
    found = [(v, r) for v in range(1, most + 1) for r in range(1, min(sums // v, height) + 1)]
    return min(found, key=lambda block: (cost(*block), -block[0]))


def _panels(problem: Problem, p: BlockProduct, panel: int) -> tuple[tuple[str, Layout], ...]:
    """Static operands by panels of columns, in the order in which a panel reads them."""
    found: dict[str, Layout] = {}
    for stage in (p.part, p.stage):
        for load, _ in loads(stage.body):
            if problem.packable(load, p.lane) and load.tensor not in found:
                found[load.tensor] = _panel(load, p.lane, panel)
    return tuple(found.items())


def _panel(load: Load, lane: str, panel: int) -> Layout:
    across = next(d for d, ix in enumerate(load.index) if lane in variables(ix))
    rest = tuple(Digit(d) for d in range(len(load.index)) if d != across)
    return Layout((Digit(across, panel), *rest, Digit(across, 1, panel)))
