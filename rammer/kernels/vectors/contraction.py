"""Schedule sums of products: matrix products and convolutions, with vectors along the weights' axis. Known as: GEMM.

The register block (micro-kernel) is `vectors` x `rows`: vectors of the lane axis times neighbours of a row axis. Each
step of the reduction loads `vectors` weight vectors and `rows` single numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from rammer.cost.issue import pass_cycles
from rammer.cost.work import Issued
from rammer.ir.analysis.simplify import scalar_conditions
from rammer.ir.device import VDeviceSpec
from rammer.ir.expr import Stage, loads
from rammer.ir.index import bounds, var, variables
from rammer.ir.tensor import Digit, Layout
from rammer.ir.tile import Kind
from rammer.kernels.lanes import lane_axis
from rammer.kernels.packing import dim_of, panels
from rammer.kernels.problem import WORD, KernelProblem
from rammer.kernels.product import Product, copyable, pays, terms
from rammer.kernels.sched import Sched, cuts
from rammer.kernels.schedule import Loop, Schedule, copied, distinct
from rammer.kernels.tiling import stage_loops, task_counts
from rammer.kernels.vectors.orders import Orders

MAX_VECTORS = 8
MAX_PICKED = 32  # steps of a reduction that are unrolled so that vectors permuted from x are shared
MAX_PICKED_ROWS = 8  # sums, and as many vectors permuted from x: both stay in registers
MANY_ROWS = 16  # the most of a register block, and as many of a task as make several blocks
SPARE = 3  # registers that hold neither sums nor operands
REMAINDER = 1.03  # times the cycles, if some rows remain: they have code of their own


@dataclass(frozen=True)
class Block:
    vectors: int
    rows: int


def blocks(problem: KernelProblem, width: int, height: int) -> list[Block]:
    """Return register blocks for `width` vectors and `height` rows, the cheapest first by a model of issue slots."""
    limit = problem.spec.registers - SPARE
    found: list[tuple[float, int, Block]] = []
    for vectors in range(1, min(MAX_VECTORS, width) + 1):
        for rows in range(1, min(MANY_ROWS, height) + 1):
            if vectors * rows + vectors + 1 > limit:
                continue
            block = Block(vectors, rows)
            cost = cycles(problem.spec, block, width, height) * (REMAINDER if height % rows else 1.0)
            found.append((round(cost, 6), -vectors * rows, block))
    found.sort(key=lambda item: item[:2])
    return [b for _, _, b in found]


def cycles(spec: VDeviceSpec, block: Block, width: int, height: int) -> float:
    """Return the cycles of one step of the reduction for `width` vectors and `height` rows, in such blocks."""
    whole, rest = divmod(height, block.rows)
    steps = whole * _step(spec, block.vectors, block.rows) + (_step(spec, block.vectors, rest) if rest else 0.0)
    return steps * -(-width // block.vectors)


def _step(spec: VDeviceSpec, vectors: int, rows: int) -> float:
    """Return the cycles of one step of the reduction, with weights in the private cache."""
    issued = Issued(arithmetic=vectors * rows, loads=vectors + rows)
    return pass_cycles(issued, spec, sums=True, streamed=WORD * vectors * spec.lanes)


def schedules(problem: KernelProblem) -> Iterator[Schedule]:
    """Yield schedules by task count and register block; none if the root is not a product."""
    p = problem.matched.output
    if p is None or not pays(problem, p):
        return
    first, *others = task_counts(problem)
    wanted = [(first, False), (first, True), *((want, False) for want in others)]
    yield from distinct(
        _schedule(problem, p, want, second) for want, second in wanted if not (second and _by_rows(problem, p, want))
    )


def _by_rows(problem: KernelProblem, p: Product, want: int) -> bool:
    """Check whether a matrix that fits the private cache is cut by rows anyway, because there are enough rows.

    Alone, columns may be as fast. But readers of single rows then wait for all columns, and read lines of two vEUs.
    """
    return _fits_private_cache(problem, p) and max(e for a, e in p.stage.axes if a != p.lane) >= MANY_ROWS * want


def _fits_private_cache(problem: KernelProblem, p: Product) -> bool:
    """Check whether rows lie along a single axis, and all weights stay in a vEU's private cache.

    Meanwhile rows pass, and if weights are static, as many of the operator that runs next.
    """
    weights, spec = problem.expr.type_of(p.w.tensor).nbytes, problem.spec
    passing = WORD * MANY_ROWS * (terms(p) + dict(p.stage.axes)[p.lane])
    passing += weights if p.w.tensor in problem.static else 0
    return sum(e > 1 for a, e in p.stage.axes if a != p.lane) == 1 and spec.holds(spec.l2, weights, passing)


def _schedule(problem: KernelProblem, p: Product, want: int, second: bool) -> Schedule | None:
    """Return one schedule; None if no register block fits. `second`: cut tasks by the other axis."""
    stage, lanes, extents = p.stage, problem.lanes, dict(p.stage.axes)
    tasks, block = _tasks(problem, p, want, second)
    if block is None:
        return None
    panel, shown = block.vectors * lanes, _is_output(problem, p)
    reduce, digits = _reduction(problem, p)
    across = Sched(problem)
    if tasks.left(p.lane) > p.group > panel:
        across = across.split(p.lane, p.group)
    elif p.row and tasks.left(p.row) > p.row_group:
        across = across.split(p.row, p.row_group)
    outer = [a for a in extents if a not in (p.lane, p.row)]
    batch = [  # each point of these axes has weights of its own
        a for a in outer if a != stage.axes[-1][0] and extents[a] > 1 and any(a in variables(ix) for ix in p.w.index)
    ]
    within = Sched(problem).reorder(*(a for a in outer if a not in batch)).split(p.row, block.rows).loops
    across = across.split(p.lane, panel)
    orders = Orders(problem, p, panel, block.rows, () if shown else reduce, tasks.steps, across.loops, within)

    def sums(s: Sched) -> Sched:
        return s.unroll(p.row if block.rows > 1 else None).vectorize(p.lane, lanes)

    s = (tasks if shown else tasks.place(problem.placed)).reorder(*batch).nest(orders.best())
    if shown:  # a register block is stored, and its reader follows while it is in the private cache
        s = s.compute_at(stage.name, sums(Sched(problem, stage).nest(reduce)))
    if problem.packable(p.w, p.lane):
        s = s.pack([(p.w.tensor, panels(p.w, p.lane, panel, digits))])
    elif problem.lane_stride(p.w.tensor, p.w.index, p.lane, stage) != 1:
        if copyable(problem, p):
            s = _panel_copy(s, p, s.loops.index(Loop(p.lane, panel)))
    elif orders.copies_panels:
        s = _panel_copy(s, p, max(n for n, lp in enumerate(s.loops) if lp not in within))
    s = s.pack(epilogue_packing(problem, stage, p.lane, panel))
    return sums(s if shown else s.nest(reduce)).build(f"{block.rows}x{panel}")


def _tasks(problem: KernelProblem, p: Product, want: int, second: bool) -> tuple[Sched, Block | None]:
    """Cut the axis that saves traffic: rows if x is the larger operand, lanes if the weights are.

    Returns the tasks and a register block that fits them, or None for the block.
    """
    lanes, shown = problem.lanes, _is_output(problem, p)
    most = MAX_PICKED_ROWS if p.lane_permute else p.row_group

    def ranked(s: Sched) -> list[Block]:
        vectors = -(-min(s.left(p.lane), p.group) // lanes)
        rows = min(s.steps.get(p.row or "", p.row_group), p.row_group)
        return [b for b in blocks(problem, vectors, rows) if b.rows <= most]

    s = Sched(problem)
    best = _small(ranked(s), problem, p)
    if not best:
        return s, None
    block = best[0]
    ((lane, extent, grain),) = by_lane = cuts(problem, [p.lane], block.vectors * lanes)
    rows = cuts(problem, (a for a, e in p.stage.axes if a != lane and e > 1))
    for n, (a, e, _) in enumerate(rows):
        if a == p.row:
            whole = p.row_group if p.row_group < e else block.rows
            rows[n] = a, e, problem.grain(a, whole, exact=shown or p.row_group < e)
    weights, data = (prod(problem.expr.type_of(load.tensor).shape) for load in (p.w, p.x))
    units = prod(-(-e // g) for _, e, g in rows)
    first_rows = (data >= weights or _fits_private_cache(problem, p)) and units >= want
    first_rows = first_rows or (bool(rows) and -(-extent // grain) < want)
    s = s.tasks([*rows, *by_lane] if first_rows != second else [*by_lane, *rows], want)
    fitting = _small([b for b in ranked(s) if _fits(b, s.steps, p, lanes)], problem, p)
    if shown:  # a block that is stored must not reach into another task
        fitting = [b for b in fitting if s.steps.get(p.row or "", b.rows) % b.rows == 0]
    return s, (fitting[0] if fitting else None)


def _small(ranked: list[Block], problem: KernelProblem, p: Product) -> list[Block]:
    """Return the register blocks that touch at most `tuning.most_bytes`; the smallest one if all touch more."""
    if not problem.tuning.most_bytes or not ranked:
        return ranked
    touched = {b: _touched(b, problem, p) for b in ranked}
    fitting = [b for b in ranked if touched[b] <= problem.tuning.most_bytes]
    return fitting or [min(ranked, key=lambda b: touched[b])]


def _touched(b: Block, problem: KernelProblem, p: Product) -> int:
    """Return the bytes of a register block's sums and of all it reads: all terms of a panel and of the rows."""
    extents = {a: 1 for a, _ in p.stage.axes} | dict(p.stage.reduce)
    extents |= {p.lane: b.vectors * problem.lanes} | ({p.row: b.rows} if p.row else {})
    env = {a: (0, e - 1) for a, e in extents.items()}
    nbytes = extents[p.lane] * b.rows * p.stage.dtype.itemsize
    for load in (p.x, p.w):
        kind = problem.expr.type_of(load.tensor)
        spans = [high - low + 1 for low, high in (bounds(ix, env) for ix in load.index)]
        nbytes += prod(min(s, e) for s, e in zip(spans, kind.shape, strict=True)) * kind.dtype.itemsize
    return nbytes


