"""Find quantised weights that no operator keeps quantised. They take the space of float32, and compilation says so."""

from __future__ import annotations

from rammer.ir.graph import Graph
from rammer.ir.operator import ROperator
from rammer.ir.tensor import DType, TensorId
from rammer.passes.structure import is_pointwise, known_tensors

FEWEST = 1 << 12  # weights


def wide_weights(graph: Graph) -> list[str]:
    """Return a line for each large constant of at most 8 bits that an operator reads as floats."""
    known, makers = known_tensors(graph), {t: op for op in graph.operators for t in op.outputs}
    found: dict[TensorId, str] = {}
    for op in graph.operators:
        for tensor in op.inputs if not known.issuperset(op.outputs) else ():
            narrow = _source(graph, makers, tensor) if tensor in known and tensor not in graph.constants else None
            if narrow is not None and graph.types[tensor].dtype.is_float:
                kind = graph.types[narrow]
                found.setdefault(
                    narrow,
                    f"{op.name} ({op.kind}) has no product of {kind.dtype.bits} bits: "
                    f"its weights {kind} take the room of {graph.types[tensor].dtype.value}",
                )
    return list(found.values())


def _source(graph: Graph, makers: dict[TensorId, ROperator], tensor: TensorId) -> TensorId | None:
    """Return the largest narrow constant from which a known tensor is computed, if it is as large; or None."""
    if tensor in graph.constants:
        kind = graph.types[tensor]
        narrow = kind.dtype.bits <= 8 and kind.dtype is not DType.BOOL and kind.size >= FEWEST
        return tensor if narrow else None
    if not is_pointwise(makers[tensor].operation):  # a sum of many weights is not a weight
        return None
    sources = (_source(graph, makers, t) for t in makers[tensor].inputs)
    return max((t for t in sources if t is not None), key=lambda t: graph.types[t].size, default=None)
