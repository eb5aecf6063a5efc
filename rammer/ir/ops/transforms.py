"""Define the transforms around a 3x3 convolution that computes one of a large filter, in Winograd's form.

A filter of up to 3 r taps along each side is cut into pieces of r; outputs are computed r by r. The transformed input
at position (u, v) serves all pieces: the one that lies a pieces further reads position u + a. So for each of the (2 r -
1)^2 products of F(r x r, r x r), sums over pieces and channels are a convolution of 3x3 over positions. The matrices
are operands; `ir.ops.toom_cook` computes them.
"""

from __future__ import annotations

from rammer.ir.expr import Const, Load, Range, Scalar, Select, Stage, TensorExpr
from rammer.ir.index import Index, var
from rammer.ir.operator import OpDef
from rammer.ir.ops.operands import expression, float_only, listed, require
from rammer.ir.tensor import Shape, TensorType


def _checked(kind: str, given: str, rows: TensorType, columns: TensorType, *pairs: Shape) -> None:
    require(rows.rank == columns.rank == 2, given, "the matrices need a rank of 2")
    require(all(len(p) == 2 and min(p) > 0 for p in pairs), given, f"{kind} needs two positive numbers of each")


def _input_transform(
    x: TensorType, rows: TensorType, columns: TensorType, *, tile: Shape, strides: Shape, pads: Shape, positions: Shape
) -> TensorExpr:
    """Build the transformed input: sums over patches of x, weighted by `rows` and `columns`.

    out[n, ((p Q + q) F + f) C + c, u, v] = sum over a, b of rows[p, a] columns[q, b] x[n, c, …], read by (u, v).
    Position (u, v) reads phase f of the places from (u, v) `tile` on, with `strides` between them. `pads`: zeros above
    and at the left; all other places outside x are zero, too.
    """
    types = [x, rows, columns]
    given = f"input_transform: {listed(types)}, tile {tile}, strides {strides}, pads {pads}, positions {positions}"
    require(x.rank == 4, given, "x needs a rank of 4")
    _checked("input_transform", given, rows, columns, tile, strides, positions)
    require(len(pads) == 2 and min(pads) >= 0, given, "pads are two numbers, not negative")
    dtype = float_only("input_transform", types)
    (r, s), (down, right), channels = tile, strides, x.shape[1]
    (high, above), (wide, before) = rows.shape, columns.shape
    n, c, f, u, v, p, j, o, a, b = map(var, ("n", "c", "f", "u", "v", "p", "j", "o", "a", "b"))
    row, column = (u * r + a) * down + f - pads[0], j - pads[1]
    width = ((positions[1] - 1) * s + before) * right
    where = (Range(row, 0, x.shape[2]), Range(column, 0, x.shape[3]))
    patch: Scalar = Select(where, Load("x", (n, c, row, column)), Const(0.0))
    axes = (("n", x.shape[0]), ("c", channels), ("f", down), ("u", positions[0]), ("p", high), ("j", width))
    lines = Stage("lines", axes, Load("rows", (p, a)) * patch, (("a", above),), dtype=dtype)
    phases = down * right
    phase, product = o // channels % phases, o // (channels * phases)
    place = (v * s + b) * right + (phase % right if right > 1 else Index())
    load = Load("lines", (n, o % channels, phase // right if phases > 1 else Index(), u, product // wide, place))
    outer = (("n", x.shape[0]), ("o", high * wide * phases * channels), ("u", positions[0]), ("v", positions[1]))
    out = Stage("out", outer, Load("columns", (product % wide, b)) * load, (("b", before),), dtype=dtype)
    return expression("input_transform", [("x", x), ("rows", rows), ("columns", columns)], [lines, out])


def _output_transform(x: TensorType, rows: TensorType, columns: TensorType, *, shape: Shape) -> TensorExpr:
    """Build the results from the transformed products.

    out[n, o, r u + i, s v + j] = sum over p, q of rows[i, p] columns[j, q] x[n, (p Q + q) O + o, u, v]. Each position
    (u, v) of x has a tile of `shape`, whose last ones may overhang.
    """
    types = [x, rows, columns]
    given = f"output_transform: {listed(types)} to {shape}"
    require(x.rank == 4, given, "x needs a rank of 4")
    _checked("output_transform", given, rows, columns, shape)
    dtype = float_only("output_transform", types)
    (r, high), (s, wide) = rows.shape, columns.shape
    require(high * wide > 0 and x.shape[1] % (high * wide) == 0, given, "x needs all products of each channel")
    outs = x.shape[1] // (high * wide)
    enough = all(-(-e // t) <= have for e, t, have in zip(shape, (r, s), x.shape[2:], strict=True))
    require(enough, given, "x needs a position for each tile")
    n, o, u, v, i, q, h, w, p, b = map(var, ("n", "o", "u", "v", "i", "q", "h", "w", "p", "b"))
    axes = (("n", x.shape[0]), ("o", outs), ("u", x.shape[2]), ("v", x.shape[3]), ("i", r), ("q", wide))
    load = Load("x", (n, (p * wide + q) * outs + o, u, v))
    lines = Stage("lines", axes, Load("rows", (i, p)) * load, (("p", high),), dtype=dtype)
    tiles = Load("lines", (n, o, h // r, w // s, h % r, b))
    outer = (("n", x.shape[0]), ("o", outs), ("h", shape[0]), ("w", shape[1]))
    out = Stage("out", outer, Load("columns", (w % s, b)) * tiles, (("b", wide),), dtype=dtype)
    return expression("output_transform", [("x", x), ("rows", rows), ("columns", columns)], [lines, out])


DEFINITIONS = (OpDef("input_transform", _input_transform), OpDef("output_transform", _output_transform))
