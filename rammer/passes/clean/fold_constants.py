"""Compute at compile time what depends on constants only. Known as: constant folding."""

from __future__ import annotations

from rammer.ir.graph import Graph
from rammer.ir.operator import flops
from rammer.ir.semantics.evaluate import MOVES, compute
from rammer.ir.semantics.grids import is_contraction
from rammer.ir.tensor import Array, TensorId
from rammer.passes.editor import Editor

MAX_FLOPS = 1 << 24  # work of one folded operator
MAX_PRODUCT_FLOPS = 1 << 30  # work of one whose reductions are sums of products: tens of milliseconds in NumPy
ALL_FLOPS = 1 << 33  # work of all folded operators together
MAX_BYTES = 64 << 20  # by which folding may enlarge the constants
FREE_BYTES = 4096


def fold_constants(graph: Graph) -> Graph:
    """Replace operators with constant inputs by their values, within limits on work and memory.

    Constants that nothing reads afterwards make room, so standardized weights take no more memory than the weights.
    """
    if not graph.constants:
        return graph
    editor = Editor(graph)
    budget, work, kept = MAX_BYTES, ALL_FLOPS, {*editor.outputs, *(v.base for v in editor.views.values())}
    for n in list(editor.operators):
        op = editor.operators[n]
        if not op.inputs or any(t not in editor.constants for t in op.inputs):
            continue
        definition = editor.interner.definitions.get(op.kind)
        if definition is not None and not definition.folds:
            continue
        operation = op.operation
        nbytes = sum(t.nbytes for t in operation.outputs)
        moves, needed = operation.kind in MOVES, flops(operation.expr)
        product = needed > MAX_FLOPS and all(is_contraction(s) for s in operation.expr.stages if s.reduce)
        bound = min(MAX_PRODUCT_FLOPS if product else MAX_FLOPS, work)
        unread = [t for t in {*op.inputs} - kept if editor.readers[t].keys() == {n}]
        growth = (nbytes if nbytes > FREE_BYTES else 0) - sum(editor.constants[t].nbytes for t in unread)
        if not moves and (needed > bound or growth > budget):
            continue
        if any(t in editor.outputs for t in op.outputs) and operation.kind in ("copy", "reshape"):
            continue  # an output is computed by an operator, at least by a copy
        if not moves:
            budget, work = budget - growth, work - needed
        values = compute(operation, [editor.constants[t] for t in op.inputs])
        editor.remove(n)
        for tensor in unread:
            del editor.constants[tensor]
        for tensor, value in zip(op.outputs, values, strict=True):
            editor.replace_result(tensor, editor.constant(value, op.name))
    return editor.finish()


def known_value(editor: Editor, tensor: TensorId) -> Array | None:
    """Return the value of a constant, or of constants cast and subtracted, even if folding left these in the graph."""
    found, op = editor.constants.get(tensor), editor.maker(tensor)
    if op is None or op.kind not in ("cast", "sub"):
        return found
    values = [value for t in op.inputs if (value := known_value(editor, t)) is not None]
    return compute(op.operation, values)[0] if len(values) == len(op.inputs) else None
