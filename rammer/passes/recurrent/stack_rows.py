"""Apply one matrix to the rows of many operators at once: the input projections of all time steps in one product.

Known as: batching of input projections.
"""

from __future__ import annotations

from math import prod

from rammer.ir.graph import Graph
from rammer.ir.operator import Operation
from rammer.ir.tensor import TensorId
from rammer.passes.clusters import Clusters
from rammer.passes.editor import Editor
from rammer.passes.layout.place import view_offset
from rammer.passes.recurrent.split_products import MAX_ROWS
from rammer.passes.structure import GATE_MATMUL


def stack_rows(graph: Graph, *, across_waves: bool = True) -> Graph:
    """Join products with the same constant right operand that do not depend on each other.

    Without `across_waves`, only those that can start at once: a joined product waits for all of its rows, which costs
    the parallelism between layers of a recurrent network.
    """
    editor = Editor(graph)
    wave = {} if across_waves else {n: w for w, numbers in enumerate(graph.wavefronts()) for n in numbers}
    groups: dict[tuple[Operation, TensorId, int], list[int]] = {}
    for n, op in editor.operators.items():
        if op.kind in ("matmul", GATE_MATMUL) and op.inputs[1] in editor.constants and _stackable(op.operation):
            groups.setdefault((op.operation, op.inputs[1], wave.get(n, 0)), []).append(n)
    clusters = Clusters(graph)  # joining one group may make another one depend on itself
    for numbers in groups.values():
        joined = numbers[:1]
        for n in numbers[1:]:
            if clusters.contract(clusters.group_of[joined[0]], n, parallel=True) is None:
                break
            joined.append(n)
        if len(joined) > 1:
            _stack(editor, joined)
    return editor.finish()


def _stackable(operation: Operation) -> bool:
    rows, matrix = operation.inputs
    plain = operation.kind == GATE_MATMUL or (matrix.rank == 2 and not operation.keywords.get("trans_a", False))
    return plain and rows.rank >= 2 and prod(rows.shape[:-1]) <= MAX_ROWS


def _stack(editor: Editor, numbers: list[int]) -> None:
    operators = [editor.remove(n) for n in numbers]
    first = operators[0]
    kind, matrix = first.operation.inputs[0], first.inputs[1]
    if first.kind == GATE_MATMUL:  # over many rows it is a plain product, whose result has the gates side by side
        value = editor.constants[matrix]
        matrix = editor.constant(value.reshape(value.shape[0], -1), matrix)
    rows = _join_rows(editor, [op.inputs[0] for op in operators], first.name)
    attrs = first.operation.keywords if first.kind == "matmul" else {}
    product = editor.define(first.name, "matmul", rows, matrix, **attrs)
    whole = editor.types[product]
    shape = (kind.shape[0], *whole.shape[1:])
    for step, op in enumerate(operators):
        starts = (step * kind.shape[0], *(0,) * (len(shape) - 1))
        editor.cut(op.name, product, starts, (1,) * len(shape), shape, op.outputs)


def _join_rows(editor: Editor, parts: list[TensorId], name: str) -> TensorId:
    """Return the parts one after another: the tensor that they are pieces of, or a concatenation."""
    kind = editor.types[parts[0]]
    total = (len(parts) * kind.shape[0], *kind.shape[1:])
    places = [_origin(editor, t) for t in parts]
    base = places[0][0]
    if places == [(base, n * kind.size) for n in range(len(parts))] and editor.types[base].size == prod(total):
        if editor.types[base].shape == total:
            return base
        return editor.define(name, "reshape", base, shape=total)
    return editor.define(name, "concat", *parts, axis=0)


def _origin(editor: Editor, tensor: TensorId) -> tuple[TensorId, int]:
    """Return the tensor of which this one is a contiguous piece, and its first element there."""
    offset = 0
    while (n := editor.producer.get(tensor)) is not None:
        op = editor.operators[n]
        step = view_offset(op.operation)
        if step is None:
            break
        tensor, offset = op.inputs[0], offset + step
    return tensor, offset
