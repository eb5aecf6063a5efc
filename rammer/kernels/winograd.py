"""Rewrite convolutions by Winograd's F(m x m, 3x3), with less arithmetic. Paper: Lavin and Gray 2015, arXiv:1509.09308.

A tile has `m` x `m` outputs. A convolution becomes seven stages, which are scheduled like any others:

    wt, wu   weights transformed        wu[p, q] = G w G'        rows first, then columns
    xt, xv   input transformed          xv[p, q] = B' x B
    xm       one product per (p, q)     xm[p, q] = sum over channels of xv[p, q] wu[p, q]
    yt, y    output transformed         y = A' xm A, with the convolution's own epilogue

A larger filter is cut into pieces of 3x3, a stride into phases of stride 1. Piece `u` of a side holds these taps:

    stride * (3 * (u // stride) + 0, 1, 2) + u % stride

Pieces along a row become more channels. Pieces along a column are summed after the output transform. Weights are
transformed inside the rTask, part by part, into its scratch: memory holds each tap once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from rammer.ir.analysis.simplify import scalar_conditions
from rammer.ir.expr import (
    Axes,
    Call,
    Const,
    ConstantTable,
    Load,
    Range,
    Scalar,
    Select,
    Stage,
    TensorExpr,
    loads,
    rewrite,
    substitute_axes,
)
from rammer.ir.index import Index, var, variables
from rammer.ir.ops.toom_cook import matrices
from rammer.ir.tensor import DType
from rammer.kernels.problem import KernelProblem
from rammer.kernels.product import Product

TAPS = 3
EXACT = (DType.I8, DType.I16)  # integers that float32 holds exactly: widened, then transformed
STAGES = frozenset({"wt", "wu", "xt", "xv", "xm", "yt", "y"})
AXES = ("gg", "cc", "kk", "aa", "tt", "ty", "jj", "pp", "qq", "ii", "rr", "ss")


@dataclass(frozen=True)
class ImageAxis:
    """One direction of the image: the output axis, the axis of taps, their extents, and the stride."""

    axis: str
    tap: str
    extent: int
    taps: int
    stride: int

    @property
    def pieces(self) -> int:
        """Number of pieces of three taps, in phases of stride 1."""
        return self.stride * -(-self.taps // (self.stride * TAPS))

    @property
    def reach(self) -> int:
        """Input positions that all outputs read, padding included."""
        return self.stride * (self.extent - 1) + self.taps

    def place(self, first: Index | int, piece: Index, tap: Index) -> Index:
        """Return the input position that a piece reads for an output, before padding is subtracted."""
        return (piece // self.stride * TAPS + tap + first) * self.stride + piece % self.stride


@dataclass(frozen=True)
class Convolution:
    """A convolution of two directions that a root stage computes, with the names of its axes."""

    root: Stage
    x: Scalar  # the factor that is read through the window
    weight: Scalar  # the other one: w, perhaps widened
    w: Load
    batch: tuple[str, ...]
    o: str
    c: str
    rows: ImageAxis
    columns: ImageAxis
    groups: int

    @property
    def extents(self) -> dict[str, int]:
        return {**dict(self.root.axes), **dict(self.root.reduce)}

    @property
    def depth(self) -> int:
        """Input channels per group."""
        return self.extents[self.c]

    @property
    def outs(self) -> int:
        """Output channels per group."""
        return self.extents[self.o] // self.groups


def convolution(problem: KernelProblem) -> Convolution | None:
    """Return the operation as a convolution that this algorithm can compute, or None."""
    root = problem.root
    if problem.placed or len(problem.expr.outputs) != 1 or len(root.reduce) != 3:
        return None
    if root.dtype.accumulator is not DType.F32 or (root.dtype is not DType.F32 and root.epilogue is None):
        return None
    if STAGES & {name for name, _ in (*problem.expr.inputs, *problem.expr.outputs)}:
        return None
    p = problem.matched.root
    if p is None or not problem.packable(p.w, p.lane):
        return None
    x_type, w_type = (problem.expr.type_of(ld.tensor).dtype for ld in (p.x, p.w))
    if x_type is not DType.F32 or not (w_type is DType.F32 or w_type in EXACT):
        return None
    assert isinstance(root.body, Call)
    x, weight = (next(a for a in root.body.args if any(ld == of for ld, _ in loads(a))) for of in (p.x, p.w))
    sides = _sides(root, p, x)
    extents = {**dict(root.axes), **dict(root.reduce)}
    if sides is None or any(ld.tensor == p.w.tensor for ld, _ in loads(x)) or {*extents} & {*AXES}:
        return None
    rows, columns = sides
    (c,) = (a for a, _ in root.reduce if a not in (rows.tap, columns.tap))
    order = [next((a for a in extents if ix == var(a)), "") for ix in p.w.index]
    groups, rest = divmod(extents[p.lane], p.group)
    if sorted(order) != sorted([p.lane, c, rows.tap, columns.tap]) or rest:
        return None
    if (groups > 1 or columns.pieces > 1) and (p.group % problem.lanes or extents[c] % problem.lanes):
        return None
    own = tuple(var(a) for a, _ in root.axes)
    read = p.x.tensor, p.x.index, c
    if {problem.lane_stride(*at, root) for at in (read, (root.name, own, p.lane))} != {1}:
        return None
    batch = tuple(a for a, _ in root.axes if a not in (p.lane, rows.axis, columns.axis))
    return Convolution(root, x, weight, p.w, batch, p.lane, c, rows, columns, groups)


def _sides(root: Stage, p: Product, x: Scalar) -> tuple[ImageAxis, ImageAxis] | None:
    """Return two pairs of an output axis and an axis of taps that x sees only as stride * axis + tap; or None."""
    indices = [ix for ld, _ in loads(x) for ix in ld.index] + [r.index for r in scalar_conditions(x)]
    axes = dict(root.axes)
    sides = []
    for tap, taps in root.reduce:
        seen = [ix for ix in indices if tap in variables(ix)]
        moving = {a for ix in seen for a, _ in ix.terms if isinstance(a, str) and a in axes}
        if len(moving) != 1 or p.lane in moving:
            continue
        (axis,) = moving
        stride = seen[0].coef(axis)
        hidden = {n for ix in indices for a, _ in ix.terms if not isinstance(a, str) for n in variables(a.arg)}
        plain = all(ix.coef(tap) in (0, 1) and ix.coef(axis) == stride * ix.coef(tap) for ix in indices)
        if plain and stride > 0 and not hidden & {axis, tap}:
            sides.append(ImageAxis(axis, tap, axes[axis], taps, stride))
    sides.sort(key=lambda side: [*axes].index(side.axis))
    if len(sides) != 2 or sides[0].axis == sides[1].axis:
        return None
    return sides[0], sides[1]


def rewritten(problem: KernelProblem, conv: Convolution, m: int, chunk: int) -> TensorExpr:
    """Return the convolution by tiles of m x m outputs.

    Channels are summed in the transformed domain `chunk` at a time, for all pieces of a row of taps.
    """
    tiled = _Tiled(conv, m, chunk)
    *stages, last = *tiled.weights(), *tiled.data(), tiled.products(), *tiled.outputs()
    root, epilogue = conv.root, conv.root.epilogue
    if epilogue is None:
        stages.append(replace(last, name=root.name))
    else:
        own = tuple(var(n) for n, _ in root.axes)
        inputs = {n for n, _ in problem.expr.inputs}
        body = rewrite(epilogue, lambda ld: ld if ld.tensor in inputs else Load("y", own))
        stages += [last, Stage(root.name, root.axes, body, dtype=root.dtype)]
    return replace(problem.expr, stages=tuple(stages))


class _Tiled:
    """The stages of a convolution by tiles, and the axes that they share."""

    def __init__(self, conv: Convolution, m: int, chunk: int) -> None:
        self.conv, self.m, self.size, self.chunk = conv, m, m + TAPS - 1, chunk
        self.b, self.g, self.a = matrices(m, TAPS)
        self.across, self.down = -(-conv.columns.extent // m), -(-conv.rows.extent // m)
        side, parts = conv.columns.pieces, conv.depth // chunk
        self.part, self.channel, self.piece = chunk * side, var("cc"), Index()
        if side > 1:  # an entry: part by part, piece by piece along the row, a channel of the part
            self.channel = var("cc") // self.part * chunk + var("cc") % chunk
            self.piece = var("cc") // chunk % side
        self.batch: Axes = tuple((n, conv.extents[n]) for n in conv.batch)
        self.image = tuple(var(n) for n in conv.batch)
        self.outs: Axes = ((conv.o, conv.extents[conv.o]),)
        self.entries: Axes = (("cc", conv.depth * side), ("aa", conv.rows.pieces))
        sums = (("aa", conv.rows.pieces), ("kk", parts))  # axes that are summed last
        self.sums: Axes = tuple((n, e) for n, e in sums if e > 1)
        self.tiles: Axes = (("tt", self.down * self.across),)

    def weights(self) -> tuple[Stage, Stage]:
        pp, qq, rr, ss = map(var, ("pp", "qq", "rr", "ss"))
        axes = (*self.outs, *self.entries, ("pp", self.size))
        taps = ConstantTable(self.g, pp * TAPS + rr) * _filter(self.conv, self.channel, self.piece)
        rows = Load("wt", (var(self.conv.o), var("cc"), var("aa"), pp, ss))
        columns = ConstantTable(self.g, qq * TAPS + ss) * rows
        return (
            Stage("wt", (*axes, ("ss", TAPS)), taps, (("rr", TAPS),)),
            Stage("wu", (*axes, ("qq", self.size)), columns, (("ss", TAPS),)),
        )

    def data(self) -> tuple[Stage, Stage]:
        gg, aa, tt, pp, qq, rr, ss = map(var, ("gg", "aa", "tt", "pp", "qq", "rr", "ss"))
        conv, m, columns, size = self.conv, self.m, self.conv.columns, self.size
        axes = (*self.batch, ("gg", conv.groups))
        width = columns.stride * (m * (self.across - 1) + TAPS * -(-columns.pieces // columns.stride) + m)
        lines = (("cc", conv.depth), ("aa", conv.rows.pieces), ("ty", self.down), ("jj", width), ("pp", size))
        column = columns.place(tt % self.across * m, self.piece, ss)
        rows = Load("xt", (*self.image, gg, self.channel, aa, tt // self.across, column, pp))
        tiles = (*self.entries, *self.tiles, ("pp", size), ("qq", size))
        return (
            Stage("xt", (*axes, *lines), ConstantTable(self.b, pp * size + rr) * _patch(conv, m), (("rr", size),)),
            Stage("xv", (*axes, *tiles), ConstantTable(self.b, qq * size + ss) * rows, (("ss", size),)),
        )

    def products(self) -> Stage:
        conv, o, tt, pp, qq = self.conv, var(self.conv.o), var("tt"), var("pp"), var("qq")
        of_rows = var("aa") if conv.rows.pieces > 1 else Index()
        entry = var("kk") * self.part + var("cc") if conv.depth > self.chunk else var("cc")
        data = Load("xv", (*self.image, o // conv.outs, entry, of_rows, tt, pp, qq))
        axes = (*self.batch, *self.outs, *self.sums, *self.tiles, ("pp", self.size), ("qq", self.size))
        return Stage("xm", axes, data * Load("wu", (o, entry, of_rows, pp, qq)), (("cc", self.part),))

    def outputs(self) -> tuple[Stage, Stage]:
        m, size, tt, pp, qq, ii = self.m, self.size, var("tt"), var("pp"), var("qq"), var("ii")
        o, h, w = (var(n) for n in (self.conv.o, self.conv.rows.axis, self.conv.columns.axis))
        outer = (*self.image, o, *(var(n) for n, _ in self.sums))
        rows = ConstantTable(self.a, ii * size + pp) * Load("xm", (*outer, tt, pp, qq))
        tile = Load("yt", (*outer, h // m * self.across + w // m, h % m, qq))
        axes = (*self.batch, *self.outs, *self.sums, *self.tiles, ("ii", m), ("qq", size))
        columns = ConstantTable(self.a, w % m * size + qq) * tile
        return (
            Stage("yt", axes, rows, (("pp", size),)),
            Stage("y", self.conv.root.axes, columns, (*self.sums, ("qq", size))),
        )


def _filter(conv: Convolution, channel: Index, piece: Index) -> Scalar:
    """Return the weight of tap (rr, ss) of a piece; zero beyond the last tap."""
    kh = conv.rows.place(0, var("aa"), var("rr"))
    kw = conv.columns.place(0, piece, var("ss"))
    weight = substitute_axes(conv.weight, {conv.c: channel, conv.rows.tap: kh, conv.columns.tap: kw})
    return Select((Range(kh, 0, conv.rows.taps), Range(kw, 0, conv.columns.taps)), weight, Const(0.0))


def _patch(conv: Convolution, m: int) -> Scalar:
    """Return the input at row rr of a tile and column jj; zero where no output of the tile or of the image reads it."""
    rows, columns = conv.rows, conv.columns
    inside = rows.place(0, var("aa"), var("rr"))
    row, column = var("ty") * (m * rows.stride) + inside, var("jj")
    where = (
        Range(row, 0, rows.reach),
        Range(inside, 0, rows.stride * (m - 1) + rows.taps),
        Range(column, 0, columns.reach),
    )
    places = {rows.axis: Index(), rows.tap: row, columns.axis: Index(), columns.tap: column}
    patch = substitute_axes(conv.x, {**places, conv.c: var("cc"), conv.o: var("gg") * conv.outs})
    if isinstance(patch, Select) and isinstance(patch.other, Const) and patch.other.value == 0:
        return Select((*where, *patch.where), patch.then, patch.other)
    return Select(where, patch, Const(0.0))
