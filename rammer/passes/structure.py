"""Answer questions of passes about expressions, and build the gate expressions that passes introduce."""

from __future__ import annotations

from rammer.ir.expr import Iota, Load, Select, Stage, TensorExpr, loads, nodes
from rammer.ir.graph import Graph
from rammer.ir.index import Index, var
from rammer.ir.operator import Operation
from rammer.ir.remembered import remembered
from rammer.ir.tensor import DType, TensorId, TensorType

GATE, GATE_MATMUL = "gate", "gate_matmul"
WIDE = frozenset({DType.F32, DType.F64})  # in narrower types another order of sums, or of factors, would show


def gate_matmul_expr(x: TensorType, w: TensorType) -> TensorExpr:
    """Return out[.., q, j] = sum over k of x[.., k] w[k, q, j]: products of all gates, each with its own index q."""
    depth, gates, width = w.shape
    rows = tuple((f"d{p}", e) for p, e in enumerate(x.shape[:-1]))
    lead = tuple(var(a) for a, _ in rows)
    body = Load("x", (*lead, var("k"))) * Load("w", (var("k"), var("q"), var("j")))
    stage = Stage("sum", (*rows, ("q", gates), ("j", width)), body, (("k", depth),), dtype=x.dtype)
    return TensorExpr(GATE_MATMUL, (("x", x), ("w", w)), (stage,), (("sum", TensorType(stage.shape, x.dtype)),))


def gate_expr(x: TensorType, gate: int) -> TensorExpr:
    """Return out[.., j] = x[.., gate, j]."""
    axes = (*((f"d{p}", e) for p, e in enumerate(x.shape[:-2])), ("j", x.shape[-1]))
    lead = tuple(var(a) for a, _ in axes[:-1])
    stage = Stage("out", axes, Load("x", (*lead, Index(gate), var("j"))), dtype=x.dtype)
    return TensorExpr(GATE, (("x", x),), (stage,), (("out", TensorType(stage.shape, x.dtype)),))


def known_tensors(graph: Graph) -> set[TensorId]:
    """Return the constants, and all tensors that are computed from constants alone."""
    known = set(graph.constants)
    for op in graph.operators:
        if known.issuperset(op.inputs):
            known.update(op.outputs)
    return known


@remembered(8192)
def is_pointwise(operation: Operation) -> bool:
    """Check that no stage has a reduction."""
    return not any(s.reduce for s in operation.expr.stages)


@remembered(8192)
def is_elementwise(operation: Operation) -> bool:
    """Check that there is one output whose elements depend only on elements at their own (broadcast) position."""
    expr = operation.expr
    root = expr.root
    if len(expr.outputs) != 1 or not is_pointwise(operation) or expr.into:
        return False
    shapes = {name: kind.shape for name, kind in expr.inputs} | {s.name: s.shape for s in expr.stages}
    for stage in expr.stages:
        if stage.shape != root.shape or any(isinstance(part, Iota | Select) for part in nodes(stage.body)):
            return False
        here = tuple(var(a) for a, _ in stage.axes)
        for load, _ in loads(stage.body):
            if load.dynamic or not _at(load.index, here, shapes[load.tensor]):
                return False
    return any(True for s in expr.stages for _ in loads(s.body))


def _at(index: tuple[Index, ...], here: tuple[Index, ...], shape: tuple[int, ...]) -> bool:
    """Check whether an index is the position `here`, aligned from the right, with 0 in broadcast dimensions."""
    return len(index) <= len(here) and all(
        i == h or (e == 1 and i == Index(0))
        for i, h, e in zip(index, here[len(here) - len(index) :], shape, strict=True)
    )


@remembered(8192)
def is_identity(operation: Operation) -> bool:
    """Check whether the output equals the only input, element by element."""
    expr = operation.expr
    if len(expr.inputs) != 1 or len(expr.stages) != 1 or len(expr.outputs) != 1:
        return False
    source, target = expr.inputs[0][1], expr.outputs[0][1]
    stage = expr.stages[0]
    if source != target or stage.reduce or not isinstance(stage.body, Load) or stage.body.dynamic:
        return False
    if operation.kind == "reshape":
        return True  # same shape on both sides; the index may be written as a linear one
    return all(i == var(a) or (e == 1 and i == Index()) for i, (a, e) in zip(stage.body.index, stage.axes, strict=True))


@remembered(8192)
def weight(operation: Operation) -> int:
    """Return the number of scalar nodes of the operation's bodies: its size once substituted into a reader."""
    return sum(1 for s in operation.expr.stages for _ in nodes(s.body))
