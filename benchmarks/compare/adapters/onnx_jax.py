"""The benchmark models as one jitted JAX function: enough of ONNX for them, and no more."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax  # type: ignore[import-not-found, unused-ignore]
import jax.numpy as jnp  # type: ignore[import-not-found, unused-ignore]
import numpy as np
import onnx
from jax import lax
from onnx import helper, numpy_helper

from benchmarks.models.store import Arrays
from rammer.errors import ModelError

Attributes = dict[str, Any]
Translate = Callable[..., Any]


def translate(path: Path) -> Callable[[Arrays], Arrays]:
    """A runner of the model; float weights are arguments, so that XLA does not fold them. Raises ModelError."""
    graph = onnx.load(path).graph
    tensors = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    weights = {name: jnp.asarray(value) for name, value in tensors.items() if value.dtype == np.float32}
    static = {name: value for name, value in tensors.items() if name not in weights}
    names = [value.name for value in graph.output]
    nodes = [(_operator(node), _attributes(node), node) for node in graph.node]

    def model(weights: dict[str, Any], inputs: dict[str, Any]) -> list[Any]:
        values: dict[str, Any] = {"": None, **static, **weights, **inputs}
        for function, attributes, node in nodes:
            results = function(attributes, *(values[name] for name in node.input))
            results = results if isinstance(results, (tuple, list)) else (results,)
            values.update(zip(node.output, results, strict=False))
        return [values[name] for name in names]

    compiled = jax.jit(model)
    return lambda inputs: dict(zip(names, map(np.asarray, compiled(weights, inputs)), strict=True))


def _operator(node: onnx.NodeProto) -> Translate:
    if node.op_type not in OPERATORS:
        raise ModelError("the JAX translator does not know this operator", node=node.name, op=node.op_type)
    return OPERATORS[node.op_type]


def _attributes(node: onnx.NodeProto) -> Attributes:
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    return {**attributes, "outputs": len(node.output)}


def _padding(a: Attributes, rank: int) -> list[tuple[int, int]]:
    pads = a.get("pads", [0] * 2 * rank)
    return list(zip(pads[:rank], pads[rank:], strict=True))


def _conv(a: Attributes, x: Any, w: Any, b: Any = None) -> Any:
    rank = x.ndim - 2
    y = lax.conv_general_dilated(
        x,
        w,
        a.get("strides", [1] * rank),
        _padding(a, rank),
        rhs_dilation=a.get("dilations", [1] * rank),
        feature_group_count=a.get("group", 1),
    )
    return y if b is None else y + b.reshape(1, -1, *[1] * rank)


def _window(a: Attributes, x: Any, start: float, combine: Any) -> Any:
    rank = x.ndim - 2
    window, strides = (1, 1, *a["kernel_shape"]), (1, 1, *a.get("strides", [1] * rank))
    return lax.reduce_window(x, start, combine, window, strides, [(0, 0), (0, 0), *_padding(a, rank)])


def _average_pool(a: Attributes, x: Any) -> Any:
    total = _window(a, x, 0.0, lax.add)
    if a.get("count_include_pad", 0):
        return total / float(np.prod(a["kernel_shape"]))
    return total / _window(a, jnp.ones_like(x[:1, :1]), 0.0, lax.add)


def _batch_norm(a: Attributes, x: Any, scale: Any, bias: Any, mean: Any, var: Any) -> Any:
    shape = (1, -1, *[1] * (x.ndim - 2))
    factor = scale / jnp.sqrt(var + a.get("epsilon", 1e-5))
    return x * factor.reshape(shape) + (bias - mean * factor).reshape(shape)


def _gemm(a: Attributes, x: Any, w: Any, b: Any = None) -> Any:
    y = a.get("alpha", 1.0) * ((x.T if a.get("transA") else x) @ (w.T if a.get("transB") else w))
    return y if b is None else y + a.get("beta", 1.0) * b


def _slice(a: Attributes, x: Any, starts: Any, ends: Any, axes: Any, steps: Any = None) -> Any:
    where = [slice(None)] * x.ndim
    for axis, start, end, step in zip(axes, starts, ends, steps if steps is not None else [1] * len(axes), strict=True):
        where[axis] = slice(int(start), int(end), int(step))
    return x[tuple(where)]


def _split(a: Attributes, x: Any, sizes: Any = None) -> Any:
    return jnp.split(x, a["outputs"] if sizes is None else np.cumsum(sizes)[:-1].tolist(), a.get("axis", 0))


def _reshape(a: Attributes, x: Any, shape: Any) -> Any:
    return x.reshape([x.shape[i] if d == 0 else int(d) for i, d in enumerate(shape)])


def _lrn(a: Attributes, x: Any) -> Any:
    before = (a["size"] - 1) // 2
    pads = [(0, 0), (before, a["size"] - 1 - before), (0, 0), (0, 0)]
    total = lax.reduce_window(x * x, 0.0, lax.add, (1, a["size"], 1, 1), (1, 1, 1, 1), pads)
    return x / (a.get("bias", 1.0) + a.get("alpha", 1e-4) / a["size"] * total) ** a.get("beta", 0.75)


def _softmax(a: Attributes, x: Any) -> Any:
    """Before opset 13: over everything from `axis` on."""
    axis = a.get("axis", 1)
    return jax.nn.softmax(x, tuple(range(axis % x.ndim, x.ndim)))


def _lstm(a: Attributes, x: Any, w: Any, r: Any, b: Any, lengths: Any, h: Any, c: Any) -> Any:
    hidden = a["hidden_size"]
    projected = x @ w[0].T + b[0, : 4 * hidden] + b[0, 4 * hidden :]

    def step(state: Any, gates: Any) -> Any:
        h, c = state
        i, o, f, g = jnp.split(gates + h @ r[0].T, 4, axis=1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    (h, c), outputs = lax.scan(step, (h[0], c[0]), projected)
    return outputs[:, None], h[None], c[None]


OPERATORS: dict[str, Translate] = {
    "Add": lambda a, x, y: x + y,
    "AveragePool": _average_pool,
    "BatchNormalization": _batch_norm,
    "Clip": lambda a, x, low, high: jnp.clip(x, low, high),
    "Concat": lambda a, *xs: jnp.concatenate(xs, a["axis"]),
    "Conv": _conv,
    "Dropout": lambda a, x: x,
    "Flatten": lambda a, x: x.reshape(int(np.prod(x.shape[: a.get("axis", 1)])), -1),
    "Gather": lambda a, x, index: jnp.take(x, index, a.get("axis", 0)),
    "Gemm": _gemm,
    "GlobalAveragePool": lambda a, x: x.mean(tuple(range(2, x.ndim)), keepdims=True),
    "LRN": _lrn,
    "LSTM": _lstm,
    "MatMul": lambda a, x, y: x @ y,
    "MaxPool": lambda a, x: _window(a, x, -jnp.inf, lax.max),
    "Mul": lambda a, x, y: x * y,
    "Pad": lambda a, x, pads, value=None: jnp.pad(x, list(zip(*np.split(pads, 2), strict=True))),
    "ReduceMean": lambda a, x: x.mean(tuple(a["axes"]), keepdims=bool(a.get("keepdims", 1))),
    "Relu": lambda a, x: jnp.maximum(x, 0),
    "Reshape": _reshape,
    "Sigmoid": lambda a, x: jax.nn.sigmoid(x),
    "Slice": _slice,
    "Softmax": _softmax,
    "Split": _split,
    "Squeeze": lambda a, x, axes: jnp.squeeze(x, tuple(int(axis) for axis in axes)),
    "Sum": lambda a, *xs: sum(xs[1:], xs[0]),
    "Tanh": lambda a, x: jnp.tanh(x),
    "Transpose": lambda a, x: jnp.transpose(x, a["perm"]),
    "Unsqueeze": lambda a, x: jnp.expand_dims(x, tuple(a["axes"])),
}
