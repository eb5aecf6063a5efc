"""Schedules for sums of products: matrix products and convolutions, vectors along the axis of the weights.

The register block is `vectors` x `rows`: vectors of the lane axis times neighbours of a row axis, each step of the
reduction loading `vectors` weight vectors and `rows` single numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import lcm, prod

from rammer.cost.issue import pass_cycles
from rammer.cost.work import Issued
from rammer.ir.device import VDeviceSpec
from rammer.ir.expr import Stage, loads
from rammer.ir.index import bounds, var, variables
from rammer.ir.simplify import scalar_conditions
from rammer.ir.tensor import Digit, Layout
from rammer.ir.tile import Kind
from rammer.kernels.lanes import lane_axis
from rammer.kernels.orders import Orders
from rammer.kernels.problem import Problem
from rammer.kernels.product import Product, copyable, pays, product
from rammer.kernels.schedule import At, Loop, Schedule, copied, distinct
from rammer.kernels.tiling import cut, place, stage_loops, task_counts

MAX_VECTORS = 8
MAX_PICKED = 32  # steps of a reduction that are unrolled so that vectors picked from x are shared
MAX_PICKED_ROWS = 8  # sums beside as many vectors picked from x: both stay in registers
MANY_ROWS = 16  # of a task: several register blocks


@dataclass(frozen=True)
class Block:
    vectors: int
    rows: int


def blocks(problem: Problem, width: int, height: int) -> list[Block]:
    """Register blocks for `width` vectors and `height` rows, the cheapest first by a model of issue slots."""
    limit = problem.spec.registers - 3
    found: list[tuple[float, int, Block]] = []
    for vectors in range(1, min(MAX_VECTORS, width) + 1):
        for rows in range(1, min(16, height) + 1):
            if vectors * rows + vectors + 1 > limit:
                continue
            block = Block(vectors, rows)
            cost = cycles(problem.spec, block, width, height) * (1.03 if height % rows else 1.0)  # the code comes twice
            found.append((round(cost, 6), -vectors * rows, block))
    found.sort(key=lambda item: item[:2])
    return [b for _, _, b in found]


def cycles(spec: VDeviceSpec, block: Block, width: int, height: int) -> float:
    """Cycles of one step of the reduction for so many vectors and rows, in such blocks."""
    whole, rest = divmod(height, block.rows)
    steps = whole * _step(spec, block.vectors, block.rows) + (_step(spec, block.vectors, rest) if rest else 0.0)
    return steps * -(-width // block.vectors)


def _step(spec: VDeviceSpec, vectors: int, rows: int) -> float:
    """Cycles of one step of the reduction, its weights in the vEU's own cache."""
    issued = Issued(arithmetic=vectors * rows, loads=vectors + rows)
    return pass_cycles(issued, spec, sums=True, streamed=4.0 * vectors * spec.lanes)


def schedules(problem: Problem) -> Iterator[Schedule]:
    """Nothing if the root is no product; otherwise schedules by task count and register block."""
    p = product(problem, problem.root) or _shown(problem)
    if p is None or not pays(problem, p):
        return
    wanted = [
        (want, second) for n, want in enumerate(task_counts(problem)) for second in (False, True)[: 1 if n else 2]
    ]
    yield from distinct(
        _schedule(problem, p, want, second) for want, second in wanted if not (second and _by_rows(problem, p, want))
    )


def _by_rows(problem: Problem, p: Product, want: int) -> bool:
    """Whether a near matrix is cut by rows in any case, as there are enough.

    Alone columns may be as fast. But who reads single rows need not wait for all of them, nor take them from two vEUs.
    """
    return _near_matrix(problem, p) and max(e for a, e in p.stage.axes if a != p.lane) >= MANY_ROWS * want


def _near_matrix(problem: Problem, p: Product) -> bool:
    """Whether rows are cut along a single axis, and all weights stay in the cache of a vEU that has some of them."""
    weights = problem.expr.type_of(p.w.tensor).nbytes
    return sum(e > 1 for a, e in p.stage.axes if a != p.lane) == 1 and weights <= problem.spec.own_cache / 2


def _shown(problem: Problem) -> Product | None:
    """The product that is an output itself, and that a point-wise root reads at its own position."""
    root, placed = problem.root, problem.placed
    if root.reduce or len(placed) != 1 or placed[0].axes != root.axes:
        return None
    own = tuple(var(a) for a, _ in root.axes)
    found = [ld for ld, _ in loads(root.body) if ld.tensor == placed[0].name]
    output = placed[0].name in dict(problem.expr.outputs)
    return product(problem, placed[0]) if output and all(ld.index == own and not ld.dynamic for ld in found) else None


