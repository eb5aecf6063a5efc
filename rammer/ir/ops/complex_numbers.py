"""Convert complex numbers to pairs of real ones along a last dimension of 2, and back.

All arithmetic is that of the pairs.
"""

from __future__ import annotations

from rammer.ir.expr import Load, Range, Select, Stage, TensorExpr
from rammer.ir.index import Index, var
from rammer.ir.operator import OpDef
from rammer.ir.ops.operands import call, expression, point_axes, require, variables_of
from rammer.ir.tensor import DType, TensorType


def _view_as_real(x: TensorType) -> TensorExpr:
    """Build out[…, 0] and out[…, 1], the real and the imaginary part of x."""
    require(x.dtype.is_complex, f"view_as_real: {x}", "it takes complex numbers apart")
    axes = point_axes((*x.shape, 2))
    which, number = axes[-1][0], Load("x", variables_of(axes[:-1]))
    body = Select((Range(var(which), 0, 1),), call("real", number), call("imag", number))
    return expression("view_as_real", [("x", x)], [Stage("out", axes, body, dtype=x.dtype.part)])


def _view_as_complex(x: TensorType) -> TensorExpr:
    """Build x[…, 0] + i · x[…, 1]."""
    pairs = x.dtype in (DType.F32, DType.F64) and x.shape[-1:] == (2,)
    require(pairs, f"view_as_complex: {x}", "it takes pairs of float32 or float64")
    axes = point_axes(x.shape[:-1])
    parts = (Load("x", (*variables_of(axes), Index(part))) for part in range(2))
    dtype = DType.C64 if x.dtype is DType.F32 else DType.C128
    return expression("view_as_complex", [("x", x)], [Stage("out", axes, call("complex", *parts), dtype=dtype)])


DEFINITIONS = (OpDef("view_as_real", _view_as_real), OpDef("view_as_complex", _view_as_complex))
