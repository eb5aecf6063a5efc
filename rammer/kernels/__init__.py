"""Generate the candidate rKernels of an operation for a vDevice, from schedules.

Known as: schedule templates (TVM, Ansor).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice

from rammer.errors import LoweringError
from rammer.ir.device import Execution, VDeviceSpec
from rammer.ir.kernel import USUAL, RKernel, Tuning
from rammer.ir.operator import Operation
from rammer.ir.tensor import DType
from rammer.kernels import update
from rammer.kernels.problem import KernelProblem
from rammer.kernels.schedule import Schedule
from rammer.kernels.vectors import (
    block_products,
    chain,
    channel_window,
    contraction,
    generic,
    matrix_unit,
    recurrent,
    rounded_chain,
    transforms,
    transposed,
    winograd_schedule,
)

MAX_CANDIDATES = 2
# Estimated, of one vEU. Below, a second tiling costs more to compile than it wins: by the times of single rKernels of
# six CNNs, the best guess alone is 0-1.4 % slower in sum, and 9-26 % fewer kernels are compiled.
MIN_CHOICE_US = 88.0


def candidates(operation: Operation, spec: VDeviceSpec, tuning: Tuning = USUAL) -> list[RKernel]:
    """Return one or more rKernels: the best guess first, then other algorithms, then those with more rTasks.

    Only those that fit the scratch are returned, if any does. SIMT tilings follow from scratch and vEUs: there `tuning`
    may only set `every_axis` or `finer`. Raises LoweringError if there are none.
    """
    usual = replace(tuning, task_multiples=(), per_image=False)
    found = {kernel.identity: kernel for kernel in _usual(operation, spec, usual)}
    for more in _tunings(spec, tuning.task_multiples):
        for kernel in _usual(operation, spec, more):
            found.setdefault(kernel.identity, replace(kernel, for_splitting=True))
    return list(found.values())


def _tunings(spec: VDeviceSpec, times: tuple[int, ...]) -> list[Tuning]:
    """Return what is asked of generators for `times` the usual number of rTasks."""
    if not times:
        return []
    if spec.execution is Execution.SIMT:
        return [Tuning(every_axis=True)]
    return [Tuning(small=True), *(Tuning(n * spec.num_veus, every_axis=True, small=True) for n in times)]


def _usual(operation: Operation, spec: VDeviceSpec, tuning: Tuning) -> list[RKernel]:
    if operation.expr.into:
        return list(update.kernels(KernelProblem(operation, spec, operation.expr, {}, frozenset(), tuning)))
    if spec.execution is Execution.SIMT:
        if tuning != USUAL and not tuning.every_axis:
            raise LoweringError(f"{operation.kind}: SIMT has no {tuning}", hint="tiles follow from scratch and vEUs")
        from rammer.kernels.threads import candidates as threads  # and all of its tilings, which a CPU needs none of

        return threads.per_image_kernels(operation, spec) if tuning.every_axis else threads.candidates(operation, spec)
    if any(stage.dtype is DType.F64 for stage in operation.expr.stages):
        spec = replace(spec, registers=spec.registers // 2)  # a vector takes two
    problem = KernelProblem.of(operation, spec, tuning)
    found: list[RKernel] = []
    for kernels in _proposed(problem):
        found += kernels
        if fitting := [k for k in found if k.scratch_bytes <= spec.scratch_bytes]:
            return fitting
    if not found:
        raise LoweringError(f"no schedule for {operation.kind}")
    return found


def _proposed(problem: KernelProblem) -> Iterator[list[RKernel]]:
    """Yield the rKernels of one family after another. Later families are needed only if no earlier one fits."""
    if not all(extent for _, extent in problem.root.axes):  # there is nothing to compute
        yield [problem.kernel(s) for s in islice(generic.schedules(problem), 1)]
        return
    others, certain = winograd_schedule.kernels(problem)
    if certain:
        yield others
        others = []
    most = 1 if others or problem.microseconds < MIN_CHOICE_US else MAX_CANDIDATES
    others = [*others, *_kernels(problem, transposed.schedules, most)]
    if transforms.suits(problem):
        yield _kernels(problem.unmerged, transforms.schedules, most)
    if rows := chain.chained(problem):
        yield _kernels(rows, chain.schedules, most)
    # A recurrent cell gets two numbers of tasks: the scheduler decides whether a step of a chain is worth a barrier.
    for schedules, count in (
        (block_products.schedules, most),
        (contraction.schedules, most),
        (recurrent.schedules, MAX_CANDIDATES),
        (channel_window.schedules, most),
        (generic.schedules, MAX_CANDIDATES * (1 + len(problem.root.axes)) if problem.tuning.every_axis else most),
    ):
        if found := _kernels(problem, schedules, count):
            yield [*found, *others]
    # Stages that were kept are recomputed where they are used; all others are kept for one vector at a time.
    yield _kernels(problem.keeping(frozenset()), generic.least_scratch_schedules, most)


def _kernels(problem: KernelProblem, family: Callable[[KernelProblem], Iterator[Schedule]], most: int) -> list[RKernel]:
    """Return the rKernels of a family and those for the matrix unit; none if the family has none."""
    schedules = list(islice(family(problem), most))
    if schedules and family is not generic.least_scratch_schedules:
        schedules = [*_on_matrix_unit(problem), *schedules]
    if all(problem.own_packing(s) is not None for s in schedules):
        return [problem.kernel(s) for s in schedules]
    return _kernels(problem.unmerged, family, most)  # panels end inside of a merged axis


def _on_matrix_unit(problem: KernelProblem) -> list[Schedule]:
    """Return schedules for the vEU's matrix units that suit the operation."""
    families = (matrix_unit.schedules, recurrent.schedules, rounded_chain.schedules)
    return [s for unit in matrix_unit.units_of(problem.spec) for family in families for s in family(problem, unit)]
