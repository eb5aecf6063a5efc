"""Models whose weights alone are quantised, with seeded numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

import rammer
from rammer.ir.tensor import Array

ARCHES = ("x86-64-avx512vnni@here", "x86-64-avx2@here")
DOMAIN = "com.microsoft"
Constant = Array | onnx.TensorProto


def model(
    nodes: Sequence[NodeProto], inputs: Mapping[str, Array], constants: Mapping[str, Constant]
) -> onnx.ModelProto:
    """A model whose result is y."""
    ports = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape) for n, x in inputs.items()
    ]
    weights = [
        value if isinstance(value, onnx.TensorProto) else numpy_helper.from_array(np.asarray(value), name)
        for name, value in constants.items()
    ]
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(list(nodes), "weights", ports, [result], weights)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def few_bits(kind: int, *shape: int, name: str = "w") -> onnx.TensorProto:
    low = -8 if kind == TensorProto.INT4 else 0
    values = np.random.default_rng(shape).integers(low, low + 16, shape)
    return helper.make_tensor(name, kind, shape, values.ravel().tolist())


def draw(*shape: int) -> Array:
    return np.random.default_rng(shape).standard_normal(shape).astype(np.float32)


def scales(*shape: int) -> Array:
    return np.random.default_rng(shape).uniform(0.01, 0.03, shape).astype(np.float32)


def in_bytes(*shape: int) -> Array:
    return np.random.default_rng(shape).integers(0, 256, shape).astype(np.uint8)


def run(made: onnx.ModelProto, inputs: Mapping[str, Array], arch: str = ARCHES[0]) -> tuple[Array, int]:
    """The result, and how many bytes the program's constants have."""
    with rammer.compile(made, "cpu", arch=arch, device=2, tune_seconds=0) as program:
        return np.asarray(program.run(dict(inputs))["y"]), program.report().weight_bytes


def close(got: Array, wanted: Array, part: float = 5e-6) -> None:
    assert got.shape == wanted.shape and got.dtype == wanted.dtype
    assert np.abs(got - wanted).max() <= part * np.abs(wanted).max()
