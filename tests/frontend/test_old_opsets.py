"""Operators as opsets 1 to 6 had them, where the standard has since defined them anew."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from onnx_models import model, node

from rammer.errors import ModelError
from rammer.frontend.onnx import load
from rammer.ir.semantics.evaluate import evaluate_graph
from rammer.ir.tensor import Array

F32 = np.float32
RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((2, 3, 4, 5)).astype(F32)
C = RANDOM.standard_normal(3).astype(F32)
V = np.abs(RANDOM.standard_normal(3)).astype(F32)
PER_CHANNEL = C[:, None, None]
WINDOWS = np.lib.stride_tricks.sliding_window_view(X, (2, 2), (2, 3))  # type: ignore[call-overload]
BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
    "Greater": np.greater,
    "Less": np.less,
}
NORMAL = {"x": X, "s": C, "b": C + 1}
STEPS, UNITS = 5, 4
SEQUENCE = {"x": RANDOM.standard_normal((STEPS, 2, 3)).astype(F32)}


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def cells(gates: int) -> tuple[dict[str, Array], Array, Array, Array]:
    """Operands of a recurrent layer, and its weights by gate."""
    w, r = (RANDOM.standard_normal((1, gates * UNITS, n)).astype(F32) for n in (3, UNITS))
    b = RANDOM.standard_normal((1, 2 * gates * UNITS)).astype(F32)
    return (
        SEQUENCE | {"w": w, "r": r, "b": b},
        w.reshape(gates, UNITS, 3),
        r.reshape(gates, UNITS, UNITS),
        b.reshape(2, gates, UNITS),
    )


def recurrent(op: str) -> tuple[dict[str, Array], Array]:
    """Operands of a layer and its states of all steps."""
    operands, w, r, b = cells({"LSTM": 4, "GRU": 3, "RNN": 1}[op])
    h = c = np.zeros((2, UNITS), F32)
    states = []
    for x in SEQUENCE["x"]:
        if op == "LSTM":
            i, o, f, g = (x @ w[n].T + h @ r[n].T + b[:, n].sum(0) for n in range(4))
            c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
            h = sigmoid(o) * np.tanh(c)
        elif op == "GRU":
            z, t = (sigmoid(x @ w[n].T + h @ r[n].T + b[:, n].sum(0)) for n in range(2))
            h = (1 - z) * np.tanh(x @ w[2].T + (t * h) @ r[2].T + b[:, 2].sum(0)) + z * h
        else:
            h = np.tanh(x @ w[0].T + h @ r[0].T + b[:, 0].sum(0))
        states.append(h)
    return operands, np.stack(states)[:, None]


def imported(
    op: str, opset: int, given: Mapping[str, Array], known: tuple[str, ...], outputs: int, **attrs: Any
) -> Any:
    names = [f"y{n}" for n in range(outputs)]
    inputs = {name: (str(v.dtype), v.shape) for name, v in given.items() if name not in known}
    constants = {name: given[name] for name in known}
    return load(model([node(op, list(given), names, **attrs)], inputs, names, constants, opset))


def check(
    op: str, opset: int, given: Mapping[str, Array], *wanted: Array, known: tuple[str, ...] = (), **attrs: Any
) -> None:
    """`known` operands are constants."""
    graph = imported(op, opset, given, known, len(wanted), **attrs)
    found = evaluate_graph(graph, {name: v for name, v in given.items() if name not in known})
    for n, value in enumerate(wanted):
        assert found[f"y{n}"].shape == value.shape and found[f"y{n}"].dtype == value.dtype
        np.testing.assert_allclose(found[f"y{n}"], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("opset", [1, 6])
@pytest.mark.parametrize("op", BINARY)
def test_operands_are_broadcast_at_an_axis(op: str, opset: int) -> None:
    plane, middle = X[0, 0] + 3, X[0, :, :, 0] + 3
    fn = BINARY[op]
    check(op, opset, {"a": X, "b": X[::-1] + 3}, fn(X, X[::-1] + 3))
    check(op, opset, {"a": X, "b": C}, fn(X, PER_CHANNEL), broadcast=1, axis=1)
    check(op, opset, {"a": X, "b": middle}, fn(X, middle[..., None]), broadcast=1, axis=-3)
    for last in ({}, {"axis": -1}):
        check(op, opset, {"a": X, "b": plane}, fn(X, plane), broadcast=1, **last)


@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
def test_recurrent_layers(op: str) -> None:
    """With GRU's default direction, "foward"."""
    operands, states = recurrent(op)
    check(op, 1, operands, states, hidden_size=UNITS, output_sequence=1)
    if op == "GRU":
        check(op, 3, operands, states, hidden_size=UNITS, output_sequence=1)


