"""Import ATen's reductions and matrix products."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import torch
from torch import fx

from rammer_torch.writer import Handler, Operand, Unsupported, Writer, handles

_REDUCTIONS = {"sum": "ReduceSum", "mean": "ReduceMean", "prod.dim_int": "ReduceProd"}
_EXTREMES = {"amax": "ReduceMax", "max.default": "ReduceMax", "amin": "ReduceMin", "min.default": "ReduceMin"}


def _axes(x: fx.Node, axes: int | Sequence[int] | None) -> list[int]:
    """Return dimensions counted from the front; all if none are named."""
    rank = x.meta["val"].dim()
    listed = [axes] if isinstance(axes, int) else list(axes or range(rank))
    return [a % rank for a in listed] if rank else []


def _reduced(w: Writer, op: str, x: Operand, axes: Sequence[int], keep: bool) -> str:
    return w(op, x, list(axes), keepdims=int(keep)) if axes else w("Identity", x)


def _reduction(op: str) -> Handler:
    def handler(w: Writer, x: fx.Node, axes: Any = None, keep: bool = False, _: Any = None) -> str:
        return _reduced(w, op, w.cast(x, w.out.dtype), _axes(x, axes), keep)

    return handler


for _name, _op in (_REDUCTIONS | _EXTREMES).items():
    handles(_name)(_reduction(_op))


@handles("sum.default", "mean.default", "prod.default")
def of_all(w: Writer, x: fx.Node, _: Any) -> str:
    op = {"sum": "ReduceSum", "mean": "ReduceMean", "prod": "ReduceProd"}[w.target]
    return _reduced(w, op, w.cast(x, w.out.dtype), _axes(x, None), False)


@handles("any", "all")
def any_or_all(w: Writer, x: fx.Node, axes: Any = None, keep: bool = False) -> str:
    numbers = w.to(w.cast(x, torch.bool), torch.int32)
    return w.to(
        _reduced(w, "ReduceMax" if w.target == "any" else "ReduceMin", numbers, _axes(x, axes), keep), torch.bool
    )


@handles("argmax", "argmin")
def arg(w: Writer, x: fx.Node, axis: int | None, keep: bool) -> str:
    op = {"argmax": "ArgMax", "argmin": "ArgMin"}[w.target]
    flat = axis is None or not x.meta["val"].dim()
    found = w(op, w("Reshape", x, [-1]) if flat else x, axis=0 if flat else axis, keepdims=int(keep and not flat))
    return w.reshape(found, list(w.out.shape)) if flat else found


@handles("max.dim", "min.dim")
def with_place(w: Writer, x: fx.Node, axis: int, keep: bool) -> tuple[str, ...]:
    name = w.target.capitalize()
    if not x.meta["val"].dim():
        raise Unsupported("a scalar")
    values = _reduced(w, f"Reduce{name}", x, _axes(x, axis), keep)
    return values, w(f"Arg{name}", x, axis=axis, keepdims=int(keep)) if w.used(1) else ""


@handles("cumsum")
def cumsum(w: Writer, x: fx.Node, axis: int, _: Any) -> str:
    return w("CumSum", w.cast(x, w.out.dtype), np.asarray(axis)) if w.out.dim() else w.cast(x, w.out.dtype)


@handles("var.correction")
def var(w: Writer, x: fx.Node, axes: Any, correction: float | None, keep: bool) -> str:
    return var_mean(w, x, axes, correction, keep)[0]


@handles("var_mean.correction")
def var_mean(w: Writer, x: fx.Node, axes: Any, correction: float | None, keep: bool) -> tuple[str, ...]:
    dtype, chosen = w.out.dtype, _axes(x, axes)
    count = prod(x.meta["val"].shape[a] for a in chosen)
    mean = _reduced(w, "ReduceMean", x, chosen, True)
    centred = w("Sub", x, mean)
    total = _reduced(w, "ReduceSum", w("Mul", centred, centred), chosen, keep)
    left = max(count - (1 if correction is None else correction), 0)
    found = w("Div", total, w.number(left, dtype))
    return found, mean if keep else w.reshape(mean, list(w.out.shape))


@handles("linalg_vector_norm")
def vector_norm(w: Writer, x: fx.Node, order: float, axes: Any, keep: bool, _: Any) -> str:
    if order not in (1, 2):
        raise Unsupported(f"order {order}")
    return _reduced(w, f"ReduceL{int(order)}", w.cast(x, w.out.dtype), _axes(x, axes), keep)


@handles("mm", "bmm")
def product(w: Writer, a: fx.Node, b: fx.Node, *_: Any) -> str:
    """Multiply matrices. aᵀ · b with many more rows than columns is (bᵀ · a)ᵀ: this transposes the smaller operand."""
    if str(a.target) == "aten.permute.default" and list(a.args[1]) == [1, 0]:
        (rows, depth), columns = a.meta["val"].shape, b.meta["val"].shape[1]
        if depth * columns + rows * columns < rows * depth:
            transposed = w("Transpose", b, perm=[1, 0])
            return w("Transpose", w("MatMul", transposed, a.args[0]), perm=[1, 0])
    return w("MatMul", a, b)


@handles("addmm")
def addmm(w: Writer, bias: fx.Node, a: fx.Node, b: fx.Node, beta: float, alpha: float) -> str:
    dtype, found, added = w.out.dtype, w("MatMul", a, b), w.name(bias)
    found = found if alpha == 1 else w("Mul", found, w.number(alpha, dtype))
    added = added if beta == 1 else w("Mul", added, w.number(beta, dtype))
    return w("Add", found, added) if beta else found
