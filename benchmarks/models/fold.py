"""Fold what an exporter leaves behind: shapes of static tensors, and nodes whose inputs are all constant."""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

Constant = npt.NDArray[np.generic]


def fold_constants(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same model without constant nodes; what nodes still read becomes initializers, equal ones shared."""
    before = -1
    while len(model.graph.node) != before:  # each round's constants let shape inference see further
        before = len(model.graph.node)
        model = _fold_once(onnx.shape_inference.infer_shapes(model))
    return model


def _fold_once(model: onnx.ModelProto) -> onnx.ModelProto:
    graph = model.graph
    known: dict[str, Constant] = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    shapes = {value.name: _static_shape(value) for value in (*graph.input, *graph.value_info)}
    kept = []
    for node in graph.node:
        shape = shapes.get(node.input[0]) if node.op_type == "Shape" and not node.attribute else None
        if shape is not None:
            known[node.output[0]] = np.array(shape, np.int64)
        elif all(name in known for name in node.input if name):
            known.update(_evaluate(node, known, model))
        else:
            kept.append(node)
    used = {name for node in kept for name in node.input} & known.keys()
    first: dict[tuple[object, ...], str] = {}
    shared = {name: first.setdefault(_content(known[name]), name) for name in known if name in used}
    for node in kept:
        node.input[:] = [shared.get(name, name) for name in node.input]
    del graph.node[:], graph.initializer[:], graph.value_info[:]
    graph.node.extend(kept)
    graph.initializer.extend(numpy_helper.from_array(known[name], name) for name in first.values())
    return model


def _content(value: Constant) -> tuple[object, ...]:
    return value.dtype.str, value.shape, hashlib.sha256(value.tobytes()).digest()


def _static_shape(value: onnx.ValueInfoProto) -> list[int] | None:
    dims = value.type.tensor_type.shape.dim
    return [d.dim_value for d in dims] if all(d.HasField("dim_value") for d in dims) else None


def _evaluate(node: onnx.NodeProto, known: dict[str, Constant], model: onnx.ModelProto) -> dict[str, Constant]:
    """Outputs of one node whose inputs are known."""
    inputs = {name: known[name] for name in node.input if name}
    graph = helper.make_graph(
        [node],
        "constant",
        [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
            for n, v in inputs.items()
        ],
        [onnx.ValueInfoProto(name=name) for name in node.output],
    )
    single = helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)
    return dict(zip(node.output, ReferenceEvaluator(single).run(None, inputs), strict=True))
