"""Ordinary models of ordinary sizes, whose numbers are no powers of two, against ONNX Runtime.

Each of them came out wrong, crashed or was refused once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper

import rammer
from rammer.plugins import PluginRegistry

ort = pytest.importorskip("onnxruntime", reason="the reference is ONNX Runtime (dev extra)")
node = helper.make_node
Arrays = Mapping[str, np.ndarray]
POLICIES = sorted(PluginRegistry(third_party=False).policies())


def weight(*shape: int, seed: int = 0) -> np.ndarray:
    values = np.random.default_rng([seed, *shape]).standard_normal(shape) / np.sqrt(shape[-2] if len(shape) > 1 else 1)
    return values.astype(np.float32)


def numbers(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def model(
    nodes: Sequence[NodeProto], x: Sequence[int], outputs: Sequence[str], constants: Arrays, opset: int = 17
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "ordinary",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def recurrent(kind: str, steps: int, inputs: int, hidden: int, batch: int = 1, **more: int) -> onnx.ModelProto:
    """A bidirectional layer."""
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[kind]
    constants = {
        "w": weight(2, gates * hidden, inputs) / np.float32(np.sqrt(inputs / (gates * hidden))),
        "r": weight(2, gates * hidden, hidden) / 2,
        "b": weight(2, 2 * gates * hidden) / 10,
    }
    layer = node(kind, ["x", "w", "r", "b"], ["y", "h"], hidden_size=hidden, direction="bidirectional", **more)
    return model([layer], (steps, batch, inputs), ["y", "h"], constants)


def fused_qkv(rows: int, width: int, heads: int) -> onnx.ModelProto:
    """Attention as GPT-2's exporter writes it: one product for queries, keys and values, cut by a Split."""
    nodes = [
        node("Reshape", ["x", "flat"], ["x2"]),
        node("Gemm", ["x2", "w", "b"], ["qkv"]),
        node("Reshape", ["qkv", "rows"], ["qkv3"]),
        node("Split", ["qkv3", "parts"], ["q", "k", "v"], axis=2),
        *(node("Reshape", [t, "heads"], [f"{t}1"]) for t in "qkv"),
        node("Transpose", ["q1"], ["q2"], perm=[0, 2, 1, 3]),
        node("Transpose", ["k1"], ["k2"], perm=[0, 2, 3, 1]),
        node("Transpose", ["v1"], ["v2"], perm=[0, 2, 1, 3]),
        node("MatMul", ["q2", "k2"], ["scores"]),
        node("Softmax", ["scores"], ["p"]),
        node("MatMul", ["p", "v2"], ["y"]),
    ]
    constants = {
        "w": weight(width, 3 * width) / 4,
        "b": weight(3 * width) / 10,
        "flat": numbers(-1, width),
        "rows": numbers(1, rows, 3 * width),
        "parts": numbers(width, width, width),
        "heads": numbers(1, rows, heads, width // heads),
    }
    return model(nodes, (1, rows, width), ["y"], constants)


def product_in_parts(view: Sequence[NodeProto], parts: int, rank: int, rows: int) -> onnx.ModelProto:
    """A product with a constant, a view of it, and a Split in equal parts along the last axis."""
    outputs = [f"y{n}" for n in range(parts)]
    width = 192
    nodes = [
        node("MatMul", ["x", "w"], ["m"]),
        *view,
        node("Split", ["v", "parts"], outputs, axis=rank - 1),
    ]
    constants = {
        "w": weight(64, width),
        "parts": numbers(*[width // parts] * parts),
        "front": numbers(0),
        "shape": numbers(1, rows, width),
        "wide": numbers(1, 1, rows, width),
        "slope": weight(width),
        "scale": weight(width),
        "bias": weight(width, seed=1),
        "mean": weight(width, seed=2),
        "var": np.abs(weight(width, seed=3)) + 1,
    }
    return model(nodes, (rows, 64), outputs, constants)


def product_with_bias(rows: Sequence[int], matrix: Sequence[int], bias: Sequence[int]) -> onnx.ModelProto:
    nodes = [node("MatMul", ["x", "w"], ["m"]), node("Add", ["m", "b"], ["y"])]
    return model(nodes, rows, ["y"], {"w": weight(*matrix), "b": weight(*bias)})


def reduced(kind: str, shape: Sequence[int]) -> onnx.ModelProto:
    return model([node(kind, ["x"], ["y"], axes=[1, 2], keepdims=0)], shape, ["y"], {}, opset=12)


MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    "bidirectional LSTM 40x512-128": lambda: recurrent("LSTM", 40, 512, 128),
    "bidirectional LSTM 33x256-128": lambda: recurrent("LSTM", 33, 256, 128),
    "bidirectional LSTM 7x256-640": lambda: recurrent("LSTM", 7, 256, 640),
    "bidirectional LSTM 64x64-256, batch 2": lambda: recurrent("LSTM", 64, 64, 256, 2),
    "bidirectional GRU 128x64-256": lambda: recurrent("GRU", 128, 64, 256, linear_before_reset=1),
    "bidirectional GRU 29x75-150, batch 3": lambda: recurrent("GRU", 29, 75, 150, 3),
    "bidirectional RNN 50x300-200": lambda: recurrent("RNN", 50, 300, 200),
    "fused QKV, 48 tokens": lambda: fused_qkv(48, 256, 4),
    "fused QKV, 1 token": lambda: fused_qkv(1, 768, 12),
    "fused QKV, 29 tokens": lambda: fused_qkv(29, 192, 3),
    "product, Reshape, Split": lambda: product_in_parts([node("Reshape", ["m", "shape"], ["v"])], 2, 3, 8),
    "product, Unsqueeze, Split": lambda: product_in_parts([node("Unsqueeze", ["m", "front"], ["v"])], 3, 3, 1),
    "product, Expand, Split": lambda: product_in_parts([node("Expand", ["m", "wide"], ["v"])], 2, 4, 3),
    "product, PRelu, Split": lambda: product_in_parts([node("PRelu", ["m", "slope"], ["v"])], 2, 2, 8),
    "product, BatchNormalization, Split": lambda: product_in_parts(
        [node("BatchNormalization", ["m", "scale", "bias", "mean", "var"], ["v"])], 2, 2, 8
    ),
    "batched product by constants": lambda: product_with_bias((1, 29, 32, 75), (1, 29, 75, 64), (64,)),
    "many small products": lambda: product_with_bias((1, 384, 14, 64), (1, 384, 64, 64), (1, 384, 1, 64)),
    "product of 75 rows, bias with a leading 1": lambda: product_with_bias((75, 96), (96, 512), (1, 512)),
    "product of 37 rows in 600 columns": lambda: product_with_bias((37, 8), (8, 600), (1, 600)),
    "ReduceMax over axes of one element": lambda: reduced("ReduceMax", (2, 1, 1, 1)),
    "ReduceSum over axes of one element": lambda: reduced("ReduceSum", (2, 1, 1, 3)),
    "ReduceLogSumExp over axes of one element": lambda: reduced("ReduceLogSumExp", (2, 1, 1, 1)),
}
EVERY_POLICY = ("bidirectional LSTM 40x512-128", "fused QKV, 48 tokens", "batched product by constants")


def check(built: onnx.ModelProto, policy: str, device: int) -> None:
    session = ort.InferenceSession(built.SerializeToString(), providers=["CPUExecutionProvider"])
    random = np.random.default_rng(1)
    inputs = {i.name: random.standard_normal(i.shape).astype(np.float32) for i in session.get_inputs()}
    wanted = dict(zip((o.name for o in session.get_outputs()), session.run(None, inputs), strict=True))
    with rammer.compile(built, "cpu", policy=policy, device=device, tune_seconds=0) as program:
        for _ in range(2):  # the second run finds what the first one left
            found = program.run(inputs)
            for name, value in wanted.items():
                assert found[name].shape == value.shape
                np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-5 * np.abs(value).max(), err_msg=name)


@pytest.mark.parametrize("name", MODELS)
def test_ordinary_model_agrees_with_onnxruntime(name: str) -> None:
    check(MODELS[name](), "wavefront", 2)


@pytest.mark.parametrize("policy", [p for p in POLICIES if p != "wavefront"])
@pytest.mark.parametrize("name", EVERY_POLICY)
def test_ordinary_model_agrees_on_every_policy(name: str, policy: str) -> None:
    check(MODELS[name](), policy, 3)


@pytest.mark.parametrize("device", [1, 4, 8])
@pytest.mark.parametrize("name", ["product of 75 rows, bias with a leading 1", "product of 37 rows in 600 columns"])
def test_packed_constants_agree_however_tasks_are_cut(name: str, device: int) -> None:
    check(MODELS[name](), "wavefront", device)