def _schedule(problem: Problem, p: Product, want: int, second: bool) -> Schedule | None:
    """`second`: cut by the other axis. None if there is none."""
    stage, lanes = p.stage, problem.lanes
    extents = dict(stage.axes)
    width = -(-min(extents[p.lane], p.group) // lanes)
    height = p.row_group
    tasks, block = _tasks(problem, p, want, width, height, second)
    if block is None:
        return None
    steps = {loop.axis: loop.step for loop in tasks}
    panel = block.vectors * lanes
    names = [a for a, _ in stage.axes]
    outer = [a for a in names if a not in (p.lane, p.row)]
    reduce, digits = _reduction(problem, p)
    row_loops = (Loop(p.row, block.rows),) if p.row else ()
    lane_outer: tuple[Loop, ...] = ()
    if p.row and steps.get(p.row, extents[p.row]) > p.row_group:
        lane_outer = (Loop(p.row, p.row_group),)
    if steps.get(p.lane, extents[p.lane]) > p.group > panel:
        lane_outer = (Loop(p.lane, p.group),)
    lane_outer = (*lane_outer, Loop(p.lane, panel))
    row_block = (Loop(p.row, 1, Kind.UNROLLED),) if p.row and block.rows > 1 else ()
    inner = (*row_block, Loop(p.lane, lanes, Kind.UNROLLED), Loop(p.lane, 1, Kind.VECTOR))
    far = [a for a in outer if a not in names[-1:] and extents[a] > 1]
    batch = [a for a in far if any(a in variables(ix) for ix in p.w.index)]  # each has weights of its own
    plain = [a for a in outer if a not in batch]
    shown = _is_shown(problem, p)
    within = (*(Loop(a) for a in plain), *row_loops)
    orders = Orders(problem, p, panel, block.rows, () if shown else reduce, steps, lane_outer, within)
    outer_loops = (*tasks, *(Loop(a) for a in batch), *orders.best())
    loops = (*outer_loops, *inner) if shown else (*outer_loops, *reduce, *inner)
    packing = []
    if problem.packable(p.w, p.lane):
        packing.append((p.w.tensor, _panels(p, panel, digits)))
    packing += epilogue_packing(problem, p.stage, p.lane, panel)
    if shown:  # a register block is stored, and what reads it follows while it is near
        stages: tuple[At, ...] = (At(stage.name, len(outer_loops) - 1, (*reduce, *inner)),)
    else:
        stages = place(problem, tasks, len(tasks) - 1)
    if not packing or packing[0][0] != p.w.tensor:
        depth = loops.index(Loop(p.lane, panel))
        if problem.lane_stride(p.w.tensor, p.w.index, p.lane, p.stage) != 1:
            stages = (*stages, *_transposed(problem, p, depth))
        elif orders.copies_panels:
            stages = (*stages, _panel_copy(problem, p, max(n for n, lp in enumerate(outer_loops) if lp not in within)))
    count = prod(-(-extents[lp.axis] // lp.step) for lp in tasks)
    name = f"{problem.operation.kind}_{block.rows}x{panel}_t{count}"
    return Schedule(name, loops, stages, tuple(packing))


def _tasks(
    problem: Problem, p: Product, want: int, width: int, height: int, second: bool
) -> tuple[tuple[Loop, ...], Block | None]:
    """Cut the axis that saves traffic: rows if x is the larger operand, lanes if the weights are."""
    extents = dict(p.stage.axes)
    lanes = problem.lanes
    most = MAX_PICKED_ROWS if p.mixed else height
    ranked = _small([b for b in blocks(problem, width, height) if b.rows <= most], problem, p)
    if not ranked:
        return (), None
    block = ranked[0]
    panel = block.vectors * lanes
    lane_grain = lcm(panel, problem.span(p.lane))
    by_lane = (p.lane, extents[p.lane], lane_grain)
    others = [a for a in (n for n, _ in p.stage.axes) if a != p.lane and extents[a] > 1]
    rows = []
    for a in others:
        grain = problem.span(a)
        if a == p.row:
            if p.row_group < extents[a]:
                grain = lcm(grain, p.row_group)
            else:
                grain = lcm(grain, block.rows) if _is_shown(problem, p) else _multiple(grain, block.rows)
        rows.append((a, extents[a], grain))
    weights = prod(problem.expr.type_of(p.w.tensor).shape)
    data = prod(problem.expr.type_of(p.x.tensor).shape)
    units = prod(-(-e // g) for _, e, g in rows) if rows else 1
    first_rows = (data >= weights or _near_matrix(problem, p)) and units >= want
    first_rows = first_rows or (bool(rows) and -(-extents[p.lane] // lane_grain) < want)
    if second:
        first_rows = not first_rows
    axes = [*rows, by_lane] if first_rows else [by_lane, *rows]
    tasks = cut(axes, want, problem.spec.num_veus)
    steps = {loop.axis: loop.step for loop in tasks}
    tall = min(steps.get(p.row or "", height), height)
    broad = -(-min(steps.get(p.lane, extents[p.lane]), p.group) // lanes)
    fitting = [b for b in blocks(problem, broad, tall) if b.rows <= most and _fits(b, steps, p, lanes)]
    fitting = _small(fitting, problem, p)
    if _is_shown(problem, p):  # a block that is stored must not reach into another task
        fitting = [b for b in fitting if steps.get(p.row or "", b.rows) % b.rows == 0]
    return tasks, (fitting[0] if fitting else None)


def _small(ranked: list[Block], problem: Problem, p: Product) -> list[Block]:
    """Of register blocks those that touch no more than is wanted; the smallest if all touch more."""
    if not problem.wanted.nbytes or not ranked:
        return ranked
    touched = {b: _touched(b, problem, p) for b in ranked}
    fitting = [b for b in ranked if touched[b] <= problem.wanted.nbytes]
    return fitting or [min(ranked, key=lambda b: touched[b])]


def _touched(b: Block, problem: Problem, p: Product) -> int:
    """Bytes that a register block sums, and reads for it: all terms of a panel and of the rows."""
    extents = {a: 1 for a, _ in p.stage.axes} | dict(p.stage.reduce)
    extents |= {p.lane: b.vectors * problem.lanes} | ({p.row: b.rows} if p.row else {})
    env = {a: (0, e - 1) for a, e in extents.items()}
    nbytes = extents[p.lane] * b.rows * p.stage.dtype.itemsize
    for load in (p.x, p.w):
        kind = problem.expr.type_of(load.tensor)
        spans = [high - low + 1 for low, high in (bounds(ix, env) for ix in load.index)]
        nbytes += prod(min(s, e) for s, e in zip(spans, kind.shape, strict=True)) * kind.dtype.itemsize
    return nbytes


def _is_shown(problem: Problem, p: Product) -> bool:
    """Whether the product is an output that the root reads."""
    return p.stage.name != problem.root.name


def _fits(b: Block, steps: dict[str, int], p: Product, lanes: int) -> bool:
    panel = b.vectors * lanes
    lane_step = steps.get(p.lane)
    if lane_step is not None and lane_step % panel:
        return False
    if p.group % panel and p.group < dict(p.stage.axes)[p.lane]:
        return False
    return p.row not in steps or min(steps[p.row], p.row_group) >= b.rows


def _multiple(grain: int, rows: int) -> int:
    """A granularity of tasks near a multiple of the register block."""
    size = grain
    while size < rows:
        size += grain
    return size


def _reduction(problem: Problem, p: Product) -> tuple[tuple[Loop, ...], tuple[Digit, ...]]:
    """Reduction loops outermost first, and the same order as digits of the packed weights.

    Axes that pick a place in x come outside of those that walk along memory, channels blocked as x blocks them.
    """
    kind = problem.expr.type_of(p.x.tensor)
    reduce = dict(p.stage.reduce)
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
    if p.mixed:  # neighbouring places share the vectors that are picked from x, once both loops are unrolled
        window, last = [], [*window[:-1], *last, *window[-1:]]
    near = last[-2:] if p.mixed and prod(reduce[a] for a in last[-2:]) <= MAX_PICKED else []
    loops = [*(Loop(a, blocked[a]) for a in first), *(Loop(a) for a in window)]
    loops += [Loop(a, 1, Kind.UNROLLED if a in near else Kind.SERIAL) for a in last]
    loops += [Loop(a) for a in first]
    places = {a: d for d, ix in enumerate(p.w.index) for a in reduce if ix == var(a)}
    digits = [Digit(places[a], blocked[a]) for a in first if a in places]
    digits += [Digit(places[a]) for a in (*window, *last) if a in places]
    digits += [Digit(places[a], 1, blocked[a]) for a in first if a in places]
    return tuple(loops), tuple(digits)


def _panels(p: Product, panel: int, digits: tuple[Digit, ...]) -> Layout:
    """Weights in order of use: panels of the lane axis, the reduction inside, one panel of lanes innermost."""
    lane = next(d for d, ix in enumerate(p.w.index) if ix == var(p.lane))
    used = {d.dim for d in digits} | {lane}
    rest = tuple(Digit(d) for d in range(len(p.w.index)) if d not in used)
    return Layout((*rest, Digit(lane, panel), *digits, Digit(lane, 1, panel)))


def epilogue_packing(problem: Problem, stage: Stage, lane: str, panel: int) -> list[tuple[str, Layout]]:
    """Static vectors along the lane axis, padded to whole panels, so that a last panel needs no guard."""
    if stage.epilogue is None or dict(stage.axes)[lane] % panel == 0:
        return []
    found = {}
    for load, _ in loads(stage.epilogue):
        alone = load.index == (var(lane),) and not load.dynamic
        if load.tensor in problem.static and alone and dict(problem.expr.inputs)[load.tensor].layout is None:
            found[load.tensor] = Layout((Digit(0, panel), Digit(0, 1, panel)))
    return list(found.items())


def _transposed(problem: Problem, p: Product, depth: int) -> tuple[At, ...]:
    """A copy of a panel of weights in scratch, lanes innermost."""
    return (_panel_copy(problem, p, depth),) if copyable(problem, p) else ()


def _panel_copy(problem: Problem, p: Product, depth: int) -> At:
    """The weights that are read inside a loop, copied before it, lanes innermost."""
    kind = problem.expr.type_of(p.w.tensor)
    lane = next(d for d, ix in enumerate(p.w.index) if ix == var(p.lane))
    copy = copied(p.w.tensor, kind)
    order = (*(d for d in range(len(kind.shape)) if d != lane), lane)
    return At(p.w.tensor, depth, stage_loops(problem, copy, lane_axis(problem, copy)), order=order)
