"""Schedules for sums of products: matrix products and convolutions, vectors along the axis of the weights.

The register block is `vectors` x `rows`: vectors of the lane axis times neighbours of a row axis, each step of the
reduction loading `vectors` weight vectors and `rows` single numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import lcm, prod

from rammer.cost.issue import pass_cycles
from rammer.cost.work import Issued
from rammer.ir.device import VDeviceSpec
from rammer.ir.expr import Load, Stage, loads
from rammer.ir.index import bounds, var, variables
from rammer.ir.simplify import scalar_conditions
from rammer.ir.tensor import Digit, Layout
from rammer.ir.tile import Kind
from rammer.kernels.lanes import lane_axis
from rammer.kernels.problem import Problem
from rammer.kernels.product import Product, axes_of, copyable, pays, product, terms
from rammer.kernels.schedule import At, Loop, Schedule, copied
from rammer.kernels.tiling import cut, nearest_bytes, place, stage_loops, task_counts

MAX_VECTORS = 8
MAX_PICKED = 32  # steps of a reduction that are unrolled so that vectors picked from x are shared
MAX_PICKED_ROWS = 8  # sums beside as many vectors picked from x: both stay in registers
MIN_BLOCKS = 4  # of rows: fewer pass by whole panels
MAX_WHOLE = 2  # nearest caches that the channels of a panel fill before rows are cut for it: sums cost time as well
MANY_ROWS = 16  # of a task: several register blocks
MOST_BLOCKS = 4  # that a search tries, the cheapest by the issue model
MOST_ORDERS = 3  # of loops, beginning with the one that rules choose
APART_BYTES = 4096  # between rows of weights: as far apart they fall on few sets of a cache, and on pages of their own
APART_ROWS = 64  # uses of such a panel that pay for copying it


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
    yield from _distinct(
        _schedule(problem, p, want, second) for want, second in wanted if not (second and _by_rows(problem, p, want))
    )


def every(problem: Problem) -> Iterator[Schedule]:
    """Those schedules, and more: by other register blocks, numbers of tasks and orders, each cut by rows and by lanes.

    Orders of loops differ by up to a tenth in time, and by nothing in counted work: only a measurement ranks them.
    """
    p = product(problem, problem.root) or _shown(problem)
    if p is None or not pays(problem, p):
        return
    counts = dict.fromkeys((*task_counts(problem), 1, *(problem.rtasks * n for n in (1, 2, 4))))
    yield from _distinct(
        _schedule(problem, p, want, second, choice, order)
        for order in range(MOST_ORDERS)
        for choice in range(MOST_BLOCKS)
        for want in counts
        for second in (False, True)
    )


def _distinct(schedules: Iterable[Schedule | None]) -> Iterator[Schedule]:
    seen = set()
    for schedule in schedules:
        if schedule is not None and (schedule.loops, schedule.packing) not in seen:
            seen.add((schedule.loops, schedule.packing))
            yield schedule


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


def _schedule(
    problem: Problem, p: Product, want: int, second: bool, choice: int = 0, order: int = 0
) -> Schedule | None:
    """`second`: cut by the other axis; `choice`: of register blocks, the cheapest is 0; `order`: of loops, that of the
    rules is 0. None if there is none.
    """
    stage, lanes = p.stage, problem.lanes
    extents = dict(stage.axes)
    width = -(-min(extents[p.lane], p.group) // lanes)
    height = p.row_group
    tasks, block = _tasks(problem, p, want, width, height, second, choice)
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
    around = problem, p, panel, () if shown else reduce, steps, block, lane_outer, within
    orders = [_order(*around)] if order == 0 else _orders(*around)
    if order >= len(orders):
        return None
    middle = orders[order]
    outer_loops = (*tasks, *(Loop(a) for a in batch), *middle)
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
        elif _copies_panels(problem, p, panel, steps):
            stages = (*stages, _panel_copy(problem, p, max(n for n, lp in enumerate(outer_loops) if lp not in within)))
    count = prod(-(-extents[lp.axis] // lp.step) for lp in tasks)
    name = f"{problem.operation.kind}_{block.rows}x{panel}_t{count}" + (f"_o{order}" if order else "")
    return Schedule(name, loops, stages, tuple(packing))


def _tasks(
    problem: Problem, p: Product, want: int, width: int, height: int, second: bool, choice: int
) -> tuple[tuple[Loop, ...], Block | None]:
    """Cut the axis that saves traffic: rows if x is the larger operand, lanes if the weights are."""
    extents = dict(p.stage.axes)
    lanes = problem.lanes
    most = MAX_PICKED_ROWS if p.mixed else height
    ranked = _small([b for b in blocks(problem, width, height) if b.rows <= most], problem, p)
    if not ranked:
        return (), None
    if choice >= len(ranked):
        return (), None
    block = ranked[choice]
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
    return tasks, (block if choice and block in fitting else fitting[0] if fitting else None)


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


def _order(
    problem: Problem,
    p: Product,
    panel: int,
    reduce: tuple[Loop, ...],
    steps: dict[str, int],
    block: Block,
    lane_outer: tuple[Loop, ...],
    within: tuple[Loop, ...],
) -> tuple[Loop, ...]:
    """Loops around a register block: rows pass by a panel of weights, or all panels by the rows of a block.

    Rows come first where x is large, so that it is read once, and where the output is row-major: a panel at a time
    would write pieces of it that are a whole row apart, which fall on few sets of the caches and which no core fetches
    ahead. Weights then come from the vEU's own cache in the order in which they lie, about as fast as from the nearest.
    """
    if _rows(p, steps) < MIN_BLOCKS * block.rows:
        return (*lane_outer, *within)
    packed = problem.packable(p.w, p.lane)
    if _copies_panels(problem, p, panel, steps) and terms(p) * panel * 4 <= problem.spec.own_cache / 4:
        return (*lane_outer, *within)
    kind = dict(problem.expr.outputs).get(p.stage.name)
    row_major = packed and kind is not None and kind.layout is None and p.stage.axes[-1][0] == p.lane
    far = _share(problem, p.x, steps) > problem.spec.own_cache / 2
    strips = _strips(problem, p, panel, steps, within) if packed and (far or row_major) else ()
    chunk = () if row_major and strips else _chunk(problem, p, panel, reduce, steps, block, far)
    if row_major and len(chunk) > 1:
        chunk = ()  # measured: slower than weights from the second cache
    if strips and not chunk:
        return (*lane_outer[:-1], *strips)
    if far and not packed and not chunk and len(lane_outer) == 1:
        return (*_deep(problem, p, panel, reduce, steps, block), *lane_outer, *within)
    left = tuple(lp for lp in within if lp not in chunk)
    if far and chunk and len(lane_outer) == 1:
        return (*chunk[:-1], *lane_outer, *chunk[-1:], *left)
    return (*lane_outer, *chunk, *left)


def _orders(
    problem: Problem,
    p: Product,
    panel: int,
    reduce: tuple[Loop, ...],
    steps: dict[str, int],
    block: Block,
    lane_outer: tuple[Loop, ...],
    within: tuple[Loop, ...],
) -> list[tuple[Loop, ...]]:
    """The order that `_order` chooses, and then the others that it chooses from."""
    found = [_order(problem, p, panel, reduce, steps, block, lane_outer, within), (*lane_outer, *within)]
    for far in (False, True):
        if chunk := _chunk(problem, p, panel, reduce, steps, block, far):
            found.append((*lane_outer, *chunk, *(lp for lp in within if lp not in chunk)))
    if problem.packable(p.w, p.lane) and (strips := _strips(problem, p, panel, steps, within)):
        found.append((*lane_outer[:-1], *strips))
    return list(dict.fromkeys(found))


def _strips(
    problem: Problem, p: Product, panel: int, steps: dict[str, int], within: tuple[Loop, ...]
) -> tuple[Loop, ...]:
    """Rows, and inside of them panels: of all lanes, or of strips of lanes whose weights stay in a vEU's own cache.

    Empty if these are single panels.
    """
    depth = terms(p)
    panels = -(-min(steps.get(p.lane, dict(p.stage.axes)[p.lane]), p.group) // panel)
    most = max(problem.spec.own_cache // 2 // (4 * depth * panel), 1)
    size = max(n for n in range(1, panels + 1) if panels % n == 0 and n <= most)
    if size == 1:
        return ()
    strip = (Loop(p.lane, size * panel),) if size < panels else ()
    return (*strip, *within, Loop(p.lane, panel))


def _chunk(
    problem: Problem,
    p: Product,
    panel: int,
    reduce: tuple[Loop, ...],
    steps: dict[str, int],
    block: Block,
    far: bool,
) -> tuple[Loop, ...]:
    """Cut the reduction so that the weights of a panel stay in the nearest cache while all rows pass by.

    Sums of all rows then wait in a buffer beside it. Rows whose sums would push the weights out are cut, if there are
    so many channels that this pays. Empty if the panel fits as it is. Rows of which x comes from `far` are so few that
    their x stays in the vEU's cache for all panels.
    """
    piece = _piece(problem, p, panel, reduce)
    if piece is None:
        return ()
    near = nearest_bytes(problem.spec)
    item, depth = 4 * panel, terms(p)
    whole = dict(p.stage.reduce)[piece.axis] * item
    rows = {a: min(steps.get(a, e), e) for a, e in p.stage.axes if a != p.lane and a not in axes_of(p.w)}
    room = min(near, problem.spec.own_cache // 2 // (4 * depth) * item) if far else near
    held = prod(rows.values()) * item
    if held > room and whole <= MAX_WHOLE * near:
        return ()
    loops: list[Loop] = []
    for axis, extent in rows.items():
        if held <= room or extent == 1:
            continue
        grain = block.rows if axis == p.row else 1
        size = max(int(extent * room / held) // grain * grain, grain)
        if size < extent:
            loops.append(Loop(axis, size))
            held = held // extent * size
    if prod({**rows, **{lp.axis: lp.step for lp in loops}}.values()) < MIN_BLOCKS * block.rows:
        return ()
    return (*loops, piece)


def _piece(problem: Problem, p: Product, panel: int, reduce: tuple[Loop, ...]) -> Loop | None:
    """A loop over pieces of the reduction of which a panel's weights fill half of the nearest cache.

    None if the panel fits as it is, or where no such piece divides the reduction.
    """
    near = nearest_bytes(problem.spec)
    item, depth = 4 * panel, terms(p)
    if depth * item <= near * 2 / 3 or not reduce:
        return None
    first = reduce[0]
    extent = dict(p.stage.reduce)[first.axis]
    unit = depth // extent * first.step * item
    units = extent // first.step
    fitting = [u for u in range(1, units) if units % u == 0 and u * unit <= near / 2]
    if extent % first.step or not fitting or fitting[-1] * unit < 64 * item:
        return None
    return Loop(first.axis, fitting[-1] * first.step)


def _deep(
    problem: Problem, p: Product, panel: int, reduce: tuple[Loop, ...], steps: dict[str, int], block: Block
) -> tuple[Loop, ...]:
    """Cut a reduction so deep that not even the rows of a few blocks stay near: pieces outside, x is read once.

    All sums of a task wait meanwhile, in as many rows as stay in the vEU's own cache. Empty if there is one piece, or
    where they would be too few.
    """
    piece = _piece(problem, p, panel, reduce)
    if piece is None or p.row is None or terms(p) * 4 * MIN_BLOCKS * block.rows <= problem.spec.own_cache / 2:
        return ()
    extents = dict(p.stage.axes)
    height, width = (min(steps.get(a, extents[a]), extents[a]) for a in (p.row, p.lane))
    held = problem.spec.own_cache // 2 // (4 * width) // block.rows * block.rows
    if height <= held:
        return (piece,)
    return (Loop(p.row, held), piece) if held >= MIN_BLOCKS * block.rows else ()


def _rows(p: Product, steps: dict[str, int]) -> int:
    """Points of a task that share weights."""
    return prod(min(steps.get(a, e), e) for a, e in p.stage.axes if a != p.lane and a not in axes_of(p.w))


def _share(problem: Problem, load: Load, steps: dict[str, int]) -> float:
    """Bytes of a tensor that a task reads."""
    extents = dict((*problem.root.axes, *problem.root.reduce))
    moving = [a for a in steps if any(a in variables(ix) for ix in load.index)]
    return problem.expr.type_of(load.tensor).nbytes * prod(min(steps[a] / extents[a], 1.0) for a in moving)


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


def _copies_panels(problem: Problem, p: Product, panel: int, steps: dict[str, int]) -> bool:
    """Whether a panel of weights made at run time has its rows so far apart that a copy side by side is faster.

    Lanes lie side by side in it already.
    """
    kinds = dict(problem.expr.inputs)
    if problem.packable(p.w, p.lane) or p.w.tensor not in kinds or p.w.index[-1] != var(p.lane):
        return False
    kind = kinds[p.w.tensor]
    plain = all(ix == var(a) for ix in p.w.index for a in variables(ix)) and kind.layout is None
    apart = kind.shape[-1] > panel and kind.shape[-1] * kind.dtype.itemsize >= APART_BYTES
    return plain and apart and _rows(p, steps) >= APART_ROWS


def _panel_copy(problem: Problem, p: Product, depth: int) -> At:
    """The weights that are read inside a loop, copied before it, lanes innermost."""
    kind = problem.expr.type_of(p.w.tensor)
    lane = next(d for d, ix in enumerate(p.w.index) if ix == var(p.lane))
    copy = copied(p.w.tensor, kind)
    order = (*(d for d in range(len(kind.shape)) if d != lane), lane)
    return At(p.w.tensor, depth, stage_loops(problem, copy, lane_axis(problem, copy)), order=order)
