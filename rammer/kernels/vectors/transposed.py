"""Schedules of what reads one operand across: squares of it are copied, turned, and combined with the rest in order."""

from __future__ import annotations

from collections.abc import Iterator
from math import lcm, prod
from typing import NamedTuple

from rammer.ir.expr import Load, loads
from rammer.ir.index import var, variables
from rammer.ir.tensor import DType
from rammer.ir.tile import Kind
from rammer.kernels.problem import Problem
from rammer.kernels.schedule import At, Loop, Schedule
from rammer.kernels.tiling import cut, output_order, task_counts


class _Across(NamedTuple):
    """An operand that lies along axis `into`, where the output lies along axis `out`."""

    load: Load
    out: str
    into: str


def schedules(problem: Problem) -> Iterator[Schedule]:
    """For each task count: squares of a vector's width, in scratch; nothing for what reads no operand across."""
    if (found := _across(problem)) is None:
        return
    load, out, into = found
    lanes, extents = problem.lanes, dict(problem.root.axes)
    order = output_order(problem)
    whole_squares = [(a, extents[a], lcm(problem.span(a), lanes)) for a in (out, into)]
    grains = [(a, extents[a], problem.span(a)) for a in order if a not in (out, into)] + whole_squares
    dims = {ix: d for d, ix in enumerate(load.index)}
    row, column = dims[var(into)], dims[var(out)]
    rest = [d for d in range(len(load.index)) if d not in (row, column)]
    nest = tuple(Loop(f"{load.tensor}{d}") for d in rest)
    nest += (Loop(f"{load.tensor}{row}", 1, Kind.UNROLLED), Loop(f"{load.tensor}{column}", 1, Kind.VECTOR))
    for tasks in dict.fromkeys(cut(grains, want, problem.spec.num_veus) for want in task_counts(problem)):
        outer = (*(Loop(a) for a in order if a not in (out, into)), Loop(into, lanes), Loop(out, lanes))
        loops = (*tasks, *outer, Loop(into), Loop(out, 1, Kind.VECTOR))
        square = At(load.tensor, len(tasks) + len(outer) - 1, nest, order=(*rest, row, column))
        count = prod(-(-extents[loop.axis] // loop.step) for loop in tasks)
        yield Schedule(f"{problem.operation.kind}_{out}{lanes}x{into}_t{count}", loops, (square,))


def _across(problem: Problem) -> _Across | None:
    """The only operand that does not lie as the output does, if vectors of it lie along another axis."""
    root = problem.root
    if root.reduce or problem.placed or isinstance(root.body, Load):
        return None
    wide = [a for a, e in root.axes if e > 1]
    own = tuple(var(a) for a, _ in root.axes)
    if (out := next((a for a in wide if problem.lane_stride(root.name, own, a, root) == 1), None)) is None:
        return None
    across = {load for load, _ in loads(root.body) if load.dynamic or not _together(problem, load, out)}
    if len(across) != 1:
        return None
    (load,) = across
    plain = not load.dynamic and len(set(load.index)) == len(load.index)
    plain = plain and all(ix == var(a) for ix in load.index for a in variables(ix))
    read_once = sum(other.tensor == load.tensor for other, _ in loads(root.body)) == 1
    known = {n: t for n, t in problem.expr.inputs if t.dtype is DType.F32 and t.layout is None}
    into = [a for a in wide if a != out and problem.lane_stride(load.tensor, load.index, a, root) == 1]
    if plain and read_once and load.tensor in known and into and var(out) in load.index:
        return _Across(load, out, into[0])
    return None


def _together(problem: Problem, load: Load, lane: str) -> bool:
    return problem.packable(load, lane) or problem.lane_stride(load.tensor, load.index, lane, problem.root) in (0, 1)
