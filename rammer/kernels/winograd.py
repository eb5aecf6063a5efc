"""3x3 convolutions with less arithmetic: Winograd's F(m x m, 3x3), Lavin and Gray 2015 (arXiv:1509.09308).

The convolution is rewritten as an expression of seven stages, in which `m` x `m` outputs make a tile:

    wt, wu   weights transformed        wu[p, q] = G w G'        rows first, then columns
    xt, xv   input transformed          xv[p, q] = B' x B
    xm       one product per (p, q)     xm[p, q] = sum over channels of xv[p, q] wu[p, q]
    yt, y    output transformed         y = A' xm A, with the convolution's own epilogue

It is then scheduled like any other expression. Weights are transformed inside the rTask, block by block, into its
scratch: what is read from memory stays 9 numbers per filter, and nothing is stored twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from math import prod

from rammer import config
from rammer.ir.expr import (
    Axes,
    Call,
    Const,
    Load,
    Range,
    Scalar,
    Select,
    Stage,
    Table,
    TensorExpr,
    loads,
    rewrite,
    substitute_axes,
)
from rammer.ir.index import Index, var, variables
from rammer.ir.kernel import RKernel
from rammer.ir.simplify import scalar_conditions
from rammer.ir.tensor import Digit, DType, Layout
from rammer.ir.tile import Kind
from rammer.kernels.contraction import Block, Product, blocks, product
from rammer.kernels.problem import Problem
from rammer.kernels.schedule import At, Loop, Schedule
from rammer.kernels.tiling import cut, task_counts

TAPS = 3
TILE = 4  # outputs per tile and axis
MAX_SCHEDULES = 3
WORTH = 0.9  # of the direct kernel's estimated time; above, it is not tried
MAX_NEAR_TILES = 6  # more tiles share weights that come from a farther cache
# Measured cost of one vector's transform, in vector multiply-adds; weights that stay in the nearest cache cost less.
INPUT_COST, OUTPUT_COST, WEIGHT_COST, NEAR_COST = 480.0, 350.0, 390.0, 140.0
STAGES = ("wt", "wu", "xt", "xv", "xm", "yt", "y")
AXES = ("gg", "cc", "kk", "tt", "pp", "qq", "ii", "rr", "ss")


@cache
def matrices(m: int) -> tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...]]:
    """B', G and A' of F(m, 3) row by row, by Toom and Cook's construction on points that keep the error small."""
    points = [Fraction(p) for p in {2: (0, 1, -1), 4: (0, 1, -1, Fraction(1, 2), -2)}[m]]
    size = m + TAPS - 1

    def polynomial(roots: list[Fraction]) -> list[Fraction]:
        c = [Fraction(1)]
        for q in roots:
            c = [(c[i - 1] if i else Fraction(0)) - q * (c[i] if i < len(c) else 0) for i in range(len(c) + 1)]
        return c + [Fraction(0)] * (size - len(c))

    others = [[q for q in points if q != p] for p in points]
    scale = [prod((p - q for q in rest), start=Fraction(1)) for p, rest in zip(points, others, strict=True)]
    b = [*map(polynomial, others), polynomial(points)]
    g = [[p**j / n for j in range(TAPS)] for p, n in zip(points, scale, strict=True)] + [[0, 0, 1]]
    a = [[*(p**i for p in points), Fraction(int(i == m - 1))] for i in range(m)]
    return tuple(tuple(float(v) for row in rows for v in row) for rows in (b, g, a))  # type: ignore[return-value]


@dataclass(frozen=True)
class Convolution:
    """A 3x3 convolution of stride 1 found in a root stage; names of its axes."""

    root: Stage
    x: Scalar  # the factor that is read through the window
    w: Load
    batch: tuple[str, ...]
    o: str
    h: str
    w_: str
    c: str
    kh: str
    kw: str
    groups: int

    @property
    def extents(self) -> dict[str, int]:
        return {**dict(self.root.axes), **dict(self.root.reduce)}

    @property
    def outs(self) -> int:
        """Output channels of a group."""
        return self.extents[self.o] // self.groups


