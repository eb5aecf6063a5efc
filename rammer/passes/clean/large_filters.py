"""Rewrite convolutions of large filters as 3x3 convolutions between Winograd's transforms, which saves most products.

Kernels in Winograd's form (`kernels.winograd`) cut a filter into pieces of 3x3 and transform the input for each piece:
32 times for 21x11 with stride 2x1. Here pieces are as large as tiles (`ir.ops.transforms`), and share one transformed
input. The remaining convolution may itself be computed in Winograd's form.
"""

from __future__ import annotations

from math import prod

import numpy as np

from rammer.ir.device import Execution, VDeviceSpec
from rammer.ir.graph import Graph
from rammer.ir.operator import ROperator
from rammer.ir.ops.toom_cook import matrices
from rammer.ir.tensor import Array, DType, Shape, TensorId
from rammer.passes.editor import Editor, apply_pattern

PIECES = 3  # pieces of a filter along each side
# Measured, of 22 convolutions (docs/measurements.md).
LEAST_TAPS = 7  # taps along each side
LONGEST = 4  # taps of a piece: rounding errors grow with them
FEWEST_TILES = 25  # with fewer, more weights are read than products are saved
WORTH = 1.1  # products of the 3x3 convolution over the large filter's: Winograd's form then saves more of them


def transform_large_filters(graph: Graph, spec: VDeviceSpec) -> Graph:
    """Rewrite conv = output_transform(conv3x3(input_transform)) for float32, constant weights, and vEUs with caches.

    Rounding errors are larger: up to 2e-5 of the largest result (`tests/passes/test_large_filters.py` checks that).
    """
    cached = any(level.owner == "veu" and level.managed == "cache" for level in spec.memory)
    if not cached or spec.no_winograd or spec.execution is not Execution.SIMD or spec.lanes < 2:
        return graph

    def pattern(editor: Editor, _: int, op: ROperator) -> TensorId | None:
        tile = _tile(editor, op, spec.lanes)
        return _transform(editor, op, tile) if tile else None

    return apply_pattern(graph, pattern, "conv")


def _tile(editor: Editor, op: ROperator, lanes: int) -> Shape | None:
    """Return the tile for a convolution with a large filter; None if this form is slower. Measured from 7 taps on."""
    attrs, (x, w, *_), (out,) = op.operation.keywords, op.operation.inputs, op.operation.outputs
    plain = attrs.get("group", 1) == attrs.get("shuffled", 1) == 1 and {*(attrs.get("dilations") or (1,))} == {1}
    if x.rank != 4 or not plain or any(kind.dtype is not DType.F32 for kind in (x, w, out)):
        return None
    if op.inputs[1] not in editor.constants or w.shape[0] % lanes or w.shape[1] % lanes:
        return None
    strides = attrs.get("strides") or (1, 1)
    taps = [-(-k // s) for k, s in zip(w.shape[2:], strides, strict=True)]
    tile = tuple(-(-t // PIECES) for t in taps)
    if min(w.shape[2:]) < LEAST_TAPS or not PIECES < min(taps) <= max(taps) <= LONGEST * PIECES:
        return None
    tiles = prod(_tiles(out.shape, tile))
    counted = tiles * prod(map(products, tile)) * PIECES**2 * prod(strides)
    return tile if tiles >= FEWEST_TILES and counted <= WORTH * prod((*out.shape[2:], *w.shape[2:])) else None


def _tiles(shape: Shape, tile: Shape) -> Shape:
    """Return how many tiles cover an output, along both sides."""
    return tuple(-(-extent // r) for extent, r in zip(shape[2:], tile, strict=True))


def _transform(editor: Editor, op: ROperator, tile: Shape) -> TensorId:
    attrs, out = op.operation.keywords, op.operation.outputs[0]
    strides, pads = attrs.get("strides") or (1, 1), attrs.get("pads") or (0, 0, 0, 0)
    positions = tuple(count + PIECES - 1 for count in _tiles(out.shape, tile))
    weights = editor.constant(transformed(editor.constants[op.inputs[1]], tile, strides), op.name)
    before = [editor.constant(_matrix(matrices(r, r).data, products(r)), op.name) for r in tile]
    behind = [editor.constant(_matrix(matrices(r, r).results, r), op.name) for r in tile]
    x = editor.define(
        op.name,
        "input_transform",
        *(op.inputs[0], *before),
        tile=tile,
        strides=strides,
        pads=pads[:2],
        positions=positions,
    )
    x = editor.define(op.name, "conv", x, weights, group=prod(map(products, tile)))
    x = editor.define(op.name, "output_transform", x, *behind, shape=out.shape[2:])
    return editor.biased(op, x, op.inputs[2:])


def products(r: int) -> int:
    """Return the number of products of F(r, r) in one dimension."""
    return 2 * r - 1


def _matrix(values: tuple[float, ...], rows: int) -> Array:
    return np.array(values, np.float32).reshape(rows, -1)


def transformed(weights: Array, tile: Shape, strides: Shape) -> Array:
    """Transform weights [outputs, channels, taps, taps] to [products * outputs, phases * channels, 3, 3], in float64.

    The result is rounded to the weights' type.
    """
    outs, channels, *taps = weights.shape
    (r, s), (down, right) = tile, strides
    room = [(0, PIECES * t * stride - k) for t, stride, k in zip(tile, strides, taps, strict=True)]
    padded = np.pad(weights.astype(np.float64), [(0, 0), (0, 0), *room])
    pieces = padded.reshape(outs, channels, PIECES, r, down, PIECES, s, right)
    rows, columns = (np.reshape(matrices(t, t).weights, (products(t), t)) for t in tile)
    made: Array = np.einsum("pk,ql,ocakfblg->pqofgcab", rows, columns, pieces, optimize=True)
    shape = (products(r) * products(s) * outs, down * right * channels, PIECES, PIECES)
    return made.reshape(shape).astype(weights.dtype)
