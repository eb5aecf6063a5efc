"""Remove tensors without elements, and operators that compute only those: vDevices then need not handle them."""

from __future__ import annotations

from dataclasses import replace

from rammer.errors import ModelError
from rammer.ir.graph import Graph
from rammer.ir.tensor import TensorId


def drop_empty(graph: Graph) -> Graph:
    """Return the graph without inputs, outputs and operators of no elements; itself if there are none.

    Raises ModelError for an operator that makes elements out of a tensor without any. Building a graph computes such
    results at once unless they are large.
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
