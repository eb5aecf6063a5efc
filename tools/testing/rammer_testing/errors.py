"""Measure how far results are from a reference: in units of the last place, and relative to the largest magnitude."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes  # noqa: F401  (its types)
import numpy as np

from rammer.ir.tensor import Array

_BITS = {"float16": np.int16, "float32": np.int32, "float64": np.int64, "bfloat16": np.int16}
EXCESS = 4
BOUNDS = {
    "complex64": 1e-4,
    "complex128": 1e-4,
    "float64": 1e-4,
    "float32": 1e-4,
    "float16": 4e-3,
    "bfloat16": 4e-2,
}  # of a right result, relative
BOUNDS |= {"uint8": 2e-5, "int8": 2e-5}  # none of 255 steps; one where quantized


@dataclass(frozen=True, slots=True)
class Errors:
    """The largest errors of a case's results."""

    ulp: float = 0.0
    relative: float = 0.0


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of a case; `reason` is empty if it passes. `others` are ONNX Runtime's errors."""

    name: str
    outcome: str
    reason: str = ""
    errors: Errors | None = None
    others: Errors | None = None

    @property
    def is_excessive(self) -> bool:
        """Whether the errors are over EXCESS times ONNX Runtime's, in units of the last place and relatively."""
        if self.errors is None or self.others is None:
            return False
        most = max(self.others.relative, 2.0**-24)
        return self.errors.relative > EXCESS * most and self.errors.ulp > EXCESS * max(self.others.ulp, 1)


class Mismatch(AssertionError):
    """Results differ in form, or in values that have to be equal."""


def errors_of(found: Sequence[Any], wanted: Sequence[Any]) -> Errors:
    """Return the largest errors of floating-point results. Raises Mismatch if anything else differs."""
    pairs = list(_pairs(found, wanted))
    each = [_errors(a, b) for a, b in pairs]
    return Errors(max((e.ulp for e in each), default=0.0), max((e.relative for e in each), default=0.0))


def is_right(found: Sequence[Any], wanted: Sequence[Any], factor: float = 1.0) -> bool:
    """Check whether the error of every result is within the bound of its type."""
    return all(_errors(a, b).relative <= factor * BOUNDS.get(b.dtype.name, 0) for a, b in _pairs(found, wanted))


def _pairs(found: Any, wanted: Any) -> Iterator[tuple[Array, Array]]:
    """Yield pairs of arrays. Dictionaries are compared key by key."""
    if isinstance(wanted, list | tuple):
        if not isinstance(found, list | tuple) or len(found) != len(wanted):
            raise Mismatch(f"{type(found).__name__} instead of a list of {len(wanted)}")
        if wanted and isinstance(wanted[0], Mapping):
            yield _matrix(found, wanted)
            return
        for a, b in zip(found, wanted, strict=True):
            yield from _pairs(a, b)
        return
    if wanted is None or found is None:
        if wanted is not found:
            raise Mismatch(f"{found} instead of {wanted}")
        return
    a, b = np.asarray(found), np.asarray(wanted)
    if a.shape != b.shape or a.dtype.kind != b.dtype.kind or (a.dtype != b.dtype and a.dtype.kind != "O"):
        raise Mismatch(f"{a.dtype}{list(a.shape)} instead of {b.dtype}{list(b.shape)}")
    yield a, b


def _matrix(found: Sequence[Mapping[Any, Any]], wanted: Sequence[Mapping[Any, Any]]) -> tuple[Array, Array]:
    keys = list(wanted[0])
    for a, b in zip(found, wanted, strict=True):
        if a.keys() != b.keys():
            raise Mismatch(f"keys {list(a)} instead of {list(b)}")
    return tuple(np.array([[row[k] for k in keys] for row in rows], np.float32) for rows in (found, wanted))  # type: ignore[return-value]


def _errors(a: Array, b: Array) -> Errors:
    if b.dtype.name not in _BITS:
        if b.dtype.kind in "iu" and b.dtype.itemsize == 1:  # quantized: a step of it
            return Errors(0.0, float(np.abs(a.astype(int) - b.astype(int)).max(initial=0)) / 255)
        if (bad := np.count_nonzero(a != b)) and b.dtype.kind != "c":
            place = np.argwhere(np.atleast_1d(a != b))[0].tolist()
            raise Mismatch(f"{bad} of {b.size} elements differ, the first at {place}")
        return Errors(0.0, _relative(a, b) if b.dtype.kind == "c" else 0.0)
    special = ~np.isfinite(b.astype(np.float64))
    x, y = a.astype(np.float64), b.astype(np.float64)
    if not np.array_equal(np.where(special, x, 0.0), np.where(special, y, 0.0), equal_nan=True):
        raise Mismatch("infinities or NaNs differ")
    if not np.isfinite(np.where(special, 0.0, x)).all():
        raise Mismatch("a result is not finite, the reference is")
    return Errors(float(_steps(a, b)[~special].max(initial=0)), _relative(a[~special], b[~special]))


def one_line(text: str) -> str:
    """Return the begin of a message, on one line."""
    return " ".join(text.split())[:240]


def _steps(a: Array, b: Array) -> Array:
    """Return how many floating-point numbers lie between two, element by element."""
    bits = _BITS[b.dtype.name]
    low = np.int64(np.iinfo(bits).min)

    def ordered(x: Array) -> Array:
        whole = np.ascontiguousarray(x).view(bits).astype(np.int64)
        return np.where(whole < 0, low - whole, whole)

    return np.abs(ordered(a).astype(np.float64) - ordered(b).astype(np.float64))


def _relative(a: Array, b: Array) -> float:
    kind = np.complex128 if b.dtype.kind == "c" else np.float64
    size = np.abs(b.astype(kind)).max(initial=0)
    apart = np.abs(a.astype(kind) - b.astype(kind)).max(initial=0)
    least = float(np.finfo(b.dtype).tiny) if b.dtype.name in ("float32", "float64") else 0.0  # denormals count as zero
    return float(apart / size) if size >= least and size else float(apart > least)
