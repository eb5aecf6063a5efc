"""rKernels from schedules: `candidates` proposes tilings of an operation for a vDevice."""

from __future__ import annotations

from itertools import islice

from rammer.errors import LoweringError
from rammer.ir.device import VDeviceSpec
from rammer.ir.kernel import RKernel
from rammer.ir.operator import Operation
from rammer.kernels import contraction, generic, matrix_unit, recurrent, threads, winograd_schedule
from rammer.kernels.problem import Problem
from rammer.kernels.schedule import Schedule

MAX_CANDIDATES = 2
# Of one vEU, estimated. Below, a second tiling costs more to compile than it wins: by the times of single rKernels of
# six CNNs, the best guess alone is 0-1.4 % slower in sum, and 9-26 % fewer kernels are compiled.
MIN_CHOICE_US = 200.0


def candidates(operation: Operation, spec: VDeviceSpec) -> list[RKernel]:
    """A few rKernels, the best guess first, then other algorithms. Raises LoweringError if there are none."""
    if spec.max_threads > 1:
        return threads.candidates(operation, spec)
    problem = Problem.of(operation, spec)
    others, certain = winograd_schedule.kernels(problem)
    if certain:
        return others
    few = 1 if others or problem.microseconds < MIN_CHOICE_US else MAX_CANDIDATES
    schedules = _schedules(problem, few)
    if any(problem.own_packing(s) is None for s in schedules):  # panels that end inside of a merged axis
        problem = Problem.of(operation, spec, flat=False)
        schedules = _schedules(problem, few)
    return [*map(problem.kernel, schedules), *others]


def _schedules(problem: Problem, few: int) -> list[Schedule]:
    """For the matrix unit, and of the first family that has any. Raises LoweringError if none has."""
    # Of a recurrent cell the number of tasks is chosen: whether a step of a chain is worth a barrier.
    for family, count in ((contraction, few), (recurrent, MAX_CANDIDATES), (generic, few)):
        if schedules := list(islice(family.schedules(problem), count)):
            return [*_on_matrix_unit(problem), *schedules]
    raise LoweringError(f"no schedule for {problem.operation.kind}")


def _on_matrix_unit(problem: Problem) -> list[Schedule]:
    """Schedules for the vEU's matrix unit, if it has one that suits the operation."""
    return [*matrix_unit.schedules(problem), *recurrent.schedules(problem, unit=True)] if problem.spec.parts else []
