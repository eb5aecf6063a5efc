"""Fuse attention into one operator, so that the data between its two products stay on the vEU that computes them.

Known as: fused attention (FlashAttention).
"""

from __future__ import annotations

from dataclasses import replace
from math import inf, prod

from rammer.ir.device import Execution, VDeviceSpec
from rammer.ir.expr import Call, Load, Stage, TensorExpr, loads, substitute_axes
from rammer.ir.graph import Graph
from rammer.ir.index import var, variables
from rammer.ir.operator import ROperator
from rammer.ir.tensor import DType, TensorId
from rammer.passes.editor import Editor
from rammer.passes.fusion.compose import Member, Ref, compose, fused_kind

ROWS = {Execution.SIMD: 16, Execution.SIMT: 64}  # rows that scratch must fit together, through all stages
KEPT = 2  # copies of a row: scores and their exponentials
MOVES = ("transpose", "reshape", "expand")  # of a matrix
ALONE = 64  # most bytes of a row's extremum and sum


def fuse_chains(graph: Graph, spec: VDeviceSpec) -> Graph:
    """Fuse a product, the softmax of its rows, and their product with another matrix into one operator.

    Rows are scaled after the second product: there are fewer results than weights.
    """
    if not spec.is_core and spec.execution is not Execution.SIMT:
        return graph  # rows would be one rTask each, instead of work for many vEUs
    editor = Editor(graph)
    for n in [n for n, op in editor.operators.items() if op.kind == "softmax"]:
        if chain := _chain(editor, n, spec):
            join(editor, chain)
    return editor.finish()


def _chain(editor: Editor, n: int, spec: VDeviceSpec) -> list[int]:
    """Return the operators around a softmax to fuse, each before its reader; none if their rows are too long."""
    soft = editor.operators[n]
    kind = soft.operation.outputs[0]
    first, second = editor.producer.get(soft.inputs[0]), editor.only_reader(soft.outputs[0])
    if first is None or second is None or editor.only_reader(soft.inputs[0]) != n:
        return []
    scores, values = editor.operators[first], editor.operators[second]
    if kind.dtype is not DType.F32 or kind.rank < 2 or soft.operation.attr("axis") % kind.rank != kind.rank - 1:
        return []
    if not is_product(scores) or not is_product(values) or not takes_rows(values, soft.outputs[0]):
        return []
    *_, rows, length = kind.shape
    room = spec.scratch_bytes - min(rows, ROWS[spec.execution]) * (KEPT * length * kind.dtype.itemsize + ALONE)
    if rows < 2 or room < 0:
        return []
    # threads transpose each panel as they copy it, and heads that share a matrix copy the same one
    once, kinds = (room, MOVES[:1]) if spec.is_core else (inf, MOVES)
    matrices = *_moved(editor, scores, 1, once, kinds), *_moved(editor, values, 1, 0.0, kinds)
    moved = [*_moved(editor, scores, 0), *matrices]
    after = editor.only_reader(values.outputs[0])
    last = [after] if after is not None and editor.operators[after].kind == "transpose" else []
    return [*dict.fromkeys(moved), first, n, second, *last]


def is_product(op: ROperator) -> bool:
    return op.kind.split("+")[0] == "matmul" and len(op.outputs) == 1


def takes_rows(op: ROperator, tensor: TensorId) -> bool:
    """Check whether each row of a product's result reads only the same row of a tensor, once."""
    if op.inputs.count(tensor) != 1:
        return False
    name, kind = op.operation.expr.inputs[op.inputs.index(tensor)]
    found = [(s, ld) for s in op.operation.expr.stages for ld, _ in loads(s.body) if ld.tensor == name]
    return all(
        s.shape[:-1] == kind.shape[:-1]
        and ld.index[:-1] == tuple(var(a) for a, _ in s.axes[:-1])
        and [ld.index[-1]] == [var(a) for a, _ in s.reduce]
        for s, ld in found
    )


def _moved(editor: Editor, op: ROperator, slot: int, room: float = 0, kinds: tuple[str, ...] = MOVES[:1]) -> list[int]:
    """Return the moves of an operand that only this operator reads, from the first transposition on: it may read rows
    in place.

    A transposition of the matrix itself counts only if the matrix fits `room`, to be transposed once for all rows.
    """
    found: list[int] = []
    tensor = op.inputs[slot]
    while (maker := editor.maker(tensor)) and maker.kind in kinds and editor.only_reader(tensor) is not None:
        kind = editor.types[tensor]
        stays = maker.kind != "transpose" or maker.operation.attr("perm")[-1] == kind.rank - 1
        if not stays and prod(kind.shape[-2:]) * kind.dtype.itemsize > room:
            break
        found.insert(0, editor.producer[tensor])
        tensor = maker.inputs[0]
    while found and editor.operators[found[0]].kind == "reshape":
        del found[0]
    return found


def join(editor: Editor, chain: list[int]) -> None:
    """Replace these operators by one. Results of all but the last are read inside only."""
    place: dict[TensorId, Ref] = {}
    inputs: dict[TensorId, int] = {}
    members: list[Member] = []
    removed = [editor.remove(n) for n in chain]
    for op in removed:
        refs = tuple(place[t] if t in place else (-1, inputs.setdefault(t, len(inputs))) for t in op.inputs)
        place |= {t: (len(members), slot) for slot, t in enumerate(op.outputs)}
        members.append(Member(op.operation, refs))
    wired, outputs = tuple(members), ((len(members) - 1, 0),)
    key = ("chain", wired, outputs)
    operation = editor.interner.wrap(fused_kind(wired), key, lambda: scaled_last(compose(wired, outputs)))
    editor.add(removed[0].name, operation, inputs, removed[-1].outputs)


def scaled_last(expr: TensorExpr) -> TensorExpr:
    """Move factors behind sums: sum(a s · b) = sum(a · b) s, if a stage computes s, and it is one for all terms."""
    stages = {s.name: s for s in expr.stages}
    return replace(expr, stages=tuple(part for s in expr.stages for part in _scaled(s, stages)))


def _scaled(stage: Stage, stages: dict[str, Stage]) -> tuple[Stage, ...]:
    match stage.body:
        case Call("mul", (Load(name, index, ()), other)) if name in stages and not stages[name].reduce:
            at = dict(zip((a for a, _ in stages[name].axes), index, strict=True))
            scaled = substitute_axes(stages[name].body, at)
        case _:
            return (stage,)
    match scaled:
        case Call("mul", (over, Load(factor, point, ()) as scale)) if factor in stages and stage.combine == "sum":
            if not stage.reduce or any(variables(ix) & {a for a, _ in stage.reduce} for ix in point):
                return (stage,)
        case _:
            return (stage,)
    whole = replace(stage, name=f"{stage.name}_whole", body=Call("mul", (over, other)))
    own = Load(whole.name, tuple(var(a) for a, _ in stage.axes))
    return whole, Stage(stage.name, stage.axes, own * scale, dtype=stage.dtype)
