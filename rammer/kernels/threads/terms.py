"""Arrange the terms of a sum for the threads that share it: contiguous or packed, so that each one loads a vector."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import prod

from rammer.ir.expr import Load, Stage, loads
from rammer.ir.index import var
from rammer.ir.tensor import Digit, DType, Layout
from rammer.ir.tile import Kind
from rammer.kernels.problem import KernelProblem
from rammer.kernels.schedule import Loop, group

SHORT = 8  # a reduction of fewer terms is not worth sharing between threads
ROUNDS = (8, 4, 2, 1)  # tasks per vEU that are tried
KEPT = 4  # results of a reduction that one thread holds at once


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


def points_of(stage: Stage, steps: Mapping[str, int]) -> int:
    """Return about how many points of a stage a task computes. Axes that the tasks cut are cut here, too."""
    return prod(min(e, steps.get(a, e)) for a, e in stage.axes)


def threads_for(problem: KernelProblem, stage: Stage, steps: Mapping[str, int], most: int) -> int:
    """Return how many threads a stage can keep busy: whole subgroups, a power of two of them."""
    depth = prod(e for _, e in stage.reduce)
    items = points_of(stage, steps) * (depth if depth >= SHORT else 1)
    least = min(subgroup_size_of(problem), most)
    if not stage.reduce and items >= (wide := vector_lanes(problem, stage)) * least:
        items = -(-items // wide)
    return least * min(1 << (-(-items // least) - 1).bit_length(), most // least)


def subgroup_size_of(problem: KernelProblem) -> int:
    """Return the number of threads of a subgroup. Tasks have whole ones; neighbours in one read adjacent memory."""
    return max(problem.spec.subgroup_size, 1)


def stage_loops(
    problem: KernelProblem, stage: Stage, steps: Mapping[str, int], threads: int, packing: dict[str, Layout]
) -> tuple[Loop, ...]:
    """Return loops that spread threads over the points, and over a reduction's terms if there are not enough points.

    Adds to `packing` the layout of a static operand whose terms would be strided for such threads.
    """
    every = group([a for a, _ in stage.axes])
    points = points_of(stage, steps)
    if not stage.reduce:
        wide = vector_lanes(problem, stage)
        if wide > 1 and points >= wide * subgroup_size_of(problem):
            return (Loop(every, wide * threads), Loop(every, wide, Kind.THREAD), Loop(every, 1, Kind.VECTOR))
        return (Loop(every, threads), Loop(every, 1, Kind.THREAD))
    reduce = [a for a, _ in stage.reduce]
    along = contiguous(problem, stage)
    if along not in reduce and sharing_threads(problem, stage, points, threads, False) > 1:
        along = packed_terms(problem, stage, packing) or along
    inner = reduce if along not in reduce else [*(a for a in reduce if a != along), along]
    wide = term_lanes(problem, stage, packing) if along in reduce else 1
    sharing = sharing_threads(problem, stage, points, threads, along in reduce, wide)
    rows = threads // sharing
    kept = min(-(-points // rows), KEPT)
    outer, held = (Loop(every, kept * rows),), (Loop(every, rows, Kind.UNROLLED),)
    mine = (Loop(every, 1, Kind.THREAD),) if rows > 1 else ()
    if sharing == 1:
        return (*outer, *mine, *(Loop(a) for a in inner), *held)
    terms = group(inner) if wide == 1 else inner[0]
    lanes = Loop(terms, wide, Kind.THREAD)
    pair = (*mine, lanes) if along in reduce else (lanes, *mine)
    vector = (Loop(terms, 1, Kind.VECTOR),) if wide > 1 else ()
    return (*outer, *pair, Loop(terms, wide * sharing), *held, *vector)


def vector_lanes(problem: KernelProblem, stage: Stage) -> int:
    """Return how many neighbours one thread computes at once: a vector if all operands are contiguous, or one."""
    return lanes_along(problem, stage, *next(((a, e) for a, e in reversed(stage.axes) if e > 1), ("", 0)))


def sharing_threads(
    problem: KernelProblem, stage: Stage, points: int, threads: int, coalesced: bool, wide: int = 1
) -> int:
    """Return how many threads share one reduction: a power of two; 1 if there are enough points, coalesced in memory.

    Each of them takes `wide` neighbouring terms at once.
    """
    depth = prod(e for _, e in stage.reduce) // wide
    if depth < SHORT:
        return 1
    most = min(powers(depth)[-1], threads & -threads)
    idle = threads >> max(points - 1, 0).bit_length()
    wave = min(max(subgroup_size_of(problem) // wide, 1), threads)
    return min(powers(max(idle, wave if coalesced and depth >= wave else 1))[-1], most)


def contiguous(problem: KernelProblem, stage: Stage) -> str | None:
    """Return the axis along which the largest operand is contiguous in memory, or None."""
    load = largest(problem, stage)
    if load is None:
        return None
    for axis, extent in (*reversed(stage.axes), *reversed(stage.reduce)):
        if extent > 1 and problem.lane_stride(load.tensor, load.index, axis, stage) == 1:
            return axis
    return None


def powers(most: int) -> list[int]:
    """Return the powers of two up to a number."""
    return [1 << n for n in range(max(most, 1).bit_length())]
