"""Schedules of products by instructions of one thread, whose operands lie in their own way, perhaps encoded.

A task copies some rows of x, by which all panels of weights then pass; these are static and lie as they are needed, or
are encoded on the way: that takes longer, and they less memory. Where vectors lie along x, it copies columns of x, and
all rows of weights pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod
from typing import NamedTuple

from rammer.ir.device import VDeviceSpec
from rammer.ir.expr import Call, Cast, Load, result_dtype
from rammer.ir.index import var, variables
from rammer.ir.instruction import Instruction
from rammer.ir.tensor import Digit, DType, Encoding, Layout, TensorType, aligned_bytes
from rammer.kernels.problem import Problem, all_loads
from rammer.kernels.product import Product
from rammer.kernels.sched import Cut, Sched, cuts
from rammer.kernels.schedule import Schedule, distinct
from rammer.kernels.tiling import task_counts

LEAST_GAIN = 1.25  # of a unit whose blocks hold more rows than there are
MOST_PADDING = 2.0  # rows that blocks hold, for each that there is
WORTH_WAKING = 11.0  # times that what it saves of a product, estimated on one vEU, must outlast the unit's waking
MOST_ROWS = 64  # that a step of a chain takes at once
ENCODED_SHARE = 0.75  # of scratch, for rows by which all weights pass
WAITING_SHARE = 0.25  # of a vEU's own cache, for sums that wait for the next piece of their terms
BY_COLUMNS = 0.95  # of the time of tasks by rows: for less, those who read rows begin earlier
LEAST_PIECE = 256  # terms: sums are loaded and stored for each
ON_THE_WAY = 1.06  # of the time of weights that lie encoded, for the memory that these take


class Unit(NamedTuple):
    """What a vEU multiplies with: how it copies rows, and its products, the fastest first."""

    copy: Instruction
    products: tuple[Instruction, ...]
    turned: bool = False  # it copies columns

    @property
    def copied(self) -> TensorType:
        """A block of rows, or of columns, as products take it."""
        return self.products[0].meaning.inputs[int(self.turned)][1]

    @property
    def encoding(self) -> Encoding | None:
        """Of both operands."""
        return self.copied.layout.encoding if self.copied.layout else None

    @property
    def operands(self) -> str:
        """What it multiplies, as names of rKernels have it."""
        return str(self.encoding or "x".join(kind.name.lower() for kind in self.products[0].operands))

    @property
    def exact(self) -> bool:
        """Whether it multiplies whole numbers: the zeros that pad weights then make nothing of what pads rows.

        No vectors multiply bytes: blocks may be padded for it.
        """
        return not self.copied.dtype.is_float

    @property
    def copy_columns(self) -> float:
        """Columns of products that take as long as copying their rows."""
        return self.products[0].gain / self.copy.gain

    @property
    def padding(self) -> float:
        """Rows that its blocks may hold, for each that there is."""
        return min(self.products[0].gain / LEAST_GAIN, MOST_PADDING)

    @property
    def fewest_columns(self) -> float:
        """Columns for which it saves the time that copying their rows takes."""
        return self.copy_columns / max(self.products[0].gain - 1, 1e-9)

    @property
    def depth(self) -> int:
        """Terms that it adds at once."""
        return self.products[0].extent("term")

    @property
    def neighbours(self) -> int:
        """Terms that lie beside each other in the rows that it copies."""
        return self.copy.meaning.inputs[0][1].physical_shape[-1]


def units_of(spec: VDeviceSpec) -> list[Unit]:
    """The fastest unit for each kind of operands, at the spec's precision."""
    alone = [i for i in spec.multipliers if i.threads == 1]
    found: dict[tuple[DType, ...], Unit] = {}
    for best in alone:
        for turned in (False, True) if best.operands not in found else ():
            layout = best.lines(turned)
            copies = [i for i in spec.instructions if i.copies and i.meaning.outputs[0][1].layout == layout]
            if copies:
                same = tuple(i for i in alone if i.lines(turned) == layout)
                found[best.operands] = Unit(copies[0], same, turned)
    return list(found.values())


def copy_of_columns(spec: VDeviceSpec, block: Instruction) -> Instruction | None:
    """What copies panels of the columns that a product takes, so that these need not be static."""
    return next((i for i in _copies_of_columns(spec, block) if not i.encodes), None)


def encoder(spec: VDeviceSpec, block: Instruction) -> Instruction | None:
    """What encodes panels of the columns that a product takes, which lie already as it takes them."""
    return next((i for i in _copies_of_columns(spec, block) if i.encodes), None)


