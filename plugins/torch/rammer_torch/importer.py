"""Import ATen nodes as a Graph, through an ONNX model in memory."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

from onnx import helper
from torch import fx

from rammer.frontend.onnx import Source
from rammer.frontend.onnx.tensors import CODES
from rammer.ir.graph import Graph
from rammer_torch.writer import DTYPE, OPSET, Unsupported, Writer


def unsupported_reason(node: fx.Node) -> str:
    """Return why a call cannot be imported; empty if it can."""
    if node.target is operator.getitem:
        return ""
    try:
        Writer({}).write(node)
    except Unsupported as reason:
        return str(reason)
    return ""


def import_nodes(
    nodes: Sequence[fx.Node],
    inputs: Mapping[str, fx.Node],
    outputs: Mapping[str, fx.Node],
    known: Mapping[fx.Node, Any],
    name: str = "graph",
) -> Graph:
    """Return the Graph of some calls, in their order.

    `inputs` and `outputs` are its ports, `known` the tensors of constant nodes. Raises ModelError for what the ONNX
    importer refuses.
    """
    writer = Writer(known)
    for port, node in inputs.items():
        writer.call(node, port)
    for node in nodes:
        if node.target is operator.getitem:
            source, position = node.args
            assert isinstance(source, fx.Node) and isinstance(position, int)
            writer.take(node, source, position)
        else:
            writer.write(node)
    ends = [helper.make_node("Identity", [writer.name(node)], [port], name=port) for port, node in outputs.items()]
    graph = helper.make_graph(
        [*writer.nodes, *ends],
        name,
        [_port(port, node) for port, node in inputs.items()],
        [_port(port, node) for port, node in outputs.items()],
        writer.initializers,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)])
    return Source(model, weights=writer.weights).load().graph


def _port(name: str, node: fx.Node) -> Any:
    value = node.meta["val"]
    return helper.make_tensor_value_info(name, CODES[DTYPE[value.dtype]], list(value.shape))
