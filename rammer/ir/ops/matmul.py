"""Define matrix products."""

from __future__ import annotations

from rammer.ir.expr import Load, TensorExpr
from rammer.ir.index import Index, var
from rammer.ir.operator import OpDef
from rammer.ir.ops.operands import broadcast, broadcast_index, expression, factor, listed, require, summed, wide_enough
from rammer.ir.tensor import DType, TensorType


def _matmul(
    a: TensorType, b: TensorType, *, trans_a: bool = False, trans_b: bool = False, dtype: DType | None = None
) -> TensorExpr:
    """Build a matrix product, as numpy.matmul: out[…, i, j] = sum over k of a[…, i, k] b[…, k, j].

    `trans_a` and `trans_b` swap an operand's last two axes. `dtype`: the type of the result, to which operands of
    narrower types are widened; without it all have one type.
    """
    dtype = wide_enough("matmul", [a, b], dtype)
    shapes = f"matmul: {listed([a, b])}" + ", a transposed" * trans_a + ", b transposed" * trans_b
    require(a.rank > 0 and b.rank > 0, shapes, "a scalar is no matrix; use mul")
    require(a.rank > 1 or not trans_a, shapes, "a vector has no axes to swap")
    require(b.rank > 1 or not trans_b, shapes, "a vector has no axes to swap")
    depth = a.shape[-2 if trans_a else -1]
    fits = depth == b.shape[-2 if b.rank > 1 and not trans_b else -1]
    require(fits, shapes, "the columns of a must be as many as the rows of b")
    batch = broadcast("matmul", [TensorType(a.shape[:-2]), TensorType(b.shape[:-2])])
    batches = tuple((f"b{p}", extent) for p, extent in enumerate(batch))
    axes = batches
    i, j, k = var("i"), var("j"), var("k")
    at_a: tuple[Index, ...] = (k,)
    at_b: tuple[Index, ...] = (k,)
    if a.rank > 1:
        axes = (*axes, ("i", a.shape[-1 if trans_a else -2]))
        at_a = (*broadcast_index(a.shape[:-2], batches), *((k, i) if trans_a else (i, k)))
    if b.rank > 1:
        axes = (*axes, ("j", b.shape[-2 if trans_b else -1]))
        at_b = (*broadcast_index(b.shape[:-2], batches), *((j, k) if trans_b else (k, j)))
    body = factor(Load("a", at_a), a, dtype) * factor(Load("b", at_b), b, dtype)
    return expression("matmul", [("a", a), ("b", b)], summed(axes, body, (("k", depth),), dtype))


DEFINITIONS = (OpDef("matmul", _matmul),)
