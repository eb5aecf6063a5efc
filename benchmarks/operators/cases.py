"""Gather the forms of operators that `operators.run` measures."""

from __future__ import annotations

from benchmarks.operators.contrib import CONTRIB, QUANTISED
from benchmarks.operators.standard import (
    CASTS,
    ELEMENTWISE,
    INDEXING,
    LAYOUT,
    MORE,
    NORMS,
    POOLS,
    PRODUCTS,
    RARE,
    REDUCTIONS,
)

GROUPS = (ELEMENTWISE, CASTS, REDUCTIONS, NORMS, INDEXING, LAYOUT, POOLS, PRODUCTS, QUANTISED, RARE, CONTRIB, MORE)
CASES = {case.name: case for group in GROUPS for case in group}
