"""Update state in place: a program changes the state for its next run where it lies, instead of copying it.

Known as: buffer donation, input-output aliasing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from rammer.ir.graph import Graph, Update
from rammer.ir.operator import attributes
from rammer.ir.tensor import TensorId
from rammer.passes.editor import Editor

Perm = tuple[int, ...]


def update_in_place(graph: Graph, state: Mapping[TensorId, TensorId]) -> tuple[Graph, frozenset[TensorId]]:
    """Return the graph with updates of state, and the outputs that alias their inputs.

    `state`: output -> input. An output aliases its input if it is that input with some elements replaced, at places
    that data say. Transpositions that cancel out may lie between. Other operators must not need the input's old value.
    """
    changed = []
    for output, taker in state.items():
        if (updated := _updated(graph, output, taker)) is not None:
            graph = updated
            changed.append(output)
    return replace(graph, updates={}), frozenset(changed)


def _updated(graph: Graph, output: TensorId, taker: TensorId) -> Graph | None:
    """Return the graph with one output made in place; None if that is not possible."""
    editor = Editor(graph)
    made, back = _through_transpositions(editor, output)
    maker = editor.maker(made, "update")
    update = graph.updates.get(made) if maker is None else Update(maker.inputs, maker.operation.attrs)
    if update is None or taker in update.inputs[1:]:
        return None
    source, forth = _through_transpositions(editor, update.inputs[0])
    rank = graph.types[taker].rank
    if source != taker or tuple(forth[p] for p in back) != tuple(range(rank)):
        return None
    attrs = dict(update.attrs)
    moves = attrs["moves"]
    assert isinstance(moves, tuple)
    if attrs["how"] not in ("elements", "vectors") and forth != tuple(range(rank)):
        return None  # a first place is along a dimension of the updates, too
    attrs["moves"] = tuple(moves[p] for p in back)
    operands = (taker, *update.inputs[1:])
    operation = editor.interner.define("update", tuple(graph.types[t] for t in operands), attributes(**attrs))
    name = editor.operators[editor.producer[made]].name
    for tensor in dict.fromkeys((output, made)):
        editor.remove(editor.producer[tensor])
    editor.add(name, operation, operands, (output,))
    if made != output:
        editor.define(name, "transpose", output, outputs=(made,), perm=forth)
    changed = editor.finish()
    readers = [changed.operators[n].kind for n in changed.consumers.get(taker, [])]
    return changed if readers == ["update"] else None


def _through_transpositions(editor: Editor, tensor: TensorId) -> tuple[TensorId, Perm]:
    """Return the tensor from which this one is transposed, and how: dimension d is dimension perm[d] there."""
    perm: Perm = tuple(range(editor.types[tensor].rank))
    while tensor not in editor.graph.updates and (op := editor.maker(tensor, "transpose")) is not None:
        inner = op.operation.attr("perm")
        perm = tuple(inner[p] for p in perm)
        tensor = op.inputs[0]
    return tensor, perm
