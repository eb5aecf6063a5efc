"""Schedule products by matrix instructions of one thread whose operands have special layouts.

A task copies some rows of x, and multiplies them by all panels of weights. Weights are static: they lie as the
instruction needs them, or are encoded at run time, which takes longer and needs less memory. If vectors lie along x,
the task copies columns of x, and multiplies them by all rows of weights.
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
from rammer.kernels.problem import WORD, KernelProblem, all_loads
from rammer.kernels.product import Product
from rammer.kernels.sched import Cut, Sched, cuts
from rammer.kernels.schedule import Schedule, distinct
from rammer.kernels.tiling import task_counts

WIDENED = 2.0  # times that vectors take for a product of widened bytes
LEAST_GAIN = 1.25  # least gain of a unit whose blocks are padded with rows
MOST_PADDING = 2.0  # most rows of blocks per existing row
WORTH_WAKING = 11.0  # times the unit's wake-up time that it must save of a product, estimated on one vEU
MOST_ROWS = 64  # rows that a step of a chain takes at once
BY_COLUMNS = 0.95  # of the time of tasks by rows, below which columns win: readers of rows begin earlier otherwise
LEAST_K_BLOCK = 256  # terms of a k-block: sums are loaded and stored for each
AT_RUN_TIME = 1.06  # of the time with pre-encoded weights: up to that, encoding at run time wins, as it saves memory


class MatrixUnit(NamedTuple):
    """A matrix unit: the instruction that copies rows, and its product instructions, the fastest first."""

    copy: Instruction
    products: tuple[Instruction, ...]
    transposed: bool = False  # transposed: it copies columns

    @property
    def copied(self) -> TensorType:
        """The type of a block of rows, or of columns, as products take it."""
        return self.products[0].meaning.inputs[int(self.transposed)][1]

    @property
    def encoding(self) -> Encoding | None:
        """The encoding of both operands, or None."""
        return self.copied.layout.encoding if self.copied.layout else None

    @property
    def operands(self) -> str:
        """The operands' types, as in names of rKernels."""
        return str(self.encoding or "x".join(kind.name.lower() for kind in self.products[0].operands))

    @property
    def exact(self) -> bool:
        """Check whether it multiplies integers. Then zeros that pad weights cancel whatever pads rows.

        Vectors do not multiply bytes, so blocks may be padded for it.
        """
        return not self.copied.dtype.is_float

    @property
    def copy_columns(self) -> float:
        """The number of product columns that take as long as copying their rows."""
        return self.products[0].gain / self.copy.gain

    @property
    def speedup(self) -> float:
        """The rate of its products over that of vectors for the same operands."""
        return self.products[0].gain * (WIDENED if self.exact else 1.0)

    @property
    def padding(self) -> float:
        """The most rows that its blocks may hold per existing row."""
        return min(self.speedup / LEAST_GAIN, MOST_PADDING)

    @property
    def fewest_columns(self) -> float:
        """The number of columns above which it saves more time than copying their rows takes."""
        return self.copy_columns / max(self.speedup - 1, 1e-9)

    @property
    def depth(self) -> int:
        """Terms that it adds at once."""
        return self.products[0].extent("term")

    @property
    def neighbours(self) -> int:
        """Adjacent terms in the rows that it copies."""
        return self.copy.meaning.inputs[0][1].physical_shape[-1]


def units_of(spec: VDeviceSpec) -> list[MatrixUnit]:
    """Return the fastest unit for each kind of operands, at the spec's precision."""
    alone = [i for i in spec.multipliers if i.threads == 1]
    found: dict[tuple[DType, ...], MatrixUnit] = {}
    for best in alone:
        for transposed in (False, True) if best.operands not in found else ():
            layout = best.layout_of(transposed)
            copies = [i for i in spec.instructions if i.copies and i.meaning.outputs[0][1].layout == layout]
            if copies:
                same = tuple(i for i in alone if i.layout_of(transposed) == layout)
                found[best.operands] = MatrixUnit(copies[0], same, transposed)
    return list(found.values())


def copy_of_columns(spec: VDeviceSpec, block: Instruction) -> Instruction | None:
    """Return the instruction that copies panels of a product's columns, so that these need not be static; or None."""
    return next((i for i in _copies_of_columns(spec, block) if not i.encodes), None)


