"""The same small models on every policy and every vDevice that runs here, against their NumPy meaning.

Every two of target, model and policy meet in a fast test; slow tests run the whole product.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from pairwise import cover, pairs

import rammer
from rammer.ir.semantics.evaluate import evaluate_graph
from rammer.plugins import PluginRegistry
from rammer.runtime import measure
from rammer_viz.demo import lstm_stack

POLICIES = sorted(PluginRegistry(third_party=False).policies())
POLICIES += ["wavefront:beyond=off", "sequential:kernels=selected"]
GPU = "cuda, a GPU"
# name -> what to hand to compile; what this machine lacks is emulated
TARGETS: dict[str, dict[str, object]] = {
    "cpu": {"target": "cpu", "device": 2},
    "cpu, AMX": {"target": "cpu", "device": 2, "arch": "x86-64-amx@here"},
    "cpu, AVX-512": {"target": "cpu", "device": 5, "arch": "x86-64-avx512@here"},
    "cpu, AVX2": {"target": "cpu", "device": 4, "arch": "x86-64-avx2@here"},
    "cpu, NEON": {"target": "cpu", "device": 8, "arch": "aarch64-neon@here"},
    "interpreter": {"target": "interpreter", "device": 3},
    "cuda": {"target": "cuda", "device": "emulator"},
    GPU: {"target": "cuda", "device": 0},
    "rocm": {"target": "rocm", "device": "emulator"},
    "ipu": {"target": "ipu", "device": "emulator", "arch": "gc2:16"},
}


def branchy_cnn() -> onnx.ModelProto:
    """Convolution, pooling, two branches that meet, grouped and depthwise convolution, residual, classifier."""
    random = np.random.default_rng(3)
    weights: list[onnx.TensorProto] = []

    def weight(name: str, *shape: int) -> str:
        values = (random.standard_normal(shape) * np.prod(shape[1:] or shape) ** -0.5).astype(np.float32)
        weights.append(numpy_helper.from_array(values, name))
        return name

    node = helper.make_node
    nodes = [
        node("Conv", ["x", weight("w0", 16, 3, 3, 3), weight("b0", 16)], ["c0"], strides=[2, 2], pads=[1] * 4),
        node("Relu", ["c0"], ["r0"]),
        node("MaxPool", ["r0"], ["p0"], kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4),
        node("Conv", ["p0", weight("w1", 20, 16, 1, 1)], ["c1"]),
        node("Conv", ["p0", weight("w2", 16, 4, 3, 3)], ["c2"], group=4, pads=[1] * 4),
        node("Conv", ["p0", weight("w3", 16, 1, 5, 5)], ["c3"], group=16, pads=[2] * 4),
        node("Add", ["c2", "c3"], ["s0"]),
        node("Relu", ["s0"], ["r1"]),
        node("Concat", ["c1", "r1"], ["k0"], axis=1),
        node("AveragePool", ["k0"], ["a0"], kernel_shape=[3, 3], pads=[1] * 4),
        node("Sigmoid", ["k0"], ["g0"]),
        node("Mul", ["a0", "g0"], ["m0"]),
        node("GlobalAveragePool", ["m0"], ["q0"]),
        node("Flatten", ["q0"], ["f0"]),
        node("Gemm", ["f0", weight("w4", 10, 36), weight("b4", 10)], ["l0"], transB=1),
        node("Softmax", ["l0"], ["y"], axis=-1),
    ]
    ports = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 19, 21]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 10]),
    ]
    graph = helper.make_graph(nodes, "branchy", ports[:1], ports[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def images() -> onnx.ModelProto:
    """Three odd images through a dense block: channels joined in place, and blocks of them cut out."""
    random = np.random.default_rng(6)
    weights: list[onnx.TensorProto] = []

    def weight(name: str, *shape: int) -> str:
        values = (random.standard_normal(shape) * np.prod(shape[1:]) ** -0.5).astype(np.float32)
        weights.append(numpy_helper.from_array(values, name))
        return name

    node = helper.make_node
    nodes = [
        node("Conv", ["x", weight("w0", 32, 3, 3, 3)], ["c0"], pads=[1] * 4),
        node("Conv", ["c0", weight("w1", 16, 32, 3, 3)], ["c1"], pads=[1] * 4),
        node("Concat", ["c0", "c1"], ["k1"], axis=1),
        node("Conv", ["k1", weight("w2", 21, 48, 1, 1)], ["c2"]),
        node("Concat", ["k1", "c2"], ["k2"], axis=1),
        node("Relu", ["k2"], ["r"]),
        node("Split", ["r", "parts"], ["s0", "s1"], axis=1),
        node("Conv", ["s0", weight("w3", 37, 32, 3, 3)], ["c3"], pads=[1] * 4),
        node("Conv", ["s1", weight("w4", 37, 37, 3, 3)], ["c4"], pads=[1] * 4),
        node("Add", ["c3", "c4"], ["a"]),
        node("GlobalAveragePool", ["a"], ["q"]),
        node("GlobalMaxPool", ["a"], ["m"]),
        node("Add", ["q", "m"], ["s"]),
        node("Flatten", ["s"], ["y"]),
    ]
    weights.append(numpy_helper.from_array(np.array([32, 37]), "parts"))
    ports = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 3, 11, 13]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, 37]),
    ]
    graph = helper.make_graph(nodes, "images", ports[:1], ports[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def attention() -> onnx.ModelProto:
    """Products of two activations, transposes, a row-wise softmax, layer normalization, a gather."""
    random = np.random.default_rng(4)
    weights = [
        numpy_helper.from_array((random.standard_normal((24, 12)) * 0.3).astype(np.float32), "table"),
        *(numpy_helper.from_array((random.standard_normal((12, 12)) * 0.3).astype(np.float32), n) for n in "qkv"),
        numpy_helper.from_array(np.ones(12, np.float32), "one"),
    ]
    node = helper.make_node
    nodes = [
        node("Gather", ["table", "ids"], ["e"]),
        *(node("MatMul", ["e", n], [f"e{n}"]) for n in "qkv"),
        node("Transpose", ["ek"], ["ekt"], perm=[0, 2, 1]),
        node("MatMul", ["eq", "ekt"], ["scores"]),
        node("Softmax", ["scores"], ["p"], axis=-1),
        node("MatMul", ["p", "ev"], ["o"]),
        node("Add", ["o", "e"], ["res"]),
        node("LayerNormalization", ["res", "one"], ["n"], axis=-1),
        node("Gelu", ["n"], ["y"]),
    ]
    ports = [
        helper.make_tensor_value_info("ids", TensorProto.INT64, [2, 7]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 7, 12]),
    ]
    graph = helper.make_graph(nodes, "attention", ports[:1], ports[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])


def weights_as_bytes() -> onnx.ModelProto:
    """A convolution, an LSTM and a product of which the file has bytes."""
    random, node = np.random.default_rng(5), helper.make_node
    nodes, weights = [], [numpy_helper.from_array(np.array([6, 1, -1]), "shape")]

    def weight(name: str, axis: int, *shape: int) -> str:
        scale = np.full(shape[axis], 0.01 * (np.prod(shape) / shape[axis]) ** -0.5, np.float32)
        values = {f"{name}_q": random.integers(-127, 128, shape).astype(np.int8), f"{name}_s": scale}
        weights.extend(numpy_helper.from_array(value, key) for key, value in values.items())
        nodes.append(node("DequantizeLinear", [*values], [name], axis=axis))
        return name

    nodes.append(node("Conv", ["x", weight("filter", 0, 33, 16, 3, 3)], ["c"], pads=[1] * 4))
    nodes += [node("Transpose", ["c"], ["t"], perm=[3, 0, 1, 2]), node("Reshape", ["t", "shape"], ["rows"])]
    matrices = [weight("w", 1, 1, 160, 165), weight("r", 1, 1, 160, 40)]
    nodes.append(node("LSTM", ["rows", *matrices], ["", "last"], hidden_size=40))
    nodes.append(node("MatMul", ["last", weight("head", 1, 40, 110)], ["y"]))
    ports = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 16, 5, 6]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1, 110]),
    ]
    graph = helper.make_graph(nodes, "bytes", ports[:1], ports[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])


def tokens() -> onnx.ModelProto:
    """Tokens as an image with channels last for a depthwise convolution, and in blocks of channels for a dense one."""
    random, node = np.random.default_rng(7), helper.make_node
    weights = [numpy_helper.from_array(np.array(v), n) for n, v in (("image", [2, 40, 8, 6]), ("tokens", [2, 40, 48]))]

    def weight(name: str, *shape: int) -> str:
        values = (random.standard_normal(shape) * np.prod(shape[1:]) ** -0.5).astype(np.float32)
        weights.append(numpy_helper.from_array(values, name))
        return name

    nodes = [node("MatMul", ["x", weight("w0", 24, 40)], ["t0"])]
    for n, group in enumerate((40, 1)):
        nodes += [
            node("Transpose", [f"t{n}"], [f"first{n}"], perm=[0, 2, 1]),
            node("Reshape", [f"first{n}", "image"], [f"image{n}"]),
            node("Conv", [f"image{n}", weight(f"c{n}", 40, 40 // group, 3, 3)], [f"y{n}"], pads=[1] * 4, group=group),
            node("Reshape", [f"y{n}", "tokens"], [f"flat{n}"]),
            node("Transpose", [f"flat{n}"], [f"last{n}"], perm=[0, 2, 1]),
            node("Gelu", [f"last{n}"], [f"g{n}"]),
            node("Add", [f"g{n}", f"t{n}"], [f"t{n + 1}"]),
        ]
    nodes.append(node("MatMul", ["t2", weight("w1", 40, 24)], ["y"]))
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 48, 24]) for name in "xy"]
    graph = helper.make_graph(nodes, "tokens", ports[:1], ports[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])


def sorts() -> onnx.ModelProto:
    """The best of long rows, and whole rows in order: networks, blocks and ranks, as the device needs them."""
    node, values = helper.make_node, helper.make_tensor_value_info
    nodes = [
        node("TopK", ["x", "nine"], ["best", "places"], axis=1),
        node("TopK", ["ids", "all"], ["order", "from"], axis=0, largest=0),
    ]
    weights = [numpy_helper.from_array(np.array([k]), name) for name, k in (("nine", 9), ("all", 110))]
    inputs = [values("x", TensorProto.FLOAT, [3, 333]), values("ids", TensorProto.INT64, [110, 2])]
    outputs = [values("best", TensorProto.FLOAT, [3, 9]), values("places", TensorProto.INT64, [3, 9])]
    outputs += [values(name, TensorProto.INT64, [110, 2]) for name in ("order", "from")]
    graph = helper.make_graph(nodes, "sorts", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])


MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    "lstm": lambda: lstm_stack(2, 4, 16),
    "cnn": branchy_cnn,
    "attention": attention,
    "images": images,
    "tokens": tokens,
    "weights as bytes": weights_as_bytes,
    "sorts": sorts,
}


def possible(target: str, model: str, policy: str) -> bool:
    """Whether every machine runs it: a GPU is rare, and IPU tiles have no waits for single rTasks."""
    return target != GPU and (target, policy) != ("ipu", "stationary")


@pairs(target=TARGETS, model=MODELS, policy=POLICIES, possible=possible)
def test_every_target_and_policy(target: str, model: str, policy: str) -> None:
    options = dict(TARGETS[target])
    registry = PluginRegistry(third_party=False)
    info = next(d for d in registry.devices() if d.name == options["target"])
    if (not info.available and options.get("device") != "emulator") or "not available yet" in info.reason:
        pytest.skip(f"{target}: {info.reason} ({info.hint})")
    if target != GPU and not possible(target, model, policy):
        pytest.skip(f"{policy} waits for single rTasks; IPU tiles synchronise globally")
    graph = rammer.from_onnx(MODELS[model]())
    with rammer.compile(graph, policy=policy, registry=registry, tune_seconds=0, **options) as program:
        inputs = measure.random_inputs(program.inputs, 1)
        wanted = evaluate_graph(graph, inputs)
        for _ in range(2):
            for name, value in program.run(inputs).items():
                np.testing.assert_allclose(value, wanted[name], rtol=1e-4, atol=1e-5)


def test_fast_tests_hold_every_pair() -> None:
    chosen = cover([TARGETS, MODELS, POLICIES], possible)
    assert len(chosen) < 1.2 * len(TARGETS) * len(POLICIES)
    for target, model, policy in product(TARGETS, MODELS, POLICIES):
        if possible(target, model, policy):
            assert any(c[:2] == (target, model) for c in chosen) and any(c[1:] == (model, policy) for c in chosen)
            assert any(c[::2] == (target, policy) for c in chosen)
