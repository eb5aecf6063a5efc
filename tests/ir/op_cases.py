"""Evaluates operators by their expressions, and ONNX nodes by ONNX's reference, for the tests beside it."""

from __future__ import annotations

from typing import Any

import onnx
from onnx.reference import ReferenceEvaluator

from rammer.ir.expr import Load, Path, Range, TensorExpr, loads
from rammer.ir.index import bounds
from rammer.ir.ops import OPS
from rammer.ir.semantics.evaluate import evaluate_expr
from rammer.ir.tensor import Array, DType, TensorType


def type_of(array: Array) -> TensorType:
    return TensorType(array.shape, DType(array.dtype.name))


def express(kind: str, *types: TensorType, **attrs: Any) -> TensorExpr:
    expr = OPS[kind].express(*types, **attrs)
    check_reads(expr)
    return expr


def evaluate(kind: str, *arrays: Array, **attrs: Any) -> Any:
    """The operator's output, or the list of them."""
    expr = express(kind, *map(type_of, arrays), **attrs)
    values = evaluate_expr(expr, {n: a for (n, _), a in zip(expr.inputs, arrays, strict=True)})
    for value, (_, kind_) in zip(values, expr.outputs, strict=True):
        assert value.shape == kind_.shape == expr.root.shape
        assert value.dtype == kind_.dtype.numpy
    return values[0] if len(values) == 1 else values


def onnx_reference(op: str, *arrays: Array | None, outputs: int = 1, opset: int = 20, **attrs: Any) -> Any:
    """The same by one ONNX node; None is an input left out."""
    names = [f"i{n}" if a is not None else "" for n, a in enumerate(arrays)]
    given = {n: a for n, a in zip(names, arrays, strict=True) if a is not None}
    results = [f"o{n}" for n in range(outputs)]
    node = onnx.helper.make_node(op, names, results, **attrs)
    infos = [
        onnx.helper.make_tensor_value_info(n, onnx.helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in given.items()
    ]
    outs = [onnx.helper.make_empty_tensor_value_info(n) for n in results]
    graph = onnx.helper.make_graph([node], "one", infos, outs)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)])
    values = ReferenceEvaluator(model).run(None, given)
    return values[0] if outputs == 1 else values


def check_reads(expr: TensorExpr) -> None:
    """Every load stays inside its tensor wherever its conditions hold, by exhaustion over small boxes or by bounds."""
    for stage in expr.stages:
        axes = (*stage.axes, *stage.reduce)
        if any(extent == 0 for _, extent in axes):
            continue
        env = {name: (0, extent - 1) for name, extent in axes}
        for load, path in loads(stage.body):
            _check_load(expr, load, path, env)


def _check_load(expr: TensorExpr, load: Load, path: Path, env: dict[str, tuple[int, int]]) -> None:
    shape = expr.type_of(load.tensor).shape
    assert len(load.index) == len(shape), f"{load} of a tensor of shape {shape}"
    kept: dict[str, Range] = {}
    for ranges, wanted in path:
        if wanted:
            kept.update({str(r.index): r for r in ranges})
    if any(not wanted for _, wanted in path):
        return  # the complement of a box: interval arithmetic does not tell
    for p, (index, extent) in enumerate(zip(load.index, shape, strict=True)):
        low, high = bounds(index, env)
        for r in kept.values():
            offset = (index - r.index).const if not (index - r.index).terms else None
            if offset is not None:
                low, high = max(low, r.low + offset), min(high, r.high - 1 + offset)
            mirrored = index + r.index
            if not mirrored.terms:
                low, high = max(low, mirrored.const - r.high + 1), min(high, mirrored.const - r.low)
        dynamic = any(d.dim == p for d in load.dynamic)
        assert dynamic or low > high or (low >= 0 and high < extent), f"{load} reads [{low}, {high}] of {extent}"
