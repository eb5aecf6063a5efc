"""A part of an operation computes a box of its result from boxes of what it reads, and from no more than is needed."""

from __future__ import annotations

import numpy as np
import pytest

from rammer.ir.analysis.parts import Box, full_box, needs, part
from rammer.ir.operator import Operation, Operations, attributes
from rammer.ir.ops import OPS
from rammer.ir.semantics.evaluate import evaluate_expr
from rammer.ir.tensor import Array, Shape, TensorType

DIMS = (0, 2)


def conv(shape: Shape, out: int, window: int, **attrs: int | Shape) -> tuple[str, tuple[Shape, ...], dict[str, object]]:
    group = int(attrs.get("group", 1))  # type: ignore[arg-type]
    return "conv", (shape, (out, shape[1] // group, window, window)), dict(attrs)


CASES = {
    "3x3": conv((2, 3, 11, 9), 4, 3, pads=(1, 1, 1, 1)),
    "3x3, no padding": conv((1, 3, 11, 9), 4, 3),
    "stride 2": conv((2, 3, 13, 9), 4, 3, pads=(1, 1, 1, 1), strides=(2, 2)),
    "uneven padding": conv((1, 3, 12, 9), 4, 3, pads=(0, 0, 1, 1), strides=(2, 2)),
    "padding on both sides of a part": conv((1, 2, 5, 5), 2, 5, pads=(3, 3, 3, 3)),
    "dilated": conv((1, 3, 15, 9), 4, 3, pads=(2, 2, 2, 2), dilations=(2, 2)),
    "depthwise": conv((1, 4, 11, 9), 4, 3, pads=(1, 1, 1, 1), group=4),
    "5x5, stride 3": conv((1, 2, 16, 8), 2, 5, pads=(2, 2, 2, 2), strides=(3, 1)),
    "1x1, stride 2": conv((1, 3, 12, 8), 4, 1, strides=(2, 2)),
    "in time": ("conv", ((2, 3, 29), (4, 3, 5)), {"pads": (2, 2), "strides": (2,)}),
    "largest": ("max_pool", ((2, 3, 12, 9),), {"kernel": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1)}),
    "mean": ("average_pool", ((1, 3, 12, 9),), {"kernel": (3, 3), "pads": (1, 1, 1, 1)}),
    "sum": ("add", ((2, 3, 8, 5), (2, 3, 8, 5)), {}),
    "one row for all": ("add", ((2, 3, 8, 5), (1, 3, 1, 5)), {}),
}


def made(name: str) -> tuple[Operations, Operation, dict[str, Array]]:
    kind, shapes, attrs = CASES[name]
    operations = Operations(OPS)
    operation = operations.define(kind, tuple(map(TensorType, shapes)), attributes(**attrs))  # type: ignore[arg-type]
    rng = np.random.default_rng(3)
    named = ((n, rng.standard_normal(t.shape).astype(np.float32)) for n, t in operation.expr.inputs)
    return operations, operation, dict(named)


def boxes(shape: Shape) -> list[Box]:
    """All of it, its edges, and what lies inside."""
    rows = shape[2]
    spans = {(0, rows), (0, 1), (rows - 1, rows), (rows // 3, rows // 3 + 2), (1, rows - 1), (rows // 2, rows // 2 + 1)}
    images = {(0, shape[0]), (shape[0] - 1, shape[0])}
    found = []
    for low, high in sorted(s for s in spans if 0 <= s[0] < s[1] <= rows):
        for some in sorted(images):
            box = list(full_box(shape))
            box[0], box[2] = some, (low, high)
            found.append(tuple(box))
    return found


def cut(array: Array, box: Box) -> Array:
    return array[tuple(slice(*span) for span in box)]


@pytest.mark.parametrize("name", sorted(CASES))
def test_a_part_is_a_part_of_the_whole(name: str) -> None:
    """Bit by bit; of its operands it has the boxes, or those of rank 4 as a whole."""
    operations, operation, values = made(name)
    (want,) = evaluate_expr(operation.expr, values)
    for box in boxes(operation.outputs[0].shape):
        found = needs(operation.expr, box, DIMS)
        assert found is not None
        (first, *others) = [n for n, _ in operation.expr.inputs]
        for kept in ({first, *others}, {first}, set()):
            given = {n: cut(v, found[n]) if n in kept else v for n, v in values.items()}
            kinds = [TensorType(given[n].shape) for n, _ in operation.expr.inputs]
            output = TensorType(tuple(high - low for low, high in box))
            (got,) = evaluate_expr(part(operations, operation, found, kinds, output).expr, given)
            np.testing.assert_array_equal(got, cut(want, box))


@pytest.mark.parametrize("name", sorted(CASES))
def test_what_is_needed_is_exactly_what_matters(name: str) -> None:
    """Rows and images at the edges of a box change the part, those beside it do not."""
    _, operation, values = made(name)
    expr = operation.expr
    for box in boxes(operation.outputs[0].shape):
        found = needs(expr, box, DIMS)
        assert found is not None
        (before,) = evaluate_expr(expr, values)
        for tensor, value in values.items():
            if tensor == "w":  # which is read as a whole, though for some rows zeros beside the edge meet its first
                continue
            for dim in (d for d in DIMS if d < value.ndim):
                low, high = found[tensor][dim]
                for at in {low, high - 1} | {at for at in (low - 1, high) if 0 <= at < value.shape[dim]}:
                    changed = value.copy()
                    np.moveaxis(changed, dim, 0)[at] += 100
                    (after,) = evaluate_expr(expr, values | {tensor: changed})
                    differs = bool((cut(after, box) != cut(before, box)).any())
                    assert differs == (low <= at < high), (tensor, dim, at, box)


def test_inner_parts_are_one_operation() -> None:
    """Parts of equal sizes that lie alike are the same operation, and share their rKernels: all but the edges."""
    operations, operation, _ = made("3x3")
    found = set()
    for low in range(11):
        box = ((0, 2), (0, 4), (low, low + 1), (0, 9))
        boxes = needs(operation.expr, box, DIMS)
        assert boxes is not None
        x = TensorType(tuple(high - low for low, high in boxes["x"]))
        found.add(part(operations, operation, boxes, [x, operation.inputs[1]], TensorType((2, 4, 1, 9))))
    assert len(found) == 3


def test_what_cannot_be_cut() -> None:
    """An update, and a part for which an operand is not read at all."""
    operations = Operations(OPS)
    padded = operations.define("conv", (TensorType((1, 1, 2, 2)), TensorType((1, 1, 1, 1))), attributes(pads=(2,) * 4))
    assert needs(padded.expr, ((0, 1), (0, 1), (0, 1), (0, 6)), DIMS) is None
    assert needs(padded.expr, ((0, 1), (0, 1), (0, 3), (0, 6)), DIMS) is not None
