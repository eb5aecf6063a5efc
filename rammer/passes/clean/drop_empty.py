"""Removes what has no elements: nothing is computed for it, and no vDevice needs to know of it."""

from __future__ import annotations

from dataclasses import replace

from rammer.errors import ModelError
from rammer.ir.graph import Graph
from rammer.ir.tensor import TensorId


def drop_empty(graph: Graph) -> Graph:
    """The graph without inputs, outputs and operators of no elements; itself if there are none.

    Raises ModelError for an operator that makes elements out of a tensor without any, which building a graph computes
    at once unless the result is large.
    """

    def there(tensor: TensorId) -> bool:
        return graph.types[tensor].size > 0

    operators = tuple(op for op in graph.operators if any(map(there, op.outputs)))
    for op in operators:
        if not all(map(there, (*op.inputs, *op.outputs))):
            empty = next(t for t in (*op.inputs, *op.outputs) if not there(t))
            raise ModelError(
                f"{empty!r} is {graph.types[empty]}, without elements",
                node=op.name,
                op=op.kind,
                hint="compile with an extent of 1 or more",
            )
    if all(map(there, (*graph.inputs, *graph.outputs))) and len(operators) == len(graph.operators):
        return graph
    used = {t for op in operators for t in op.inputs}
    kept = {*filter(there, graph.inputs), *used, *(t for op in operators for t in op.outputs)}
    return replace(
        graph,
        inputs=tuple(filter(there, graph.inputs)),
        outputs=tuple(filter(there, graph.outputs)),
        operators=operators,
        types={t: kind for t, kind in graph.types.items() if t in kept},
        constants={t: value for t, value in graph.constants.items() if t in used},
    )
