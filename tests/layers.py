"""Ordinary layers of real networks, at their real sizes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import prod

import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper

import rammer
from rammer.ir.graph import Graph

node = helper.make_node


def network(shape: tuple[int, ...], nodes: list[NodeProto], **weights: tuple[int, ...]) -> Graph:
    """Nodes from `x` to `y`, with random weights of the given shapes."""
    rng = np.random.default_rng(0)
    values = [
        numpy_helper.from_array(rng.standard_normal(size, np.float32) / np.float32(max(prod(size[1:]), 1) ** 0.5), name)
        for name, size in weights.items()
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "network", [x], [y], values)
    return rammer.from_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))


def recurrent(kind: str, gates: int, steps: int, batch: int, width: int, units: int, directions: int = 2) -> Graph:
    direction = {"direction": "bidirectional"} if directions == 2 else {}
    made = node(kind, ["x", "w", "r"], ["y"], hidden_size=units, **direction)
    w, r = (directions, gates * units, width), (directions, gates * units, units)
    return network((steps, batch, width), [made], w=w, r=r)


def conv(channels: int, outs: int, size: int, kernel: int, stride: int = 1, group: int = 1, batch: int = 1) -> Graph:
    """Convolution, bias, ReLU, and a second one of 1x1, so that channels lie in blocks between them."""
    nodes = [
        node("Conv", ["x", "w", "b"], ["c"], pads=[kernel // 2] * 4, strides=[stride] * 2, group=group),
        node("Relu", ["c"], ["r"]),
        node("Conv", ["r", "v"], ["y"]),
    ]
    weights = {"w": (outs, channels // group, kernel, kernel), "b": (outs,), "v": (outs, outs, 1, 1)}
    return network((batch, channels, size, size), nodes, **weights)


def matmul(*shape: int, columns: int) -> Graph:
    nodes = [node("MatMul", ["x", "w"], ["p"]), node("Add", ["p", "b"], ["y"])]
    return network(shape, nodes, w=(shape[-1], columns), b=(columns,))


def attention(rows: int, width: int, heads: int) -> Graph:
    """Queries, keys and values from one product, as GPT-2 exports them; softmax; products of activations."""
    split = {
        "size": np.array([1, rows, heads, width // heads], np.int64),
        "whole": np.array([1, rows, width], np.int64),
    }
    nodes = [
        *(node("Constant", [], [name], value=numpy_helper.from_array(v)) for name, v in split.items()),
        node("MatMul", ["x", "w"], ["p"]),
        node("Split", ["p"], ["q", "k", "v"], axis=2),
        *(node("Reshape", [n, "size"], [f"{n}s"]) for n in "qkv"),
        node("Transpose", ["qs"], ["qt"], perm=[0, 2, 1, 3]),
        node("Transpose", ["ks"], ["kt"], perm=[0, 2, 3, 1]),
        node("Transpose", ["vs"], ["vt"], perm=[0, 2, 1, 3]),
        node("MatMul", ["qt", "kt"], ["scores"]),
        node("Softmax", ["scores"], ["weights"], axis=-1),
        node("MatMul", ["weights", "vt"], ["mixed"]),
        node("Transpose", ["mixed"], ["back"], perm=[0, 2, 1, 3]),
        node("Reshape", ["back", "whole"], ["joined"]),
        node("LayerNormalization", ["joined", "g"], ["y"], axis=-1),
    ]
    return network((1, rows, width), nodes, w=(width, 3 * width), g=(width,))


def quantised(channels: int, outs: int, size: int) -> Graph:
    """A 3x3 convolution of bytes that were quantised, and a 1x1 convolution of what it gives, quantised again.

    No error of a float32 sum moves a value across a rounding: the first convolution's results are odd multiples of
    2**-13, and a value between two bytes is a multiple of 2**-6.
    """
    steps = {"sx": 2.0**-5, "sw": 2.0**-7, "sv": 2.0**-8, "odd": 2.0**-13}
    zeros = {"zx": np.uint8(120), "zw": np.int8(0)}
    operands = (["x", "sx", "zx"], ["w", "sw", "zw"], ["v", "sv", "zw"], ["b", "sw", "zw"])
    nodes = [
        *(node("Constant", [], [n], value=numpy_helper.from_array(np.array(s, np.float32))) for n, s in steps.items()),
        *(node("Constant", [], [n], value=numpy_helper.from_array(np.asarray(z))) for n, z in zeros.items()),
        *(node("QuantizeLinear", names, [f"{names[0]}q"]) for names in operands),
        *(node("DequantizeLinear", [f"{n}q", *scaled], [f"{n}d"]) for n, *scaled in operands),
        node("Add", ["bd", "odd"], ["be"]),
        node("Conv", ["xd", "wd", "be"], ["c"], pads=[1] * 4),
        node("QuantizeLinear", ["c", "sx", "zx"], ["cq"]),
        node("DequantizeLinear", ["cq", "sx", "zx"], ["cd"]),
        node("Conv", ["cd", "vd"], ["y"]),
    ]
    weights = {"w": (outs, channels, 3, 3), "b": (outs,), "v": (outs, outs, 1, 1)}
    return network((1, channels, size, size), nodes, **weights)


def softmax(*shape: int, axis: int) -> Graph:
    return network(shape, [node("Softmax", ["x"], ["y"], axis=axis)])


LAYERS: dict[str, Callable[[], Graph]] = {
    "bidirectional LSTM": lambda: recurrent("LSTM", 4, 40, 1, 512, 128),
    "bidirectional GRU": lambda: recurrent("GRU", 3, 40, 1, 64, 256),
    "LSTM, batch 16": lambda: recurrent("LSTM", 4, 20, 16, 256, 256, 1),
    "ResNet's first": lambda: conv(3, 64, 112, 7, 2),
    "ResNet 56x56": lambda: conv(64, 64, 56, 3),
    "ResNet 7x7": lambda: conv(512, 512, 7, 3),
    "ResNet's step": lambda: conv(256, 512, 28, 1, 2),
    "ResNeXt": lambda: conv(128, 128, 28, 3, group=32, batch=2),
    "MobileNet 112x112": lambda: conv(96, 96, 112, 3, 2, group=96),
    "MobileNet 14x14": lambda: conv(480, 480, 14, 5, group=480),
    "MatMul [1, 384, 14, 64]": lambda: matmul(1, 384, 14, 64, columns=64),
    "MatMul [1, 29, 32, 75]": lambda: matmul(1, 29, 32, 48, columns=75),
    "MatMul, 33 rows": lambda: matmul(33, 512, columns=1000),
    "quantised 28x28": lambda: quantised(64, 72, 28),
    "softmax of columns": lambda: softmax(1, 80, 3000, axis=1),
    "softmax of channels": lambda: softmax(1, 21, 112, 112, axis=1),
    "attention": lambda: attention(48, 768, 12),
}


@cache
def layer(name: str) -> Graph:
    return LAYERS[name]()
