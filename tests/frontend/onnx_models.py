"""Small ONNX models, made in code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import FunctionProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from rammer.ir.tensor import Array

CODES = {
    "float32": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "float64": TensorProto.DOUBLE,
    "int64": TensorProto.INT64,
    "int32": TensorProto.INT32,
    "int16": TensorProto.INT16,
    "int8": TensorProto.INT8,
    "uint32": TensorProto.UINT32,
    "uint8": TensorProto.UINT8,
    "bool": TensorProto.BOOL,
    "complex64": TensorProto.COMPLEX64,
    "complex128": TensorProto.COMPLEX128,
}


def model(
    nodes: Sequence[NodeProto],
    inputs: Mapping[str, tuple[Any, ...] | tuple[str, tuple[Any, ...]]],
    outputs: Sequence[str] = ("y",),
    constants: Mapping[str, Array] | None = None,
    opset: int = 21,
    functions: Sequence[FunctionProto] = (),
    domains: Mapping[str, int] | None = None,
) -> ModelProto:
    """A model; an input is a shape (float32), or an element type and a shape."""
    values = []
    for name, spec in inputs.items():
        dtype, shape = spec if spec and isinstance(spec[0], str) and isinstance(spec[-1], tuple) else ("float32", spec)
        values.append(helper.make_tensor_value_info(name, CODES[dtype], list(shape)))
    graph = helper.make_graph(
        list(nodes),
        "test",
        values,
        [helper.make_value_info(name, helper.make_tensor_type_proto(TensorProto.UNDEFINED, None)) for name in outputs],
        [numpy_helper.from_array(np.asarray(v), name) for name, v in (constants or {}).items()],
    )
    for output in graph.output:  # left to be inferred
        output.ClearField("type")
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, v) for d, v in (domains or {}).items())]
    return helper.make_model(graph, opset_imports=imports, ir_version=10, functions=list(functions))


def node(
    op: str, inputs: Sequence[str] = ("x",), outputs: Sequence[str] = ("y",), name: str = "n", **attrs: Any
) -> NodeProto:
    """A node; it is called `n` unless told otherwise."""
    made: NodeProto = helper.make_node(op, list(inputs), list(outputs), name=name, **attrs)
    return made


def tensor(**fields: Any) -> TensorProto:
    return TensorProto(name="w", **fields)


def with_weight(weight: TensorProto) -> ModelProto:
    made = model([node("Add", ["x", "w"])], {"x": (2,)})
    made.graph.initializer.append(weight)
    return made


def external(**entries: str) -> ModelProto:
    weight = tensor(data_type=TensorProto.FLOAT, dims=[2], data_location=TensorProto.EXTERNAL)
    for key, value in entries.items():
        weight.external_data.add(key=key, value=value)
    return with_weight(weight)


def nested_ifs(depth: int) -> ModelProto:
    result = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])]
    plain = helper.make_node("Identity", ["x"], ["y"])
    other = helper.make_graph([plain], "else", [], result)
    inner = plain
    for _ in range(depth):
        then = helper.make_graph([inner], "then", [], result)
        inner = helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other)
    return model([inner], {"x": (2,)}, constants={"c": np.array(True)})
