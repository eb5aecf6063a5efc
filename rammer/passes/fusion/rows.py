"""Fuse a reduction of rows with the operator that reads the rows again, while they are resident in a private cache."""

from __future__ import annotations

from math import prod

from rammer.ir.device import VDeviceSpec
from rammer.ir.graph import Graph
from rammer.ir.operator import ROperator
from rammer.ir.tensor import TensorId
from rammer.passes.editor import Editor
from rammer.passes.fusion.chains import join
from rammer.passes.structure import is_elementwise


def fuse_rows(graph: Graph, spec: VDeviceSpec) -> Graph:
    """Fuse x / sqrt(mean of x² + e) and the like, where x does not fit the private caches of all vEUs, but a row does.

    Only one element-wise operator may read the reduction's result.
    """
    editor = Editor(graph)
    for n, op in list(editor.operators.items()):
        reader = editor.only_reader(op.outputs[0]) if "reduce" in op.kind.split("+") and len(op.outputs) == 1 else None
        if reader is not None and any(_suits(editor, op, editor.operators[reader], t, spec) for t in op.inputs):
            join(editor, [n, reader])
    return editor.finish()


def _suits(editor: Editor, op: ROperator, by: ROperator, tensor: TensorId, spec: VDeviceSpec) -> bool:
    """Check whether an operator reduces the rows of a large tensor, which the one that reads its result reads again."""
    kind = editor.types[tensor]
    extents = [extent for s in op.operation.expr.stages for _, extent in s.reduce]
    rows = op.operation.outputs[0].shape == (*kind.shape[:-1], 1) and extents == [*kind.shape[-1:]]
    again = tensor in by.inputs and is_elementwise(by.operation) and by.operation.outputs[0].shape == kind.shape
    large = kind.nbytes > spec.num_veus * spec.l2.nbytes and 2 * kind.nbytes <= prod(kind.shape[:-1]) * spec.l2.nbytes
    return rows and again and large
