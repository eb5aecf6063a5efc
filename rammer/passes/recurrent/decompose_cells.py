"""Decompose LSTM cells into the products, sums and slices of an unrolled network: both forms then get one plan."""

from __future__ import annotations

from typing import Any

import numpy as np

from rammer.ir.graph import Graph
from rammer.ir.operator import ROperator
from rammer.ir.tensor import TensorId
from rammer.passes.editor import Editor

GATES = 4  # i, o, f, c, as ONNX has them
DEFAULT = ("sigmoid", "tanh", "tanh")  # activations of gates, cell and output
PLAIN = frozenset({"sigmoid", "tanh", "relu"})  # activations that are operators of their own


def decompose_cells(graph: Graph) -> Graph:
    """Decompose lstm_cell, if its weights are constant and it has no features beyond those of unrolled networks.

    Fusion then chooses which product a cell computes itself: that of the operand that comes last. In an encoder it is
    the state; in a decoder the input, whose step then costs one hand-over instead of two.
    """
    editor = Editor(graph)
    transposed: dict[TensorId, TensorId] = {}
    plain = [n for n, op in editor.operators.items() if op.kind == "lstm_cell" and _is_plain(editor, op)]
    biases = _biases(editor, plain)
    for n in plain:
        _decompose(editor, editor.remove(n), biases.get(n), transposed)
    return editor.finish()


def _is_plain(editor: Editor, op: ROperator) -> bool:
    """Check whether a cell has neither peepholes nor clipping, and its activations are operators."""
    attrs = op.operation.keywords
    names = attrs.get("activations", DEFAULT)
    known = all(isinstance(name, str) and name in PLAIN for name in names) if isinstance(names, tuple) else False
    whole = op.inputs[3] in editor.constants and len(op.inputs) == GATES
    return whole and known and attrs.get("clip") is None and not attrs.get("input_forget")


def _biases(editor: Editor, plain: list[int]) -> dict[int, TensorId]:
    """Return the bias of each cell whose input includes it, and remove it from that input.

    An unrolled network adds it to both products together.
    """
    readers: dict[int, list[int]] = {}
    for n in plain:
        tensor = editor.source(editor.operators[n].inputs[0], "reshape", "slice")
        if editor.maker(tensor, "add"):
            readers.setdefault(editor.producer[tensor], []).append(n)
    found: dict[int, TensorId] = {}
    for add, cells in readers.items():
        op = editor.operators[add]
        width = editor.types[editor.operators[cells[0]].inputs[0]].shape[-1] * GATES
        constants = [t for t in op.inputs if t in editor.constants and editor.types[t].size == width]
        others = [t for t in op.inputs if t not in constants]
        same = op.operation.outputs[0].shape[-1:] == (width,) and len(others) == 1
        if same and editor.types[others[0]] == op.operation.outputs[0] and _only(editor, op.outputs[0], set(cells)):
            editor.remove(add)
            editor.redirect(op.outputs[0], others[0])
            bias = editor.constants[constants[0]].reshape(width)
            found |= dict.fromkeys(cells, editor.constant(bias, constants[0]))
    return found


def _only(editor: Editor, tensor: TensorId, cells: set[int]) -> bool:
    """Check whether these cells are the only readers of a tensor, cut and reshaped."""
    if tensor in editor.outputs:
        return False
    for n in editor.readers.get(tensor, ()):
        op = editor.operators[n]
        moved = op.kind in ("reshape", "slice") and _only(editor, op.outputs[0], cells)
        if not moved and (n not in cells or op.inputs[0] != tensor):
            return False
    return True


def _decompose(editor: Editor, op: ROperator, bias: TensorId | None, transposed: dict[TensorId, TensorId]) -> None:
    gx, h, c, weights = op.inputs
    batch, _, hidden = editor.types[gx].shape
    if weights not in transposed:
        matrix = editor.constants[weights].reshape(GATES * hidden, hidden)
        transposed[weights] = editor.constant(np.ascontiguousarray(matrix.T), weights)
    inner, entering, leaving = op.operation.keywords.get("activations", DEFAULT)

    def define(kind: str, *inputs: TensorId, **attrs: Any) -> TensorId:
        return editor.define(op.name, kind, *inputs, **attrs)

    flat = define("reshape", gx, shape=(batch, GATES * hidden))
    begins = h in editor.constants and not np.any(editor.constants[h])  # the state is 0: it has no product to add
    if not begins:
        flat = define("add", flat, define("matmul", h, transposed[weights]))
    if bias is not None and not begins:
        flat = define("add", flat, bias)

    def gate(number: int, activation: str) -> TensorId:
        part = {"starts": (0, number * hidden), "steps": (1, 1), "shape": (batch, hidden)}
        total = define("slice", flat, **part)
        if bias is not None and begins:
            own = editor.constants[bias][number * hidden :][:hidden]
            total = define("add", total, editor.constant(own, bias))
        return define(activation, total)

    enter, out, forget, fresh = (gate(n, entering if n == GATES - 1 else inner) for n in range(GATES))
    c_new, h_new = op.outputs
    kept, new = define("mul", forget, c), define("mul", enter, fresh)
    editor.define(op.name, "add", kept, new, outputs=(c_new,))
    editor.define(op.name, "mul", out, define(leaving, c_new), outputs=(h_new,))