def _copies_of_columns(spec: VDeviceSpec, block: Instruction) -> list[Instruction]:
    own = block.lines(True)
    if own is None:
        return []
    panels = replace(own, digits=(Digit(0, block.extent("column")), *own.digits))
    return [i for i in spec.instructions if i.copies and i.meaning.outputs[0][1].layout == panels]


class Side(NamedTuple):
    """An operand of a product, the axis that moves through it alone, and what an instruction calls that."""

    load: Load
    axis: str
    name: str


def sides(p: Product, unit: Unit) -> tuple[Side, Side]:
    """The operand that is copied, and the static one that passes by it."""
    rows, columns = Side(p.x, str(p.row), "row"), Side(p.w, p.lane, "column")
    return (columns, rows) if unit.turned else (rows, columns)


def schedules(problem: Problem, unit: Unit) -> Iterator[Schedule]:
    """One per task count for a sum of products with its point-wise rest; nothing if the unit does not suit it."""
    p = problem.matched.root
    if p is not None and p.row is None and unit.exact:
        p = _of_one_row(p)
    if p is None or problem.placed or not suits(problem, p, unit):
        return
    best = unit.products[0]
    if problem.microseconds * (1 - 1 / best.gain) < WORTH_WAKING * best.wake_us:
        return
    _, still = sides(p, unit)
    if dict(p.stage.axes)[still.axis] < unit.fewest_columns:
        return
    yield from distinct(_cheapest(problem, p, unit, want) for want in task_counts(problem))


def schedule(s: Sched, p: Product, unit: Unit, block: Instruction, encode: Instruction | None) -> Schedule | None:
    """A product in blocks, whose tasks `s` has: weights from a far memory are read as rarely as possible.

    `encode`: encodes weights on the way, a panel at a time. None if it would do so for several strips of rows.
    """
    problem = s.problem
    moving, still = sides(p, unit)
    ((deep, depth),) = p.stage.reduce
    height, width = block.extent(moving.name), block.extent(still.name)
    rows = _rows(s, moving, height)
    strip: int | None = height  # rows that are encoded at once; None: all of a task
    piece = depth  # terms of them
    if not near(problem, p, unit):
        lines = rows + (width if encode else 0)  # that a task encodes
        piece = _piece(problem, p, unit, lines, rows * s.left(still.axis))
        most = int(problem.spec.scratch_bytes * ENCODED_SHARE) // encoded_bytes(p, unit, height) * height
        strip = most if most < lines and piece == depth else None
    if encode and strip is not None:
        return None
    s = s.reorder(*(a for a, _ in p.stage.axes if a not in (moving.axis, still.axis)))
    s = s.split(moving.axis if strip else None, strip or 1).split(deep if piece < depth else None, piece)
    s = encoded(s, p, unit)
    layout = packed(p, unit, block)
    if encode:
        s = s.compute_at(still.load.tensor, depth=len(s.loops), order=_dims(p, still), instruction=encode)
        layout = replace(layout, encoding=None)
    s = s.split(still.axis, width).split(moving.axis if strip != height else None, height)
    s = inner_loops(s, p).pack([(still.load.tensor, layout)]).tensorize(block)
    return s.build(f"{block.extent('row')}x{block.extent('column')}_{unit.operands}")


