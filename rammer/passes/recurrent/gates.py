"""Bring the products of recurrent cells into gate form [.., q, H]: one product for all gates, read gate by gate."""

from __future__ import annotations

from collections.abc import Hashable
from math import prod

import numpy as np

from rammer.ir.graph import Graph
from rammer.ir.operator import ROperator
from rammer.ir.tensor import TensorId, TensorType
from rammer.passes.editor import Editor
from rammer.passes.recurrent.split_products import MAX_ROWS, product_with_constant, right_operand
from rammer.passes.structure import GATE, GATE_MATMUL, gate_expr, gate_matmul_expr, is_elementwise

MAX_GATES = 8


def gather_gates(graph: Graph) -> Graph:
    """Products that are cut into equal gates, and equal products of the same rows, become gate products."""
    editor = Editor(graph)
    _Cuts(editor).run()
    _join_products(editor)
    return editor.finish()


def _add_gate(editor: Editor, name: str, source: TensorId, gate: int, result: TensorId) -> None:
    kind = editor.types[source]
    operation = editor.interner.wrap(GATE, (kind, gate), lambda: gate_expr(kind, gate))
    editor.add(name, operation, (source,), (result,))


def _add_gate_matmul(editor: Editor, name: str, rows: TensorId, matrix: TensorId) -> TensorId:
    types = (editor.types[rows], editor.types[matrix])
    operation = editor.interner.wrap(GATE_MATMUL, types, lambda: gate_matmul_expr(*types))
    return editor.add(name, operation, (rows, matrix))[0]


