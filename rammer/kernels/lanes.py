"""Choose the axis to vectorize: the one along which a stage issues the fewest instructions. Known as: vectorization."""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd, prod
from types import MappingProxyType

from rammer.cost.functions import slots_of_fold, slots_of_term
from rammer.cost.work import gather_slots
from rammer.ir.expr import REDUCERS, Load, Stage, loads
from rammer.ir.index import Div, Index, var, variables
from rammer.kernels.problem import KernelProblem, OfVector, all_loads

IN_MEMORY = 2.0  # a load and a store of sums that lie in memory
MOST_PATTERNS = 8  # vectors that are unrolled so that each has its own
EVERY_SECOND = 3.0  # two loads, and a choice of their numbers
NOWHERE: Mapping[str, int] = MappingProxyType({})


def pattern(load: Load, axis: str, lanes: int) -> int:
    """Return in how many patterns vectors along an axis read neighbours: three of x[2 * axis // 3]; 0 if in no such."""
    at = load.index[-1:]
    moving = [(atom, coef) for ix in at for atom, coef in ix.terms if axis in variables(Index(0, ((atom, coef),)))]
    if any(axis in variables(ix) for ix in load.index[:-1]) or load.dynamic or len(moving) != 1:
        return 0
    match moving[0]:
        case Div(arg, by), 1 if variables(arg) == {axis} and 0 < arg.coef(axis) <= by:
            repeats = by // gcd(arg.coef(axis) * lanes, by)
            return repeats if repeats <= MOST_PATTERNS else 0
    return 0


def lane_axis(problem: KernelProblem, stage: Stage, here: Mapping[str, int] = NOWHERE) -> str | None:
    """Return the axis along which vectors cost least; later axes win ties. None for a single point.

    `here`: how many points of an axis are computed at a time, for axes that are cut.
    """
    axes = [a for a, e in (*stage.reduce, *stage.axes) if min(e, here.get(a, e)) > 1]
    return min(reversed(axes), key=lambda axis: instructions(problem, stage, axis, here), default=None)


def instructions(problem: KernelProblem, stage: Stage, axis: str, here: Mapping[str, int] = NOWHERE) -> float:
    """Return the instructions per term of a stage with vectors along an axis. A part of a vector costs a whole one."""
    extents = {a: min(e, here.get(a, e)) for a, e in (*stage.axes, *stage.reduce)}
    vectors = -(-extents[axis] // problem.lanes)
    terms = prod(extents[a] for a, _ in stage.reduce)
    own = _of_vector(problem, stage, axis)
    arithmetic = own.arithmetic
    if axis in dict(stage.reduce):  # lanes are added at the end
        results = extents[axis] / (terms * vectors)
        in_memory = IN_MEMORY if extents[axis] % problem.lanes else 0.0  # sums of a partial vector lie in memory
        folds = slots_of_fold(REDUCERS[stage.combine][0], problem.lanes)
        arithmetic, stores = arithmetic + results * folds + in_memory, results
    else:
        stores = own.stored / terms
    return (arithmetic + own.fetched + stores) * vectors / extents[axis]


def _of_vector(problem: KernelProblem, stage: Stage, axis: str) -> OfVector:
    """Return the instructions of one vector along an axis. They are cached: all tilings have the same ones."""
    known = problem.of_vectors.get((id(stage), axis))
    if known is None:
        every = (ld for ld, _ in all_loads(stage) if ld.tensor != stage.name and problem.is_known(ld.tensor))
        fetched = sum(accesses(problem, stage, ld, axis) for ld in dict.fromkeys(every))
        step = problem.lane_stride(stage.name, tuple(var(a) for a, _ in stage.axes), axis, stage)
        own = OfVector(slots_of_term(stage), fetched, 1.0 if step in (0, 1) else gather_slots(problem.lanes))
        known = problem.of_vectors[id(stage), axis] = stage, own
    return known[1]


def stored(problem: KernelProblem, stage: Stage, axis: str) -> float:
    """Return the instructions that store one vector of a stage along an axis."""
    return _of_vector(problem, stage, axis).stored


def accesses(problem: KernelProblem, stage: Stage, load: Load, axis: str) -> float:
    """Return the instructions that load one vector along an axis."""
    if problem.packable(load, axis):
        return 1.0
    if any(axis in variables(ix) for d in load.dynamic for ld, _ in loads(d.value) for ix in ld.index):
        return gather_slots(problem.lanes)
    step = problem.lane_stride(load.tensor, load.index, axis, stage)
    if (step == 2 and problem.spec.masks) or (step is None and pattern(load, axis, problem.lanes)):
        return EVERY_SECOND
    return 1.0 if step in (0, 1) else gather_slots(problem.lanes)