def _is_output(problem: KernelProblem, p: Product) -> bool:
    """Check whether the product is an output that the root reads."""
    return p.stage.name != problem.root.name


def _fits(b: Block, steps: dict[str, int], p: Product, lanes: int) -> bool:
    panel = b.vectors * lanes
    lane_step = steps.get(p.lane)
    if lane_step is not None and lane_step % panel:
        return False
    if p.group % panel and p.group < dict(p.stage.axes)[p.lane]:
        return False
    return p.row not in steps or min(steps[p.row], p.row_group) >= b.rows


def _reduction(problem: KernelProblem, p: Product) -> tuple[tuple[Loop, ...], tuple[Digit, ...]]:
    """Return the reduction loops, outermost first, and the same order as digits of the packed weights.

    Axes that pick a place in x come outside of those that walk along memory. Channels are blocked as in x.
    """
    kind, reduce = problem.expr.type_of(p.x.tensor), dict(p.stage.reduce)
    blocked: dict[str, int] = {}
    if kind.layout is not None:
        for digit in kind.layout.digits:
            if digit.mod:
                for axis in reduce:
                    if axis in variables(p.x.index[digit.dim]) and reduce[axis] > digit.mod:
                        blocked[axis] = digit.mod
    guarded = {n for r in scalar_conditions(p.stage.body) for n in variables(r.index)}
    first = [a for a in reduce if a in blocked]
    window = [a for a in reduce if a not in blocked and a in guarded]
    last = [a for a in reduce if a not in blocked and a not in guarded]
    if p.lane_permute:  # neighbouring places share the vectors that are permuted from x, once both loops are unrolled
        window, last = [], [*window[:-1], *last, *window[-1:]]
    inner = last[-2:] if p.lane_permute and prod(reduce[a] for a in last[-2:]) <= MAX_PICKED else []
    loops = [*(Loop(a, blocked[a]) for a in first), *(Loop(a) for a in window)]
    loops += [Loop(a, 1, Kind.UNROLLED if a in inner else Kind.SERIAL) for a in last]
    loops += [Loop(a) for a in first]
    places = {a: d for d, ix in enumerate(p.w.index) for a in reduce if ix == var(a)}
    digits = [Digit(places[a], blocked[a]) for a in first if a in places]
    digits += [Digit(places[a]) for a in (*window, *last) if a in places]
    digits += [Digit(places[a], 1, blocked[a]) for a in first if a in places]
    return tuple(loops), tuple(digits)


def epilogue_packing(problem: KernelProblem, stage: Stage, lane: str, panel: int) -> list[tuple[str, Layout]]:
    """Return packings of static vectors along the lane axis, padded to whole panels: the last panel needs no guard."""
    if stage.epilogue is None or dict(stage.axes)[lane] % panel == 0:
        return []
    found = {}
    for load, _ in loads(stage.epilogue):
        alone = load.index == (var(lane),) and not load.dynamic
        if load.tensor in problem.static and alone and dict(problem.expr.inputs)[load.tensor].layout is None:
            found[load.tensor] = Layout((Digit(0, panel), Digit(0, 1, panel)))
    return list(found.items())


def _panel_copy(s: Sched, p: Product, depth: int) -> Sched:
    """Copy the weights that are read inside loop number `depth` before that loop, lanes innermost.

    Known as: panel packing.
    """
    problem, lane = s.problem, dim_of(p.w, p.lane)
    copy = copied(p.w.tensor, problem.expr.type_of(p.w.tensor))
    order = (*(d for d in range(len(copy.axes)) if d != lane), lane)
    return s.compute_at(p.w.tensor, stage_loops(problem, copy, lane_axis(problem, copy)), depth=depth, order=order)