def convolution(problem: Problem) -> Convolution | None:
    """The operation as a convolution that this algorithm can compute, or None."""
    if problem.placed or len(problem.expr.outputs) != 1:
        return None
    root = problem.root
    p = product(problem, root)
    if p is None or len(root.reduce) != 3 or root.dtype is not DType.F32 or p.w.tensor not in problem.static:
        return None
    if not problem.packable(p.w, p.lane) or any(
        problem.expr.type_of(ld.tensor).dtype is not DType.F32 for ld in (p.x, p.w)
    ):
        return None
    assert isinstance(root.body, Call)
    x = next(a for a in root.body.args if all(ld != p.w for ld, _ in loads(a)))
    found = _window(root, p, x)
    if found is None:
        return None
    (h, kh), (w_, kw) = found
    extents = {**dict(root.axes), **dict(root.reduce)}
    (c,) = (a for a, _ in root.reduce if a not in (kh, kw))
    own = tuple(var(a) for a, _ in root.axes)
    order = [next((a for a in extents if ix == var(a)), "") for ix in p.w.index]
    wanted = sorted(order) == sorted([p.lane, c, kh, kw])
    batch = tuple(a for a, _ in root.axes if a not in (p.lane, h, w_))
    groups, rest = divmod(extents[p.lane], p.group)
    lanes = problem.lanes
    if not wanted or rest or any(ld.tensor == p.w.tensor for ld, _ in loads(x)) or {*extents} & {*AXES}:
        return None
    if groups > 1 and (p.group % lanes or extents[c] % lanes):
        return None
    if (
        problem.lane_stride(p.x.tensor, p.x.index, c, root) != 1
        or problem.lane_stride(root.name, own, p.lane, root) != 1
    ):
        return None
    return Convolution(root, x, p.w, batch, p.lane, h, w_, c, kh, kw, groups)


def _window(root: Stage, p: Product, x: Scalar) -> list[tuple[str, str]] | None:
    """Two pairs of an output axis and a reduction axis of three taps that x sees only as their sum."""
    indices = [ix for ld, _ in loads(x) for ix in ld.index] + [r.index for r in scalar_conditions(x)]
    pairs = []
    for tap, extent in root.reduce:
        if extent != TAPS:
            continue
        seen = [ix for ix in indices if tap in variables(ix)]
        axes = {a for ix in seen for a, c in ix.terms if isinstance(a, str) and a in dict(root.axes)}
        if len(axes) != 1:
            continue
        (axis,) = axes
        both = {axis, tap}
        plain = all(not isinstance(a, str) or a not in both or c == 1 for ix in indices for a, c in ix.terms)
        hidden = any(
            variables(Index(0, ((a, 1),))) & both for ix in indices for a, _ in ix.terms if not isinstance(a, str)
        )
        together = all(ix.coef(axis) == ix.coef(tap) for ix in indices)
        if plain and not hidden and together and axis != p.lane:
            pairs.append((axis, tap))
    places = [a for a, _ in root.axes]
    return (
        sorted(pairs, key=lambda pair: places.index(pair[0])) if len({a for a, _ in pairs}) == 2 == len(pairs) else None
    )


