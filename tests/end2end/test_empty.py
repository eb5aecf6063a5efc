"""Dimensions of 0: outputs without elements, and elements made from none, as ONNX Runtime has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import rammer
from rammer.errors import InputError, ModelError
from rammer.frontend.builder import GraphBuilder
from rammer.ir.tensor import Array

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
POLICIES = ("sequential", "round_robin", "wavefront", "list", "stationary", "graphturbo", "auto")


def numbers(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def made(
    nodes: list[Any], inputs: dict[str, tuple[int, ...]], outputs: dict[str, int], **constants: Array
) -> ModelProto:
    values = [helper.make_tensor_value_info(name, FLOAT, shape) for name, shape in inputs.items()]
    results = [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs.items()]
    stored = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "empty", values, results, stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


node = helper.make_node
MODELS = {
    "nothing is left": made(
        [node("MatMul", ["x", "w"], ["m"]), node("Relu", ["m"], ["y"])],
        {"x": (0, 64)},
        {"y": FLOAT},
        w=numbers(64, 50),
    ),
    "some is left": made(
        [
            node("MatMul", ["x", "w"], ["m"]),
            node("Relu", ["z"], ["r"]),
            node("Concat", ["m", "r"], ["y"], axis=0),
            node("Identity", ["m"], ["e"]),
        ],
        {"x": (0, 64), "z": (3, 50)},
        {"e": FLOAT, "y": FLOAT},
        w=numbers(64, 50),
    ),
    "sums of none": made(
        [node("MatMul", ["x", "w"], ["m"]), node("Add", ["m", "b"], ["y"])],
        {"x": (5, 0), "b": (5, 7)},
        {"y": FLOAT},
        w=numbers(0, 7),
    ),
    "a whole network": made(
        [
            node("Conv", ["x", "w"], ["c"], strides=[2, 2]),
            node("GlobalAveragePool", ["c"], ["p"]),
            node("Reshape", ["p", "s"], ["f"]),
            node("Softmax", ["f"], ["y"]),
        ],
        {"x": (0, 3, 9, 9)},
        {"y": FLOAT},
        w=numbers(4, 3, 3, 3),
        s=np.array([0, 4]),
    ),
    "padding only": made([node("Pad", ["x", "p"], ["y"])], {"x": (0, 3)}, {"y": FLOAT}, p=np.array([1, 0, 1, 0])),
    "two outputs": made(
        [node("TopK", ["x", "k"], ["v", "i"])], {"x": (0, 40)}, {"v": FLOAT, "i": INT64}, k=np.array([3])
    ),
    "nothing to scatter": made(
        [node("ScatterElements", ["x", "i", "u"], ["y"])],
        {"x": (4, 3), "u": (0, 3)},
        {"y": FLOAT},
        i=np.zeros((0, 3), np.int64),
    ),
    "an input as it is": made([node("Identity", ["x"], ["y"])], {"x": (2, 0, 3)}, {"y": FLOAT}),
}


def inputs_of(model: ModelProto) -> dict[str, Array]:
    return {i.name: numbers(*(d.dim_value for d in i.type.tensor_type.shape.dim)) for i in model.graph.input}


def agree(program: rammer.Program, model: ModelProto) -> None:
    inputs = inputs_of(model)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [output.name for output in model.graph.output]
    found = program.run(inputs)
    assert list(found) == names and [p.name for p in program.inputs] == list(inputs)
    for name, wanted in zip(names, session.run(None, inputs), strict=True):
        assert found[name].shape == wanted.shape and found[name].dtype == wanted.dtype
        np.testing.assert_allclose(found[name], wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", MODELS)
def test_every_policy(name: str, policy: str) -> None:
    with rammer.compile(MODELS[name], "cpu", policy=policy, device=2, tune_seconds=0) as program:
        agree(program, MODELS[name])


@pytest.mark.parametrize(("target", "device"), [("interpreter", None), ("cuda", "emulator"), ("ipu", "emulator")])
@pytest.mark.parametrize("name", ["nothing is left", "some is left"])
def test_every_vdevice(name: str, target: str, device: str | None) -> None:
    with rammer.compile(MODELS[name], target, device=device, tune_seconds=0) as program:
        agree(program, MODELS[name])


@pytest.mark.parametrize("name", ["nothing is left", "some is left"])
def test_a_saved_program_keeps_its_signature(name: str, tmp_path: Path) -> None:
    with rammer.compile(MODELS[name], "cpu", tune_seconds=0) as program:
        program.save(tmp_path / "p.rammer")
        ports = program.inputs, program.outputs
    with rammer.load(tmp_path / "p.rammer") as loaded:
        assert (loaded.inputs, loaded.outputs) == ports
        agree(loaded, MODELS[name])
        assert loaded.profile(inputs_of(MODELS[name]), seconds=0).runs


def test_inputs_without_elements_are_checked_like_others() -> None:
    with rammer.compile(MODELS["nothing is left"], "cpu", tune_seconds=0) as program:
        for wrong, text in (
            ({}, "missing inputs: x"),
            ({"x": numbers(1, 64)}, "axis 0 is 1"),
            ({"x": np.zeros((0, 64))}, "float64"),
            ({"x": 1.0}, "rank 0"),
        ):
            with pytest.raises(InputError, match=text):
                program.run(wrong)


def test_what_cannot_be_is_refused_by_name() -> None:
    """Not blamed on a plugin, as divisions by zero once were."""
    lstm = made(
        [node("LSTM", ["x", "w", "r"], ["y"], name="cell", hidden_size=8)],
        {"x": (5, 0, 4)},
        {"y": FLOAT},
        w=numbers(1, 32, 4),
        r=numbers(1, 32, 8),
    )
    with pytest.raises(ModelError, match=r"'cell': X is .* with hidden_size 8") as caught:
        rammer.compile(lstm)
    assert "empty" in caught.value.hint
    builder = GraphBuilder(fold_bytes=0)
    x, w = builder.input("x", (3000, 0)), builder.input("w", (0, 3000))
    builder.output(builder.add("matmul", x, w, name="product", trans_a=False, trans_b=False), "y")
    with pytest.raises(ModelError, match=r"'product': 'x' is .*, without elements"):
        rammer.compile(builder.build())
