"""Bring products of recurrent cells into gate form [.., q, H]: one product for all gates, read gate by gate."""

from __future__ import annotations

from collections.abc import Hashable
from math import prod

import numpy as np

from rammer.ir.expr import Load
from rammer.ir.graph import Graph
from rammer.ir.operator import ROperator
from rammer.ir.remembered import memoized
from rammer.ir.tensor import Shape, TensorId, TensorType
from rammer.passes.editor import Editor
from rammer.passes.recurrent.split_products import MAX_ROWS, product_with_constant, right_operand
from rammer.passes.structure import GATE, GATE_MATMUL, gate_expr, gate_matmul_expr, is_elementwise

MAX_GATES = 8


def gather_gates(graph: Graph) -> Graph:
    """Rewrite products that are cut into equal gates, and equal products of the same rows, as gate products."""
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
    """x · W [.., q·H] whose readers are slices of width H. It becomes [.., q, H], read by gates."""

    def __init__(self, editor: Editor) -> None:
        self.editor = editor

    def run(self) -> None:
        editor = self.editor
        for n in list(editor.operators):
            op = editor.operators.get(n)
            if op is None or len(op.outputs) != 1:
                continue
            tensor = op.outputs[0]
            gates = self._gates(tensor)
            if gates and (self._has_product(tensor, None) or self._is_step(tensor)):
                cuts = list(editor.readers[tensor])
                source = self._convert(tensor, gates)
                for cut in cuts:
                    piece = editor.remove(cut)
                    gate = piece.operation.attr("starts")[-1] // piece.operation.outputs[0].shape[-1]
                    _add_gate(editor, piece.name, source, gate, piece.outputs[0])

    def _gates(self, tensor: TensorId) -> int:
        """Return into how many equal slices of the last axis all readers cut the tensor; 0 if they do not."""
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

    def _is_step(self, tensor: TensorId) -> bool:
        """Check whether a tensor is one step's part of a product of all steps."""
        op, cut = self.editor.maker(tensor), False
        while op is not None and op.kind in ("reshape", "slice"):
            cut = cut or op.kind == "slice"
            op = self.editor.maker(op.inputs[0])
        return cut and op is not None and op.kind == "matmul"

    def _has_product(self, tensor: TensorId, reader: int | None) -> bool:
        n = self.editor.producer.get(tensor)
        if n is None or not self._inside(tensor, reader):
            return False
        op = self.editor.operators[n]
        if product_with_constant(self.editor, op):
            return True
        return self.editor.broadcasts(op) and any(self._has_product(t, n) for t in op.inputs)

    def _convert(self, tensor: TensorId, gates: int, reader: int | None = None) -> TensorId:
        """Return the tensor in gate form. Operators that only this region reads are redefined, others reshaped."""
        editor = self.editor
        kind = editor.types[tensor]
        if kind.rank == 0:
            return tensor
        if tensor in editor.constants:
            return self._constant(tensor, gates)
        n = editor.producer.get(tensor)
        if n is not None and self._has_product(tensor, reader):
            op = editor.operators[n]
            if product_with_constant(editor, op):
                return _add_gate_matmul(editor, op.name, op.inputs[0], self._constant(right_operand(editor, op), gates))
            inputs = tuple(self._convert(t, gates, n) for t in op.inputs)
            return editor.define(op.name, op.kind, *inputs, **op.operation.keywords)
        return editor.define(tensor, "reshape", tensor, shape=_by_gates(kind.shape, gates))

    @memoized
    def _constant(self, tensor: TensorId, gates: int) -> TensorId:
        """Return a constant in gate form."""
        value = self.editor.constants[tensor]
        return self.editor.constant(value.reshape(_by_gates(value.shape, gates)), tensor)


