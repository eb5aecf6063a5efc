"""Forms of operators that have kernels of their own, at odd sizes, next to ONNX's evaluator."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx.reference
import pytest
from cpus import runnable

import rammer
from benchmarks.operators.cases import CASES
from rammer.ir.tensor import Array

SMALL = {2: (3, 37), 3: (1, 3, 37), 4: (1, 2, 9, 7)}  # for the interpreter
FORMS = (
    *("IsNaN", "IsInf", "Not", "And", "Xor", "Less", "Equal", "Where", "Cast, bool", "Cast, float32", "Cast, int64"),
    *("Hardmax, rows", "ArgMax, rows", "ArgMax, columns", "Trilu", "OneHot"),
    *("CumSum, rows", "CumSum, columns", "CumSum, exclusive", "CumSum, reverse", "ReduceSum, columns", "MaxPool"),
    *("TopK, all", "TopK, 8", "TopK, 64", "TopK, smallest 8"),
    *("Pad, edge", "Pad, reflect", "Pad, wrap", "Pad, image reflected"),
    *("ScatterND", "ScatterND, elements", "ScatterElements"),
    *("Resize, nearest 2", "Resize, linear 2", "Resize, cubic 2", "Resize, linear 1.5", "Resize, rows"),
)


def forms() -> list[tuple[str, str]]:
    return [(name, dtype) for name in FORMS for dtype in CASES[name].types if dtype != "float16"]


def compared(name: str, dtype: str, target: str, arch: str | None, shape: tuple[int, ...] | None) -> None:
    """Compare a form's results with those of ONNX's evaluator. Some elements are equal, infinite or NaN."""
    case = CASES[name]
    case = replace(case, shapes=(shape,) * len(case.shapes)) if shape else case
    model, inputs = case.made("odd", dtype)
    values = next(iter(inputs.values()))
    if values.dtype.kind == "f":
        values.reshape(-1)[::5] = np.round(values.reshape(-1)[::5])  # so that some are equal
        if name in ("IsNaN", "IsInf", "Less", "Equal", "Where", "Cast, bool", "Trilu"):
            values.reshape(-1)[::7], values.reshape(-1)[3::11] = np.nan, -np.inf
    with np.errstate(all="ignore"):
        wanted = onnx.reference.ReferenceEvaluator(model).run(None, inputs)
    with rammer.compile(model, target, arch=arch, device=2, tune_seconds=0) as program:
        found = list(program.run(inputs).values())
    for result, right in zip(found, map(np.asarray, wanted), strict=True):
        assert result.dtype == right.dtype and result.shape == right.shape
        close = {"rtol": 1e-4, "atol": 1e-4} if result.dtype == np.float32 else {"rtol": 0, "atol": 0}
        np.testing.assert_allclose(*(a.astype(_wide(a)) for a in (result, right)), **close)


def _wide(array: Array) -> type:
    return np.float64 if array.dtype.kind == "f" else np.int64


@pytest.mark.parametrize("number, form", list(enumerate(forms())), ids=[", ".join(form) for form in forms()])
def test_results_are_those_of_onnx(number: int, form: tuple[str, str]) -> None:
    arch = ("x86-64-avx512", "x86-64-avx2", "x86-64-sse4")[number % 3]
    compared(*form, "cpu", runnable(arch), None)


@pytest.mark.parametrize("form", forms()[::2], ids=", ".join)
def test_the_interpreter_agrees(form: tuple[str, str]) -> None:
    compared(*form, "interpreter", None, SMALL[len(CASES[form[0]].shapes[0])])