def rewritten(problem: Problem, conv: Convolution, m: int, chunk: int) -> TensorExpr:
    """The convolution by tiles of m x m outputs; channels are summed in the transformed domain `chunk` at a time."""
    size, extents = m + TAPS - 1, conv.extents
    b, g, a = matrices(m)
    across = -(-extents[conv.w_] // m)
    tiles = -(-extents[conv.h] // m) * across
    parts = extents[conv.c] // chunk
    names = {n: var(n) for n in AXES}
    gg, cc, kk, tt, pp, qq, ii, rr, ss = (names[n] for n in AXES)
    batch: Axes = tuple((n, extents[n]) for n in conv.batch)
    at = tuple(var(n) for n in conv.batch)
    o = var(conv.o)
    outs: Axes = ((conv.o, extents[conv.o]),)

    row, column = tt // across * m + rr, tt % across * m + ss
    patch = substitute_axes(
        conv.x, {conv.h: row, conv.kh: Index(), conv.w_: column, conv.kw: Index(), conv.c: cc, conv.o: gg * conv.outs}
    )
    inside = (Range(row, 0, extents[conv.h] + TAPS - 1), Range(column, 0, extents[conv.w_] + TAPS - 1))
    if isinstance(patch, Select) and isinstance(patch.other, Const) and patch.other.value == 0:
        patch = Select((*inside, *patch.where), patch.then, patch.other)
    else:
        patch = Select(inside, patch, Const(0.0))
    data: Axes = (*batch, ("gg", conv.groups), ("cc", extents[conv.c]), ("tt", tiles), ("pp", size))
    filters: Axes = (*outs, ("cc", extents[conv.c]), ("pp", size))
    weight = substitute_axes(conv.w, {conv.c: cc, conv.kh: rr, conv.kw: ss})
    channel = kk * chunk + cc if parts > 1 else cc
    part: Axes = (("kk", parts),) if parts > 1 else ()
    piece = (kk,) if parts > 1 else ()
    h, w_ = var(conv.h), var(conv.w_)
    tile = h // m * across + w_ // m
    stages = [
        Stage("wt", (*filters, ("ss", TAPS)), Table(g, pp * TAPS + rr) * weight, (("rr", TAPS),)),
        Stage("wu", (*filters, ("qq", size)), Table(g, qq * TAPS + ss) * Load("wt", (o, cc, pp, ss)), (("ss", TAPS),)),
        Stage("xt", (*data, ("ss", size)), Table(b, pp * size + rr) * patch, (("rr", size),)),
        Stage(
            "xv",
            (*data, ("qq", size)),
            Table(b, qq * size + ss) * Load("xt", (*at, gg, cc, tt, pp, ss)),
            (("ss", size),),
        ),
        Stage(
            "xm",
            (*batch, *outs, *part, ("tt", tiles), ("pp", size), ("qq", size)),
            Load("xv", (*at, o // conv.outs, channel, tt, pp, qq)) * Load("wu", (o, channel, pp, qq)),
            (("cc", chunk),),
        ),
        Stage(
            "yt",
            (*batch, *outs, *part, ("tt", tiles), ("ii", m), ("qq", size)),
            Table(a, ii * size + pp) * Load("xm", (*at, o, *piece, tt, pp, qq)),
            (("pp", size),),
        ),
        Stage(
            "y",
            conv.root.axes,
            Table(a, w_ % m * size + qq) * Load("yt", (*at, o, *piece, tile, h % m, qq)),
            (*part, ("qq", size)),
        ),
    ]
    root, epilogue = conv.root, conv.root.epilogue
    if epilogue is None:
        stages[-1] = replace(stages[-1], name=root.name)
    else:
        own = tuple(var(n) for n, _ in root.axes)
        inputs = {n for n, _ in problem.expr.inputs}
        body = rewrite(epilogue, lambda ld: ld if ld.tensor in inputs else Load("y", own))
        stages.append(Stage(root.name, root.axes, body, dtype=root.dtype))
    return replace(problem.expr, stages=tuple(stages))


@dataclass(frozen=True)
class Plan:
    """One way to walk a convolution: the tile rows and columns, outputs and channels that are worked on at once."""

    m: int
    chunk: int
    outs: int
    rows: int
    columns: int
    tasks: tuple[Loop, ...]
    near: int = (
        0  # channels whose weights are transformed right before their products; 0: all of `chunk` before all products
    )
    cost: float = 0.0  # vector multiply-adds of all tasks together

    @property
    def tiles(self) -> int:
        return self.rows * self.columns


def kernels(problem: Problem) -> list[RKernel]:
    """Up to MAX_SCHEDULES rKernels, cheapest first; none where the direct form is no dearer, or if RAMMER_WINOGRAD=0.

    They need a cache for each vEU: the transformed planes are several times the size of what they stand for.
    """
    cached = any(level.owner == "veu" and level.managed == "cache" for level in problem.spec.memory)
    taps = [a for a, extent in problem.root.reduce if extent == TAPS]
    if not cached or len(taps) < 2 or len(problem.root.reduce) != 3 or config.get("RAMMER_WINOGRAD") == "0":
        return []
    problem = Problem.of(problem.operation, problem.spec, flat=False)
    return [replace(problem, expr=expr).kernel(schedule) for expr, schedule in schedules(problem)]


def schedules(problem: Problem, worth: float = WORTH) -> Iterator[tuple[TensorExpr, Schedule]]:
    """The rewritten expression with schedules, cheapest first, where they cost `worth` of the direct form or less."""
    conv = convolution(problem)
    if conv is None:
        return
    extents, lanes = conv.extents, problem.lanes
    vectors = -(-extents[conv.o] // lanes)
    direct = TAPS**2 * extents[conv.h] * extents[conv.w_] * extents[conv.c] * vectors * _size(conv)
    plans = sorted(_plans(problem, conv, TILE), key=lambda p: p.cost)
    for plan in [p for p in plans if p.cost < worth * direct][:MAX_SCHEDULES]:
        yield rewritten(problem, conv, plan.m, plan.chunk), _schedule(problem, conv, plan)


def _size(conv: Convolution) -> int:
    return prod(conv.extents[n] for n in conv.batch)


def _plans(problem: Problem, conv: Convolution, m: int) -> Iterator[Plan]:
    extents, lanes = conv.extents, problem.lanes
    planes = (m + TAPS - 1) ** 2 * 4
    room = problem.spec.scratch_bytes
    down, across = -(-extents[conv.h] // m), -(-extents[conv.w_] // m)
    depth, panel = extents[conv.c], 2 * lanes
    chunks = [depth, *[c for c in range(2 * panel, lanes - 1, -lanes) if depth % c == 0 and c < depth][:1]]
    seen = set()
    for chunk, near in [(c, 0) for c in chunks] + [(depth, n) for n in _pieces(problem, depth, planes)]:
        widths = [n for n in range(conv.outs, 0, -1) if conv.outs % n == 0 and n % lanes == 0] or [conv.outs]
        held = near or chunk
        outs = next((n for n in widths if planes * held * n <= 0.6 * room and (not near or n <= 4 * lanes)), widths[-1])
        left = room - planes * held * outs
        fitting = int(left // (planes * (chunk + outs)))
        if fitting < min(4, down * across):
            continue
        columns = (
            across if fitting >= across else max(n for n in range(1, across + 1) if across % n == 0 and n <= fitting)
        )
        rows = _even(down, max(fitting // across, 1)) if columns == across else 1
        for want in task_counts(problem):
            o_first = [(conv.o, extents[conv.o], outs if conv.groups == 1 else conv.outs)]
            h_first = [*((n, extents[n], 1) for n in conv.batch), (conv.h, extents[conv.h], m)]
            for axes in (o_first + h_first, h_first + o_first):
                tasks = cut(axes, want)
                steps = {lp.axis: lp.step for lp in tasks}
                part = min(rows, -(-steps.get(conv.h, extents[conv.h]) // m))
                if steps.get(conv.h, m * part) % (m * part):
                    part = next(n for n in range(part, 0, -1) if steps[conv.h] % (m * n) == 0)
                plan = Plan(m, chunk, outs, part, columns, tasks, near)
                if near and plan.tiles > MAX_NEAR_TILES:
                    continue
                if chunk < depth and planes / 36 * 16 * part * columns * _task_outs(conv, plan) > room / 2:
                    continue
                if plan not in seen:
                    seen.add(plan)
                    yield replace(plan, cost=_cost(problem, conv, plan))


def _pieces(problem: Problem, depth: int, planes: int) -> list[int]:
    """Channels whose transformed weights, one vector of each, fill less than half of the nearest cache."""
    near = next((level.nbytes for level in problem.spec.memory if level.owner == "veu"), 32 << 10)
    return [n for n in (16, 8, 4, 2) if depth % n == 0 and n < depth and planes * n * problem.lanes <= near / 2][:1]


def _task_outs(conv: Convolution, plan: Plan) -> int:
    """Output channels of a task, or of a group if it has several."""
    step = next((lp.step for lp in plan.tasks if lp.axis == conv.o), conv.extents[conv.o])
    return min(step, conv.outs)


def _even(units: int, most: int) -> int:
    """At most `most` of the units at a time, in equal parts if that costs no more than half."""
    most = min(most, units)
    exact = max(n for n in range(1, most + 1) if units % n == 0)
    return exact if 2 * exact > most else -(-units // -(-units // most))


def _cost(problem: Problem, conv: Convolution, plan: Plan) -> float:
    extents, lanes = conv.extents, problem.lanes
    tiles = -(-extents[conv.h] // plan.m) * -(-extents[conv.w_] // plan.m) * _size(conv)
    depth = extents[conv.c]
    vectors = -(-extents[conv.o] // lanes)
    counts = {lp.axis: -(-extents[lp.axis] // lp.step) for lp in plan.tasks}
    strips = -(-extents[conv.h] // (plan.m * plan.rows)) * -(-extents[conv.w_] // (plan.m * plan.columns)) * _size(conv)
    data, weights = counts.get(conv.o, 1), prod(n for a, n in counts.items() if a != conv.o)
    if plan.chunk < depth or plan.near:
        weights = strips
    else:
        data = max(conv.outs // plan.outs, 1)
    cost = 36.0 * tiles * depth * vectors * _filling(problem, conv, plan)
    cost += (
        INPUT_COST * tiles * -(-depth // lanes) * conv.groups * (data if conv.groups == 1 or plan.chunk == depth else 1)
    )
    cost += OUTPUT_COST * tiles * vectors * (depth // plan.chunk)
    return cost + (NEAR_COST if plan.near else WEIGHT_COST) * depth * vectors * weights


def _block(problem: Problem, plan: Plan) -> Block:
    return blocks(problem, 1 if plan.near else -(-plan.outs // problem.lanes), plan.tiles)[0]


def _filling(problem: Problem, conv: Convolution, plan: Plan) -> float:
    """Issue slots per multiply-add of the register block, 1 for a full one."""
    block = _block(problem, plan)
    per = max(block.vectors * block.rows, block.vectors + block.rows, 8)
    return per / (block.vectors * block.rows)


def _schedule(problem: Problem, conv: Convolution, plan: Plan) -> Schedule:
    extents, lanes, m = conv.extents, problem.lanes, plan.m
    task = {lp.axis: lp.step for lp in plan.tasks}
    block = _block(problem, plan)
    panel = block.vectors * lanes

    def outer(axis: str, step: int) -> list[Loop]:
        return [Loop(axis, step)] if task.get(axis, extents[axis]) > step else []

    head = [*plan.tasks]
    if conv.groups > 1:
        head += outer(conv.o, conv.outs)
    strips = [lp for n in conv.batch for lp in outer(n, 1)]
    strips += outer(conv.h, m * plan.rows) + outer(conv.w_, m * plan.columns)
    own = Loop(conv.o, plan.outs)
    column = [own] if own not in head and min(task.get(conv.o, extents[conv.o]), conv.outs) > plan.outs else []
    if plan.chunk < extents[conv.c]:
        loops = [*head, *strips, Loop("kk")]
        data = len(loops) - 1
        loops += column
        weights = products = len(loops) - 1
    elif plan.near:
        loops = [*head, *strips]
        data = len(loops) - 1
        loops += column
        weights, products = 1, len(loops) - 1
    else:
        loops = [*head, *column]
        weights = len(loops) - 1
        loops += strips
        data = products = len(loops) - 1
    loops += [lp for lp in (Loop(conv.o, lanes), Loop(conv.h, m), Loop(conv.w_, m)) if lp not in loops]
    tile = len(loops) - 1
    loops += [Loop(conv.h), Loop("qq"), Loop(conv.w_, 1, Kind.UNROLLED), Loop(conv.o, 1, Kind.VECTOR)]

    cc, o, pp, qq, tt = Loop("cc", 1, Kind.VECTOR), Loop(conv.o, 1, Kind.VECTOR), Loop("pp"), Loop("qq"), Loop("tt")
    unrolled = {n: Loop(n, 1, Kind.UNROLLED) for n in ("pp", "qq", "ii", "tt")}
    first = len(conv.batch)  # dimensions of a batch come first, and have extent 1 in every box
    front = tuple(range(first))
    stages = (
        At("wt", 1, (Loop("ss"), Loop("rr"), unrolled["pp"], o), order=(1, 2, 3, 0), inside="wu"),
        At(
            "wu",
            weights,
            (Loop(conv.o, lanes), Loop("cc"), pp, Loop("ss"), unrolled["qq"], o),
            order=(2, 3, 1, 0),
            inside="xm" if plan.near else "",
            gap=0 if plan.near else lanes,
        ),
        At(
            "xt",
            1,
            (Loop("ss"), Loop("rr"), unrolled["pp"], cc),
            order=(*front, *(first + n for n in (0, 2, 3, 4, 1))),
            inside="xv",
        ),
        At(
            "xv",
            data,
            (Loop("cc", lanes), tt, pp, Loop("ss"), unrolled["qq"], cc),
            order=(*front, *(first + n for n in (0, 3, 4, 2, 1))),
            gap=lanes,
        ),
        At(
            "xm",
            products,
            (
                *((Loop(conv.o, panel), Loop("cc", plan.near), pp, qq) if plan.near else (pp, qq, Loop(conv.o, panel))),
                Loop("tt", block.rows),
                Loop("cc"),
                *((unrolled["tt"],) if block.rows > 1 else ()),
                *((Loop(conv.o, lanes, Kind.UNROLLED),) if block.vectors > 1 else ()),
                o,
            ),
            order=_product_order(first, plan.chunk < extents[conv.c]),
            gap=lanes,
        ),
        At("yt", tile, (qq, pp, unrolled["ii"], o), order=_output_order(first, plan.chunk < extents[conv.c])),
    )
    lane = next(d for d, ix in enumerate(conv.w.index) if ix == var(conv.o))
    rest = [next(d for d, ix in enumerate(conv.w.index) if ix == var(n)) for n in (conv.c, conv.kh, conv.kw)]
    packing = ((conv.w.tensor, Layout((Digit(lane, lanes), *map(Digit, rest), Digit(lane, 1, lanes)))),)
    count = prod(-(-extents[lp.axis] // lp.step) for lp in plan.tasks)
    name = f"winograd_f{m}_{block.rows}x{panel}_c{plan.near or plan.chunk}_t{count}"
    return Schedule(name, tuple(loops), stages, packing)


def _product_order(first: int, parts: bool) -> tuple[int, ...]:
    """(batch, o, [part], tile, p, q) -> (batch, [part], p, q, tile, o)."""
    front = (*range(first), *((first + 1,) if parts else ()))
    n = first + 1 + parts
    return (*front, n + 1, n + 2, n, first)


def _output_order(first: int, parts: bool) -> tuple[int, ...]:
    """(batch, o, [part], tile, i, q) -> (batch, [part], tile, i, q, o)."""
    return (*range(first), *range(first + 1, first + 4 + parts), first)
