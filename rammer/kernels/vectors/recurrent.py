"""Schedules for point-wise roots over products: recurrent cells, and products that a point-wise or row-wise root reads.

Each task owns some units: all gates of a unit are computed where its state is. Weights are packed in order of use.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import lcm, prod
from typing import NamedTuple

from rammer.ir.index import variables
from rammer.ir.instruction import Instruction
from rammer.ir.tensor import Digit, Layout
from rammer.ir.tile import Kind
from rammer.kernels.lanes import lane_axis
from rammer.kernels.problem import Problem
from rammer.kernels.product import Product, product
from rammer.kernels.schedule import At, Loop, Schedule
from rammer.kernels.tiling import cut, kept_bytes, place_one, stage_loops, stage_order, task_counts
from rammer.kernels.vectors import matrix_unit
from rammer.kernels.vectors.matrix_unit import Unit

ACCUMULATORS = 16  # enough to hide the latency of adding, and as many streams as a prefetcher follows
MOST_GATES = 4
ENOUGH_ROWS = 8  # sums for each weight, of which reading the weights costs little beside arithmetic
SOME_ROWS = 4  # sums for each weight, of which arithmetic takes as long as reading the weights


class Cell(NamedTuple):
    """A point-wise root, the products that it reads, its axis of units; and what multiplies, if it is a unit."""

    problem: Problem
    products: Mapping[str, Product]
    lane: str
    unit: Unit | None
    blocks: Mapping[str, Instruction]  # of the products, by the unit


def schedules(problem: Problem, unit: Unit | None = None) -> Iterator[Schedule]:
    """Nothing if no stage is a product; otherwise one schedule per task count, units cut first.

    With `unit` it computes the products; nothing if it does not suit them all.
    """
    products = {s.name: p for s in problem.placed if (p := product(problem, s)) is not None}
    lane = lane_axis(problem, problem.root)
    if not products or problem.root.reduce or lane is None:
        return
    found = {name: matrix_unit.gates_block(problem, p, unit) for name, p in products.items()} if unit else {}
    blocks = {name: block for name, block in found.items() if block}
    if len(blocks) < len(found):
        return
    cell = Cell(problem, products, lane, unit, blocks)
    seen = set()
    for tasks, pieces in filter(None, (_cut(cell, want) for want in _counts(cell))):
        if tasks not in seen:
            seen.add(tasks)
            yield _schedule(cell, tasks, pieces)


def _counts(cell: Cell) -> list[int]:
    """How many tasks to aim for, the best guess first."""
    problem = cell.problem
    counts = task_counts(problem)
    if counts != [1] and _stay(problem, cell.products.values()):
        counts = [counts[0], 1]  # chains side by side, one on each vEU, do without barriers
    if counts != [1] and any(len(s.axes) and _reads_all(problem, s.name) for s in problem.placed):
        counts = [counts[0], 1]  # every task would repeat what all of them need
    return counts


def _cut(cell: Cell, want: int) -> tuple[tuple[Loop, ...], tuple[Loop, ...]] | None:
    """The loops over tasks, about `want`, and over pieces of each; None if the unit's blocks do not divide them."""
    problem, lane, lanes = cell.problem, cell.lane, cell.problem.lanes
    extents = dict(problem.root.axes)
    vectors = -(-extents[lane] // lanes)
    grain = lanes * max((v for v in (4, 2, 1) if vectors % (v * want) == 0), default=1) if want > 1 else lanes
    if (span := problem.span(lane)) > 1:  # what is stored beside the root must not overhang into the next task
        stored = any(s.name in dict(problem.expr.outputs) for s in problem.placed)
        grain = lcm(grain, span) if stored else -(-grain // span) * span
    if cell.blocks:
        grain = max(block.extent("column") for block in cell.blocks.values())
        if extents[lane] % (grain * want):
            return None
    rows = [(a, e, problem.span(a)) for a, e in problem.root.axes if a != lane]
    units = (lane, extents[lane], grain)
    # Rows of their own take what they need from the step before at home: no barrier, no line of another vEU's.
    apart = not cell.blocks and _independent_rows(problem, cell.products.values(), want)
    axes = [*rows, units] if apart else [units, *rows]
    tasks = _tasks(axes, want, problem.spec.num_veus)
    steps = {a: min(e, next((lp.step for lp in tasks if lp.axis == a), e)) for a, e in problem.root.axes}
    pieces = () if cell.blocks else _pieces(problem, lane, steps)
    if pieces:  # the end of a task is the end of a piece: what is stored beyond it would be another task's
        size = {lp.axis: lp.step for lp in pieces}
        tasks = _tasks([(a, e, lcm(g, size.get(a, 1))) for a, e, g in axes], want, problem.spec.num_veus)
    return tasks, pieces


def _tasks(axes: list[tuple[str, int, int]], want: int, veus: int) -> tuple[Loop, ...]:
    """Loops over tasks along one axis, if it can be cut: along two, every weight would be read by several tasks."""
    return cut(axes[:1], want, veus) or cut(axes, want, veus)


def _schedule(cell: Cell, tasks: tuple[Loop, ...], pieces: tuple[Loop, ...]) -> Schedule:
    problem, unit, lane = cell.problem, cell.unit, cell.lane
    extents, steps = dict(problem.root.axes), {lp.axis: lp.step for lp in (*tasks, *pieces)}
    depth = len(tasks) + len(pieces) - 1
    stages: list[At] = []
    packing: dict[str, Layout] = {}
    for stage in problem.placed:
        p = cell.products.get(stage.name)
        if p is None:
            stages.append(place_one(problem, stage, (*tasks, *pieces), depth))
        elif unit:
            stages += _unit_gates(problem, p, depth, unit, cell.blocks[stage.name])
            _, still = matrix_unit.sides(p, unit)
            packing[still.load.tensor] = matrix_unit.packed(p, unit, cell.blocks[stage.name])
        else:
            at, layout = _gates(problem, p, depth, steps)
            stages.append(at)
            if layout is not None:
                packing.setdefault(p.w.tensor, layout)
    count = prod(-(-extents[lp.axis] // lp.step) for lp in tasks)
    name = f"{problem.operation.kind}_{lane}{problem.lanes}{f'_{unit.operands}' if unit else ''}_t{count}"
    inner = stage_loops(problem, problem.root, lane)
    return Schedule(name, (*tasks, *pieces, *inner), tuple(stages), tuple(packing.items()))


def _pieces(problem: Problem, lane: str, steps: Mapping[str, int]) -> tuple[Loop, ...]:
    """Loops inside a task over pieces whose stages fit the scratch, of `steps` that may not: rows are halved first.

    Each piece of rows reads the task's weights again, each piece of units what all units share.
    """
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


def _unit_gates(problem: Problem, p: Product, depth: int, unit: Unit, block: Instruction) -> tuple[At, At]:
    """A copy of x for the unit, and the nest of a product of it inside a task."""
    outer = [a for a, _ in p.stage.axes if a not in (p.lane, p.row)]
    loops = (
        *(Loop(a) for a in outer),
        Loop(p.lane, block.extent("column")),
        Loop(str(p.row), block.extent("row")),
        *matrix_unit.inner_loops(problem, p),
    )
    order = stage_order(p.stage, p.lane)
    return matrix_unit.encoded(p, unit, depth), At(p.stage.name, depth, loops, order=order, instruction=block)


def _independent_rows(problem: Problem, products: Iterable[Product], want: int) -> bool:
    """Whether each task can have rows enough to itself, and near it all the weights, which it then reads whole."""
    products = list(products)
    shared = {p.row for p in products}
    extents = dict(problem.root.axes)
    (row,) = shared if len(shared) == 1 else (None,)
    if row not in extents or _weights(products, problem) > problem.spec.own_cache / 2:
        return False
    return extents[row] % want == 0 and extents[row] // want >= ENOUGH_ROWS


def _stay(problem: Problem, products: Iterable[Product]) -> bool:
    """Whether a vEU keeps all the weights near it from step to step, beside what else passes by.

    A cache gives some of half its size away, which many sums for each weight hide.
    """
    products = list(products)
    extents = dict(problem.root.axes)
    rows = min((extents.get(p.row or "", 1) for p in products), default=1)
    return _weights(products, problem) <= problem.spec.own_cache / (2 if rows >= SOME_ROWS else 4)


def _weights(products: Iterable[Product], problem: Problem) -> int:
    """Bytes of the weights of all products."""
    return sum(problem.expr.type_of(p.w.tensor).nbytes for p in products)


def _reads_all(problem: Problem, name: str) -> bool:
    """Whether a product reads a kept stage along its reduction: then every task needs all of that stage."""
    for stage in problem.stages.values():
        p = product(problem, stage) if stage.reduce else None
        if p is not None and name in (p.x.tensor, p.w.tensor):
            return True
    return False


def _gates(problem: Problem, p: Product, depth: int, steps: Mapping[str, int]) -> tuple[At, Layout | None]:
    """The nest of a product inside a task of `steps` along its axes.

    Gates, rows and vectors share a register block, as far as it reaches; rows enough fill it with a single gate, of
    which a panel of weights then stays in the nearest cache.
    """
    lanes = problem.lanes
    extents = dict(p.stage.axes)
    by_weight = [a for a in extents if a != p.lane and any(a in variables(ix) for ix in p.w.index)]
    gates = prod(extents[a] for a in by_weight)
    height = min(extents[p.row], steps.get(p.row, extents[p.row])) if p.row else 1
    together = by_weight if gates <= MOST_GATES and height < ENOUGH_ROWS else []
    width = gates if together else 1
    units = min(steps.get(p.lane, extents[p.lane]), extents[p.lane], p.group)
    vectors = -(-units // lanes)
    rows = min(height, max(ACCUMULATORS // width, 1), ENOUGH_ROWS)
    limit = max(ACCUMULATORS // (width * rows), 1)
    wide = max(v for v in range(1, min(vectors, limit, 8) + 1) if vectors % v == 0)
    panel = wide * lanes
    serial = [a for a in extents if a not in (p.lane, p.row, *together)]
    loops = [Loop(a) for a in serial] + [Loop(p.lane, panel)]
    if p.row:
        loops.append(Loop(p.row, rows))
    reduce = [a for a, _ in p.stage.reduce]
    loops += [Loop(a) for a in reduce]
    loops += [Loop(a, 1, Kind.UNROLLED) for a in together]
    if p.row and rows > 1:
        loops.append(Loop(p.row, 1, Kind.UNROLLED))
    loops += [Loop(p.lane, lanes, Kind.UNROLLED), Loop(p.lane, 1, Kind.VECTOR)]
    layout = None
    if problem.packable(p.w, p.lane):
        dim = {n: d for d, ix in enumerate(p.w.index) for n in variables(ix)}
        inner = dict.fromkeys(dim[a] for a in (*reduce, *together) if a in dim)  # several axes may walk along one
        used = {*inner, dim[p.lane]}
        rest = [d for d in range(len(p.w.index)) if d not in used]
        layout = Layout(
            (
                *(Digit(d) for d in rest),
                Digit(dim[p.lane], panel),
                *(Digit(d) for d in inner),
                Digit(dim[p.lane], 1, panel),
            )
        )
    return At(p.stage.name, depth, tuple(loops), order=stage_order(p.stage, p.lane)), layout
