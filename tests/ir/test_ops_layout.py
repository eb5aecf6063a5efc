"""Operators that move elements, against NumPy and ONNX's reference."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from op_cases import evaluate, express, onnx_reference

from rammer.errors import InputError, TypeMismatch
from rammer.ir.expr import Load
from rammer.ir.index import Div, Index, Mod
from rammer.ir.ops import OPS
from rammer.ir.tensor import DType, TensorType


def numbered(*shape: int, dtype: str = "f") -> np.ndarray:
    return np.arange(prod(shape)).reshape(shape).astype(dtype)


@pytest.mark.parametrize("perm", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
@pytest.mark.parametrize("dtype", ["f", "i1", "?"])
def test_transpose(perm: tuple[int, ...], dtype: str) -> None:
    x = numbered(2, 3, 4, dtype=dtype)
    np.testing.assert_array_equal(evaluate("transpose", x, perm=perm), x.transpose(perm))
    np.testing.assert_array_equal(evaluate("transpose", np.array(3, "f"), perm=()), 3)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ((2, 3, 4), (6, 4)),
        ((2, 3, 4), (24,)),
        ((6, 4), (2, 3, 2, 2)),
        ((6, 4), (8, 3)),
        ((1, 6), (6, 1, 1)),
        ((), (1, 1)),
        ((1,), ()),
        ((0, 3), (3, 0, 2)),
        ((5, 7), (7, 5)),
    ],
)
def test_reshape(old: tuple[int, ...], new: tuple[int, ...]) -> None:
    x = numbered(*old)
    np.testing.assert_array_equal(evaluate("reshape", x, shape=new), x.reshape(new))


def test_reshape_that_only_splits_or_inserts_has_affine_indices() -> None:
    for old, new in (((6, 4), (2, 3, 4)), ((1, 6), (6, 1)), ((4, 1, 5), (4, 5))):
        body = express("reshape", TensorType(old), shape=new).root.body
        assert isinstance(body, Load)
        assert not any(isinstance(a, Div | Mod) for i in body.index for a, _ in i.terms), (old, new)


@given(st.data())
@settings(max_examples=50)
def test_slices_are_numpys(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=3)))
    x = numbered(*shape)
    cut = tuple(
        slice(*data.draw(st.tuples(*(st.none() | st.integers(-7, 7),) * 2)), data.draw(st.sampled_from((1, 2, -1, -3))))
        for _ in shape
    )
    ranges = [range(*c.indices(e)) for c, e in zip(cut, shape, strict=True)]
    result = evaluate(
        "slice",
        x,
        starts=tuple(r.start for r in ranges),
        steps=tuple(r.step for r in ranges),
        shape=tuple(map(len, ranges)),
    )
    np.testing.assert_array_equal(result, x[cut])


@pytest.mark.parametrize("sizes", [(2, 3), (1,), (0, 2), (2, 0), (0, 0), (1, 2, 3, 1, 2), (1,) * 40])
@pytest.mark.parametrize("axis", [0, -1])
def test_concat(sizes: tuple[int, ...], axis: int) -> None:
    xs = [numbered(*((s, 3) if axis == 0 else (3, s))) + 100 * n for n, s in enumerate(sizes)]
    np.testing.assert_array_equal(evaluate("concat", *xs, axis=axis), np.concatenate(xs, axis))


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
@pytest.mark.parametrize(
    "pads", [(0, 0, 0, 0), (1, 2, 0, 1), (0, 3, 2, 0), (7, 9, 8, 6), (-1, 0, 0, -2), (-1, 2, 1, -1)]
)
def test_pad(mode: str, pads: tuple[int, ...]) -> None:
    x = numbered(4, 5)
    rows, columns = (slice(max(-b, 0), n - max(-e, 0)) for b, e, n in zip(pads[:2], pads[2:], x.shape, strict=True))
    grow = [(max(b, 0), max(e, 0)) for b, e in zip(pads[:2], pads[2:], strict=True)]
    options: dict[str, Any] = {"constant_values": 7} if mode == "constant" else {}
    expected = np.pad(x[rows, columns], grow, mode=mode, **options)  # type: ignore[call-overload]
    np.testing.assert_array_equal(evaluate("pad", x, pads=pads, mode=mode, value=7), expected)


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
@pytest.mark.parametrize("extent", [1, 2, 3])
def test_pad_of_short_rows(mode: str, extent: int) -> None:
    x = numbered(extent, dtype="i4")
    np.testing.assert_array_equal(evaluate("pad", x, pads=(3, 4), mode=mode), np.pad(x, (3, 4), mode=mode))  # type: ignore[call-overload]


def test_pad_of_nothing_and_of_bool() -> None:
    np.testing.assert_array_equal(evaluate("pad", np.zeros((0,), "f"), pads=(1, 2), value=3), [3, 3, 3])
    np.testing.assert_array_equal(evaluate("pad", np.zeros(1, "?"), pads=(0, 1), value=1), [False, True])
    np.testing.assert_array_equal(evaluate("pad", np.array(2, "f"), pads=()), 2)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("index", [(), (2,), (2, 3), (0,)])
@pytest.mark.parametrize("dtype", ["i4", "i8"])
def test_gather_agrees_with_onnx(axis: int, index: tuple[int, ...], dtype: str) -> None:
    x = numbered(3, 4, 5)
    idx = np.random.default_rng(5).integers(-x.shape[axis], x.shape[axis], index).astype(dtype)
    np.testing.assert_array_equal(evaluate("gather", x, idx, axis=axis), onnx_reference("Gather", x, idx, axis=axis))


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("index", [(3, 4, 5), (2, 1, 3), (1, 4, 0)])
@pytest.mark.parametrize("dtype", ["i4", "i8"])
def test_gather_elements_takes_along_an_axis(axis: int, index: tuple[int, ...], dtype: str) -> None:
    x = numbered(3, 4, 5)
    idx = np.random.default_rng(5).integers(-x.shape[axis], x.shape[axis], index).astype(dtype)
    part = x[tuple(slice(None) if d == axis % 3 else slice(e) for d, e in enumerate(index))]
    wanted = np.take_along_axis(part, idx.astype(np.int64), axis)
    np.testing.assert_array_equal(evaluate("gather_elements", x, idx, axis=axis), wanted)


@pytest.mark.parametrize("batch", [0, 1, 2])
@pytest.mark.parametrize("index", [(3, 4, 1), (3, 4, 6, 1), (3, 2), (3, 4, 2), (4,)])
def test_gather_nd_agrees_with_onnx(batch: int, index: tuple[int, ...]) -> None:
    x = numbered(3, 4, 5, 6)
    if len(index) <= batch or index[:batch] != x.shape[:batch] or index[-1] > x.ndim - batch:
        with pytest.raises(TypeMismatch, match="gather_nd"):
            evaluate("gather_nd", x, np.zeros(index, "i8"), batch_dims=batch)
        return
    idx = np.random.default_rng(5).integers(-3, 3, index)
    wanted = onnx_reference("GatherND", x, idx, batch_dims=batch)
    np.testing.assert_array_equal(evaluate("gather_nd", x, idx, batch_dims=batch), wanted)


@pytest.mark.parametrize("index", [4, -5, 10**9])
def test_gather_outside_the_tensor_is_an_error(index: int) -> None:
    for kind, places in (("gather", [0, index]), ("gather_elements", [0, index]), ("gather_nd", [[0], [index]])):
        with pytest.raises(InputError, match="outside"):
            evaluate(kind, numbered(4), np.array(places), **{} if kind == "gather_nd" else {"axis": 0})


@pytest.mark.parametrize(
    ("old", "new"), [((3, 1), (3, 4)), ((3, 1), (2, 1, 6)), ((3,), (2, 1)), ((), (2, 2)), ((1, 3), (0, 3)), ((2,), ())]
)
def test_expand_broadcasts_both_ways(old: tuple[int, ...], new: tuple[int, ...]) -> None:
    x = numbered(*old)
    np.testing.assert_array_equal(evaluate("expand", x, shape=new), x * np.ones(new, "f"))


def test_moves_of_empty_tensors() -> None:
    x = np.zeros((2, 0, 3), "f")
    assert evaluate("transpose", x, perm=(2, 0, 1)).shape == (3, 2, 0)
    assert evaluate("slice", x, starts=(1, 0, 2), steps=(1, 1, -1), shape=(1, 0, 3)).shape == (1, 0, 3)
    assert evaluate("gather", x, np.array([1]), axis=0).shape == (1, 0, 3)
    assert evaluate("gather", np.zeros((0, 2), "f"), np.zeros((0,), "i8")).shape == (0, 2)


def test_an_unchanged_dimension_is_read_at_its_own_place() -> None:
    (body,) = (express("slice", TensorType((1, 8)), starts=(0, 2), steps=(1, 2), shape=(1, 3)).root.body,)
    assert isinstance(body, Load)
    assert body.index == (Index(0, (("a0", 1),)), Index(2, (("a1", 2),)))


F = TensorType
BAD: list[tuple[str, tuple[TensorType, ...], dict[str, Any]]] = [
    ("transpose", (F((2, 3)),), {"perm": (0, 0)}),
    ("transpose", (F((2, 3)),), {"perm": (0,)}),
    ("reshape", (F((2, 3)),), {"shape": (4,)}),
    ("reshape", (F((2, 3)),), {"shape": (-2, -3)}),
    ("slice", (F((4,)),), {"starts": (2,), "steps": (1,), "shape": (3,)}),
    ("slice", (F((4,)),), {"starts": (0,), "steps": (0,), "shape": (1,)}),
    ("slice", (F((4,)),), {"starts": (0,), "steps": (-1,), "shape": (2,)}),
    ("slice", (F((4, 2)),), {"starts": (0,), "steps": (1,), "shape": (2,)}),
    ("concat", (F((2, 3)), F((2, 4))), {"axis": 0}),
    ("concat", (F((2, 3)), F((3,))), {"axis": 0}),
    ("concat", (F((0,)), F(())), {"axis": 0}),
    ("concat", (F((2, 3)), F((2, 3), DType.I8)), {"axis": 0}),
    ("concat", (F((2, 3)),), {"axis": 2}),
    ("concat", (), {"axis": 0}),
    ("pad", (F((2,)),), {"pads": (1,)}),
    ("pad", (F((2,)),), {"pads": (-3, 0)}),
    ("pad", (F((2,)),), {"pads": (1, 0), "mode": "mirror"}),
    ("pad", (F((0,)),), {"pads": (1, 0), "mode": "edge"}),
    ("pad", (F((2,)),), {"pads": (2**31, 0)}),
    ("gather", (F((2,)), F((2,))), {}),
    ("gather", (F((0,)), F((2,), DType.I64)), {}),
    ("gather", (F((3,)), F((2,), DType.I64)), {"axis": 1}),
    ("gather_elements", (F((3,)), F((2,))), {"axis": 0}),
    ("gather_elements", (F((3, 2)), F((2, 3), DType.I64)), {"axis": 0}),
    ("gather_elements", (F((0,)), F((2,), DType.I64)), {"axis": 0}),
    ("gather_nd", (F((3,)), F((2,))), {}),
    ("gather_nd", (F((0, 2)), F((2, 1), DType.I64)), {}),
    ("expand", (F((2,)),), {"shape": (3,)}),
    ("expand", (F((1,)),), {"shape": (2**20, 2**20)}),
]


@pytest.mark.parametrize(("kind", "types", "attrs"), BAD)
def test_wrong_operands_are_refused_with_their_types(
    kind: str, types: tuple[TensorType, ...], attrs: dict[str, Any]
) -> None:
    with pytest.raises(TypeMismatch, match=kind) as caught:
        OPS[kind].express(*types, **attrs)
    assert "hint" in str(caught.value)