class _Cuts:
    """x · W [.., q·H] whose readers are slices of width H: compute [.., q, H] and read gates."""

    def __init__(self, editor: Editor) -> None:
        self.editor = editor
        self.constants: dict[tuple[TensorId, int], TensorId] = {}

    def run(self) -> None:
        editor = self.editor
        for n in list(editor.operators):
            op = editor.operators.get(n)
            if op is None or len(op.outputs) != 1:
                continue
            tensor = op.outputs[0]
            gates = self._gates(tensor)
            if gates and self._has_product(tensor, None):
                cuts = list(editor.readers[tensor])
                source = self._convert(tensor, gates)
                for cut in cuts:
                    piece = editor.remove(cut)
                    gate = piece.operation.attr("starts")[-1] // piece.operation.outputs[0].shape[-1]
                    _add_gate(editor, piece.name, source, gate, piece.outputs[0])

    def _gates(self, tensor: TensorId) -> int:
        """How many equal slices of the last axis all readers of the tensor are; 0 if they are not."""
        kind, readers = self.editor.types[tensor], self.editor.readers.get(tensor, {})
        if tensor in self.editor.outputs or not readers or kind.rank < 2 or prod(kind.shape[:-1]) > MAX_ROWS:
            return 0
        widths = set()
        for n in readers:
            op = self.editor.operators[n]
            if op.kind != "slice":
                return 0
            starts, steps, shape = (op.operation.attr(a) for a in ("starts", "steps", "shape"))
            widths.add(shape[-1])
            if (
                not shape[-1]
                or steps[-1] != 1
                or shape[:-1] != kind.shape[:-1]
                or any(starts[:-1])
                or starts[-1] % shape[-1]
            ):
                return 0
        gates, rest = divmod(kind.shape[-1], widths.pop())
        return gates if not widths and not rest and 1 < gates <= MAX_GATES else 0

    def _inside(self, tensor: TensorId, reader: int | None) -> bool:
        return reader is None or self.editor.only_reader(tensor) == reader

    def _has_product(self, tensor: TensorId, reader: int | None) -> bool:
        n = self.editor.producer.get(tensor)
        if n is None or not self._inside(tensor, reader):
            return False
        op = self.editor.operators[n]
        if product_with_constant(self.editor, op):
            return True
        return self.editor.broadcasts(op) and any(self._has_product(t, n) for t in op.inputs)

    def _convert(self, tensor: TensorId, gates: int, reader: int | None = None) -> TensorId:
        """The tensor in gate form. Operators that only this region reads are made anew, others reshaped."""
        editor = self.editor
        kind = editor.types[tensor]
        if kind.rank == 0:
            return tensor
        last = kind.shape[-1]
        shape = (*kind.shape[:-1], 1, 1) if last == 1 else (*kind.shape[:-1], gates, last // gates)
        if tensor in editor.constants:
            key = (tensor, gates)
            if key not in self.constants:
                self.constants[key] = editor.constant(editor.constants[tensor].reshape(shape), tensor)
            return self.constants[key]
        n = editor.producer.get(tensor)
        if n is not None and self._has_product(tensor, reader):
            op = editor.operators[n]
            if product_with_constant(editor, op):
                return _add_gate_matmul(editor, op.name, op.inputs[0], self._matrix(op, gates))
            inputs = tuple(self._convert(t, gates, n) for t in op.inputs)
            return editor.define(op.name, op.kind, *inputs, **op.operation.keywords)
        return editor.define(tensor, "reshape", tensor, shape=shape)

    def _matrix(self, op: ROperator, gates: int) -> TensorId:
        matrix = right_operand(self.editor, op)
        if (matrix, gates) not in self.constants:
            value = self.editor.constants[matrix]
            shape = (value.shape[0], gates, value.shape[1] // gates)
            self.constants[matrix, gates] = self.editor.constant(value.reshape(shape), matrix)
        return self.constants[matrix, gates]


def _join_products(editor: Editor) -> None:
    """One gate product in place of several products of the same rows with matrices of one shape.

    Matrices go together only if they multiply the same rows everywhere: the state of a layer meets its own recurrent
    weights and the input weights of the next layer, and only the latter can later be applied to all steps at once.
    """
    rows_of: dict[tuple[TensorId, bool], list[TensorId]] = {}
    products = [n for n, op in editor.operators.items() if product_with_constant(editor, op)]
    matrices = {n: _untransposed(editor.operators[n]) for n in products}  # only those that are joined are transposed
    for n in products:
        rows_of.setdefault(matrices[n], []).append(editor.operators[n].inputs[0])
    signature = {matrix: hash(tuple(rows)) for matrix, rows in rows_of.items()}
    groups: dict[Hashable, list[int]] = {}
    for n in products:
        op, (matrix, transposed) = editor.operators[n], matrices[n]
        kind = editor.types[matrix]
        shape = kind.shape[::-1] if transposed else kind.shape
        groups.setdefault((op.inputs[0], kind.dtype, shape, signature[matrices[n]]), []).append(n)
    stacks: dict[frozenset[TensorId], tuple[TensorId, ...]] = {}
    for numbers in groups.values():
        if 1 < len(numbers) <= MAX_GATES and all(_read_point_by_point(editor, n) for n in numbers):
            _join(editor, numbers, stacks)


def _untransposed(op: ROperator) -> tuple[TensorId, bool]:
    """The right operand as it is stored, and whether the product transposes it."""
    return op.inputs[1], bool(op.operation.keywords.get("trans_b", False))


def _read_point_by_point(editor: Editor, n: int) -> bool:
    (result,) = editor.operators[n].outputs
    kind: TensorType = editor.types[result]
    if prod(kind.shape[:-1]) == 1:
        return True  # every gate is contiguous
    return result not in editor.outputs and all(
        is_elementwise(editor.operators[r].operation) for r in editor.readers.get(result, ())
    )


def _join(editor: Editor, numbers: list[int], stacks: dict[frozenset[TensorId], tuple[TensorId, ...]]) -> None:
    by_matrix: dict[TensorId, list[int]] = {}
    for n in numbers:
        by_matrix.setdefault(right_operand(editor, editor.operators[n]), []).append(n)
    if len(by_matrix) < 2:
        return
    found = stacks.get(frozenset(by_matrix))
    if found is None:  # in the order in which the first step has them, so that all layers have them alike
        whole = editor.constant(np.stack([editor.constants[m] for m in by_matrix], 1), next(iter(by_matrix)))
        found = stacks[frozenset(by_matrix)] = (whole, *by_matrix)
    first = editor.operators[numbers[0]]
    product = _add_gate_matmul(editor, first.name, first.inputs[0], found[0])
    for gate, matrix in enumerate(found[1:]):
        for n in by_matrix[matrix]:
            op = editor.remove(n)
            _add_gate(editor, op.name, product, gate, op.outputs[0])
