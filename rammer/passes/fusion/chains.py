"""Attention as one operator: what lies between its two products then need not leave the vEU that computes it."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from rammer.ir.device import Execution, VDeviceSpec
from rammer.ir.expr import Call, Load, Stage, TensorExpr, loads, substitute_axes
from rammer.ir.graph import Graph
from rammer.ir.index import var, variables
from rammer.ir.operator import ROperator
from rammer.ir.tensor import DType, TensorId
from rammer.passes.editor import Editor
from rammer.passes.fusion.compose import Member, Ref, compose, fused_kind

KEPT = 2  # scores, and their exponentials
ROWS = 16  # at least as many that go through all stages together must fit


def fuse_chains(graph: Graph, spec: VDeviceSpec) -> Graph:
    """A product, the softmax of its rows, and their product with another matrix: one operator, if nobody else reads them.

    Rows are divided by their sums when they have been multiplied: there are fewer results than weights.
    """
    if spec.execution is not Execution.SIMD or spec.massively_parallel:
        return graph
    editor = Editor(graph)
    for n in [n for n, op in editor.operators.items() if op.kind == "softmax"]:
        _fuse(editor, n, spec)
    return editor.finish()


def _fuse(editor: Editor, n: int, spec: VDeviceSpec) -> None:
    soft = editor.operators[n]
    kind = soft.operation.outputs[0]
    first, second = editor.producer.get(soft.inputs[0]), editor.only_reader(soft.outputs[0])
    if first is None or second is None or editor.only_reader(soft.inputs[0]) != n:
        return
    scores, values = editor.operators[first], editor.operators[second]
    if not _is_product(scores) or not _is_product(values) or values.inputs.index(soft.outputs[0]):
        return
    *_, rows, length = kind.shape
    last = soft.operation.attr("axis") % kind.rank == kind.rank - 1
    room = spec.scratch_bytes - min(rows, ROWS) * KEPT * length * kind.dtype.itemsize
    if kind.dtype is not DType.F32 or kind.rank < 3 or rows < 2 or not last or room < 0:
        return
    moved = [*_moved(editor, scores, 0), *_moved(editor, scores, 1, room), *_moved(editor, values, 1)]
    chain = [*moved, first, n, second]
    after = editor.only_reader(values.outputs[0])
    if after is not None and editor.operators[after].kind == "transpose":
        chain.append(after)
    _join(editor, chain)


def _is_product(op: ROperator) -> bool:
    return op.kind.split("+")[0] == "matmul" and len(op.outputs) == 1


def _moved(editor: Editor, op: ROperator, slot: int, room: int = 0) -> list[int]:
    """The transposition of an operand that the operator alone reads: it may read rows where they are.

    One that turns the matrix itself only if that has `room`, to be turned once for all rows.
    """
    maker = editor.maker(op.inputs[slot], "transpose")
    if maker is None or editor.only_reader(op.inputs[slot]) is None:
        return []
    kind, perm = editor.types[op.inputs[slot]], maker.operation.attr("perm")
    rows_stay = perm[-1] == len(perm) - 1
    return [editor.producer[op.inputs[slot]]] if rows_stay or prod(kind.shape[-2:]) * 4 <= room else []


def _join(editor: Editor, chain: list[int]) -> None:
    """One operator instead of these, each of which only later ones read."""
    place: dict[TensorId, Ref] = {}
    inputs: dict[TensorId, int] = {}
    members = []
    for n in chain:
        op = editor.operators[n]
        refs = tuple(place[t] if t in place else (-1, inputs.setdefault(t, len(inputs))) for t in op.inputs)
        place |= {t: (len(members), slot) for slot, t in enumerate(op.outputs)}
        members.append(Member(op.operation, refs))
    wired, outputs = tuple(members), ((len(members) - 1, 0),)
    key = ("chain", wired, outputs)
    operation = editor.interner.wrap(fused_kind(wired), key, lambda: divided_last(compose(wired, outputs)))
    removed = [editor.remove(n) for n in chain]
    editor.add(removed[0].name, operation, inputs, removed[-1].outputs)


def divided_last(expr: TensorExpr) -> TensorExpr:
    """Sums of products with quotients, whose divisor is one for all terms of a sum: the sums are divided instead."""
    stages = {s.name: s for s in expr.stages}
    done: list[Stage] = []
    for stage in expr.stages:
        match stage.body:
            case Call("mul", (Load(name, index, ()), other)) if stage.combine == "sum" and name in stages:
                quotient = stages[name]
                at = dict(zip((a for a, _ in quotient.axes), index, strict=True))
                body = substitute_axes(quotient.body, at)
                summed = {a for a, _ in stage.reduce}
                if isinstance(body, Call) and body.fn == "div" and not quotient.reduce:
                    over, by = body.args
                    moving = {v for ld, _ in loads(by) for ix in ld.index for v in variables(ix)}
                    if not summed & moving:
                        whole = replace(stage, name=f"{stage.name}_whole", body=Call("mul", (over, other)))
                        own = Load(whole.name, tuple(var(a) for a, _ in stage.axes))
                        done += [whole, Stage(stage.name, stage.axes, own / by, dtype=stage.dtype)]
                        continue
        done.append(stage)
    return replace(expr, stages=tuple(done))
