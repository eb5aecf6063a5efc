"""Decompose GRU cells whose candidate multiplies the reset state by a matrix of its own (ONNX: linear_before_reset=0).

A task of such a cell needs the reset gates of all units for its own candidates. So each task would compute them all.
As products of their own they are computed once: one for both gates, then one for the candidate.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rammer.ir.device import VDeviceSpec
from rammer.ir.graph import Graph
from rammer.ir.operator import ROperator
from rammer.ir.tensor import TensorId
from rammer.passes.editor import Editor
from rammer.passes.recurrent.decompose_cells import PLAIN
from rammer.passes.structure import WIDE

DEFAULT = ("sigmoid", "tanh")  # activations of gates and candidate
LEAST_TERMS = 1 << 13  # that each vEU would compute again: as many as pay for a hand-over


def decompose_resets(graph: Graph, spec: VDeviceSpec) -> Graph:
    """Decompose gru_cell into two products, if its weights are constant and computing gates again costs more."""
    editor = Editor(graph)
    matrices: dict[TensorId, tuple[TensorId, TensorId]] = {}
    for n, op in list(editor.operators.items()):
        if op.kind == "gru_cell" and _is_plain(editor, op) and _repeated(editor, op, spec) >= LEAST_TERMS:
            _decompose(editor, editor.remove(n), matrices)
    return editor.finish()


def _is_plain(editor: Editor, op: ROperator) -> bool:
    """Check whether the candidate reads the reset state, and all parts of a cell are operators of their own."""
    attrs = op.operation.keywords
    known = all(isinstance(name, str) and name in PLAIN for name in attrs.get("activations", DEFAULT))
    wide = all(editor.types[t].dtype in WIDE for t in op.inputs)
    constant = editor.constants.keys() >= set(op.inputs[2:])
    return known and wide and constant and not attrs.get("linear_before_reset") and attrs.get("clip") is None


def _repeated(editor: Editor, op: ROperator, spec: VDeviceSpec) -> float:
    """Return the terms of reset gates that a vEU computes beyond its part."""
    batch, hidden = editor.types[op.inputs[1]].shape
    return batch * hidden * hidden * (1 - 1 / spec.num_veus)


def _decompose(editor: Editor, op: ROperator, matrices: dict[TensorId, tuple[TensorId, TensorId]]) -> None:
    gx, h, weights, *biases = op.inputs
    (batch, hidden), dtype = editor.types[h].shape, editor.types[h].dtype.numpy
    inner, outer = op.operation.keywords.get("activations", DEFAULT)
    if weights not in matrices:
        r = editor.constants[weights]
        gates = np.ascontiguousarray(r[:2].reshape(2 * hidden, hidden).T)
        matrices[weights] = editor.constant(gates, weights), editor.constant(np.ascontiguousarray(r[2].T), weights)

    def define(kind: str, *inputs: TensorId, **attrs: Any) -> TensorId:
        return editor.define(op.name, kind, *inputs, **attrs)

    def part(tensor: TensorId, first: int, count: int) -> TensorId:
        """Return some gates of [batch, gates · hidden]."""
        starts, shape = (0, first * hidden), (batch, count * hidden)
        return define("slice", tensor, starts=starts, steps=(1, 1), shape=shape)

    def total(first: int, count: int, state: TensorId, matrix: TensorId) -> TensorId:
        """Return the sum of everything that enters gates."""
        terms = define("add", part(flat, first, count), define("matmul", state, matrix))
        for bias in biases:
            own = editor.constants[bias][first : first + count].reshape(count * hidden)
            terms = define("add", terms, editor.constant(own, bias))
        return terms

    flat = define("reshape", gx, shape=(batch, 3 * hidden))
    both = total(0, 2, h, matrices[weights][0])
    update, reset = (define(inner, part(both, n, 1)) for n in (0, 1))
    fresh = define(outer, total(2, 1, define("mul", reset, h), matrices[weights][1]))
    kept = define("mul", update, h)
    new = define("mul", define("sub", editor.constant(np.ones((), dtype)), update), fresh)
    editor.define(op.name, "add", new, kept, outputs=op.outputs)
