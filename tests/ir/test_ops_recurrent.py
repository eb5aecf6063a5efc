"""Recurrent cells against ONNX Runtime and formulas, and the probes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from op_cases import evaluate, express

from rammer.errors import TypeMismatch
from rammer.ir.ops import OPS
from rammer.ir.tensor import DType, TensorType

RNG = np.random.default_rng(17)
BATCH, FEATURES, HIDDEN = 3, 5, 4


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype("f")


def one_step(op: str, gates: int, extra: list[np.ndarray | None], **attrs: Any) -> tuple[dict[str, Any], list[Any]]:
    """Random weights, and ONNX Runtime's states after one step: (h,) or (h, c)."""
    data: dict[str, Any] = {
        "x": normal(1, BATCH, FEATURES),
        "w": normal(1, gates * HIDDEN, FEATURES),
        "r": normal(1, gates * HIDDEN, HIDDEN),
        "b": normal(1, 2 * gates * HIDDEN),
        "h": normal(1, BATCH, HIDDEN),
    }
    names = ["x", "w", "r", "b", "", "h"]
    for name, value in zip(("c", "p"), extra, strict=False):
        names.append(name if value is not None else "")
        if value is not None:
            data[name] = value
    outputs = ["", "hn"] + (["cn"] if op == "LSTM" else [])
    node = onnx.helper.make_node(op, names, outputs, hidden_size=HIDDEN, **attrs)
    infos = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, v.shape) for n, v in data.items()]
    outs = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, None) for n in outputs[1:]]
    graph = onnx.helper.make_graph([node], "one", infos, outs)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 14)], ir_version=8)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return data, [v[0] for v in session.run(None, data)]


