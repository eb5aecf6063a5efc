"""Recurrent layers in every variant, against ONNX Runtime."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto
from onnx_models import model, node

from rammer.frontend.onnx import load
from rammer.ir.semantics.evaluate import evaluate_graph
from rammer.ir.tensor import Array

T, B, WIDTH, H = 4, 3, 5, 6
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
OUTPUTS = {"LSTM": ["Y", "Y_h", "Y_c"], "GRU": ["Y", "Y_h"], "RNN": ["Y", "Y_h"]}


def layer(op: str, options: set[str], direction: str, **attrs: Any) -> tuple[ModelProto, dict[str, Array]]:
    """A model of one layer with the optional inputs named in `options`, and inputs for it."""
    rng = np.random.default_rng(len(options) + GATES[op])
    count, gates = (2 if direction == "bidirectional" else 1), GATES[op]

    def draw(*shape: int) -> Array:
        return rng.normal(0, 0.5, shape).astype(np.float32)

    constants = {"w": draw(count, gates * H, WIDTH), "r": draw(count, gates * H, H)}
    names = ["x", "w", "r", "", "", "", "", ""]
    if "bias" in options:
        names[3], constants["b"] = "b", draw(count, 2 * gates * H)
    inputs: dict[str, tuple[Any, ...]] = {"x": (T, B, WIDTH)}
    values = {"x": draw(T, B, WIDTH)}
    if "lengths" in options:
        names[4], inputs["lens"], values["lens"] = (
            "lens",
            ("int32", (B,)),
            np.array([2, T, 1], np.int32),
        )
    if "state" in options:
        names[5], inputs["h"], values["h"] = "h", (count, B, H), draw(count, B, H)
        if op == "LSTM":
            names[6], inputs["c"], values["c"] = "c", (count, B, H), draw(count, B, H)
    if "peepholes" in options:
        names[7], constants["p"] = "p", draw(count, 3 * H)
    while not names[-1]:
        names.pop()
    made = node(op, names, OUTPUTS[op], hidden_size=H, direction=direction, **attrs)
    return model([made], inputs, OUTPUTS[op], constants, opset=14), values


def typed(made: ModelProto) -> ModelProto:
    """ONNX Runtime wants declared outputs."""
    for output in made.graph.output:
        output.type.tensor_type.elem_type = 1
    return made


VARIANTS: list[tuple[str, set[str], str, dict[str, Any]]] = [
    *(
        (op, options, direction, {})
        for op, direction, options in product(
            GATES,
            ("forward", "reverse", "bidirectional"),
            (set[str](), {"bias", "state"}, {"bias", "lengths"}, {"bias", "lengths", "state"}),
        )
    ),
    *(("LSTM", {"bias", "state", "peepholes"}, direction, {}) for direction in ("forward", "bidirectional")),
    ("LSTM", {"bias", "peepholes"}, "reverse", {"clip": 0.3}),
    ("LSTM", {"bias"}, "forward", {"activations": ["HardSigmoid", "Relu", "Softsign"]}),
    (
        "LSTM",
        {"bias"},
        "forward",
        {"activations": ["Affine", "LeakyRelu", "Tanh"], "activation_alpha": [0.4, 0.2], "activation_beta": [0.1]},
    ),
    *(("GRU", {"bias", "state"}, d, {"linear_before_reset": 1}) for d in ("forward", "bidirectional")),
    ("GRU", set(), "forward", {"linear_before_reset": 1}),
    ("GRU", {"bias"}, "forward", {"clip": 0.2}),
    ("GRU", {"bias", "lengths"}, "reverse", {"linear_before_reset": 1, "clip": 0.5}),
    ("GRU", {"bias"}, "forward", {"activations": ["Sigmoid", "Relu"]}),
    ("RNN", {"bias"}, "forward", {"activations": ["Relu"], "clip": 0.4}),
    ("RNN", {"bias"}, "bidirectional", {"activations": ["Tanh", "Sigmoid"]}),
]


@pytest.mark.parametrize(("op", "options", "direction", "attrs"), VARIANTS)
def test_layers_agree_with_onnxruntime(op: str, options: set[str], direction: str, attrs: dict[str, Any]) -> None:
    made, values = layer(op, options, direction, **attrs)
    session = onnxruntime.InferenceSession(typed(made).SerializeToString(), providers=["CPUExecutionProvider"])
    wanted = session.run(None, values)
    seen = evaluate_graph(load(made), values)
    for name, value in zip(OUTPUTS[op], wanted, strict=True):
        np.testing.assert_allclose(seen[name], value, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("op", GATES)
def test_batch_first_layout_is_a_transposition(op: str) -> None:
    made, values = layer(op, {"bias", "state"}, "bidirectional")
    wanted = evaluate_graph(load(made), values)
    flipped, _ = layer(op, {"bias", "state"}, "bidirectional", layout=1)
    for value in flipped.graph.input:
        dims = value.type.tensor_type.shape.dim
        dims[0].dim_value, dims[1].dim_value = dims[1].dim_value, dims[0].dim_value
    seen = evaluate_graph(load(flipped), {k: v.swapaxes(0, 1) for k, v in values.items()})
    np.testing.assert_allclose(seen["Y"], wanted["Y"].transpose(2, 0, 1, 3))
    for name in OUTPUTS[op][1:]:
        np.testing.assert_allclose(seen[name], wanted[name].swapaxes(0, 1))


def test_a_layer_becomes_one_product_and_one_cell_per_step() -> None:
    """What the scheduler lives on: equal cells are one operation, and the inputs' product is taken once."""
    made, _ = layer("LSTM", {"bias"}, "forward")
    graph = load(made)
    kinds = [op.kind for op in graph.operators]
    assert kinds.count("matmul") == 1 and kinds.count("lstm_cell") == T
    assert len({op.operation for op in graph.operators if op.kind == "lstm_cell"}) == 1
    assert "transpose" not in kinds and "where" not in kinds


def test_known_full_lengths_cost_nothing() -> None:
    made, values = layer("LSTM", {"bias", "lengths"}, "forward")
    graph = load(made, constants={"lens": np.full(B, T, np.int32)})
    assert graph.inputs == ("x",) and all(op.kind != "where" for op in graph.operators)
    del values["lens"]
    assert evaluate_graph(graph, values)["Y"].shape == (T, 1, B, H)
