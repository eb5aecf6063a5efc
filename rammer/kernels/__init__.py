"""rKernels from schedules: `candidates` proposes tilings of an operation for a vDevice."""

from __future__ import annotations

from rammer.errors import LoweringError
from rammer.ir.device import VDeviceSpec
from rammer.ir.kernel import RKernel
from rammer.ir.operator import Operation
from rammer.kernels import contraction, generic, recurrent, threads, winograd_schedule
from rammer.kernels.problem import Problem

MAX_CANDIDATES = 2


def candidates(operation: Operation, spec: VDeviceSpec) -> list[RKernel]:
    """One to six rKernels of `operation`, the best guess first, then other algorithms. Raises LoweringError if none."""
    if spec.max_threads > 1:
        return threads.candidates(operation, spec)
    problem = Problem.of(operation, spec)
    for family in (contraction, recurrent, generic):
        if schedules := list(family.schedules(problem))[:MAX_CANDIDATES]:
            return [*(problem.kernel(s) for s in schedules), *winograd_schedule.kernels(problem)]
    raise LoweringError(f"no schedule for {operation.kind}")
