"""Compute a node whose operands are values, as a session has them at run time: by its handler, without an import."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from onnx import GraphProto, NodeProto

from rammer.frontend.onnx.limits import Limits
from rammer.frontend.onnx.node import Node, handler_for
from rammer.frontend.onnx.parts import label_of
from rammer.frontend.onnx.signature import attribute_values, signature
from rammer.ir.tensor import Array, NamedArrays

VALUED = ("NonZero", "NonMaxSuppression", "Unique", "Compress")  # their handlers add no operators, and look at no types


class ValuedNode:
    """The node of a model that has one only. An import of the model has checked operands and attributes before."""

    def __init__(self, graph: GraphProto, opset: int, limits: Limits, weights: NamedArrays) -> None:
        (node,) = graph.node
        self._handler, self._results = handler_for("", node.op_type, opset), tuple(node.output)
        found = signature(node.op_type, opset, "")
        attributes = attribute_values(node.attribute, found, limits.attribute_length)
        inputs = tuple(name or None for name in node.input)
        outputs = tuple(map(bool, node.output))
        self._view = partial(Node, node.op_type, label_of(node), opset, inputs, outputs, attributes, limits=limits)
        self._weights = weights

    @staticmethod
    def suits(graph: GraphProto, node: NodeProto) -> bool:
        """Check whether a model of one node can be computed so."""
        known = node.op_type in VALUED and node.domain in ("", "ai.onnx")
        return known and all(v.name in node.output for v in graph.output)

    def run(self, inputs: NamedArrays) -> dict[str, Array]:
        """Return the outputs by name. Raises ModelError for operands that do not fit each other."""
        values = {**self._weights, **inputs}

        def constant(array: Any) -> str:
            values[name := f"result {len(values)}"] = np.asarray(array)
            return name

        builder: Any = SimpleNamespace(value=values.__getitem__, constant=constant, counts=None)
        assert self._handler is not None
        nothing: Any = None  # its attributes have neither tensors nor graphs
        view = self._view(builder=builder, decode=nothing, subgraph=nothing, lengths=nothing, words=nothing)
        found = self._handler(view)
        names = cast("list[str]", [found] if isinstance(found, str) else found)
        return {name: values[tensor] for name, tensor in zip(self._results, names, strict=False) if name}
