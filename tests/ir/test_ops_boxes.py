"""The evaluation of expressions piece by piece: boxes of the root, cut boxes, and shared stages."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from op_cases import evaluate as evaluate_op
from op_cases import express

from rammer.ir.expr import TensorExpr
from rammer.ir.operator import Operations, attributes
from rammer.ir.ops import OPS
from rammer.ir.semantics import evaluate
from rammer.ir.semantics.evaluate import evaluate_box, evaluate_expr
from rammer.ir.tensor import Array, DType, TensorType

F = TensorType
CASES: list[tuple[str, tuple[TensorType, ...], dict[str, Any]]] = [
    ("add", (F((3, 4, 5)), F((4, 1))), {}),
    ("matmul", (F((2, 3, 7)), F((7, 5))), {}),
    ("matmul", (F((2, 3, 7), DType.F16), F((2, 7, 5), DType.F16)), {}),
    ("matmul", (F((3, 7), DType.I32), F((7, 5), DType.I32)), {}),
    ("conv", (F((2, 4, 6, 7)), F((5, 4, 3, 3)), F((5,))), {"pads": (1, 0, 1, 2)}),
    ("conv", (F((1, 6, 6, 7)), F((6, 2, 3, 3))), {"pads": (1, 1, 1, 1), "group": 3, "strides": (2, 1)}),
    ("conv", (F((1, 6, 6, 7)), F((6, 1, 3, 3))), {"pads": (1, 1, 1, 1), "group": 6}),
    ("max_pool", (F((1, 3, 7, 8)),), {"kernel": (3, 2), "strides": (2, 1), "pads": (1, 1, 1, 1), "indices": True}),
    ("average_pool", (F((1, 3, 7, 8)),), {"kernel": (3, 2), "strides": (2, 1), "pads": (1, 1, 1, 1)}),
    ("lrn", (F((1, 6, 4, 4)),), {"size": 3}),
    ("reduce", (F((4, 5, 6)),), {"fn": "log_sum_exp", "axes": (1,), "keepdims": True}),
    ("arg_max", (F((4, 5, 6)),), {"axis": 1}),
    ("rank", (F((4, 5, 6)),), {}),
    ("exchange", (F((4, 2, 2, 5)),), {"steps": 2}),
    ("merge", (F((4, 6, 10)),), {"steps": 2}),
    ("merge", (F((4, 8, 6)),), {"steps": 3, "keep": True}),
    ("merge", (F((4, 1, 12)),), {"steps": 2, "levels": 2}),
    ("order", (F((4, 7), DType.I32),), {"count": 3}),
    ("last_equal", (F((4, 7), DType.I32),), {"count": 9}),
    ("descend", (F((4, 5)), F((4, 3), DType.I32), F((6, 4), DType.I32), F((6,))), {"missing": True}),
    ("softmax", (F((6, 9)),), {}),
    ("log_softmax", (F((6, 9)),), {"axis": 0}),
    ("layer_norm", (F((4, 5, 6)), F((5, 6)), F((5, 6))), {"axis": 1}),
    ("transpose", (F((4, 5, 6)),), {"perm": (1, 2, 0)}),
    ("reshape", (F((4, 5, 6)),), {"shape": (8, 15)}),
    ("concat", (F((4, 5)), F((4, 2)), F((4, 3))), {"axis": 1}),
    ("pad", (F((4, 5)),), {"pads": (1, 2, 3, 0), "mode": "reflect"}),
    ("gather", (F((4, 5)), F((3, 2), DType.I64)), {"axis": 1}),
    ("lstm_cell", (F((2, 4, 6)), F((2, 6)), F((2, 6)), F((4, 6, 6))), {}),
    ("gru_cell", (F((2, 3, 6)), F((2, 6)), F((3, 6, 6))), {}),
]


def arrays_for(expr: TensorExpr) -> dict[str, Array]:
    rng = np.random.default_rng(3)
    return {
        n: (rng.normal(size=t.shape) * 2).astype(t.dtype.numpy)
        if t.dtype.is_float
        else rng.integers(-2, 3, t.shape).astype(t.dtype.numpy)
        for n, t in expr.inputs
    }


def agree(left: list[Array], right: list[Array]) -> None:
    for a, b in zip(left, right, strict=True):
        np.testing.assert_allclose(a.astype("d"), b.astype("d"), rtol=1e-3 if a.itemsize == 2 else 1e-6, atol=1e-6)


@pytest.mark.parametrize(("kind", "types", "attrs"), CASES)
def test_boxes_are_parts_of_the_whole(kind: str, types: tuple[TensorType, ...], attrs: dict[str, Any]) -> None:
    expr = express(kind, *types, **attrs)
    inputs = arrays_for(expr)
    whole = evaluate_expr(expr, inputs)
    cuts = [sorted({(0, (e + 1) // 2), ((e + 1) // 2, e)}) for _, e in expr.root.axes]
    for ranges in product(*cuts):
        box = dict(zip((a for a, _ in expr.root.axes), ranges, strict=True))
        part = evaluate_box(expr, inputs, box)
        agree(part, [w[tuple(slice(*r) for r in ranges)] for w in whole])


@pytest.mark.parametrize(("kind", "types", "attrs"), CASES)
def test_large_boxes_are_cut_without_a_change(
    kind: str, types: tuple[TensorType, ...], attrs: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    expr = express(kind, *types, **attrs)
    inputs = arrays_for(expr)
    whole = evaluate_expr(expr, inputs)
    monkeypatch.setattr(evaluate, "MAX_POINTS", 16)
    agree(evaluate_expr(expr, inputs), whole)


def test_inputs_are_never_written_nor_returned() -> None:
    expr = express("reshape", TensorType((2, 3), DType.F64), shape=(6,))
    x = np.arange(6, dtype="d").reshape(2, 3)
    (out,) = evaluate_expr(expr, {"x": x})
    assert not np.shares_memory(out, x)


def test_nan_in_one_element_reaches_only_its_readers() -> None:
    expr = express("conv", TensorType((1, 2, 6, 6)), TensorType((3, 2, 3, 3)), pads=(1, 1, 1, 1))
    inputs = arrays_for(expr)
    inputs["x"][0, 1, 2, 4] = np.nan
    (out,) = evaluate_expr(expr, inputs)
    expected = np.zeros((6, 6), "?")
    expected[1:4, 3:6] = True
    assert (np.isnan(out[0]) == expected).all()


@pytest.mark.parametrize(("kind", "types", "attrs"), CASES)
def test_operations_are_interned(kind: str, types: tuple[TensorType, ...], attrs: dict[str, Any]) -> None:
    operations = Operations(OPS)
    assert operations.define(kind, types, attributes(**attrs)) is operations.define(kind, types, attributes(**attrs))


def test_the_table_is_complete_and_read_only() -> None:
    assert all(name == definition.name for name, definition in OPS.items())
    with pytest.raises(TypeError):
        OPS["x"] = OPS["add"]  # type: ignore[index]


_LOGIC = ("and", "or", "xor", "equal", "less", "less_equal", "greater", "greater_equal")
_BITS = ("bit_and", "bit_or", "bit_xor", "shift_left", "shift_right")
_BINARY = ("add", "mul", "max", "min", "sub", "div", "fmod", "pow", "mod", "prelu", *_LOGIC, *_BITS)
ARITY = {"where": 3} | dict.fromkeys(_BINARY, 2)
BROADCAST_ATTRS: dict[str, dict[str, Any]] = {
    "clip": {"low": -0.5, "high": 0.5},
    "cast": {"dtype": DType.I32},
    "bit_cast": {"dtype": DType.I32},
}


@pytest.mark.parametrize("kind", [n for n, d in OPS.items() if d.broadcasts])
def test_what_broadcasts_may_be_computed_on_reshaped_operands(kind: str) -> None:
    """As passes do it that cut the last axis in gates: f(reshaped x, reshaped y) is f(x, y) reshaped."""
    random = np.random.default_rng(len(kind))
    shapes = [(5, 12), (12,), (1, 12)][: ARITY.get(kind, 1)]
    arrays = [np.asarray(random.standard_normal(s) * 3, np.float32) for s in shapes]
    if kind in ("and", "or", "xor", "not"):
        arrays = [a > 0 for a in arrays]
    elif kind in ("mod", "bit_not", *_BITS):
        arrays = [np.abs(a).astype(np.int32) + 1 for a in arrays]
    elif kind == "where":
        arrays[0] = arrays[0] > 0
    elif kind in ("sqrt", "log", "pow"):
        arrays = [np.abs(a) for a in arrays]
    attrs = BROADCAST_ATTRS.get(kind, {})
    whole = evaluate_op(kind, *arrays, **attrs)
    cut = evaluate_op(kind, *(a.reshape(*a.shape[:-1], 3, 4) for a in arrays), **attrs)
    np.testing.assert_array_equal(cut.reshape(whole.shape), whole)
