"""A stand-in for the torch namespace that records ONNX nodes: unrolled RNNs are written once, run and exported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from benchmarks.models.spec import OPSET


@dataclass(frozen=True, slots=True)
class Symbol:
    """The output of a recorded node."""

    name: str


Value = Symbol | torch.Tensor


class Recorder:
    """Records calls named as in torch."""

    def __init__(self, module: nn.Module) -> None:
        self._names = {id(tensor): name for name, tensor in module.named_buffers()}
        self._initializers: dict[int, tuple[str, torch.Tensor]] = {}
        self._nodes: list[onnx.NodeProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []

    def input(self, name: str, shape: Sequence[int]) -> Symbol:
        """Declare a float32 graph input."""
        self._inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape)))
        return Symbol(name)

    def matmul(self, a: Value, b: Value) -> Value:
        return self._node("MatMul", a, b)

    def add(self, a: Value, b: Value) -> Value:
        return self._node("Add", a, b)

    def mul(self, a: Value, b: Value) -> Value:
        return self._node("Mul", a, b)

    def sigmoid(self, a: Value) -> Value:
        return self._node("Sigmoid", a)

    def tanh(self, a: Value) -> Value:
        return self._node("Tanh", a)

    def cat(self, parts: Sequence[Value], dim: int) -> Value:
        return self._node("Concat", *parts, axis=dim)

    def split(self, a: Value, size: int, dim: int) -> tuple[Value, ...]:
        """Four parts of `size` along `dim`, as one Split with explicit sizes, like torch's exporter."""
        name = self._node("Split", a, torch.full([4], size), axis=dim).name
        outputs = [f"{name}_{i}" for i in range(4)]
        self._nodes[-1].output[:] = outputs
        return tuple(map(Symbol, outputs))

    def select(self, a: Value, dim: int, index: int) -> Value:
        """One slice along `dim`, which goes away, as a Gather by a scalar."""
        return self._node("Gather", a, torch.tensor(index), axis=dim)

    def model(self, output: Value, shape: Sequence[int]) -> onnx.ModelProto:
        """The checked model of every node that `output` needs."""
        assert isinstance(output, Symbol)
        needed, nodes = {output.name}, []
        for node in reversed(self._nodes):
            if needed.intersection(node.output):
                needed.update(node.input)
                nodes.append(node)
        for node in nodes:  # renamed to what every exported model calls it
            for names in (node.input, node.output):
                names[:] = ["output" if name == output.name else name for name in names]
        graph = helper.make_graph(
            nodes[::-1],
            "unrolled",
            self._inputs,
            [helper.make_tensor_value_info("output", TensorProto.FLOAT, list(shape))],
            [numpy_helper.from_array(t.numpy(), name) for name, t in self._initializers.values() if name in needed],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)
        onnx.checker.check_model(model)
        return model

    def _node(self, kind: str, *values: Value, **attributes: int) -> Symbol:
        name = f"{kind}_{len(self._nodes)}"
        node = helper.make_node(kind, [self._name(v) for v in values], [name], name)
        node.attribute.extend(helper.make_attribute(key, value) for key, value in attributes.items())
        self._nodes.append(node)
        return Symbol(name)

    def _name(self, value: Value) -> str:
        if isinstance(value, Symbol):
            return value.name
        # The tensor is kept beside its name, so that its id cannot be taken by another one.
        default = self._names.get(id(value), f"constant_{len(self._initializers)}")
        return self._initializers.setdefault(id(value), (default, value))[0]
