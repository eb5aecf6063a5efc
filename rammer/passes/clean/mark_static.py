"""Tell operations which of their inputs are known at compile time."""

from __future__ import annotations

from rammer.ir.graph import Graph
from rammer.ir.operator import ROperator


def mark_static(graph: Graph) -> Graph:
    """Set Operation.static, and the layouts of the tensors as placed, in every operator's operation."""
    operators = []
    for op in graph.operators:
        operation = op.operation
        static = tuple(t in graph.constants for t in op.inputs)
        if static != operation.static:
            operation = graph.interner.retype(operation, operation.inputs, operation.outputs, static)
            op = ROperator(op.name, operation, op.inputs, op.outputs)
        operators.append(op)
    return _with_operators(graph, tuple(operators))


def _with_operators(graph: Graph, operators: tuple[ROperator, ...]) -> Graph:
    return Graph(
        graph.name, graph.inputs, graph.outputs, operators, graph.types, graph.constants, graph.interner, graph.views
    )
