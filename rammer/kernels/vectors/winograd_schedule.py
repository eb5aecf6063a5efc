"""Schedule convolutions in Winograd's form: when each part of weights and input is transformed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from math import inf
from typing import NamedTuple

from rammer.ir.index import var
from rammer.ir.kernel import RKernel
from rammer.ir.tensor import Digit, Layout
from rammer.kernels.packing import panels
from rammer.kernels.problem import WORD, KernelProblem
from rammer.kernels.sched import Sched
from rammer.kernels.schedule import Loop, Schedule
from rammer.kernels.tiling import cut, least_us, stage_order, task_counts
from rammer.kernels.vectors import contraction
from rammer.kernels.vectors.contraction import Block, blocks
from rammer.kernels.winograd import TAPS, Convolution, convolution, rewritten

TILE = 4  # outputs of a tile along each side
PLANES = (TILE + TAPS - 1) ** 2
# Times the direct form: a part whose first plan takes longer is dropped. The choice did not change for any of 69
# convolutions of eleven models, nor at 1.1.
HOPELESS = 1.25
# Of the direct form's counted time: below that, the direct form is not offered. Of 17 convolutions that were measured
# (docs/measurements.md), the two that lost were counted with 0.84.
CERTAIN = 0.7
WHOLE = 0.9  # of the work of several tasks: below that, a single task is offered, too
VECTORS = 4  # of channels of a part, and of outputs whose weights are transformed right before their products
HELD = (16, 8, 4, 2)  # channels whose weights are
PARTLY = 3  # buffers of data that are transformed in one direction only
WEIGHTS_SHARE = 0.6  # of scratch, for transformed weights: tiles of the image take the rest
SUMS_SHARE = 0.5  # of scratch, for sums that wait for further parts
FEWEST_TILES = 4  # that pay for transforming weights
MAX_LATE_TILES = 6  # more tiles share weights that come from a larger cache


class Order(Enum):
    """The order of the loops. Sums over several parts are kept in registers or cache, for everything inside of them."""

    WEIGHTS = "weights"  # weights outside, strips of the image inside: one part only
    STRIPS = "strips"  # strips outside, parts of the channels inside
    PARTS = "parts"  # parts outside, strips inside: sums of the whole task wait
    LATE = "near"  # strips outside; weights are transformed right before their products, `held` channels at a time


@dataclass(frozen=True)
class Plan:
    """One way to walk a convolution: the tile rows and columns, outputs and channels that are processed at once."""

    order: Order
    chunk: int  # channels of a part
    held: int  # channels whose transformed weights are held at once
    outs: int
    rows: int
    columns: int
    tasks: tuple[Loop, ...]

    @property
    def tiles(self) -> int:
        return self.rows * self.columns


class Form(NamedTuple):
    """The rewritten convolution, its schedule, and its microseconds on vEUs without other work."""

    problem: KernelProblem
    schedule: Schedule
    unshared_us: float
    is_cut: bool  # into several rTasks


def kernels(problem: KernelProblem) -> tuple[list[RKernel], bool]:
    """Return rKernels, the fastest first, and whether the direct form need not be offered.

    One of a single rTask is added where cutting costs much. None if the direct form is as fast, tiny, or the only one
    allowed. The vDevice needs a private cache per vEU: the transformed planes are several times the original's size.
    """
    cached = any(level.owner == "veu" and level.managed == "cache" for level in problem.spec.memory)
    if not cached or len(problem.root.reduce) != 3 or problem.spec.no_winograd:
        return [], False
    conv = convolution(problem.unmerged)
    if conv is None or not _saves_products(conv) or (direct := next(contraction.schedules(problem), None)) is None:
        return [], False
    direct_us = problem.unshared_us(direct, problem.spec.num_veus)
    if direct_us < least_us(problem.spec):
        return [], False
    found = schedules(problem.unmerged, direct_us)
    made = [replace(f.problem.kernel(f.schedule), form=f.problem.expr) for f in found]
    return made, any(f.unshared_us <= CERTAIN * direct_us for f in found)


def _saves_products(conv: Convolution) -> bool:
    """Check whether there are fewer products than in the direct form. With 3x3 taps and stride 2 there are as many."""
    return PLANES * conv.rows.pieces * conv.columns.pieces < TILE * TILE * conv.rows.taps * conv.columns.taps


def schedules(problem: KernelProblem, worth_us: float = inf) -> list[Form]:
    """Return the fastest form that takes at most `worth_us` by its counted work.

    One of a single rTask is added if cutting repeats much work, for graphs that have other work at the same time.
    """
    found = [form for form in forms(problem, worth_us) if form.unshared_us <= worth_us]
    chosen = [form for form in found if form.is_cut][:1]
    for whole in [form for form in found if not form.is_cut][:1]:
        if not chosen or whole.unshared_us < WHOLE * chosen[0].problem.unshared_us(chosen[0].schedule, 1):
            chosen.append(whole)
    return chosen


def forms(problem: KernelProblem, worth_us: float = inf) -> list[Form]:
    """Return the forms of a convolution, the fastest first; none of a part whose first one takes much longer."""
    if (conv := convolution(problem)) is None:
        return []
    found: list[Form] = []
    for order, chunk, held in _parts(problem, conv):
        own = replace(problem, expr=rewritten(problem, conv, TILE, chunk))
        for n, plan in enumerate(dict.fromkeys(_plans(problem, conv, order, chunk, held))):
            schedule = _schedule(own, conv, plan)
            found.append(Form(own, schedule, own.unshared_us(schedule, own.spec.num_veus), bool(plan.tasks)))
            if n == 0 and found[-1].unshared_us > HOPELESS * worth_us:
                break
    return sorted(found, key=lambda form: form.unshared_us)


def _plans(problem: KernelProblem, conv: Convolution, order: Order, chunk: int, held: int) -> Iterator[Plan]:
    """Yield ways to walk by a part, those with an rTask for each vEU first; none if it does not fit the scratch."""
    extents, lanes, side = conv.extents, problem.lanes, conv.columns.pieces
    plane, deep = WORD * PLANES, held * side
    down, across = -(-conv.rows.extent // TILE), -(-conv.columns.extent // TILE)
    line = TILE * across + TAPS * side + conv.columns.reach - conv.columns.extent  # columns of transformed rows
    room = problem.spec.scratch_bytes - PARTLY * plane * lanes - WORD * lanes * line * (TILE + TAPS - 1)
    widths = [n for n in range(conv.outs, 0, -1) if conv.outs % n == 0 and n % lanes == 0] or [conv.outs]
    most_outs = VECTORS * lanes if order is Order.LATE else conv.outs
    fitting = [n for n in widths if plane * deep * n <= WEIGHTS_SHARE * room and n <= most_outs]
    outs = fitting[0] if fitting else widths[-1]
    most = int((room - plane * deep * outs) // (plane * (chunk * side + outs)))
    if order is Order.LATE:
        most = min(most, MAX_LATE_TILES)
    if most < min(FEWEST_TILES, down * across):
        return
    columns = max(n for n in range(1, across + 1) if across % n == 0 and n <= most)
    rows = _even(down, most // across) if columns == across else 1
    by_outs = [(conv.o, extents[conv.o], outs if conv.groups == 1 else conv.outs)]
    by_rows = [*((n, extents[n], 1) for n in conv.batch), (conv.rows.axis, conv.rows.extent, TILE)]
    for want in dict.fromkeys((*task_counts(problem), 1)):
        for axes in (by_outs + by_rows, by_rows + by_outs):
            tasks = cut(axes, want)
            high = {lp.axis: lp.step for lp in tasks}.get(conv.rows.axis)
            part = rows if high is None else max(n for n in range(1, rows + 1) if high % (TILE * n) == 0)
            plan = Plan(order, chunk, held, outs, part, columns, tasks)
            if _waiting(conv, plan) <= SUMS_SHARE * room:
                yield plan


def _parts(problem: KernelProblem, conv: Convolution) -> Iterator[tuple[Order, int, int]]:
    """Yield loop orders, each with the channels of a part and the channels whose weights are held."""
    lanes, depth, side = problem.lanes, conv.depth, conv.columns.pieces
    if conv.rows.pieces == 1:
        yield Order.WEIGHTS, depth, depth
    smaller = [c for c in range(VECTORS * lanes, lanes - 1, -lanes) if depth % c == 0 and c < depth]
    chunks = [depth] if conv.rows.pieces > 1 else []
    chunks += [c for c in smaller if c * side <= VECTORS * lanes][:1] or smaller[-1:]
    for chunk in chunks:
        yield Order.STRIPS, chunk, chunk
        yield Order.PARTS, chunk, chunk
    if conv.rows.pieces == 1 == conv.columns.pieces:
        spec, plane = problem.spec, WORD * PLANES
        held = [
            n
            for n in HELD
            if depth % n == 0 and n < depth and spec.holds(spec.l1, plane * n * lanes, plane * n * MAX_LATE_TILES)
        ]
        yield from ((Order.LATE, depth, n) for n in held[:1])


def _even(units: int, most: int) -> int:
    """Return how many units to take at a time: at most `most`, in equal parts unless those are below half of that."""
    most = max(min(most, units), 1)
    exact = max(n for n in range(1, most + 1) if units % n == 0)
    return exact if 2 * exact > most else -(-units // -(-units // most))


def _waiting(conv: Convolution, plan: Plan) -> int:
    """Return the bytes of the sums that wait for further parts."""
    if plan.order in (Order.WEIGHTS, Order.LATE):
        return 0
    steps = {lp.axis: lp.step for lp in plan.tasks}
    outs = min(steps.get(conv.o, conv.outs), conv.outs)
    tiles = plan.tiles
    if plan.order is Order.PARTS:
        tall = steps.get(conv.rows.axis, conv.rows.extent)
        tiles = -(-tall // TILE) * -(-conv.columns.extent // TILE)
    return WORD * TILE * TILE * tiles * outs


def _block(problem: KernelProblem, conv: Convolution, plan: Plan) -> Block:
    """Return the best register block of products that does not reach into the next group and its other channels."""
    found = blocks(problem, 1 if plan.order is Order.LATE else -(-plan.outs // problem.lanes), plan.tiles)
    return next(b for b in found if conv.groups == 1 or plan.outs % (b.vectors * problem.lanes) == 0)


def _schedule(problem: KernelProblem, conv: Convolution, plan: Plan) -> Schedule:
    """Return the schedule of the rewritten problem."""
    lanes, rows, columns = problem.lanes, conv.rows.axis, conv.columns.axis
    block = _block(problem, conv, plan)
    s = Sched(problem).nest(plan.tasks)

    def outer(axis: str, step: int) -> tuple[Loop, ...]:
        return (Loop(axis, step),) if s.left(axis) > step else ()

    head = s.nest(outer(conv.o, conv.outs) if conv.groups > 1 else ())
    images = [lp for n in conv.batch for lp in outer(n, 1)]
    strips = (*outer(rows, TILE * plan.rows), *outer(columns, TILE * plan.columns))
    own = Loop(conv.o, plan.outs)
    outs = [own] if own not in head.loops and min(s.left(conv.o), conv.outs) > plan.outs else []
    parts = [Loop(a) for a, _ in problem.expr.stage("xm").axes if a in ("aa", "kk")]
    match plan.order:
        case Order.WEIGHTS:
            s = head.nest((*outs, *images, *strips))
            weights, data = len(head.loops) + len(outs), len(s.loops)
        case Order.PARTS:
            s = head.nest((*images, *parts, *outs, *strips))
            weights, data = len(s.loops) - len(strips), len(s.loops)
        case _:
            s = head.nest((*images, *strips, *parts, *outs))
            weights, data = len(s.loops), len(s.loops) - len(outs)
    products = len(s.loops)
    s = s.nest(lp for lp in (Loop(conv.o, lanes), Loop(rows, TILE), Loop(columns, TILE)) if lp not in s.loops)
    s = _stages(s, conv, plan, weights - 1, data - 1, products - 1)
    s = s.reorder(rows, "qq").unroll(columns).vectorize(conv.o).pack([(conv.w.tensor, _packing(conv, lanes))])
    return s.build(f"f{TILE}_{block.rows}x{block.vectors * lanes}_{plan.order.value}", kind="winograd")


def _stages(s: Sched, conv: Convolution, plan: Plan, weights: int, data: int, products: int) -> Sched:
    """Place the stages besides the root: each one's host loop, its own loops, and its memory order."""
    problem, lanes, o = s.problem, s.problem.lanes, conv.o
    block, late = _block(problem, conv, plan), plan.order is Order.LATE

    def order(stage: str, *last: str) -> tuple[int, ...]:
        return stage_order(problem.expr.stage(stage), *last)

    none = Sched(problem)
    entries = (Loop("cc", plan.chunk),) if conv.columns.pieces > 1 else ()
    panel = none.split(o, block.vectors * lanes)
    outer = panel.split("cc", plan.held).reorder("pp", "qq") if late else none.reorder("pp", "qq").nest(panel.loops)
    sums = outer.split("tt", block.rows).reorder("cc").unroll("tt" if block.rows > 1 else None)
    sums = sums.vectorize(o, lanes if block.vectors > 1 else 1)
    by_entry = none.split(o, lanes).nest(entries).reorder("cc")
    of_weights = by_entry.reorder("pp", "ss").unroll("qq").vectorize(o)
    of_data = none.split("cc", lanes).split("tt", plan.columns).nest(entries).reorder("tt", "pp", "ss").unroll("qq")
    places = {"inside": "xm" if late else "", "gap": 0 if late else lanes}
    s = s.compute_at(
        "wt",
        none.reorder("ss", "rr").unroll("pp").vectorize(o),
        depth=len(by_entry.loops) - 1,
        order=order("wt", "pp", "ss", o),
        inside="wu",
    )
    s = s.compute_at("wu", of_weights, depth=1 if late else weights, order=order("wu", "pp", "qq", "cc", o), **places)
    rows = none.reorder("jj", "rr").unroll("pp").vectorize("cc")
    s = s.compute_at("xt", rows, depth=1, order=order("xt", "pp", "jj", "cc"), inside="xv")
    s = s.compute_at("xv", of_data.vectorize("cc"), depth=data, order=order("xv", "pp", "qq", "tt", "cc"), gap=lanes)
    s = s.compute_at("xm", sums, depth=products, order=order("xm", "pp", "qq", "tt", o), gap=lanes)
    rows = none.reorder("qq", "pp").unroll("ii").vectorize(o)
    return s.compute_at("yt", rows, order=order("yt", "ii", "qq", o))


def _packing(conv: Convolution, lanes: int) -> Layout:
    """Return weights in the order of their transformation: one vector of outputs with all its channels and taps."""
    inner = (Digit(conv.w.index.index(var(n))) for n in (conv.c, conv.rows.tap, conv.columns.tap))
    return panels(conv.w, conv.o, lanes, [*inner])