def encoder(spec: VDeviceSpec, block: Instruction) -> Instruction | None:
    """Return the instruction that encodes panels of a product's columns, already in its order; or None."""
    return next((i for i in _copies_of_columns(spec, block) if i.encodes), None)


def _copies_of_columns(spec: VDeviceSpec, block: Instruction) -> list[Instruction]:
    own = block.layout_of(True)
    if own is None:
        return []
    panels = replace(own, digits=(Digit(0, block.extent("column")), *own.digits))
    return [i for i in spec.instructions if i.copies and i.meaning.outputs[0][1].layout == panels]


class Side(NamedTuple):
    """An operand of a product, the axis that moves it alone, and the instruction's name for that axis."""

    load: Load
    axis: str
    name: str


def sides(p: Product, unit: MatrixUnit) -> tuple[Side, Side]:
    """Return the operand that is copied, and the static one."""
    rows, columns = Side(p.x, str(p.row), "row"), Side(p.w, p.lane, "column")
    return (columns, rows) if unit.transposed else (rows, columns)


def schedules(problem: KernelProblem, unit: MatrixUnit) -> Iterator[Schedule]:
    """Yield one schedule per task count for a sum of products with a point-wise epilogue; none if it does not suit."""
    p = problem.matched.root
    if p is not None and p.row is None and unit.exact:
        p = _of_one_row(p)
    if p is None or problem.placed or not suits(problem, p, unit):
        return
    if problem.microseconds * (1 - 1 / unit.speedup) < WORTH_WAKING * unit.products[0].wake_us:
        return
    _, still = sides(p, unit)
    if dict(p.stage.axes)[still.axis] < unit.fewest_columns:
        return
    yield from distinct(_cheapest(problem, p, unit, want) for want in task_counts(problem))


def schedule(s: Sched, p: Product, unit: MatrixUnit, block: Instruction, encode: Instruction | None) -> Schedule | None:
    """Return a product in blocks. `s` holds its tasks. Weights beyond the private cache are read as rarely as possible.

    `encode`: encodes weights at run time, a panel at a time. None if it would do so for several strips of rows.
    """
    problem = s.problem
    moving, still = sides(p, unit)
    ((deep, depth),) = p.stage.reduce
    height, width = block.extent(moving.name), block.extent(still.name)
    rows = _rows(s, moving, height)
    strip: int | None = height  # rows that are encoded at once; None: all rows of a task
    piece = depth  # terms that are encoded at once
    if not fits_private_cache(problem, p, unit):
        lines = rows + (width if encode else 0)  # lines that a task encodes
        piece = _k_block(problem, p, unit, lines, rows * s.left(still.axis))
        most = _room(problem, unit) // encoded_bytes(p, unit, height) * height
        strip = most if most < lines and piece == depth else None
    if encode and strip is not None:
        return None
    s = s.reorder(*(a for a, _ in p.stage.axes if a not in (moving.axis, still.axis)))
    s = s.split(moving.axis if strip else None, strip or 1).split(deep if piece < depth else None, piece)
    s = encoded(s, p, unit)
    layout = packed(p, unit, block)
    if encode:
        s = s.compute_at(still.load.tensor, depth=len(s.loops), order=dims(p, still), instruction=encode)
        layout = replace(layout, encoding=None)
    s = s.split(still.axis, width).split(moving.axis if strip != height else None, height)
    s = inner_loops(s, p).pack([(still.load.tensor, layout)]).tensorize(block)
    return s.build(f"{block.extent('row')}x{block.extent('column')}_{unit.operands}")