def _piece(problem: Problem, p: Product, unit: Unit, lines: int, sums: int) -> int:
    """Terms of what a task encodes for which scratch has room: all, or a piece if the sums can wait beside it."""
    ((_, depth),) = p.stage.reduce
    room, waiting = int(problem.spec.scratch_bytes * ENCODED_SHARE), aligned_bytes(4 * sums)
    if encoded_bytes(p, unit, lines) <= room or waiting > problem.spec.own_cache * WAITING_SHARE:
        return depth
    room = min(room, problem.spec.scratch_bytes - waiting)
    pieces = [n for n in range(unit.depth, depth, unit.depth) if n >= LEAST_PIECE and depth % n == 0]
    return max((n for n in pieces if encoded_bytes(p, unit, lines) * n // depth <= room), default=depth)


def _of_one_row(p: Product) -> Product:
    """The product with an axis of extent 1 for its rows, if there is one."""
    row = next((a for a, extent in p.stage.axes if extent == 1 and var(a) in p.x.index), None)
    return replace(p, row=row)


def near(problem: Problem, p: Product, unit: Unit) -> bool:
    """Whether encoded weights stay in the vEU's cache."""
    weights = dict(problem.expr.inputs)[sides(p, unit)[1].load.tensor]
    return prod(weights.shape) * unit.copied.element_bytes <= problem.spec.own_cache


def encoded_bytes(p: Product, unit: Unit, rows: int) -> int:
    """Bytes of encoded rows."""
    ((_, depth),) = p.stage.reduce
    return rows * depth * unit.copied.element_bytes


def suits(problem: Problem, p: Product, unit: Unit) -> bool:
    """Whether the unit can compute a product."""
    stage, extents = p.stage, dict(p.stage.axes)
    if unit.neighbours not in (1, problem.lanes) or p.row is None or p.mixed or len(stage.reduce) != 1:
        return False
    ((_, depth),) = stage.reduce
    kinds = dict(problem.expr.inputs)
    args = stage.body.args if isinstance(stage.body, Call) else ()
    factors = [a.arg if isinstance(a, Cast) and not a.bits else a for a in args]
    if not factors or not all(isinstance(a, Load) and a.tensor in kinds for a in factors):
        return False  # padding, or an operand that is computed here
    sums = result_dtype(stage.body, {name: kind.dtype for name, kind in kinds.items()})
    own = sums, kinds[p.x.tensor].dtype, kinds[p.w.tensor].dtype
    if own != tuple(kind.dtype for _, kind in unit.products[0].tensors) or (depth % unit.depth and not unit.exact):
        return False
    whole = p.group == extents[p.lane] and p.row_group == extents[p.row]
    moving, still = sides(p, unit)
    readers = sum(ld.tensor == moving.load.tensor for s in problem.stages.values() for ld, _ in all_loads(s))
    packable = all(ix == var(n) for ix in still.load.index for n in variables(ix))
    packable = packable and problem.packable(still.load, still.axis)
    fits = encoded_bytes(p, unit, unit.products[0].extent(moving.name)) <= problem.spec.scratch_bytes // 2
    rows = bool(fitting(problem, p, unit)) and in_rows(problem, p, unit)
    return whole and packable and readers == 1 and fits and rows


def gates_block(problem: Problem, p: Product, unit: Unit) -> Instruction | None:
    """What multiplies the rows of a product that a task takes all at once; None if they do not suit the unit."""
    if not suits(problem, p, unit) or not near(problem, p, unit):
        return None
    extents, walked = dict(p.stage.axes), set().union(*map(variables, p.x.index))
    if any(extents.get(n, 1) > 1 for n in walked if n != p.row):
        return None  # a batch of rows, of which one copy holds one
    rows = extents[str(p.row)]
    heights = {b: b.extent("row") for b in fitting(problem, p, unit) if extents[p.lane] % b.extent("column") == 0}
    fits = [b for b, height in heights.items() if -(-rows // height) * height <= unit.padding * rows]
    return fits[-1] if fits and rows <= MOST_ROWS else None


def fitting(problem: Problem, p: Product, unit: Unit) -> list[Instruction]:
    """Blocks whose columns divide the product's, or are not more, if they may be padded; the better first."""
    columns = dict(p.stage.axes)[p.lane]
    if columns < problem.lanes:
        return []  # sums of a row would lie closer together than the instruction leaves them
    most = -(-columns // problem.lanes) * problem.lanes if unit.exact else 0
    return [b for b in unit.products if columns % b.extent("column") == 0 or b.extent("column") <= most]


def inner_loops(s: Sched, p: Product) -> Sched:
    """The loops of a block: over its terms, and over its sums where they are used."""
    ((deep, _),) = p.stage.reduce
    return s.reorder(deep, p.row).vectorize(p.lane, s.problem.lanes)


def encoded(s: Sched, p: Product, unit: Unit) -> Sched:
    """Copy x for the unit inside the innermost loop so far."""
    moving, _ = sides(p, unit)
    return s.compute_at(moving.load.tensor, order=_dims(p, moving), instruction=unit.copy)


def packed(p: Product, unit: Unit, block: Instruction) -> Layout:
    """The layout of weights: what a block takes at once lies in one piece."""
    _, still = sides(p, unit)
    ((deep, _),) = p.stage.reduce
    dim = {n: d for d, ix in enumerate(still.load.index) for n in variables(ix)}
    across, k = dim[still.axis], dim[deep]
    rest = tuple(Digit(d) for d in range(len(still.load.index)) if d not in (across, k))
    own = block.lines(not unit.turned)
    assert own is not None
    panel = tuple(replace(d, dim=(across, k)[d.dim]) for d in own.digits)
    return Layout((*rest, Digit(across, block.extent(still.name)), *panel), own.encoding)


def _dims(p: Product, side: Side) -> tuple[int, int]:
    """The dimensions of an operand along which its rows, or columns, and its terms are counted."""
    ((deep, _),) = p.stage.reduce
    return side.load.index.index(var(side.axis)), side.load.index.index(var(deep))


def in_rows(problem: Problem, p: Product, unit: Unit) -> bool:
    """Whether rows are equally far apart, and terms too, or beside each other: all of a row's, or those of a block."""
    ((deep, _),), (side, _) = p.stage.reduce, sides(p, unit)
    moving = [ix for ix in side.load.index if variables(ix) & {side.axis, deep}]
    if sorted(moving, key=str) != sorted((var(side.axis), var(deep)), key=str):
        return False
    row, column = _dims(p, side)
    layout = dict(problem.expr.inputs)[side.load.tensor].layout
    if unit.neighbours == 1:
        return layout is None
    if layout is None:
        return column == len(side.load.index) - 1
    digits = [d for d in layout.digits if d.dim == column]
    size = unit.neighbours
    blocks = digits == [Digit(column, size), Digit(column, 1, size)] and layout.digits[-1].dim == column
    return blocks and [d for d in layout.digits if d.dim == row] == [Digit(row)]


def _cheapest(problem: Problem, p: Product, unit: Unit, want: int) -> Schedule | None:
    """With weights that lie encoded; or are on the way, if they come from far and that takes hardly longer."""
    blocks = fitting(problem, p, unit)
    lie = _of_tasks(problem, p, unit, want, dict.fromkeys(blocks))
    if lie is None or unit.turned or near(problem, p, unit):
        return lie and lie.schedule
    copies = {block: encoder(problem.spec, block) for block in blocks}
    way = _of_tasks(problem, p, unit, want, {b: copy for b, copy in copies.items() if copy})
    return way.schedule if way and way.us <= ON_THE_WAY * lie.us else lie.schedule


class _Priced(NamedTuple):
    us: float
    schedule: Schedule


def _of_tasks(
    problem: Problem, p: Product, unit: Unit, want: int, blocks: Mapping[Instruction, Instruction | None]
) -> _Priced | None:
    """Tasks by rows if blocks fit them, as who reads single rows need not wait for all of them; by columns if not, or
    if that takes less: weights that come from far then come once. `blocks`: each with what encodes its columns, if any.
    """
    (moving, _), extents = sides(p, unit), dict(p.stage.axes)
    best: list[_Priced] = []
    for by_rows in (True, False):
        found = []
        for block, encode in blocks.items():
            s = Sched(problem).tasks(_cuts(problem, p, unit, block, by_rows), want)
            padded = _rows(s, moving, block.extent(moving.name)) * -(-extents[moving.axis] // s.left(moving.axis))
            fits = unit.exact or padded <= unit.padding * extents[moving.axis]
            if own := schedule(s, p, unit, block, encode) if fits else None:
                us = problem.alone_us(own, problem.spec.num_veus) + _fetching_us(s, p, unit, own)
                found.append(_Priced(us, own))
        if found:
            best.append(min(found, key=lambda one: one.us))
        if best and near(problem, p, unit):
            break
    by_columns = len(best) == 2 and best[1].us < BY_COLUMNS * best[0].us
    return best[int(by_columns)] if best else None


def _fetching_us(s: Sched, p: Product, unit: Unit, own: Schedule) -> float:
    """What weights take that come from far: of all columns of a task, for each strip of rows, and each of a batch.

    `s`: the tasks alone. No vEU made the weights, so that they come from the memory that all vEUs share.
    """
    problem = s.problem
    if near(problem, p, unit):
        return 0.0
    (moving, still), extents = sides(p, unit), s.extents
    at, *_ = own.stages
    steps = [lp.step for lp in own.loops[: at.depth + 1] if lp.axis == moving.axis]
    strips = -(-s.left(moving.axis) // min(steps, default=extents[moving.axis]))
    strips *= prod(s.left(a) for a, _ in p.stage.axes if a not in (moving.axis, still.axis))
    veus = problem.spec.num_veus
    rounds = -(-s.num_tasks // veus)
    shared = next((m for m in problem.spec.memory if m.owner != "veu" and m.managed == "cache"), None)
    read_us = problem.spec.byte_us(shared, veus) if shared else 0.0
    ((_, layout),), ((_, depth),) = own.packing, p.stage.reduce
    size = replace(dict(problem.expr.inputs)[still.load.tensor], layout=layout).element_bytes
    return s.left(still.axis) * depth * size * strips * rounds * read_us


def _rows(s: Sched, side: Side, height: int) -> int:
    """Rows of a task, in whole blocks."""
    return -(-s.left(side.axis) // height) * height


def _cuts(problem: Problem, p: Product, unit: Unit, block: Instruction, by_rows: bool) -> list[Cut]:
    (moving, still), extents = sides(p, unit), dict(p.stage.axes)
    span, height = problem.span(moving.axis), block.extent(moving.name)
    rows = (moving.axis, extents[moving.axis], span * -(-height // span))
    columns = (still.axis, extents[still.axis], block.extent(still.name) * problem.span(still.axis))
    others = cuts(problem, (a for a in extents if a not in (moving.axis, still.axis)))
    return [*others, rows, columns] if by_rows else [columns, *others, rows]
