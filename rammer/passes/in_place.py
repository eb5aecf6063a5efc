"""Update state in place: a program changes the state for its next run where it lies, instead of copying it.

Known as: buffer donation, input-output aliasing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

from rammer.ir.graph import Graph, Update
from rammer.ir.operator import attributes
from rammer.ir.ops.update import COUNTED
from rammer.ir.tensor import TensorId
from rammer.passes.editor import Editor

Perm = tuple[int, ...]
COPIED = 4  # elements that are copied in the time of a comparison


def update_in_place(
    graph: Graph, state: Mapping[TensorId, TensorId], *, copies: bool = False
) -> tuple[Graph, frozenset[TensorId]]:
    """Return the graph with updates of state, and the outputs that alias their inputs.

    `state`: output -> input. An output aliases its input if it is that input with some elements replaced, at places
    that data say. Transpositions that cancel out may lie between. Other operators must not need the input's old value.
    `copies`: other tensors are copied and then updated, where that is less work.
    """
    known = {t: update for t, update in graph.updates.items() if graph.types.keys() >= {t, *update.inputs}}
    graph, changed = replace(graph, updates=known), []  # operands of the others are folded
    for output, taker in state.items():
        if (updated := _updated(graph, output, taker)) is not None:
            graph = updated
            changed.append(output)
    return replace(_update_copies(graph) if copies else graph, updates={}), frozenset(changed)


def _update_copies(graph: Graph) -> Graph:
    """Return the graph with updates of copies, where data say which elements change, instead of searches.

    A search compares each place with all updates, in vectors, and then writes the data once. A copy writes it twice.
    """
    editor = Editor(graph)
    for result, update in graph.updates.items():
        data, moved, at = update.inputs
        kinds = tuple(graph.types[t] for t in update.inputs)
        moves = dict(update.attrs)["moves"]
        assert isinstance(moves, tuple)
        kept = [(m, e) for m, e in zip(moves, graph.types[data].shape, strict=True) if m >= 0]
        places = [extent for m, extent in zip(moves, graph.types[data].shape, strict=True) if m < 0]
        numbers = len(places) if dict(update.attrs)["how"] == "vectors" else 1  # of `at` for one place
        compared = prod(places) * graph.types[at].size // numbers
        if "combine" in dict(update.attrs):  # a search adds up all updates for each element
            compared = prod(places) * graph.types[moved].size
        slow = dict(update.attrs)["how"] not in COUNTED and compared > graph.types[data].size // COPIED
        searched = result in editor.producer and editor.maker(result, "update") is None
        if slow and searched and all(graph.types[moved].shape[m] == extent for m, extent in kept):
            operation = editor.interner.define("scatter", kinds, update.attrs)
            name = editor.operators[editor.producer[result]].name
            editor.remove(editor.producer[result])
            editor.add(name, operation, update.inputs, (result,))
    return editor.finish()


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
