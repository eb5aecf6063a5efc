"""Schedule recurrent cells on many threads: point-wise roots over products of a small number of rows.

Neighbouring threads of a subgroup share each unit: all of its gates are sums in their registers. A fold combines them,
and the first thread goes on alone. Threads do not wait for other subgroups, so a cell has no block sync of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

from rammer.ir.expr import Load, Stage, loads
from rammer.ir.index import Index, var
from rammer.ir.tensor import DType, Layout
from rammer.ir.tile import Kind, Scope
from rammer.kernels.problem import KernelProblem, all_loads
from rammer.kernels.sched import Sched
from rammer.kernels.schedule import Schedule, group
from rammer.kernels.threads.terms import largest, packed_terms, powers, term_lanes

MOST_SUMS = 16  # sums of a thread, each of them a vector if terms are loaded by vectors
UNITS = (4, 8, 16, 20, 32, 64)  # units of a task: 256 make 13 tasks of 20, if there are not enough vEUs for 16 each
BETWEEN = (20, 32)  # units of a task of plain sums, besides the powers of two of `threads.candidates`


def schedules(problem: KernelProblem, most: int) -> Iterator[Schedule]:
    """Yield tasks of some units each, of at most `most` threads; none if the root is not such a cell."""
    root = problem.root
    products = [s for s in problem.placed if s.reduce]
    if root.reduce or not products or not problem.spec.folds or not root.axes:
        return
    lane, units = root.axes[-1]
    rows = [(a, e) for a, e in root.axes[:-1] if e > 1]
    beside = [s.name for s in problem.placed if not s.reduce]
    sums = sum(prod(e for _, e in s.axes) // max(units, 1) for s in products)
    if sums > MOST_SUMS or not all(_own(problem, s) for s in products):
        return
    if any(name == s.name for s in products for name, _ in problem.expr.outputs):
        return  # a sum that is a result, too, would have to leave the registers
    combined = {unit.meaning.root.combine for unit in problem.spec.folds}
    if any(s.dtype.accumulator is not DType.F32 or s.combine not in combined for s in products):
        return  # threads would fold them in scratch, where those of all units have one place
    if not all(name in dict(problem.expr.outputs) for name in beside) or not _at_points(problem, beside):
        return
    packing = _packing(problem, products)
    for step in dict.fromkeys(min(count, 1 << (units - 1).bit_length()) for count in UNITS):
        sharing = _sharing(problem, products, packing, step, most)
        threads = min(step * sharing, most)
        if sharing > 1 and threads % problem.spec.subgroup_size == 0:
            s = _units(Sched(problem), lane, step, threads, sharing)
            alone = group(())  # of no axes: one point, the first thread's
            first = Sched(problem).split(alone, sharing).bind(alone)
            for name, walk in _operands(problem, lane):
                s = s.compute_at(name, first.unroll(*walk), scope=Scope.REGISTER)
            for stage in products:
                nest = _terms(Sched(problem, stage), stage, packing, sharing)
                s = s.compute_at(stage.name, nest, scope=Scope.REGISTER)
            s = s.nest(first.loops).unroll(*dict(rows))
            for name in beside:
                s = s.compute_at(name, scope=Scope.REGISTER)
            yield s.pack(packing.items()).on_threads(threads).build(f"cell{step}_s{sharing}_x{threads}")


def sums(problem: KernelProblem, most: int) -> Iterator[Schedule]:
    """Yield tasks of all gates' sums of some units each, if the root is such a product of one row with constants."""
    root, types = problem.root, dict(problem.expr.inputs)
    if len(problem.stages) > 1 or len(root.reduce) != 1 or not problem.spec.folds or not root.axes:
        return
    lane, units = root.axes[-1]
    gates = prod(e for _, e in root.axes[:-1])
    weights = largest(problem, root)
    plain = root.dtype is DType.F32 and root.epilogue is None and not any(ld.dynamic for ld, _ in loads(root.body))
    if (
        not plain
        or root.combine != "sum"
        or not 1 < gates <= MOST_SUMS
        or weights is None
        or weights.tensor not in problem.static
    ):
        return
    if types[weights.tensor].size != gates * units * root.reduce[0][1]:
        return  # of several rows
    packing = _packing(problem, [root])
    for step in BETWEEN:
        sharing = _sharing(problem, [root], packing, step, most)
        threads = min(step * sharing, most)
        if sharing > 1 and step < units and threads % problem.spec.subgroup_size == 0:
            s = _units(Sched(problem), lane, step, threads, sharing)
            s = _terms(s, root, packing, sharing, whole=True).pack(packing.items()).on_threads(threads)
            yield s.build(f"sum{step}_s{sharing}_x{threads}")


