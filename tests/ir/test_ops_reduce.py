"""Reductions and normalizations against NumPy and ONNX's reference."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from op_cases import evaluate, express, onnx_reference

from rammer.errors import TypeMismatch
from rammer.ir.ops import OPS
from rammer.ir.tensor import DType, TensorType

RNG = np.random.default_rng(13)
X = RNG.normal(size=(3, 4, 5)).astype("f")
FUNCTIONS = {
    "sum": lambda x, **o: x.sum(**o),
    "mean": lambda x, **o: x.mean(**o),
    "max": lambda x, **o: x.max(**o),
    "min": lambda x, **o: x.min(**o),
    "prod": lambda x, **o: x.prod(**o),
    "sum_square": lambda x, **o: (x * x).sum(**o),
    "l1": lambda x, **o: np.abs(x).sum(**o),
    "l2": lambda x, **o: np.sqrt((x * x).sum(**o)),
    "log_sum": lambda x, **o: np.log(x.sum(**o)),
    "log_sum_exp": lambda x, **o: np.log(np.exp(x).sum(**o)),
}


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axes", [(0,), (1,), (-1,), (0, 2), (2, -3), (0, 1, 2), ()])
@pytest.mark.parametrize("fn", FUNCTIONS)
def test_reductions_are_numpys(fn: str, axes: tuple[int, ...], keepdims: bool) -> None:
    x = np.abs(X) if fn == "log_sum" else X
    expected = FUNCTIONS[fn](x.astype("d"), axis=axes, keepdims=keepdims)
    np.testing.assert_allclose(evaluate("reduce", x, fn=fn, axes=axes, keepdims=keepdims), expected, rtol=1e-5)


@pytest.mark.parametrize("dtype", ["i1", "u1", "i4", "i8"])
def test_integer_reductions_are_exact_and_wrap(dtype: str) -> None:
    x = RNG.integers(0, 100, (4, 7)).astype(dtype)
    for fn in ("sum", "max", "min", "prod", "sum_square", "l1"):
        with np.errstate(all="ignore"):
            wide = FUNCTIONS[fn](x.astype("i8") if fn not in ("prod",) else x, axis=1)
        np.testing.assert_array_equal(evaluate("reduce", x, fn=fn, axes=(1,), keepdims=False), wide.astype(dtype))
    big = np.array([2**62 + 1, 7, -3], "i8")
    assert evaluate("reduce", big, fn="sum", axes=(0,), keepdims=False) == 2**62 + 5
    mean = evaluate("reduce", np.array([-7, 0], "i4"), fn="mean", axes=(0,), keepdims=False)
    assert mean == -3


def test_boolean_extremes_are_any_and_all() -> None:
    x = RNG.random((5, 3)) < 0.5
    np.testing.assert_array_equal(evaluate("reduce", x, fn="max", axes=(1,), keepdims=False), x.any(1))
    np.testing.assert_array_equal(evaluate("reduce", x, fn="min", axes=(1,), keepdims=False), x.all(1))


def test_empty_reductions_give_the_identity() -> None:
    x = np.zeros((2, 0), "f")
    for fn, expected in (("sum", 0), ("prod", 1), ("max", -np.inf), ("min", np.inf), ("log_sum_exp", -np.inf)):
        np.testing.assert_array_equal(
            evaluate("reduce", x, fn=fn, axes=(1,), keepdims=False), np.full(2, expected, "f")
        )
    assert np.isnan(evaluate("reduce", x, fn="mean", axes=(1,), keepdims=False)).all()
    assert evaluate("reduce", np.zeros((2, 0), "i1"), fn="max", axes=(1,), keepdims=False).tolist() == [-128, -128]
    assert evaluate("reduce", np.zeros((0, 3), "f"), fn="sum", axes=(1,), keepdims=False).shape == (0,)


def test_log_sum_exp_does_not_overflow() -> None:
    x = np.array([[1000, 1000], [-np.inf, -np.inf], [np.inf, 1], [-1000, -1001]], "f")
    expected = np.logaddexp(x[:, 0].astype("d"), x[:, 1].astype("d"))
    np.testing.assert_allclose(evaluate("reduce", x, fn="log_sum_exp", axes=(1,), keepdims=False), expected, rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_half_sums_are_held_in_float32(dtype: Any) -> None:
    x = np.full((1, 4096), 1, dtype)
    assert evaluate("reduce", x, fn="sum", axes=(1,)).item() == 4096
    y = RNG.normal(size=(6, 50)).astype(dtype)
    mean = evaluate("reduce", y, fn="mean", axes=(1,), keepdims=False)
    np.testing.assert_allclose(mean.astype("d"), y.astype("d").mean(1), rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize(("kind", "op"), [("arg_max", "ArgMax"), ("arg_min", "ArgMin")])
def test_arg_extremes_agree_with_onnx(kind: str, op: str, axis: int, keepdims: bool, last: bool) -> None:
    x = RNG.integers(-2, 3, (3, 4, 5)).astype("f")
    theirs = onnx_reference(op, x, axis=axis, keepdims=int(keepdims), select_last_index=int(last))
    result = evaluate(kind, x, axis=axis, keepdims=keepdims, select_last_index=last)
    np.testing.assert_array_equal(result, theirs)
    np.testing.assert_array_equal(
        evaluate(kind, x.astype("i1"), axis=axis, keepdims=keepdims, select_last_index=last), theirs
    )


def test_arg_extremes_choose_nan_as_numpy_does() -> None:
    x = np.array([[1, np.nan, 3, np.nan], [-np.inf] * 4], "f")
    np.testing.assert_array_equal(evaluate("arg_max", x, axis=1, keepdims=False), np.argmax(x, 1))
    np.testing.assert_array_equal(evaluate("arg_min", x, axis=1, keepdims=False), np.argmin(x, 1))


@pytest.mark.parametrize("largest", [False, True])
@pytest.mark.parametrize("dtype", ["f4", "f8", "i8", "u1"])
def test_ranks_and_their_order_are_a_stable_sort(dtype: str, largest: bool) -> None:
    x = RNG.integers(0, 20, (3, 50)).astype(dtype)
    wanted = np.argsort(-x.astype("f8") if largest else x, axis=-1, kind="stable")
    ranks = evaluate("rank", x, largest=largest)
    np.testing.assert_array_equal(ranks, np.argsort(wanted, axis=-1))
    np.testing.assert_array_equal(evaluate("order", ranks, count=13), wanted[:, :13])


@pytest.mark.parametrize("dtype", ["f4", "i8"])
def test_exchanges_put_the_smaller_of_each_pair_first_one_axis_after_the_other(dtype: str) -> None:
    x = RNG.integers(-9, 9, (3, 2, 2, 2, 5)).astype(dtype)
    np.testing.assert_array_equal(evaluate("exchange", x, steps=3), np.sort(np.sort(np.sort(x, 1), 2), 3))


@pytest.mark.parametrize("dtype", ["f4", "i8"])
def test_merges_sort_columns_of_columns(dtype: str) -> None:
    x = RNG.integers(-9, 9, (3, 1, 40)).astype(dtype)
    eights = evaluate("merge", x, steps=3, levels=3).reshape(3, 8, 5)
    np.testing.assert_array_equal(eights, np.sort(x.reshape(3, 8, 5), 1))


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("steps", [2, 3, 4])
def test_a_merge_and_the_exchanges_after_it_sort_pairs_of_columns(steps: int, keep: bool) -> None:
    x = np.sort(RNG.integers(-99, 99, (3, 8, 10)), 1)
    first = evaluate("merge", x, steps=steps, keep=keep)
    rest = 8 >> (steps - 1)
    assert first.shape == (3, *(2,) * (steps - keep), rest, 5)
    if rest > 1:
        pairs = first.reshape(-1, *(2,) * (4 - steps), 5)
        first = evaluate("exchange", pairs, steps=4 - steps)
    wanted = np.sort(np.concatenate([x[:, :, :5], x[:, :, 5:]], 1), 1)
    np.testing.assert_array_equal(first.reshape(3, -1, 5), wanted[:, :8] if keep else wanted)


@pytest.mark.parametrize("shape", [(3, 4, 5), (2, 1), (7,), (0, 3), (3, 0)])
@pytest.mark.parametrize("axis", [0, -1])
@pytest.mark.parametrize("kind", ["softmax", "log_softmax"])
def test_softmax(kind: str, axis: int, shape: tuple[int, ...]) -> None:
    x = RNG.normal(size=shape).astype("f") * 50 + 1000
    wide = x.astype("d")
    shifted = wide - wide.max(axis=axis, keepdims=True, initial=-1e30)
    total = np.exp(shifted).sum(axis=axis, keepdims=True)
    with np.errstate(divide="ignore"):
        expected = np.exp(shifted) / total if kind == "softmax" else shifted - np.log(total)
    np.testing.assert_allclose(evaluate(kind, x, axis=axis), expected, rtol=1e-5, atol=1e-6)


def test_half_softmax_rows_sum_to_one() -> None:
    x = RNG.normal(size=(4, 300)).astype("e")
    result = evaluate("softmax", x).astype("d")
    np.testing.assert_allclose(result.sum(1), 1, atol=2e-3)
    assert all(s.dtype is DType.F32 for s in express("softmax", TensorType((4, 3), DType.F16)).stages[:-1])


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_layer_norm_agrees_with_onnx(axis: int, bias: bool) -> None:
    shape = X.shape[axis:]
    scale, shift = RNG.normal(size=(2, *shape)).astype("f")
    arrays = [X, scale] + ([shift] if bias else [])
    theirs = onnx_reference("LayerNormalization", *arrays, axis=axis, epsilon=1e-3)
    np.testing.assert_allclose(evaluate("layer_norm", *arrays, axis=axis, epsilon=1e-3), theirs, rtol=1e-4, atol=1e-5)


def test_layer_norm_keeps_its_precision_far_from_zero_and_broadcasts_scale() -> None:
    x = X + np.float32(1000)
    wide = x.astype("d")
    expected = (wide - wide.mean(-1, keepdims=True)) / np.sqrt(wide.var(-1, keepdims=True) + 1e-5) * 2
    np.testing.assert_allclose(evaluate("layer_norm", x, np.array([2], "f")), expected, rtol=1e-2, atol=1e-3)


F = TensorType
BAD: list[tuple[str, tuple[TensorType, ...], dict[str, Any]]] = [
    ("reduce", (F((2, 3)),), {"fn": "median", "axes": (0,)}),
    ("reduce", (F((2, 3)),), {"fn": "sum", "axes": (2,)}),
    ("reduce", (F((2, 3)),), {"fn": "sum", "axes": (1, -1)}),
    ("reduce", (F((2, 3), DType.BOOL),), {"fn": "sum", "axes": (1,)}),
    ("reduce", (F((2, 3), DType.I32),), {"fn": "l2", "axes": (1,)}),
    ("arg_max", (F((2, 0)),), {"axis": 1}),
    ("arg_max", (F((2, 3)),), {"axis": -3}),
    ("rank", (F(()),), {}),
    ("rank", (F((3,), DType.BOOL),), {}),
    ("exchange", (F((3, 2, 4)),), {"steps": 0}),
    ("exchange", (F((3, 2, 3, 4)),), {"steps": 2}),
    ("exchange", (F((1, *(2,) * 5, 1)),), {"steps": 5}),
    ("merge", (F((3, 4, 7)),), {"steps": 1}),
    ("merge", (F((3, 4, 8), DType.BOOL),), {"steps": 1}),
    ("merge", (F((3, 4, 8)),), {"steps": 5}),
    ("merge", (F((3, 4, 8)),), {"steps": 4}),
    ("merge", (F((3, 6, 8)),), {"steps": 3}),
    ("merge", (F((3, 4, 8)),), {"steps": 1, "keep": True}),
    ("merge", (F((3, 4, 8)),), {"steps": 2, "levels": 2}),
    ("merge", (F((3, 1, 8)),), {"steps": 3, "levels": 2}),
    ("merge", (F((3, 1, 12)),), {"steps": 3, "levels": 3}),
    ("merge", (F((3, 1, 8)),), {"steps": 1, "levels": 0}),
    ("order", (F((3,)),), {"count": 1}),
    ("order", (F((3,), DType.I32),), {"count": 4}),
    ("order", (F((3,), DType.I32),), {"count": 0}),
    ("softmax", (F(()),), {}),
    ("softmax", (F((2,), DType.I32),), {}),
    ("log_softmax", (F((2,)),), {"axis": 1}),
    ("layer_norm", (F((2, 3)), F((2,))), {}),
    ("layer_norm", (F((2, 3)), F((3,))), {"stats": True}),
]


@pytest.mark.parametrize(("kind", "types", "attrs"), BAD)
def test_wrong_operands_are_refused_with_their_types(
    kind: str, types: tuple[TensorType, ...], attrs: dict[str, Any]
) -> None:
    with pytest.raises(TypeMismatch, match=kind) as caught:
        OPS[kind].express(*types, **attrs)
    assert "hint" in str(caught.value)
