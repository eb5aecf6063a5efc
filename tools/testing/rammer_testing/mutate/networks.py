"""Build the networks that bugs are injected into: realistic sizes, one per kind of operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from onnx import ModelProto

from rammer.ir.tensor import Array
from rammer_testing.fuzz.sketch import I8, I64, U8, Sketch

BUDGET = 1e10  # multiply-adds: unlimited in effect, as these networks are fixed and small


@dataclass(frozen=True)
class Network:
    """A model with inputs. `state`: outputs that are inputs of the next run."""

    model: ModelProto
    inputs: Mapping[str, Array]
    state: Mapping[str, str] = field(default_factory=dict)


def recurrent(kind: str, gates: int, steps: int, units: int, layers: int) -> Sketch:
    """Build layers of LSTM or GRU cells over a sequence, batch 1."""
    net = _sketch(kind)
    value = net.input((steps, 1, units), low=-1, high=1)
    for _ in range(layers):
        w, r = (net.weights(1, gates * units, units, terms=units) for _ in range(2))
        bias = net.weights(1, 2 * gates * units, terms=units)
        value = net.node(kind, value, w, r, bias, hidden_size=units)
        value = net.node("Squeeze", value, net.constant([1]))
    return net


def dense(rows: int, width: int, layers: int) -> Sketch:
    """Build products with residual connections, layer norm and GELU."""
    net = _sketch("dense")
    value = net.input((rows, width))
    for _ in range(layers):
        hidden = net.node("Gelu", net.node("MatMul", value, net.weights(width, width)))
        value = net.node("LayerNormalization", net.node("Add", value, hidden), net.weights(width, terms=1), axis=-1)
    return net


def products() -> Sketch:
    """Build products and ReLU, large enough to use a matrix unit."""
    net = _sketch("products")
    value = net.input((512, 256))
    for _ in range(3):
        value = net.node("Relu", net.node("MatMul", value, net.weights(256, 256)))
    return net


def convolutional() -> Sketch:
    """Build a CNN: 3x3 convolutions that suit Winograd, a stride, a depthwise one, pools, a classifier."""
    net = _sketch("convolutional")
    value = net.input((1, 3, 30, 30))
    for channels, stride in ((16, 1), (32, 1), (32, 2)):
        value = _conv(net, value, channels, 3, stride)
    value = _conv(net, value, 32, 3, 1, group=32)
    value = net.node("MaxPool", value, kernel_shape=[2, 2], strides=[2, 2])
    value = _conv(net, value, 48, 1, 1)
    value = net.node("Flatten", net.node("GlobalAveragePool", value))
    net.node("Softmax", net.node("Gemm", value, net.weights(48, 10), net.weights(10, terms=10)))
    return net


def branches() -> Sketch:
    """Build an Inception block: parallel branches of several filters, joined by a Concat."""
    net = _sketch("branches")
    value = net.input((1, 24, 14, 14))
    found = [_conv(net, value, 16, 1, 1), _conv(net, _conv(net, value, 12, 1, 1), 16, 3, 1)]
    found.append(_conv(net, _conv(net, value, 8, 1, 1), 16, 5, 1))
    pooled = net.node("AveragePool", value, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    found.append(_conv(net, pooled, 16, 1, 1))
    _conv(net, net.node("Concat", *found, axis=1), 20, 1, 1)
    return net


def attention(tokens: int, width: int, heads: int) -> Sketch:
    """Build a transformer block: heads by slices of one product, softmax, projection, layer norm."""
    net = _sketch("attention")
    value = net.input((tokens, width))
    joined = net.node("MatMul", value, net.weights(width, 3 * width))
    parts = []
    for n in range(3):
        ends = (net.constant([v]) for v in (n * width, (n + 1) * width, 1))
        part = net.node("Slice", joined, *ends)
        shaped = net.node("Reshape", part, net.constant([tokens, heads, width // heads]))
        parts.append(net.node("Transpose", shaped, perm=[1, 2, 0] if n == 1 else [1, 0, 2]))
    scores = net.node("Mul", net.node("MatMul", parts[0], parts[1]), net.constant((width / heads) ** -0.5))
    mixed = net.node("MatMul", net.node("Softmax", scores), parts[2])
    mixed = net.node("Reshape", net.node("Transpose", mixed, perm=[1, 0, 2]), net.constant([tokens, width]))
    value = net.node("Add", value, net.node("MatMul", mixed, net.weights(width, width)))
    net.node("LayerNormalization", value, net.weights(width, terms=1), axis=-1)
    return net


def quantized() -> Sketch:
    """Build a QDQ net: a convolution and a product of bytes between QuantizeLinear and DequantizeLinear."""
    net = _sketch("quantized")
    value = net.input((1, 16, 14, 14), low=-1, high=1)
    scale, zero = net.constant(0.02), net.constant(np.array(120, np.uint8), U8)

    def rounded(value: str) -> str:
        return net.node("DequantizeLinear", net.node("QuantizeLinear", value, scale, zero), scale, zero)

    def bytes_of(*shape: int) -> str:
        drawn = net.constant(net.numpy.integers(-90, 90, shape).astype(np.int8), I8)
        return net.node("DequantizeLinear", drawn, net.constant(0.004), net.constant(np.array(0, np.int8), I8))

    value = net.node("Conv", rounded(value), bytes_of(32, 16, 3, 3), pads=[1] * 4)
    value = net.node("Flatten", net.node("GlobalAveragePool", rounded(net.node("Relu", value))))
    rounded(net.node("MatMul", rounded(value), bytes_of(32, 40)))
    return net


def views() -> Sketch:
    """Build slices, transposes, concats, a resize, reductions: operators that move elements."""
    net = _sketch("views")
    value = net.input((3, 28, 36))
    left = net.node("Slice", value, *(net.constant([v]) for v in (0, 20, 2)))
    right = net.node("Slice", value, *(net.constant([v]) for v in (16, 36, 2)))
    both = net.node("Concat", net.node("Transpose", left, perm=[0, 2, 1]), net.node("Neg", _swap(net, right)), axis=1)
    taken = net.node("Gather", both, net.constant(np.array([5, 0, 33, 17, 2, 2, 39]), I64), axis=1)
    sums = net.node("ReduceMean", both, net.constant([1]), keepdims=1)
    net.node("Softmax", net.node("Sub", taken, sums), axis=1)
    return net


def cache(rows: int, width: int) -> Sketch:
    """Build a step of a decoder: a state whose rows shift by one, and a product of all of them."""
    net = _sketch("cache")
    token, state = net.input((1, width)), net.input((rows, width))
    made = net.node("Tanh", net.node("MatMul", token, net.weights(width, width)))
    kept = net.node("Slice", state, *(net.constant([v]) for v in (1, rows, 0)))
    after = net.node("Concat", kept, made, axis=0)
    net.node("ReduceSum", net.node("MatMul", after, net.weights(width, 24)), net.constant([0]), keepdims=0)
    net.node("Identity", after)
    return net


NETWORKS: dict[str, Callable[[], Sketch]] = {
    "lstm": lambda: recurrent("LSTM", 4, 12, 96, 2),
    "gru": lambda: recurrent("GRU", 3, 10, 128, 1),
    "dense": lambda: dense(75, 160, 2),
    "products": products,
    "convolutional": convolutional,
    "branches": branches,
    "attention": lambda: attention(28, 96, 3),
    "quantized": quantized,
    "views": views,
    "cache": lambda: cache(28, 96),
}


def network(name: str) -> Network:
    """Return the network of that name."""
    net = NETWORKS[name]()
    outputs = net.leaves()
    random = np.random.default_rng(7)
    inputs = {name: port.draw(random) for name, port in net.inputs.items()}
    state = {outputs[-1]: list(net.inputs)[1]} if name == "cache" else {}
    return Network(net.model(outputs), inputs, state)


def _sketch(name: str) -> Sketch:
    net = Sketch(name)
    net.budget = BUDGET
    return net


def _conv(net: Sketch, value: str, channels: int, size: int, stride: int, group: int = 1) -> str:
    taken = net.shape(value)[1] // group
    weights = net.weights(channels, taken, size, size, terms=taken * size * size)
    pads = [size // 2] * 4
    made = net.node(
        "Conv", value, weights, net.weights(channels, terms=4), strides=[stride] * 2, pads=pads, group=group
    )
    return net.node("Relu", made)


def _swap(net: Sketch, value: str) -> str:
    return net.node("Transpose", value, perm=[0, 2, 1])