def _units(s: Sched, lane: str, step: int, threads: int, sharing: int) -> Sched:
    """Cut tasks of `step` units, and the units that their threads compute at once."""
    together = threads // sharing
    return s.split(lane, step, Kind.TASK).split(lane if step > together else None, together).bind(lane)


def _operands(problem: KernelProblem, lane: str) -> Iterator[tuple[str, list[str]]]:
    """Yield inputs that the point-wise part reads at its own point, and the axes of each copy. They are prefetched."""
    inputs = dict(problem.expr.inputs)
    read: dict[str, tuple[Index, ...]] = {}
    for stage in problem.stages.values():
        for load, _ in all_loads(stage) if not stage.reduce else ():
            if load.tensor in inputs and not load.dynamic:
                read.setdefault(load.tensor, load.index)
    for name, index in read.items():
        if _at_points(problem, [name]):
            others = [d for d, ix in enumerate(index) if ix != var(lane) and inputs[name].shape[d] > 1]
            yield name, [f"{name}{d}" for d in others]


def _packing(problem: KernelProblem, products: list[Stage]) -> dict[str, Layout]:
    """Return layouts of weights whose terms are strided: an unrolled network has them column by column."""
    found: dict[str, Layout] = {}
    for stage in products:
        ((axis, _),), load = stage.reduce, largest(problem, stage)
        if load is not None and problem.lane_stride(load.tensor, load.index, axis, stage) != 1:
            packed_terms(problem, stage, found)
    return found


def _terms(s: Sched, stage: Stage, packing: Mapping[str, Layout], sharing: int, whole: bool = False) -> Sched:
    """Return the nest of a product: threads take terms in vectors, and hold all sums of a unit.

    `whole`: the product is the whole operation, and the loops around it go along the units.
    """
    wide = term_lanes(s.problem, stage, packing)
    ((axis, _),) = stage.reduce
    s = s.bind(axis, wide).split(axis, wide * sharing)
    s = s.unroll(*(a for a, e in stage.axes if e > 1 and not (whole and a == stage.axes[-1][0])))
    return s.vectorize(axis) if wide > 1 else s


def _sharing(problem: KernelProblem, stages: list[Stage], packing: Mapping[str, Layout], units: int, most: int) -> int:
    """Return how many threads share each unit: a power of two, at most a subgroup, each with terms to load."""
    deep = min(s.reduce[0][1] // term_lanes(problem, s, packing) for s in stages)
    return min(problem.spec.subgroup_size, powers(max(most // units, 1))[-1], powers(max(deep, 1))[-1])


def _own(problem: KernelProblem, stage: Stage) -> bool:
    """Check whether a sum over one axis reads memory only, and is read only at the root's own point."""
    known = {name for name, _ in problem.expr.inputs}
    inside = all(ld.tensor in known and not ld.dynamic for ld, _ in loads(stage.body))
    return inside and len(stage.reduce) == 1 and stage.epilogue is None and _at_points(problem, [stage.name])


def _at_points(problem: KernelProblem, names: list[str]) -> bool:
    """Check whether stages are read at the root's own point: with its axes as they are, or at constants."""
    axes = {var(a) for a, _ in problem.root.axes}
    lane = var(problem.root.axes[-1][0])

    def own(load: Load) -> bool:
        return lane in load.index and all(ix in axes or not ix.terms for ix in load.index)

    read = [ld for s in problem.stages.values() for ld, _ in all_loads(s) if ld.tensor in names]
    return all(own(ld) for ld in read)