def _by_gates(shape: Shape, gates: int) -> Shape:
    """Return the shape of a tensor in gate form."""
    *rows, last = shape
    return (*rows, 1, 1) if last == 1 else (*rows, gates, last // gates)


def _join_products(editor: Editor) -> None:
    """Make one gate product of several products of the same rows with matrices of one shape.

    Matrices go together only if they multiply the same rows everywhere. The state of a layer meets its own recurrent
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
    """Return the right operand as it is stored, and whether the product transposes it."""
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
    if found is None:  # in the order of the first step, so that all layers have the same order
        whole = editor.constant(np.stack([editor.constants[m] for m in by_matrix], 1), next(iter(by_matrix)))
        found = stacks[frozenset(by_matrix)] = (whole, *by_matrix)
    first = editor.operators[numbers[0]]
    product = _add_gate_matmul(editor, first.name, first.inputs[0], found[0])
    for gate, matrix in enumerate(found[1:]):
        for n in by_matrix[matrix]:
            op = editor.remove(n)
            _add_gate(editor, op.name, product, gate, op.outputs[0])


def join_sums(graph: Graph) -> Graph:
    """Rewrite a sum of products, gate by gate, as the gates of one sum; add constants gate by gate, each gate's once.

    Otherwise gates are separate results: a product of all steps' inputs would have one output for each.
    """
    editor = Editor(graph)
    sums: dict[tuple[TensorId, ...], dict[int, int]] = {}
    for n, op in editor.operators.items():
        sides = [_gate_of(editor, t) for t in op.inputs] if op.kind == "add" else []
        if len(sides) == 2 and sides[0] is not None and sides[1] is not None and sides[0][1] == sides[1][1]:
            sums.setdefault((sides[0][0], sides[1][0]), {})[sides[0][1]] = n
    for sources, adds in sums.items():
        if _every_gate(editor, sources[0], adds) and editor.types[sources[0]] == editor.types[sources[1]]:
            whole = editor.define(editor.operators[adds[0]].name, "add", *sources)
            _read_gates(editor, whole, adds)
    _split_constants(editor)
    _merge_scalars(editor)
    return editor.finish()


def _split_constants(editor: Editor) -> None:
    """Add a constant gate by gate to a tensor that is not a sum.

    That tensor may become a piece of a product of all steps. It would have to be copied to be added to as a whole.
    """
    for n in [n for n, op in editor.operators.items() if op.kind == "add" and op.inputs[1] in editor.constants]:
        op = editor.operators[n]
        source, whole = op.inputs[0], editor.constants[op.inputs[1]]
        readers = list(editor.readers.get(op.outputs[0], ()))
        gates = all(editor.operators[r].kind == GATE for r in readers) and op.outputs[0] not in editor.outputs
        own = editor.types[source]
        if not readers or not gates or whole.shape != own.shape[-2:] or editor.maker(source, GATE_MATMUL) is None:
            continue
        for reader in readers:
            found = _gate_of(editor, editor.operators[reader].outputs[0])
            assert found is not None
            read = editor.remove(reader)
            part = editor.fresh(read.name)
            _add_gate(editor, read.name, source, found[1], part)
            constant = editor.constant(np.ascontiguousarray(whole[found[1]]), op.inputs[1])
            editor.define(read.name, "add", part, constant, outputs=read.outputs)
        editor.remove(n)


def _merge_scalars(editor: Editor) -> None:
    """Merge x + c + 1 into an addition of one constant."""
    made: dict[tuple[TensorId, TensorId], TensorId] = {}
    for n in [n for n, op in editor.operators.items() if op.kind == "add" and op.inputs[1] in editor.constants]:
        op = editor.operators[n]
        first, scalar = editor.maker(op.inputs[0], "add"), op.inputs[1]
        if first is None or editor.types[scalar].size != 1 or editor.only_reader(op.inputs[0]) != n:
            continue
        source, constant = first.inputs
        if constant in editor.constants and editor.types[source] == op.operation.outputs[0]:
            key = constant, scalar
            if key not in made:
                made[key] = editor.constant(editor.constants[constant] + editor.constants[scalar].reshape(()), constant)
            editor.remove(n)
            editor.define(op.name, "add", source, made[key], outputs=op.outputs)


def _gate_of(editor: Editor, tensor: TensorId) -> tuple[TensorId, int] | None:
    """Return the tensor of all gates and the gate's number, if a tensor is a gate; or None."""
    op = editor.maker(tensor, GATE)
    if op is None:
        return None
    (stage,) = op.operation.expr.stages
    assert isinstance(stage.body, Load)
    return op.inputs[0], stage.body.index[-2].const


def _every_gate(editor: Editor, source: TensorId, adds: dict[int, int]) -> bool:
    """Check whether a sum takes all gates of a tensor, and is its only reader."""
    inside = {editor.producer[t] for n in adds.values() for t in editor.operators[n].inputs if t in editor.producer}
    whole = set(adds) == set(range(editor.types[source].shape[-2])) and source not in editor.outputs
    return whole and set(editor.readers.get(source, ())) <= inside


def _read_gates(editor: Editor, whole: TensorId, adds: dict[int, int]) -> None:
    for gate, n in adds.items():
        op = editor.remove(n)
        _add_gate(editor, op.name, whole, gate, op.outputs[0])