@pytest.mark.parametrize("peepholes", [False, True])
@pytest.mark.parametrize("clip", [None, 0.7])
@pytest.mark.parametrize("activations", [("sigmoid", "tanh", "tanh"), ("hard_sigmoid", "softsign", "relu")])
@pytest.mark.parametrize("input_forget", [False, True])
def test_lstm_cell_agrees_with_onnxruntime(
    peepholes: bool, clip: float | None, activations: tuple[str, ...], input_forget: bool
) -> None:
    attrs: dict[str, Any] = {"activations": ["".join(w.title() for w in a.split("_")) for a in activations]}
    if clip is not None:
        attrs["clip"] = clip
    if input_forget:
        attrs["input_forget"] = 1
    extra = [normal(1, BATCH, HIDDEN), normal(1, 3 * HIDDEN) if peepholes else None]
    data, (h_new, c_new) = one_step("LSTM", 4, extra, **attrs)
    bias = data["b"].reshape(2, 4, HIDDEN).sum(0)
    gx = (data["x"][0] @ data["w"][0].T).reshape(BATCH, 4, HIDDEN) + bias
    arrays = [gx, data["h"][0], data["c"][0], data["r"].reshape(4, HIDDEN, HIDDEN)]
    if peepholes:
        arrays.append(data["p"].reshape(3, HIDDEN))
    c, h = evaluate("lstm_cell", *arrays, clip=clip, activations=activations, input_forget=input_forget)
    np.testing.assert_allclose(c, c_new, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(h, h_new, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("linear", [False, True])
@pytest.mark.parametrize("clip", [None, 0.7])
@pytest.mark.parametrize("activations", [("sigmoid", "tanh"), ("hard_sigmoid", "relu")])
def test_gru_cell_agrees_with_onnxruntime(linear: bool, clip: float | None, activations: tuple[str, ...]) -> None:
    attrs: dict[str, Any] = {"activations": ["".join(w.title() for w in a.split("_")) for a in activations]}
    if clip is not None:
        attrs["clip"] = clip
    data, (h_new,) = one_step("GRU", 3, [], linear_before_reset=int(linear), **attrs)
    wb, rb = data["b"].reshape(2, 3, HIDDEN)
    gx = (data["x"][0] @ data["w"][0].T).reshape(BATCH, 3, HIDDEN) + wb
    h = evaluate(
        "gru_cell",
        gx,
        data["h"][0],
        data["r"].reshape(3, HIDDEN, HIDDEN),
        rb,
        linear_before_reset=linear,
        clip=clip,
        activations=activations,
    )
    np.testing.assert_allclose(h, h_new, rtol=1e-4, atol=1e-5)


def test_activations_take_parameters() -> None:
    gx, h, r = normal(2, 3, 4), normal(2, 4), np.zeros((3, 4, 4), "f")
    result = evaluate("gru_cell", gx, h, r, activations=(("affine", 0.0, 0.25), ("scaled_tanh", 2.0, 3.0)))
    np.testing.assert_allclose(result, 0.75 * 2 * np.tanh(3 * gx[:, 2]) + 0.25 * h, rtol=1e-5)


def test_half_cells_hold_their_sums_in_float32() -> None:
    arrays = [normal(2, 4, 8), normal(2, 8), normal(2, 8), normal(4, 8, 8) / 8]
    c, h = evaluate("lstm_cell", *(a.astype("e") for a in arrays))
    c_wide, h_wide = evaluate("lstm_cell", *(a.astype("e").astype("f") for a in arrays))
    np.testing.assert_allclose(c.astype("f"), c_wide, atol=2e-3)
    np.testing.assert_allclose(h.astype("f"), h_wide, atol=2e-3)


@pytest.mark.parametrize("whole", [np.int8, np.int16, np.uint8])
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("kind", ["lstm_cell", "gru_cell"])
def test_matrices_of_whole_numbers_are_scaled_by_units(kind: str, late: bool, whole: Any) -> None:
    """With peepholes, or a bias, or without."""
    gates, states = (4, 2) if kind == "lstm_cell" else (3, 1)
    r, rs = RNG.integers(0, 128, (gates, 8, 8)).astype(whole), normal(gates, 8) / 100
    before, last = [normal(2, gates, 8), *(normal(2, 8) for _ in range(states))], [normal(3, 8)] * late
    attrs = {"linear_before_reset": late} if kind == "gru_cell" else {}
    for narrow, wide in zip(
        *(
            np.atleast_3d(evaluate(kind, *before, *matrix, *last, **attrs))
            for matrix in ((r, rs), (r * rs[..., None],))
        ),
        strict=True,
    ):
        np.testing.assert_allclose(narrow, wide, rtol=1e-5, atol=1e-6)


def test_the_new_hidden_state_is_the_root() -> None:
    types = [TensorType(s) for s in ((1, 4, 8), (1, 8), (1, 8), (4, 8, 8))]
    expr = express("lstm_cell", *types)
    assert [n for n, _ in expr.outputs] == ["c_new", "h_new"] and expr.root.name == "h_new"
    assert express("gru_cell", *(TensorType(s) for s in ((1, 3, 8), (1, 8), (3, 8, 8)))).root.name == "h_new"


def test_probes() -> None:
    np.testing.assert_array_equal(evaluate("probe_fill", shape=(2, 3), value=7), np.full((2, 3), 7, "f"))
    assert evaluate("probe_fill", shape=(), value=3, dtype=DType.I64).dtype == np.int64
    xs = [normal(4, 5) for _ in range(3)]
    np.testing.assert_allclose(evaluate("probe_sum", *xs), sum(xs), rtol=1e-6)
    for dtype in ("f", "d", "e"):
        x = normal(6).astype(dtype)
        np.testing.assert_array_equal(evaluate("probe_spin", x, rounds=1000), x)


F = TensorType
LSTM = (F((2, 4, 8)), F((2, 8)), F((2, 8)), F((4, 8, 8)))
GRU = (F((2, 3, 8)), F((2, 8)), F((3, 8, 8)))
BAD: list[tuple[str, tuple[TensorType, ...], dict[str, Any]]] = [
    ("lstm_cell", (*LSTM[:3], F((4, 8, 7))), {}),
    ("lstm_cell", (F((2, 3, 8)), *LSTM[1:]), {}),
    ("lstm_cell", (*LSTM, F((2, 8))), {}),
    ("lstm_cell", (LSTM[0], F((8,)), *LSTM[2:]), {}),
    ("lstm_cell", LSTM, {"activations": ("sigmoid", "tanh")}),
    ("lstm_cell", LSTM, {"activations": ("sigmoid", "tanh", "tahn")}),
    ("lstm_cell", (*LSTM[:3], F((4, 8, 8), DType.I8)), {}),
    ("lstm_cell", (*LSTM[:3], F((4, 8, 8), DType.I32), F((4, 8))), {}),
    ("gru_cell", (*GRU[:2], F((3, 8, 8), DType.I8), F((3, 8, 1))), {}),
    ("gru_cell", (*GRU, F((8,))), {}),
    ("gru_cell", (*GRU[:2], F((3, 8, 8), DType.F16)), {}),
    ("gru_cell", GRU, {"activations": ("sigmoid",)}),
    ("probe_sum", (), {}),
    ("probe_sum", (F((2,)), F((3,))), {}),
    ("probe_spin", (F((2,)),), {"rounds": 0}),
]


@pytest.mark.parametrize(("kind", "types", "attrs"), BAD)
def test_wrong_operands_are_refused_with_their_types(
    kind: str, types: tuple[TensorType, ...], attrs: dict[str, Any]
) -> None:
    with pytest.raises(TypeMismatch, match=kind) as caught:
        OPS[kind].express(*types, **attrs)
    assert "hint" in str(caught.value)
