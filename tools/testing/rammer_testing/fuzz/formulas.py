"""Define formulas for ONNX's evaluator (1.23): operators that it lacks, or computes against the standard.

It lacks quantised operators of ONNX Runtime's domain, and applies a vector of zero points for rows to columns. Its
Erf computes in float32 even for doubles, and so does Gelu's; Gelu's other constants are float32 too. Its LRN computes
as many channels as a batch has images, and its LpNormalization takes L1 norms with
signs. Its GatherElements refuses indices that are shorter along other axes. It rounds sums of 16-bit numbers after each
term: in bfloat16, those of many hundred terms stop growing.
"""

from __future__ import annotations

from math import erf, pi, sqrt
from typing import Any, ClassVar

import ml_dtypes
import numpy as np
from onnx.reference.op_run import OpRun
from onnx.reference.ops import load_op

from rammer.ir.tensor import Array
from rammer_testing.fuzz.sketch import CONTRIB

OPSET = 23  # the operators in SUMS are the same in opset 21
HALVES = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))
SUMS = (
    *("ReduceSum", "ReduceSumSquare", "ReduceMean", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp"),
    *("ReduceProd", "CumSum", "Softmax", "LogSoftmax", "InstanceNormalization"),
    *("GlobalAveragePool", "AveragePool", "LpPool", "ConvTranspose"),
)


def of_rows(value: Array) -> Array:
    """Return a left operand's parameter so that it broadcasts: a vector has one number per row."""
    return value[:, None] if value.ndim == 1 and value.size > 1 else value


def less(x: Array, zero: Array | None) -> Array:
    """Return x - zero, exactly."""
    return np.asarray(x.astype(np.int64) - (0 if zero is None else zero.astype(np.int64)))


def quantised(value: Array, scale: Array, zero: Array) -> Array:
    """Return value / scale + zero, rounded half to even, clipped to the type of the zero point."""
    limits = np.iinfo(zero.dtype)
    found = np.rint(value.astype(np.float64) / scale.astype(np.float64)) + zero.astype(np.float64)
    return np.asarray(np.clip(found, limits.min, limits.max).astype(zero.dtype))


class MatMulInteger(OpRun):
    """Product with zero points that may be vectors: of rows for the left operand, of columns for the right one."""

    op_domain = ""

    def _run(self, a: Array, b: Array, a_zero: Array | None = None, b_zero: Array | None = None) -> tuple[Array]:
        left = less(a, None if a_zero is None else of_rows(a_zero))
        return ((left @ less(b, b_zero)).astype(np.int32),)


class QLinearMatMul(OpRun):
    """MatMulInteger with scales in the same forms."""

    op_domain = ""

    def _run(
        self, a: Array, a_scale: Array, a_zero: Array, b: Array, b_scale: Array, b_zero: Array, *result: Array
    ) -> tuple[Array]:
        total = (less(a, of_rows(a_zero)) @ less(b, b_zero)).astype(np.float64)
        return (quantised(total * of_rows(a_scale).astype(np.float64) * b_scale, *result),)


class QGemm(OpRun):
    """alpha (A - za) sa (B - zb) sb + C alpha sa sb; scales and zero points of B may be per column."""

    op_domain = CONTRIB

    def _run(
        self,
        a: Array,
        a_scale: Array,
        a_zero: Array,
        b: Array,
        b_scale: Array,
        b_zero: Array,
        c: Array | None = None,
        y_scale: Array | None = None,
        y_zero: Array | None = None,
        **attrs: Any,
    ) -> tuple[Array]:
        left, right = (x.T if attrs.get(f"trans{n}") else x for n, x in (("A", a), ("B", b)))
        total = less(left, a_zero) @ less(right, b_zero) + (0 if c is None else c.astype(np.int64))
        real = total * (np.float64(attrs.get("alpha") or 1.0) * a_scale.astype(np.float64) * b_scale.astype(np.float64))
        if y_scale is None or y_zero is None:
            return (real.astype(a_scale.dtype),)
        return (quantised(real, y_scale, y_zero),)


class MatMulIntegerToFloat(OpRun):
    """(A - za) (B - zb) sa sb + bias."""

    op_domain = CONTRIB

    def _run(
        self,
        a: Array,
        b: Array,
        a_scale: Array,
        b_scale: Array,
        a_zero: Array | None = None,
        b_zero: Array | None = None,
        bias: Array | None = None,
    ) -> tuple[Array]:
        real = (less(a, a_zero) @ less(b, b_zero)) * (a_scale.astype(np.float64) * b_scale.astype(np.float64))
        return ((real + (0 if bias is None else bias)).astype(a_scale.dtype),)


class _Pointwise(OpRun):
    """A function of two dequantised operands, quantised."""

    op_domain = CONTRIB
    formula: ClassVar[Any]

    def _run(
        self, a: Array, a_scale: Array, a_zero: Array, b: Array, b_scale: Array, b_zero: Array, *result: Array
    ) -> tuple[Array]:
        left, right = less(a, a_zero) * a_scale.astype(np.float64), less(b, b_zero) * b_scale.astype(np.float64)
        return (quantised(type(self).formula(left, right), *result),)


class QLinearAdd(_Pointwise):
    formula = np.add


class QLinearMul(_Pointwise):
    formula = np.multiply


class Erf(OpRun):
    op_domain = ""

    def _run(self, x: Array) -> tuple[Array]:
        return (_erf(x).astype(x.dtype),)


class Gelu(OpRun):
    """x Φ(x), or its approximation by tanh, rounded once."""

    op_domain = ""

    def _run(self, x: Array, approximate: str = "none") -> tuple[Array]:
        wide = x.astype(np.float64)
        smooth = approximate == "tanh"
        odd = np.tanh(sqrt(2 / pi) * (wide + 0.044715 * wide**3)) if smooth else _erf(wide / sqrt(2))
        return ((wide / 2 * (1 + odd)).astype(x.dtype),)


class LRN(OpRun):
    """x / (bias + alpha / size * the sum of squares of `size` channels around it) ** beta."""

    op_domain = ""

    def _run(self, x: Array, alpha: float, beta: float, bias: float, size: int) -> tuple[Array]:
        before = (size - 1) // 2
        padded = np.pad(np.square(x), [(0, 0), (before, size - 1 - before), *[(0, 0)] * (x.ndim - 2)])
        squares = sum(padded[:, n : n + x.shape[1]] for n in range(size))
        scale = float(alpha) / size  # attributes arrive as np.float32, which narrows what is divided by a number
        return ((x / (float(bias) + scale * squares) ** float(beta)).astype(x.dtype),)


class LpNormalization(OpRun):
    """x / (the sum of |x| ** p along an axis) ** (1 / p); zeros stay zeros."""

    op_domain = ""

    def _run(self, x: Array, axis: int = -1, p: int = 2) -> tuple[Array]:
        norm = np.sum(np.abs(x.astype(np.float64)) ** p, axis, keepdims=True) ** (1 / p)
        return ((x / np.where(norm == 0, 1, norm)).astype(x.dtype),)


class GatherElements(OpRun):
    """Elements at indices along an axis. Other axes of the indices may be shorter."""

    op_domain = ""

    def _run(self, x: Array, indices: Array, axis: int = 0) -> tuple[Array]:
        along = axis % x.ndim
        covered = x[tuple(slice(None if d == along else n) for d, n in enumerate(indices.shape))]
        return (np.take_along_axis(covered, indices, along),)


def widened(name: str) -> type[OpRun]:
    """Return an operator of the evaluator that computes 16-bit numbers in float64, and rounds its result once."""
    plain: type[OpRun] = load_op("", name, OPSET)

    def run(self: OpRun, x: Array, *rest: Any, **attributes: Any) -> tuple[Array]:
        wide = [v.astype(np.float64) if getattr(v, "dtype", None) in HALVES else v for v in (x, *rest)]
        (found,) = plain._run(self, *wide, **attributes)  # type: ignore[no-untyped-call]
        return (np.asarray(found).astype(x.dtype) if x.dtype in HALVES else found,)

    return type(name, (plain,), {"op_domain": "", "_run": run})


_erf = np.vectorize(erf, otypes=[np.float64])
FORMULAS: list[type[OpRun]] = [
    *(MatMulInteger, QLinearMatMul, QGemm, MatMulIntegerToFloat, QLinearAdd, QLinearMul, Erf, Gelu, LRN),
    *(LpNormalization, GatherElements),
    *map(widened, SUMS),
]