def test_normalizations() -> None:
    batch = {"x": X, "s": C, "b": C + 1, "m": C * 2, "v": V}
    wanted = (X - 2 * PER_CHANNEL) / np.sqrt(V + 1e-5)[:, None, None] * PER_CHANNEL + PER_CHANNEL + 1
    check("BatchNormalization", 1, batch, wanted, is_test=1, consumed_inputs=[0, 0, 0, 1, 1])
    check("BatchNormalization", 6, batch, wanted, is_test=1)
    centred = X - X.mean((2, 3), keepdims=True)
    scaled = centred / np.sqrt(X.var((2, 3), keepdims=True) + 1e-5) * PER_CHANNEL + PER_CHANNEL + 1
    check("InstanceNormalization", 1, NORMAL, scaled, consumed_inputs=[0, 0, 0])


def test_what_is_moved() -> None:
    one, two, three = F32(1), np.array([2], F32), np.array([1, 2], F32)
    check("Tile", 1, {"x": X, "t": two, "a": np.asarray(one)}, np.tile(X, (1, 2, 1, 1)), known=("t", "a"))
    check("Split", 1, {"x": X, "s": three}, *np.split(X, [1], 1), known=("s",), axis=1)
    check("Split", 1, {"x": X}, *np.split(X, [1], 1), axis=1, split=[1, 2])
    check("Upsample", 1, {"x": X}, X.repeat(2, 2).repeat(3, 3), height_scale=2.0, width_scale=3.0)
    check("Cast", 1, {"x": 9 * X}, (9 * X).astype(np.int32), to="INT32")
    check("Cast", 1, {"x": X}, X.astype(np.float16), to="FLOAT16")
    check("Reshape", 1, {"x": X}, X.reshape(2, 12, 5), shape=[0, -1, 5])
    check("Pad", 1, {"x": X}, np.pad(X, ((0, 0), (0, 0), (1, 3), (2, 0))), paddings=[0, 0, 1, 2, 0, 0, 3, 0])
    check("Concat", 1, {"a": X, "b": X}, np.concatenate([X, X], 1))


def test_norms_of_windows() -> None:
    check("LpPool", 1, {"x": X}, np.sqrt((WINDOWS**2).sum((4, 5))), kernel_shape=[2, 2])
    check("LpPool", 1, {"x": X}, (np.abs(WINDOWS) ** 3.5).sum((4, 5)) ** (1 / 3.5), kernel_shape=[2, 2], p=3.5)
    check("GlobalLpPool", 1, {"x": X}, np.abs(X).sum((2, 3), keepdims=True), p=1.0)


@pytest.mark.parametrize(
    ("op", "given", "attrs", "message"),
    [
        ("Add", {"a": X, "b": C}, {"broadcast": 1, "axis": -9}, "axis -9 does not place"),
        ("Cast", {"x": X}, {"to": "FLOT"}, "attribute 'to', 'FLOT', has unknown element type"),
        ("GlobalLpPool", {"x": X}, {"p": -1.0}, "p is -1.0"),
        ("LpPool", {"x": X}, {"kernel_shape": [2, 2], "p": float("nan")}, "p is nan"),
        ("LpPool", {"x": X}, {}, r"kernel_shape is \[\]"),
        ("Tile", {"x": X, "t": F32([1e30]), "a": F32(1)}, {}, "numbers that are no extents"),
        ("Tile", {"x": X, "t": F32([2e9]), "a": F32(1)}, {}, "more than 2147483647 elements"),
        ("Tile", {"x": X, "t": F32([2, 2]), "a": F32(1)}, {}, "must be a number each"),
        ("Tile", {"x": X, "t": F32([2]), "a": F32(4)}, {}, "axis 4 does not exist"),
        ("Split", {"x": X, "s": F32([np.nan, 2])}, {"axis": 1}, "numbers that are no extents"),
        ("Upsample", {"x": X}, {"height_scale": np.inf, "width_scale": 1.0}, "do not fit float32"),
        ("Upsample", {"x": X[0]}, {"height_scale": 2.0, "width_scale": 1.0}, "is no image"),
        ("Upsample", {"x": X}, {"height_scale": 1e30, "width_scale": 1.0}, "too long to be resized"),
        ("Upsample", {"x": X}, {"height_scale": -2.0, "width_scale": 1.0}, "must be positive"),
        ("BatchNormalization", {"x": X, "s": C, "b": C, "m": C, "v": V}, {"consumed_inputs": [0] * 5}, "training mode"),
    ],
)
def test_what_has_no_meaning_is_refused(op: str, given: dict[str, Any], attrs: dict[str, Any], message: str) -> None:
    arrays = {name: np.asarray(value) for name, value in given.items()}
    known = tuple(name for name in arrays if name in ("t", "a", "s") and op in ("Tile", "Split"))
    with pytest.raises(ModelError, match=f"{op} 'n': .*{message}"):
        imported(op, 1, arrays, known, 1, **attrs)
