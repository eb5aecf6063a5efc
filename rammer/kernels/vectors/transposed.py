"""Schedule point-wise stages that read one operand transposed: squares of it are copied to scratch, transposed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from rammer.ir.expr import Load, loads
from rammer.ir.index import var, variables
from rammer.ir.tensor import DType
from rammer.kernels.packing import dim_of
from rammer.kernels.problem import KernelProblem
from rammer.kernels.sched import Sched, begun, copy_axes, cuts
from rammer.kernels.schedule import Schedule
from rammer.kernels.tiling import output_order


class _Across(NamedTuple):
    """An operand that is contiguous along axis `into`, where the output is contiguous along axis `out`."""

    load: Load
    out: str
    into: str


def schedules(problem: KernelProblem) -> Iterator[Schedule]:
    """Yield for each task count squares of a vector's width, in scratch; none if no operand is transposed."""
    if (found := _across(problem)) is None:
        return
    load, out, into = found
    lanes, axes = problem.lanes, copy_axes(problem, load.tensor)
    others = [a for a in output_order(problem) if a not in (out, into)]
    row, column = dim_of(load, into), dim_of(load, out)
    rest = [d for d in range(len(load.index)) if d not in (row, column)]
    square = Sched(problem).reorder(*(axes[d] for d in rest)).unroll(axes[row]).vectorize(axes[column])
    for s in begun(problem, [*cuts(problem, others), *cuts(problem, (out, into), lanes)]):
        s = s.reorder(*others).split(into, lanes).split(out, lanes)
        s = s.compute_at(load.tensor, square, order=(*rest, row, column)).reorder(into).vectorize(out)
        yield s.build(f"{out}{lanes}x{into}")


def _across(problem: KernelProblem) -> _Across | None:
    """Return the only operand whose memory order differs from the output's, if vectors of it lie along another axis."""
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


def _together(problem: KernelProblem, load: Load, lane: str) -> bool:
    return problem.packable(load, lane) or problem.lane_stride(load.tensor, load.index, lane, problem.root) in (0, 1)
