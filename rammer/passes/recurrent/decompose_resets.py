"""Decompose GRU cells whose candidate multiplies the reset state by a matrix of its own (ONNX: linear_before_reset=0).

A task of such a cell needs the reset gates of all units for its own candidates. So each task would compute them all.
As products of their own they are computed once: one for both gates, then one for the candidate.
"""

from __future__ import annotations

from functools import partial, reduce
from typing import Any

import numpy as np

from rammer.ir.device import VDeviceSpec
from rammer.ir.graph import Graph
from rammer.ir.operator import ROperator
from rammer.ir.tensor import TensorId
from rammer.passes.editor import Editor, apply_pattern
from rammer.passes.recurrent.decompose_cells import PLAIN
from rammer.passes.structure import WIDE

DEFAULT = ("sigmoid", "tanh")  # activations of gates and candidate
GATES = 3  # z, r, h, as ONNX has them
LEAST_TERMS = 1 << 13  # that each vEU would compute again: as many as pay for a hand-over


def decompose_resets(graph: Graph, spec: VDeviceSpec) -> Graph:
    """Decompose gru_cell into two products, if its weights are constant and computing gates again costs more."""
    matrices: dict[TensorId, list[TensorId]] = {}

    def step(editor: Editor, _: int, op: ROperator) -> TensorId | None:
        return _decompose(editor, op, matrices) if _pays(editor, op, spec) else None

    return apply_pattern(graph, step, "gru_cell")


def _pays(editor: Editor, op: ROperator, spec: VDeviceSpec) -> bool:
    """Check that the candidate reads the reset state, a step is large, and all its parts are operators."""
    (batch, hidden), attrs = editor.types[op.inputs[1]].shape, op.operation.keywords
    large = batch * hidden * hidden * (1 - 1 / spec.num_veus) >= LEAST_TERMS
    known = all(isinstance(name, str) and name in PLAIN for name in attrs.get("activations", DEFAULT))
    wide = all(editor.types[t].dtype in WIDE for t in op.inputs) and editor.constants.keys() >= set(op.inputs[2:])
    return large and known and wide and not attrs.get("linear_before_reset") and attrs.get("clip") is None


def _decompose(editor: Editor, op: ROperator, matrices: dict[TensorId, list[TensorId]]) -> TensorId:
    """Return the new state, by products with weights that steps share in `matrices`."""
    gx, h, weights, *biases = op.inputs
    (batch, hidden), dtype = editor.types[h].shape, editor.types[h].dtype.numpy
    inner, outer = op.operation.keywords.get("activations", DEFAULT)
    if weights not in matrices:
        parts = (part.reshape(-1, hidden).T for part in np.split(editor.constants[weights], [2]))
        matrices[weights] = [editor.constant(np.ascontiguousarray(part), weights) for part in parts]

    def define(kind: str, *inputs: TensorId, **attrs: Any) -> TensorId:
        return editor.define(op.name, kind, *inputs, **attrs)

    def gates(tensor: TensorId, first: int, count: int) -> TensorId:
        return define("slice", tensor, starts=(0, first * hidden), steps=(1, 1), shape=(batch, count * hidden))

    def total(first: int, count: int, product: TensorId) -> TensorId:
        """Return the sum of everything that enters gates."""
        own = (editor.constants[bias][first : first + count].reshape(-1) for bias in biases)
        terms = (gates(flat, first, count), product, *map(editor.constant, own))
        return reduce(partial(define, "add"), terms)

    flat = define("reshape", gx, shape=(batch, GATES * hidden))
    both = total(0, 2, define("matmul", h, matrices[weights][0]))
    update, reset = (define(inner, gates(both, n, 1)) for n in range(2))
    fresh = define(outer, total(2, 1, define("matmul", define("mul", reset, h), matrices[weights][1])))
    new = define("mul", define("sub", editor.constant(np.ones((), dtype)), update), fresh)
    return define("add", new, define("mul", update, h))
