"""Leave out of a graph what follows from known values of inputs: branches of `where` that are never chosen.

Known as: partial evaluation. The proof of padded sequences (buckets.py) does this to a graph whose recurrent steps are
masked behind a length: with a known length, exactly the steps of an exact graph must be left.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from rammer.ir.graph import Graph
from rammer.ir.operator import ROperator
from rammer.ir.semantics.evaluate import compute, evaluate_graph
from rammer.ir.tensor import Array, TensorId


def specialized(graph: Graph, known: Mapping[TensorId, Array]) -> tuple[Graph, tuple[int, ...]]:
    """Return the graph for these values of inputs, and the number that each of its operators has in `graph`."""
    values = {**graph.constants, **known}
    wanted, follows = set(graph.outputs), set(known)  # tensors whose value follows from the known ones
    same: dict[TensorId, TensorId] = {}  # result -> an equal tensor
    kept: list[tuple[int, ROperator]] = []
    for number, op in enumerate(graph.operators):
        inputs = tuple(same.get(t, t) for t in op.inputs)
        if follows.isdisjoint(inputs) or not wanted.isdisjoint(op.outputs):
            kept.append((number, replace(op, inputs=inputs)))
        elif all(t in values for t in inputs):
            values |= zip(op.outputs, compute(op.operation, [values[t] for t in inputs]), strict=True)
            follows |= {*op.outputs}
        elif (equal := _chosen(op, inputs, values)) is None:
            kept.append((number, replace(op, inputs=inputs)))
        elif equal in values:
            (result,) = op.outputs
            values[result] = np.broadcast_to(values[equal], graph.types[result].shape)
            follows |= {result}
        elif graph.types[equal] == graph.types[op.outputs[0]]:
            same[op.outputs[0]] = equal
        else:
            kept.append((number, replace(op, inputs=inputs)))
    needed, live = {*wanted}, []
    for number, op in reversed(kept):
        if not needed.isdisjoint(op.outputs):
            needed.update(op.inputs)
            live.append((number, op))
    numbers, operators = zip(*reversed(live), strict=True) if live else ((), ())
    found = replace(
        graph,
        inputs=tuple(t for t in graph.inputs if t not in known),
        operators=operators,
        constants={t: value for t, value in values.items() if t in needed},
        updates={},
    )
    return found, numbers


def _chosen(op: ROperator, inputs: tuple[TensorId, ...], values: Mapping[TensorId, Array]) -> TensorId | None:
    """Return the operand that is the result of a choice by a known value; None if that is not known."""
    for n, t in enumerate(inputs[:1] if op.kind == "where" else inputs if op.kind == "and" else ()):
        if t in values and (values[t].all() or not values[t].any()):
            yes = bool(values[t].all())
            return inputs[1 if yes else 2] if op.kind == "where" else inputs[1 - n] if yes else t
    return None


def folded(graph: Graph) -> dict[str, Array] | None:
    """Return the outputs of a graph that its import has computed completely; None if operators are left."""
    only_copies = len(graph.operators) <= len(graph.outputs)
    if not only_copies or any(t not in graph.constants for op in graph.operators for t in op.inputs):
        return None
    return evaluate_graph(replace(graph, inputs=()), {})
