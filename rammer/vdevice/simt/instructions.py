"""Define the folds of a subgroup: reductions over its threads, as instructions."""

from __future__ import annotations

from math import log2

from rammer.ir.instruction import Instruction, fold

# How a fold combines `a` with `b`, another thread's, by reducer.
STEPS = {"sum": "a + b", "max": "smax(a, b)", "min": "smin(a, b)"}


def folds(subgroup_size: int) -> tuple[Instruction, ...]:
    """Return the folds of subgroups of `subgroup_size` threads: over a power of two of threads, adjacent or strided.

    One step is an exchange and an operation for each thread.
    """
    powers = [1 << n for n in range(1, subgroup_size.bit_length())]
    return tuple(
        fold(f"fold_{combine}<{terms}, {beside}>", combine, subgroup_size, terms, beside, terms / (2 * log2(terms)))
        for combine in STEPS
        for terms in powers
        for beside in (1, *powers)
        if terms * beside <= subgroup_size
    )
