"""Record in operations which of their inputs are constants, known at compile time."""

from __future__ import annotations

from dataclasses import replace

from rammer.ir.graph import Graph


def mark_static(graph: Graph) -> Graph:
    """Set Operation.static, and the layouts of the tensors as placed, in every operator's operation."""
    operators = []
    for op in graph.operators:
        operation = op.operation
        static = tuple(t in graph.constants for t in op.inputs)
        if static != operation.static:
            operation = graph.interner.retype(operation, operation.inputs, operation.outputs, static)
            op = replace(op, operation=operation)
        operators.append(op)
    return replace(graph, operators=tuple(operators))
