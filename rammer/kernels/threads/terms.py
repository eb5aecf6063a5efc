"""Arrange the terms of a sum for the threads that share it: contiguous or packed, so that each one loads a vector."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from rammer.ir.expr import Load, Stage, loads
from rammer.ir.index import var
from rammer.ir.tensor import Digit, DType, Layout
from rammer.kernels.problem import KernelProblem

SHORT = 8  # a reduction of fewer terms is not worth sharing between threads


def term_lanes(problem: KernelProblem, stage: Stage, packing: Mapping[str, Layout]) -> int:
    """Return how many neighbouring terms a thread loads at once: a vector if all operands are contiguous, or one."""
    return lanes_along(problem, stage, *stage.reduce[0], packing) if len(stage.reduce) == 1 else 1


def lanes_along(
    problem: KernelProblem, stage: Stage, axis: str, extent: int, packing: Collection[str] = frozenset()
) -> int:
    """Return how many neighbours along an axis a thread takes at once: a vector if all loads are contiguous, or one.

    Tensors of `packing` will be.
    """
    lanes, read = problem.spec.lanes, [ld for ld, _ in loads(stage.body)]
    kinds = {problem.expr.type_of(ld.tensor).dtype for ld in read} | {stage.dtype}
    if extent % lanes or kinds != {DType.F32} or any(ld.dynamic for ld in read):
        return 1
    steps = {problem.lane_stride(ld.tensor, ld.index, axis, stage) for ld in read if ld.tensor not in packing}
    return lanes if steps <= {0, 1} else 1


def packed_terms(problem: KernelProblem, stage: Stage, packing: dict[str, Layout]) -> str | None:
    """Pack the largest operand with a reduction axis innermost, and return that axis; None if that is not possible."""
    load = largest(problem, stage)
    if load is None or load.dynamic or load.tensor not in problem.static or load.tensor in packing:
        return None
    if problem.expr.type_of(load.tensor).layout is not None:
        return None
    for axis, extent in reversed(stage.reduce):
        if extent >= SHORT and var(axis) in load.index:
            d = load.index.index(var(axis))
            rest = tuple(Digit(n) for n in range(len(load.index)) if n != d)
            packing[load.tensor] = Layout((*rest, Digit(d)))
            return axis
    return None


def largest(problem: KernelProblem, stage: Stage) -> Load | None:
    """Return the load of the largest tensor that a stage reads."""
    types = dict(problem.expr.inputs)
    read = [ld for ld, _ in loads(stage.body) if ld.tensor in types or ld.tensor in problem.stages]
    return max(read, key=lambda ld: problem.expr.type_of(ld.tensor).size, default=None)