def _k_block(problem: KernelProblem, p: Product, unit: MatrixUnit, lines: int, sums: int) -> int:
    """Return the terms of a task's encoded lines that fit scratch: all, or a k-block if the sums can wait in cache."""
    ((_, depth),) = p.stage.reduce
    spec, waiting, room = problem.spec, aligned_bytes(WORD * sums), _room(problem, unit)
    if encoded_bytes(p, unit, lines) <= room or not spec.holds(spec.l2, waiting, room):
        return depth
    room -= waiting
    pieces = [n for n in range(unit.depth, depth, unit.depth) if n >= LEAST_K_BLOCK and depth % n == 0]
    return max((n for n in pieces if encoded_bytes(p, unit, lines) * n // depth <= room), default=depth)


def _room(problem: KernelProblem, unit: MatrixUnit) -> int:
    """Return the bytes of scratch for encoded lines, beside the sums of the largest block."""
    sums = max(block.extent("row") * block.extent("column") for block in unit.products)
    return problem.spec.scratch_bytes - aligned_bytes(WORD * sums)


def _of_one_row(p: Product) -> Product:
    """Return the product with an axis of extent 1 as its rows, if there is one."""
    return replace(p, row=next((a for a, extent in p.stage.axes if extent == 1 and var(a) in p.x.index), None))


def fits_private_cache(problem: KernelProblem, p: Product, unit: MatrixUnit) -> bool:
    """Check whether encoded weights stay in a vEU's private cache while blocks of rows pass."""
    (moving, still), spec = sides(p, unit), problem.spec
    weights = prod(dict(problem.expr.inputs)[still.load.tensor].shape) * unit.copied.element_bytes
    return spec.holds(spec.l2, weights, encoded_bytes(p, unit, unit.products[0].extent(moving.name)))


def encoded_bytes(p: Product, unit: MatrixUnit, rows: int) -> int:
    """Return the bytes of `rows` encoded rows."""
    ((_, depth),) = p.stage.reduce
    return rows * depth * unit.copied.element_bytes


def suits(problem: KernelProblem, p: Product, unit: MatrixUnit) -> bool:
    """Check whether the unit can compute a product."""
    stage = p.stage
    if unit.neighbours not in (1, problem.lanes) or not p.is_matrix:
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
    moving, still = sides(p, unit)
    readers = sum(ld.tensor == moving.load.tensor for s in problem.stages.values() for ld, _ in all_loads(s))
    packable = all(ix == var(n) for ix in still.load.index for n in variables(ix))
    packable = packable and problem.packable(still.load, still.axis)
    fits = encoded_bytes(p, unit, unit.products[0].extent(moving.name)) <= _room(problem, unit)
    rows = bool(fitting(problem, p, unit)) and in_rows(problem, p, unit)
    return packable and readers == 1 and fits and rows


def gates_block(problem: KernelProblem, p: Product, unit: MatrixUnit) -> Instruction | None:
    """Return the instruction for a product whose rows a task takes all at once; None if it does not suit the unit."""
    if not suits(problem, p, unit) or not fits_private_cache(problem, p, unit):
        return None
    extents, walked = dict(p.stage.axes), set().union(*map(variables, p.x.index))
    if any(extents.get(n, 1) > 1 for n in walked if n != p.row):
        return None  # a batch of rows: one copy holds one of them
    rows = extents[str(p.row)]
    heights = {b: b.extent("row") for b in fitting(problem, p, unit) if extents[p.lane] % b.extent("column") == 0}
    fits = [b for b, height in heights.items() if -(-rows // height) * height <= unit.padding * rows]
    return fits[-1] if fits and rows <= MOST_ROWS else None


def fitting(problem: KernelProblem, p: Product, unit: MatrixUnit) -> list[Instruction]:
    """Return the blocks whose columns divide the product's, or pad them where that is allowed; the better first."""
    columns = dict(p.stage.axes)[p.lane]
    if columns < problem.lanes:
        return []  # the instruction's stride between sums of a row is larger than the row
    most = -(-columns // problem.lanes) * problem.lanes if unit.exact else 0
    return [b for b in unit.products if columns % b.extent("column") == 0 or b.extent("column") <= most]


def inner_loops(s: Sched, p: Product) -> Sched:
    """Add the loops of a block: over its terms, and over its sums where they are used."""
    ((deep, _),) = p.stage.reduce
    return s.reorder(deep, p.row).vectorize(p.lane, s.problem.lanes)


def encoded(s: Sched, p: Product, unit: MatrixUnit) -> Sched:
    """Copy x for the unit inside the innermost loop so far."""
    moving, _ = sides(p, unit)
    return s.compute_at(moving.load.tensor, order=dims(p, moving), instruction=unit.copy)


def packed(p: Product, unit: MatrixUnit, block: Instruction) -> Layout:
    """Return the layout of weights in which the data of one block are contiguous."""
    _, still = sides(p, unit)
    ((deep, _),) = p.stage.reduce
    dim = {n: d for d, ix in enumerate(still.load.index) for n in variables(ix)}
    across, k = dim[still.axis], dim[deep]
    rest = tuple(Digit(d) for d in range(len(still.load.index)) if d not in (across, k))
    own = block.layout_of(not unit.transposed)
    assert own is not None
    panel = tuple(replace(d, dim=(across, k)[d.dim]) for d in own.digits)
    return Layout((*rest, Digit(across, block.extent(still.name)), *panel), own.encoding)


def dims(p: Product, side: Side) -> tuple[int, int]:
    """Return the dimensions of an operand that count its rows (or columns) and its terms."""
    ((deep, _),) = p.stage.reduce
    return side.load.index.index(var(side.axis)), side.load.index.index(var(deep))


def moves_two_dims(p: Product, side: Side) -> bool:
    """Check whether an operand's rows (or columns) and its terms each move one dimension, and share none."""
    ((deep, _),) = p.stage.reduce
    moving = [ix for ix in side.load.index if variables(ix) & {side.axis, deep}]
    return sorted(moving, key=str) == sorted((var(side.axis), var(deep)), key=str)


def in_rows(problem: KernelProblem, p: Product, unit: MatrixUnit) -> bool:
    """Check whether rows have one stride, and terms have one stride or are contiguous, per row or per block."""
    side, _ = sides(p, unit)
    if not moves_two_dims(p, side):
        return False
    row, column = dims(p, side)
    layout = dict(problem.expr.inputs)[side.load.tensor].layout
    if unit.neighbours == 1:
        return layout is None
    if layout is None:
        return column == len(side.load.index) - 1
    digits = [d for d in layout.digits if d.dim == column]
    size = unit.neighbours
    blocks = digits == [Digit(column, size), Digit(column, 1, size)] and layout.digits[-1].dim == column
    return blocks and [d for d in layout.digits if d.dim == row] == [Digit(row)]


def _cheapest(problem: KernelProblem, p: Product, unit: MatrixUnit, want: int) -> Schedule | None:
    """Return the schedule with pre-encoded weights, or one that encodes at run time.

    The second wins if weights exceed the private cache, and if it takes at most AT_RUN_TIME times as long.
    """
    blocks = fitting(problem, p, unit)
    lie = _of_tasks(problem, p, unit, want, dict.fromkeys(blocks))
    if lie is None or unit.transposed or fits_private_cache(problem, p, unit):
        return lie and lie.schedule
    copies = {block: encoder(problem.spec, block) for block in blocks}
    way = _of_tasks(problem, p, unit, want, {b: copy for b, copy in copies.items() if copy})
    return way.schedule if way and way.us <= AT_RUN_TIME * lie.us else lie.schedule


class _Priced(NamedTuple):
    us: float
    schedule: Schedule


def _of_tasks(
    problem: KernelProblem, p: Product, unit: MatrixUnit, want: int, blocks: Mapping[Instruction, Instruction | None]
) -> _Priced | None:
    """Return the best schedule of tasks by rows or by columns. `blocks`: each with its encoder of columns, if any.

    Rows are preferred: readers of single rows then need not wait for all. Columns win if blocks do not fit rows, or if
    they take less time: weights beyond the private cache are then fetched once.
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
                us = problem.unshared_us(own, problem.spec.num_veus) + _fetching_us(s, p, unit, own)
                found.append(_Priced(us, own))
        if found:
            best.append(min(found, key=lambda one: one.us))
        if best and fits_private_cache(problem, p, unit):
            break
    by_columns = len(best) == 2 and best[1].us < BY_COLUMNS * best[0].us
    return best[int(by_columns)] if best else None


def _fetching_us(s: Sched, p: Product, unit: MatrixUnit, own: Schedule) -> float:
    """Return the microseconds of fetching weights from shared memory, for each strip of rows and each batch point.

    0 if they fit the private cache. `s`: the tasks alone. vEUs did not write the weights, so that these come from the
    memory that all vEUs share.
    """
    problem = s.problem
    if fits_private_cache(problem, p, unit):
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
    """Return the rows of a task, in whole blocks."""
    return -(-s.left(side.axis) // height) * height


def _cuts(problem: KernelProblem, p: Product, unit: MatrixUnit, block: Instruction, by_rows: bool) -> list[Cut]:
    (moving, still), extents = sides(p, unit), dict(p.stage.axes)
    rows = (moving.axis, extents[moving.axis], problem.grain(moving.axis, block.extent(moving.name)))
    columns = (still.axis, extents[still.axis], block.extent(still.name) * problem.span(still.axis))
    others = cuts(problem, (a for a in extents if a not in (moving.axis, still.axis)))
    return [*others, rows, columns] if by_rows else [columns, *others, rows]
